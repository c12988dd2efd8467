"""margay serve and pictures by URL: nothing but public addresses of allowed hosts is ever connected to.

The server runs with shim.c preloaded: names resolve as a table says, addresses 93.184.x.x lead to a web server of this
test, and every look-up and connection is on record, so that "no packet to the target" is checked, not assumed.
"""
import http.server, json, os, re, shutil, subprocess, threading, time

import pytest

from conftest import RIGHT, SANITIZED, picture, question
from test_rows import Trap

pytestmark = pytest.mark.skipif(SANITIZED, reason="sanitizers want to be loaded first; net.remote runs under them")
HERE = os.path.dirname(__file__)


class Internet:
    """Serves /picture, /to?URL (302), /endless, /hang, /drip, /STATUS at every public address."""

    def __init__(self):
        over = self.over = threading.Event()
        asked = self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                asked.append((self.headers["Host"], self.path, dict(self.headers)))
                path, _, query = self.path.partition("?")
                if path == "/picture":
                    body = picture(RIGHT[0]["image"])
                    self.reply(200, body, [("Content-Type", "text/html")])
                elif path == "/to":
                    self.reply(302, b"", [("Location", query)])
                elif path == "/hang":
                    over.wait(60)
                elif path in ("/endless", "/drip"):
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    try:
                        while not over.wait(0.1 if path == "/drip" else 0):
                            piece = b"\x89PNG" * (1 if path == "/drip" else 4096)
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    except OSError:
                        self.close_connection = True
                else:
                    self.reply(int(path[1:]), b"no picture", [])

            def reply(self, status, body, fields):
                self.send_response(status)
                for field in fields:
                    self.send_header(*field)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    cc = os.environ.get("CC", "cc")
    assert shutil.which(cc), "a C compiler"
    subprocess.run([cc, "-shared", "-fPIC", "-O1", "-o", folder / "shim.so", os.path.join(HERE, "shim.c"), "-ldl", "-lpthread"], check=True)
    return folder / "shim.so"


@pytest.fixture
def internet():
    i = Internet()
    yield i
    i.close()


@pytest.fixture
def reach(serve, shim, internet, tmp_path):
    """reach(names, *options): a server with that table of names; .record() is what it did."""
    def start(names, *options):
        table, log = tmp_path / "names", tmp_path / "record"
        table.write_text("".join(f"{name} {' '.join(addresses)}\n" for name, addresses in names.items()))
        log.touch()
        s = serve(*options, env={"LD_PRELOAD": str(shim), "SHIM_NAMES": str(table), "SHIM_LOG": str(log), "SHIM_PORT": str(internet.port)})
        s.record = lambda: log.read_text().splitlines()
        s.reached = lambda: {line.split()[1] for line in s.record() if line.startswith("connect")}
        return s
    return start


PUBLIC = "93.184.216.34"


def refused(s, url, code="image_fetch", **more):
    r = s.chat("x", url, **more)
    assert r.status == 400, (url, r.body)
    assert r.json["error"]["code"] == code and r.json["error"]["param"] == "messages[0].content[0].image_url", (url, r.body)
    return r.json["error"]["message"]


def test_an_allowed_host_is_fetched_from(reach, internet):
    case = RIGHT[0]
    s = reach({"a.example": [PUBLIC], "b.example": ["93.184.1.1"], "sub.c.example": [PUBLIC]},
              "--allowed-media-domains", "a.example", "--allowed-media-domains", "*.c.example", "--allowed-media-domains", "b.example:8081")
    for url in ("http://a.example/picture", "http://A.EXAMPLE./picture?x=1#y", "http://sub.c.example/picture", "http://b.example:8081/picture",
                "http://a.example/to?http://b.example:8081/to?/picture"):
        r = s.chat(case["question"], url)
        assert r.status == 200 and r.text == case["answer"], (url, r.body)
        assert r.json["images"][0]["format"] == "png"  # whatever Content-Type said
    stream = s.chat(case["question"], "http://a.example/picture", stream=True)
    assert stream.streamed == case["answer"]
    headers = internet.asked[0][2]
    assert not {h.lower() for h in headers} & {"cookie", "authorization", "referer", "x-forwarded-for"}, headers
    asked = len(internet.asked)
    for url in ("http://a.example:81/picture", "http://b.example/picture", "http://c.example/picture", "http://xc.example/picture",
                "http://a.example.evil.example/picture", "http://user@a.example/picture", "http://user:a@a.example/", "http://" + "h" * 200 + "/"):
        forbidden = "user" not in url
        message = refused(s, url, "host_not_allowed" if forbidden else "image_fetch")
        assert "h" * 8 not in message and "example" not in message, message
    assert len(internet.asked) == asked and s.reached() == {PUBLIC, "93.184.1.1"}


