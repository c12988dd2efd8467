"""Row 49: nginx in front of margay serve, with its defaults, with gzip, as docs/server.md says, and with deploy/nginx/margay.conf.

nginx gathers what it passes on unless the reply says otherwise (X-Accel-Buffering: no). That these tests would see it is
shown by telling nginx not to heed that.
"""
import http.client, json, os, re, shutil, socket, ssl, statistics, subprocess, time, zlib

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


# --- deploy/nginx/margay.conf as it stands: only names, ports and the certificate's place are changed ---
NAME = "margay.example"


class Site:
    """nginx with the site file, and its certificate; port 443 is `port`, 80 is `plain`."""

    def __init__(self, folder, upstream):
        self.folder = folder
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0)), b.bind(("127.0.0.1", 0))
            self.port, self.plain = a.getsockname()[1], b.getsockname()[1]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}", "-addext",
                        f"subjectAltName=DNS:{NAME}", "-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"], check=True, capture_output=True)
        text = (ROOT / "deploy" / "nginx" / "margay.conf").read_text()
        for old, new, times in (("server 127.0.0.1:8080;", f"server {upstream};", 1), ("/etc/letsencrypt/live/margay.example", str(folder), 2),
                                ("listen 443 ", f"listen 127.0.0.1:{self.port} ", 1), ("listen 80;", f"listen 127.0.0.1:{self.plain};", 1)):
            assert text.count(old) == times, old
            text = text.replace(old, new)
        text = re.sub(r"^ *listen \[::\].*\n", "", text, flags=re.M)
        conf = "daemon off; master_process off; pid {0}/pid; error_log {0}/error; events {{}} http {{ access_log off; gzip on; gzip_types *;\n" \
            "client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n{1} }}\n"
        (folder / "nginx.conf").write_text(conf.format(folder, text))
        program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        if not program:
            (pytest.fail if CI else pytest.skip)("nginx is not installed")
        self.process = subprocess.Popen([program, "-c", folder / "nginx.conf", "-p", folder, "-e", folder / "error"], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, (folder / "error").read_text()
                time.sleep(0.02)

    def curl(self, *args, path="/live", http="--http2"):
        p = subprocess.run(["curl", "-sS", http, "--cacert", self.folder / "fullchain.pem", "--resolve", f"{NAME}:{self.port}:127.0.0.1",
                            *map(str, args), f"https://{NAME}:{self.port}{path}"], capture_output=True, timeout=120)
        assert p.returncode == 0, p.stderr
        return p.stdout

    def connect(self):
        context = ssl.create_default_context(cafile=self.folder / "fullchain.pem")
        return context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=60), server_hostname=NAME)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    s = Server("--sse-ping-interval", 1, "--allowed-hosts", NAME, "--no-loop-check", env={"MARGAY_CPU": "ref"})
    n = Site(tmp_path_factory.mktemp("site"), f"127.0.0.1:{s.port}")
    n.server = s
    yield n
    n.process.terminate()
    n.process.wait(20)
    assert s.stop() == 0


def test_site_answers(site, tmp_path):
    """A picture of 20 MB, over HTTP/2; the answer's headers; a body over the limit gets margay's own answer."""
    body = tmp_path / "body"
    body.write_text(json.dumps({**question(A["question"], picture(A["image"])), "unread": "x" * 20_000_000}))
    head = tmp_path / "head"
    reply = json.loads(site.curl("-D", head, "-H", "Content-Type: application/json", "-d", f"@{body}", path="/v1/chat/completions"))
    assert reply["choices"][0]["message"]["content"] == A["answer"]
    text = head.read_text().lower()
    assert text.startswith("http/2 200") and "strict-transport-security: max-age=" in text and "x-request-id:" in text
    body.write_bytes(b'{"unread":"' + b"x" * (64 * 2**20) + b'"}')
    reply = json.loads(site.curl("-H", "Content-Type: application/json", "-H", "Expect:", "--data-binary", f"@{body}", path="/v1/chat/completions"))
    assert reply["error"]["code"] == "body_too_large"


def test_site_streams(site):
    """Tokens one by one, through HTTP/2 and gzip switched on around the site."""
    p = subprocess.Popen(["curl", "-sSN", "--http2", "--compressed", "--cacert", site.folder / "fullchain.pem", "--resolve",
                          f"{NAME}:{site.port}:127.0.0.1", "-d", json.dumps(LONG), "-H", "Content-Type: application/json",
                          f"https://{NAME}:{site.port}/v1/chat/completions"], stdout=subprocess.PIPE)
    counts = []
    while sum(counts) < 60:
        data = os.read(p.stdout.fileno(), 65536)
        assert data
        if n := data.count(b"data: "):
            counts.append(n)
    p.kill(), p.wait(), p.stdout.close()
    assert statistics.median(counts) <= 2, counts
    site.server.wait(site.server.idle, 15)


def test_site_websocket_and_page(site):
    """The page's own origin may ask; another site's may not."""
    for origin, status in ((f"https://{NAME}:{site.port}", b" 101 "), ("https://evil.example", b" 403 ")):
        with site.connect() as c:
            c.sendall(f"GET /ws HTTP/1.1\r\nHost: {NAME}:{site.port}\r\nOrigin: {origin}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
            f = c.makefile("rb")
            assert status in f.readline(), origin
    page = site.curl(path="/")
    assert b"<!doctype html>" in page[:40].lower()
    r = json.loads(site.curl("-H", f"Origin: https://{NAME}:{site.port}", "-H", "Content-Type: application/json", "-d",
                             json.dumps(question(A["question"], picture(A["image"]))), path="/v1/chat/completions"))
    assert r["choices"][0]["message"]["content"] == A["answer"]


def test_site_turns_to_tls_and_keeps_metrics(site):
    c = http.client.HTTPConnection("127.0.0.1", site.plain, timeout=60)
    c.request("POST", "/v1/chat/completions?a=b", "{}", {"Host": NAME})
    r = c.getresponse()
    assert r.status == 308 and r.headers["Location"] == f"https://{NAME}/v1/chat/completions?a=b"
    c.close()
    assert b"margay_requests_running" in site.curl(path="/metrics")
    text = (ROOT / "deploy" / "nginx" / "margay.conf").read_text()
    assert re.search(r"location = /metrics \{\s+allow 127\.0\.0\.1;\s+allow ::1;\s+deny all;", text)
