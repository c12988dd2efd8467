"""A Hugging Face compatible server on 127.0.0.1 that fails on demand, for test_pull.py.

`Hub(files)` lists and serves {name: bytes} under REPO at COMMIT. A test sets `hub.on_file`, a function
(request, name, data) -> None or an answer made by itself through `request`; returning False serves as usual. What was
asked is recorded. Everything is bounded: sockets time out, threads are daemons.
"""
import hashlib
import http.server
import json
import re
import socket
import threading
import time

REPO = "owner/small"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secretTOKEN123"


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), str(v))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send_body(body)

    def send_body(self, body, piece=1 << 18, rate=None):
        """Sends; `rate`: bytes a second."""
        view = memoryview(body)
        while view:
            self.wfile.write(view[:piece])
            view = view[piece:]
            if rate:
                time.sleep(piece / rate)

    def cut(self):
        """Ends the connection as a broken line does."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def range_of(self, data):
        """(first, end) that the client asks for, or None."""
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        return m and (int(m[1]), min(int(m[2] or len(data) - 1) + 1, len(data)))

    def head_of(self, data, **more):
        """Sends the head of an ordinary answer; returns its body."""
        wanted = self.range_of(data)
        if wanted and wanted[0] >= len(data):
            self.answer(416, Content_Range=f"bytes */{len(data)}")
            return b""
        first, end = wanted or (0, len(data))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        head = {"Content-Length": end - first, "ETag": '"' + hashlib.md5(data).hexdigest() + '"', **more}
        for k, v in head.items():
            self.send_header(k, str(v))
        self.end_headers()
        return memoryview(data)[first:end]

    def do_GET(self):
        hub = self.server.hub
        with self.server.lock:
            hub.asked.append((self.server.server_port, self.path, dict(self.headers)))
        if self.server is not hub.server:
            return hub.on_cdn(self)
        if self.path.startswith("/api/models/"):
            return hub.on_api(self)
        m = re.fullmatch(rf"/{REPO}/resolve/([^/]+)/([^/?]+)", self.path)
        if not m or m[2] not in hub.files:
            return self.answer(404)
        with self.server.lock:
            hub.tries[m[2]] = hub.tries.get(m[2], 0) + 1
        if hub.on_file and hub.on_file(self, m[2], hub.files[m[2]]) is not False:
            return None
        self.send_body(self.head_of(hub.files[m[2]]))


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, hub):
        super().__init__(("127.0.0.1", 0), Request)
        self.hub, self.lock = hub, threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # the client has gone


class Hub:
    def __init__(self, files, repo=REPO):
        self.files, self.repo = dict(files), repo
        self.asked, self.tries = [], {}
        self.on_file, self.on_cdn = None, None
        self.listing = None  # what the API says instead of the files as they are
        self.servers = []
        self.server = self.more()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def more(self):
        """A further server, which answers by on_cdn."""
        self.servers.append(Server(self))
        return self.servers[-1]

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def entry(self, name, lfs=None):
        data = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        e = {"rfilename": name, "size": len(data), "blobId": blob}
        if name.endswith(".safetensors") if lfs is None else lfs:
            e["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
            e["blobId"] = "f" * 40  # of the pointer
        return e

    def list(self):
        return {"id": self.repo, "sha": COMMIT, "gated": False, "cardData": {"tags": ["x"]},
                "siblings": [self.entry(name) for name in self.files]}

    def on_api(self, request):
        if not re.fullmatch(rf"/api/models/{self.repo}/revision/(main|v1|refs%2Fpr%2F1|{COMMIT})\?blobs=true", request.path):
            return request.answer(404, b'{"error":"Repository not found"}')
        body = self.listing if isinstance(self.listing, bytes) else json.dumps(self.listing or self.list()).encode()
        return request.answer(200, body, Content_Type="application/json")