def test_addresses_that_are_not_public(reach):
    """Row 47, with every host allowed: the address alone decides."""
    trap = Trap()
    names = {"v4.example": ["10.1.2.3"], "v6.example": ["fd00::1"], "mapped.example": ["::ffff:10.0.0.1"], "meta.example": ["169.254.169.254"],
             "local.example": ["127.0.0.1"], "both.example": ["127.0.0.1,::1"], "nat64.example": ["64:ff9b::7f00:1"], "six.example": ["2002:7f00:1::1"],
             "cgnat.example": ["100.64.0.1"], "any.example": ["0.0.0.0"]}
    s = reach(names, "--allowed-media-domains", "*", "--allowed-media-domains", f"*:{trap.port}")
    hosts = ["127.0.0.1", "[::1]", "169.254.169.254", "10.0.0.1", "192.168.0.1", "172.16.0.1", "[::ffff:10.0.0.1]", "[::ffff:127.0.0.1]",
             "[::ffff:7f00:1]", "2130706433", "0x7f000001", "0177.0.0.1", "017700000001", "127.1", "0x7f.1", "0.0.0.0", "0", "[::]", "[fe80::1]", "[fd00::1]",
             "[64:ff9b::7f00:1]", "%31%32%37.0.0.1", "127.0.0.1.", *names]
    for host in hosts:
        for url in (f"http://{host}:{trap.port}/a.png", f"http://{host}/", f"https://{host}/a.png"):
            message = refused(s, url)
            assert not re.search(r"\d+\.\d+\.\d+\.\d+|[0-9a-f]*::", message.replace(host.strip("[]"), "")), message
    for url in (f"http://localhost:{trap.port}/", "http://ip6-localhost/", "http://nowhere.example/"):
        refused(s, url)
    for url in ("file:///etc/passwd", "file://localhost/etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:70/_x", "dict://127.0.0.1/", "/etc/passwd"):
        assert s.chat("x", url).status == 400, url
    assert s.reached() == set() and trap.empty()


@pytest.mark.parametrize("stream", [False, True])
def test_redirects_are_judged_anew(reach, internet, stream):
    trap = Trap()
    s = reach({"a.example": [PUBLIC], "inner.example": ["10.0.0.7"], "other.example": ["93.184.9.9"]}, "--allowed-media-domains", "a.example",
              "--allowed-media-domains", f"127.0.0.1:{trap.port}", "--allowed-media-domains", "inner.example", "--allowed-media-domains", "169.254.169.254")
    for to in (f"http://127.0.0.1:{trap.port}/", "http://inner.example/", "http://169.254.169.254/latest/meta-data/", "http://other.example/picture",
               f"//127.0.0.1:{trap.port}/", "file:///etc/passwd", "ftp://a.example/", "gopher://a.example/", "http://u:p@a.example/picture", "", "http://"):
        refused(s, f"http://a.example/to?{to}", stream=stream)
    assert "redirects" in refused(s, "http://a.example/to?/to?/to?/to?/picture", stream=stream)
    assert s.chat(RIGHT[0]["question"], "http://a.example/to?/to?/to?/picture", stream=stream).status == 200
    assert s.reached() == {PUBLIC} and trap.empty()


def test_names_that_change(reach, internet):
    """DNS rebinding: what is judged is the address that is connected to, at each connection."""
    trap = Trap()
    s = reach({"first.example": [PUBLIC, "127.0.0.1"], "second.example": ["127.0.0.1", PUBLIC], "mixed.example": [f"127.0.0.1,{PUBLIC}"]},
              *(x for a in ("first", "second", "mixed") for p in ("", f":{trap.port}") for x in ("--allowed-media-domains", f"{a}.example{p}")))
    refused(s, f"http://first.example/to?http://first.example:{trap.port}/picture")
    refused(s, f"http://first.example:{trap.port}/picture")
    refused(s, f"http://second.example:{trap.port}/picture")
    assert s.chat(RIGHT[0]["question"], "http://second.example/picture").text == RIGHT[0]["answer"]
    s.chat("x", "http://mixed.example/picture", max_tokens=1)
    assert s.reached() == {PUBLIC} and trap.empty()


def test_what_comes_is_bounded(reach, internet):
    s = reach({"a.example": [PUBLIC]}, "--allowed-media-domains", "a.example", "--max-image-bytes", 1 << 20)
    before = s.memory()
    assert "1048576" in refused(s, "http://a.example/endless")
    for status in (404, 500, 204, 206, 403):
        refused(s, f"http://a.example/{status}")
    begun, out = time.monotonic(), []
    threads = [threading.Thread(target=lambda: out.append(refused(s, "http://a.example/endless"))) for _ in range(20)]
    [t.start() for t in threads], [t.join(60) for t in threads]
    assert len(out) == 20 and time.monotonic() - begun < 30
    assert s.memory() - before < 32 << 10
    assert s.chat(RIGHT[0]["question"], "http://a.example/picture").text == RIGHT[0]["answer"]


def test_leaving_while_it_is_fetched(reach, internet):
    s = reach({"a.example": [PUBLIC]}, "--allowed-media-domains", "a.example")
    for path in ("/hang", "/drip"):
        asked = len(internet.asked)
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(question("x", "http://a.example" + path)))
        s.wait(lambda: len(internet.asked) > asked)
        assert s.chat(RIGHT[0]["question"], "http://a.example/picture").text == RIGHT[0]["answer"]  # nobody waits for it
        c.sock.close()
        c.close()
    s.wait(lambda: re.search(r'requests_cancelled_total\{phase="fetch"\} 2', s.get("/metrics").body.decode()), 5)
