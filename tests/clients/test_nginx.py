"""Row 49: nginx in front of margay serve, with its defaults, with gzip, and as docs/server.md says.

nginx gathers what it passes on unless the reply says otherwise (X-Accel-Buffering: no). That these tests would see it is
shown by telling nginx not to heed that.
"""
import http.client, json, os, re, shutil, socket, statistics, subprocess, time, zlib

import pytest

from conftest import CI
from serve_conftest import RIGHT, ROOT, Server, data_url, picture, question

A = RIGHT[0]
LONG = {"max_tokens": 100000, "ignore_eos": True, "temperature": 5, "top_k": 0, "top_p": 1, "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
CONF = """daemon off; master_process off; pid {tmp}/pid; error_log {tmp}/error; events {{}}
http {{ access_log off; client_body_temp_path {tmp}/body; proxy_temp_path {tmp}/proxy; fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u;
scgi_temp_path {tmp}/s; {more}
server {{ listen 127.0.0.1:{port}; {location} }} }}
"""
DEFAULT = "location / { proxy_pass http://127.0.0.1:8080; }"
KINDS = {"default": ("", DEFAULT), "gzip": ("gzip on;", DEFAULT),
         "gzip for streams": ("gzip on; gzip_types *; gzip_min_length 1;", DEFAULT),
         "as documented": ("", re.search(r"^    (location / \{.*?^    \})", (ROOT / "docs" / "server.md").read_text(), re.M | re.S)[1])}


@pytest.fixture
def nginx(tmp_path):
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if not program:
        (pytest.fail if CI else pytest.skip)("nginx is not installed")
    started = []

    def start(server, more="", location=DEFAULT):
        assert "127.0.0.1:8080" in location
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        conf = tmp_path / "nginx.conf"
        conf.write_text(CONF.format(tmp=tmp_path, port=port, more=more, location=location.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")))
        started.append(subprocess.Popen([program, "-c", conf, "-p", tmp_path, "-e", tmp_path / "error"], stderr=subprocess.DEVNULL))
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return port
            except OSError:
                assert time.monotonic() < end and started[-1].poll() is None, (tmp_path / "error").read_text()
                time.sleep(0.02)
    yield start
    for p in started:
        p.terminate()
        p.wait(20)


@pytest.fixture(scope="module")
def slow():
    """One answer at a time, and that slowly."""
    s = Server("--sse-ping-interval", 1, "--parallel", 1, "--no-loop-check", env={"MARGAY_CPU": "ref"})
    yield s
    assert s.stop() == 0


class Stream:
    """A question whose reply is read as it comes, undone from gzip."""

    def __init__(self, port, **body):
        self.begun = time.monotonic()
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "Accept-Encoding": "gzip"})
        self.r, self.z, self.text = None, None, b""

    def more(self):
        """What one read brings; None at the end."""
        if not self.r:
            self.r = self.c.getresponse()
            assert self.r.status == 200 and self.r.headers["Content-Type"].startswith("text/event-stream")
            if self.r.headers["Content-Encoding"] == "gzip":
                self.z = zlib.decompressobj(31)
        data = self.r.read1(65536)
        if not data:
            return None
        data = self.z.decompress(data) if self.z else data
        self.text += data
        return data

    def events(self, n):
        """How many of the events come with each read that brings any, and when the first came."""
        counts, first = [], None
        while sum(counts) < n:
            data = self.more()
            assert data is not None
            if k := data.count(b"data: "):
                counts.append(k)
                first = first or time.monotonic() - self.begun
        return counts, first

    def leave(self):
        sock = self.c.sock
        if sock:
            sock.close()
        if self.r:
            self.r.close()
        self.c.close()


@pytest.mark.parametrize("kind", KINDS)
def test_events_come_one_by_one(slow, nginx, kind):
    s = Stream(nginx(slow, *KINDS[kind]), **LONG)
    counts, first = s.events(60)
    assert first < 15 and statistics.median(counts) <= 2, counts
    assert bool(s.z) == (kind == "gzip for streams")
    s.leave()
    slow.wait(slow.idle, 15)


def test_it_would_be_seen(slow, nginx):
    s = Stream(nginx(slow, location=DEFAULT.replace("{", "{ proxy_ignore_headers X-Accel-Buffering;")), **LONG)
    counts, _ = s.events(60)
    assert statistics.median(counts) >= 8, counts
    s.leave()
    slow.wait(slow.idle, 15)


@pytest.mark.parametrize("kind", KINDS)
def test_heartbeat(slow, nginx, kind):
    """A question that waits for its place: nothing to say yet, but nobody is left without a sign."""
    port = nginx(slow, *KINDS[kind])
    busy = Stream(port, **LONG)
    busy.events(3)
    waits = Stream(port, **{**LONG, "max_tokens": 2})
    while not waits.text:
        assert waits.more() is not None
    assert time.monotonic() - waits.begun < 15
    while waits.text.count(b": ping\n\n") < 2:
        assert waits.more() is not None
    assert time.monotonic() - waits.begun < 20 and waits.text.count(b"data: ") == 1  # the role
    busy.leave()
    while waits.more() is not None:
        pass
    assert waits.text.endswith(b"data: [DONE]\n\n")
    slow.wait(slow.idle, 15)


def test_whole_replies_and_large_questions(server, nginx):
    """Also a body that nginx keeps in a file on its way (its default limit is 1 MB)."""
    port = nginx(server, "gzip on; gzip_types *; client_max_body_size 64m;")
    for pad in (0, 500_000, 20_000_000):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("POST", "/v1/chat/completions", json.dumps({**question(A["question"], picture(A["image"])), "unread": "x" * pad}))
        r = c.getresponse()
        body = r.read()
        assert r.status == 200 and r.headers["x-request-id"]
        assert json.loads(body)["choices"][0]["message"]["content"] == A["answer"]
        c.request("POST", "/v1/chat/completions", '{"messages": []}')
        r = c.getresponse()
        assert r.status == 400 and json.loads(r.read())["error"]["param"] == "messages"
        c.close()


def test_websocket_as_documented(server, nginx):
    c = socket.create_connection(("127.0.0.1", nginx(server, *KINDS["as documented"])), timeout=60)
    c.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
              b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
    f = c.makefile("rb")
    assert b" 101 " in f.readline()
    while f.readline().strip():
        pass
    data = json.dumps({"question": A["question"], "images": [data_url(picture(A["image"]))], "temperature": 0}).encode()
    size = b"\xfe" + len(data).to_bytes(2, "big") if len(data) < 65536 else b"\xff" + len(data).to_bytes(8, "big")
    c.sendall(b"\x81" + size + b"\0\0\0\0" + data)
    while True:
        kind, n = f.read(2)
        n = int.from_bytes(f.read(2 if n == 126 else 8), "big") if n > 125 else n
        text = f.read(n)
        if kind == 0x89:  # a ping
            continue
        assert kind == 0x81, (kind, text)
        message = json.loads(text)
        assert message["type"] in ("progress", "token", "result"), message
        if message["type"] == "result":
            break
    assert message["text"] == A["answer"]
