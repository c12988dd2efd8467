"""Requests and replies: framing, routes, limits, pipelining, compression, CORS."""
import gzip
import http.client
import json
import re
import signal
import socket
import time

import pytest

from server import Reply, read_all, read_until, replies

GET = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


def test_get(plain):
    r = plain.get("/hello")
    assert r.status == 200 and r.body == b"hello\n" and r.rest == b""
    assert r.field("content-type") == "text/plain; charset=utf-8"
    assert r.field("connection") == "close"
    assert re.fullmatch(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", r.field("date"))
    assert re.fullmatch(r"[0-9a-f]{32}", r.field("x-request-id"))


def test_http_client_keeps_the_connection(plain):
    c = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=30)
    for i in range(20):
        c.request("POST", "/echo", body=b"x" * i * 1000, headers={"Content-Type": "a/b"})
        r = c.getresponse()
        assert r.status == 200 and r.read() == b"x" * i * 1000 and r.headers["content-type"] == "a/b"
        first = c.sock if i == 0 else first
        assert c.sock is first
    c.request("POST", "/echo", body=(b"part%d" % i for i in range(3)), encode_chunked=True,
              headers={"Transfer-Encoding": "chunked"})
    assert c.getresponse().read() == b"part0part1part2"
    c.close()


def test_request_id(plain):
    assert plain.get("/hello", headers="X-Request-Id: abc-123\r\n").field("x-request-id") == "abc-123"
    for bad in ("a b", "x" * 129, "", "caf\xe9"):
        got = plain.get("/hello", headers=f"x-request-id: {bad}\r\n").field("x-request-id")
        assert re.fullmatch(r"[0-9a-f]{32}", got)


def test_head_and_options(plain):
    r = Reply(plain.ask(b"HEAD /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), head_only=True)
    assert r.status == 200 and r.field("content-length") == "6" and r.rest == b""
    r = Reply(plain.ask(b"HEAD /chunks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), head_only=True)
    assert r.status == 200 and r.rest == b""
    r = plain.get("/echo", "OPTIONS")
    assert r.status == 204 and r.field("allow") == "POST, PUT, OPTIONS"
    assert plain.get("*", "OPTIONS").status == 204
    assert plain.get("/nothing", "OPTIONS").status == 404


def test_routes(plain):
    r = plain.get("/hello", "POST", body=b"x")
    assert r.status == 405 and r.field("allow") == "GET, HEAD, OPTIONS"
    assert json.loads(r.body)["error"]["code"] == "method_not_allowed"
    for path in ("/nothing", "/hello/", "/", "/item/", "/item", "/item/a/b", "//hello", "/item/a/more/"):
        assert plain.get(path).status == 404, path

    def info(path):
        r = plain.get(path)
        assert r.status == 200, path
        return dict(line.split("=", 1) for line in r.body.decode().splitlines())
    assert info("/item/a%2Fb%20c")["id"] == "a/b c"
    assert info("/item/7/more")["id"] == "7"
    assert info("/files/a/b%20c/")["rest"] == "a/b c/"
    assert info("/%69nfo?a=1+2%263&b=")["a"] == "1 2&3"
    assert info("/info?b=1&%61=x&a=y")["a"] == "x"
    assert info("/info?a")["a"] == ""
    assert info("http://other/info?a=5")["a"] == "5"
    assert info("/info")["tag"] == "3" and info("/info")["a"] == "(none)"
    for bad in ("/item/%", "/item/%4", "/item/%zz", "/item/%00"):
        assert plain.get(bad).status == 400, bad


def test_prefix(serve):
    s = serve(prefix="/api")
    assert s.get("/api/hello").status == 200
    assert s.get("/hello").status == 404


SMUGGLING = {
    "both lengths": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    "two lengths": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "length list": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc",
    "length sign": b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
    "folded": b"GET /hello HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "bare LF": b"GET /hello HTTP/1.1\nHost: x\n\n",
    "bare LF in a field": b"GET /hello HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n",
    "bare CR": b"GET /hello HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n",
    "blank before the colon": b"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length : 0\r\n\r\n",
    "no name": b"GET /hello HTTP/1.1\r\nHost: x\r\n: 0\r\n\r\n",
    "no host": b"GET /hello HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "chunked in 1.0": b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two codings": b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "zero byte": b"GET /hello HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
    "chunk length": b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "chunk too long": b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "chunk LF": b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "chunk negative": b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_smuggling_is_refused(plain, name):
    r = replies(plain.ask(SMUGGLING[name] + GET))
    assert [x.status for x in r] == [400], "one reply, and the connection ends"
    assert r[0].field("connection") == "close"


def test_other_bad_requests(plain):
    for data, status in [(b"\x16\x03\x01\x02\x00", 400), (b"GET /hello\r\n\r\n", 400), (b"PRI * HTTP/2.0\r\n\r\n", 505),
                         (b"GET /hello HTTP/2.0\r\n\r\n", 505), (b"GET hello HTTP/1.1\r\n\r\n", 400),
                         (b"GET /hello HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n", 417),
                         (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
                         (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415),
                         (b"GET /" + b"x" * 40000 + b" HTTP/1.1\r\n\r\n", 414),
                         (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 40000 + b"\r\n\r\n", 431),
                         (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431)]:
        assert Reply(plain.ask(data)).status == status, data[:60]


def test_pipelining_in_order(plain):
    later = b"GET /later?ms=150 HTTP/1.1\r\nHost: x\r\n\r\n"
    post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
    chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: r\r\n\r\n"
    last = b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    r = replies(plain.ask(later + post + GET + chunked + later + b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n" + last))
    assert [x.status for x in r] == [200, 200, 200, 200, 200, 404, 200]
    assert [x.body for x in r[:5]] == [b"later\n", b"12345", b"hello\n", b"abc", b"later\n"]


def test_what_is_not_there_keeps_its_connection(plain):
    """Nothing of the request is left to be read, so the reply does not say that the connection ends, and it doesn't."""
    for path, method, status in ((b"/none", b"GET", 404), (b"/echo", b"GET", 405)):
        r = replies(plain.ask(method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n" + GET[:-2] + b"Connection: close\r\n\r\n"))
        assert [x.status for x in r] == [status, 200] and r[0].field("connection") is None, path
    r = replies(plain.ask(b"POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na" + GET))
    assert [x.status for x in r] == [404] and r[0].field("connection") == "close"


def test_half_closed_client_gets_its_replies(plain):
    for data, n in [(GET, 1), (b"GET /later?ms=200 HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + GET, 3)]:
        with plain.connect() as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            r = [x for x in replies(read_all(s)) if x.status != 100]
            assert [x.status for x in r] == [200] * n


def test_every_cut(plain):
    """A request in two pieces, cut at each byte."""
    data = b"POST /echo?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with plain.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(data)):
            s.sendall(data[:cut])
            s.sendall(data[cut:])
            assert Reply(read_until(s, b"abcde")).status == 200


def test_expect_continue(plain):
    head = b"POST /%s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with plain.connect() as s:
        s.sendall(head % (b"echo", 3))
        assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"abc")
        assert Reply(read_until(s, b"abc")).status == 200
        s.sendall(head % (b"echo", 3) + b"abc")  # it did not wait
        assert Reply(read_until(s, b"abc")).status == 200
        s.sendall(head % (b"small", 101))
        r = Reply(read_all(s))
        assert r.status == 413
    assert Reply(plain.ask(head % (b"secret", 3))).status == 401
    assert Reply(plain.ask(head % (b"nothing", 3))).status == 404


def test_body_limit(serve):
    s = serve(max_body=1000)
    r = s.get("/echo", "POST", body=b"x" * 1000)
    assert r.status == 200
    r = s.get("/echo", "POST", body=b"x" * 1001)
    assert r.status == 413 and b"1000 bytes" in r.body
    big = b"%x\r\n%s\r\n" % (999, b"x" * 999)
    r = Reply(s.ask(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + big + big))
    assert r.status == 413
    # Refused by its head alone; a client that sends all of it first reads the reply all the same.
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
    c.request("POST", "/echo", body=b"x" * 3_000_000)
    r = c.getresponse()
    assert r.status == 413 and b"1000" in r.read()
    assert json.loads(s.get("/stats").body)["body_bytes"] == 0


def test_large_body(plain):
    body = bytes(range(256)) * 40000
    c = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=30)
    c.request("POST", "/echo", body=body)
    assert c.getresponse().read() == body


def test_all_bodies_together_are_limited(serve):
    s = serve(max_body_total=100000)
    with s.connect() as a:
        a.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"x" * 89999)
        while json.loads(s.get("/stats").body)["body_bytes"] < 89999:
            pass
        r = s.get("/echo", "POST", body=b"x" * 20000)
        assert r.status == 503 and r.field("retry-after") == "1"
        a.sendall(b"x")
        assert Reply(read_until(a, b"x" * 90000)).status == 200
    assert s.get("/echo", "POST", body=b"x" * 20000).status == 200


def test_replies_that_nobody_reads_are_limited(serve):
    s = serve(max_body_total=30 << 20)
    with s.connect() as a:
        a.sendall(b"GET /json?n=20000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert a.recv(12) == b"HTTP/1.1 200"
        r = s.get("/json?n=20000000")
        assert r.status == 503 and r.field("retry-after") == "1"
        assert s.get("/json?n=60000").status == 200
    end = time.monotonic() + 30
    while s.get("/json?n=20000000").status != 200:
        assert time.monotonic() < end


def test_a_taken_body_counts_no_more(serve):
    s = serve(max_body_total=100000)
    with s.connect() as a:
        a.sendall(b"POST /never?take=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"x" * 90000)
        assert s.wait("taken") == "taken 90000"
        assert json.loads(s.get("/stats").body)["body_bytes"] == 0
        assert s.get("/echo", "POST", body=b"x" * 90000).status == 200


def test_http_1_0(plain):
    assert plain.ask(b"GET /hello HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nhello\n")
    r = Reply(plain.ask(b"GET /chunks HTTP/1.0\r\n\r\n"))
    assert r.field("transfer-encoding") is None and r.body == b"x" * 15
    with plain.connect() as s:
        for _ in range(2):
            s.sendall(b"GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert Reply(read_until(s, b"hello\n")).field("connection") == "keep-alive"


def test_gzip(plain):
    def ask(path, accept):
        r = plain.get(path, headers=f"Accept-Encoding: {accept}\r\n" if accept else "")
        assert r.status == 200
        return r
    raw = ask("/json", None)
    assert raw.field("content-encoding") is None and raw.field("vary") == "Accept-Encoding"
    for accept in ("gzip", "br, gzip;q=0.5", "*", "GZIP", "deflate, x-gzip"):
        r = ask("/json", accept)
        assert r.field("content-encoding") == "gzip" and r.field("vary") == "Accept-Encoding"
        assert gzip.decompress(r.body) == raw.body and len(r.body) < 1000
    for accept in ("br", "gzip;q=0", "gzip; q=0.000, *", "identity", "*;q=0"):
        assert ask("/json", accept).field("content-encoding") is None, accept
    small = ask("/json?n=500", "gzip")
    assert small.field("content-encoding") is None and small.field("vary") is None
    assert ask("/json?type=image/png", "gzip").field("content-encoding") is None
    r = ask("/events", "gzip")
    assert r.field("content-encoding") is None and r.field("vary") is None


def test_cors(serve):
    s = serve(origin="https://page.example")
    ask = "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n" \
          "Access-Control-Request-Headers: content-type,authorization\r\n"
    r = s.get("/echo", "OPTIONS", headers=ask)
    assert r.status == 204 and r.field("access-control-allow-origin") == "https://page.example"
    assert r.field("access-control-allow-methods") == "POST, PUT, OPTIONS"
    assert r.field("access-control-allow-headers") == "content-type,authorization" and "Origin" in r.field("vary")
    r = s.get("/hello", headers="Origin: https://page.example\r\n")
    assert r.field("access-control-allow-origin") == "https://page.example"
    r = s.get("/none", headers="Origin: https://page.example\r\n")
    assert r.status == 404 and r.field("access-control-allow-origin") == "https://page.example"
    r = s.get("/echo", "OPTIONS", headers=ask.replace("page", "evil"))
    assert r.status == 403 and r.field("access-control-allow-origin") is None
    r = s.get("/hello", headers="Origin: https://evil.example\r\n")
    assert r.status == 200 and r.field("access-control-allow-origin") is None and "Origin" in r.field("vary")


def test_cors_none_by_default(plain):
    r = plain.get("/echo", "OPTIONS", headers="Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n")
    assert r.status == 403
    r = plain.get("/echo", "OPTIONS", headers="Origin: http://localhost\r\nAccess-Control-Request-Method: POST\r\n")
    assert r.status == 204 and r.field("access-control-allow-origin") is None
    assert serve_star_reply(plain) is None


def serve_star_reply(s):
    return s.get("/hello", headers="Origin: https://a.example\r\n").field("access-control-allow-origin")


def test_cors_star(serve):
    assert serve_star_reply(serve(origin="*")) == "*"


def test_events(plain):
    r = plain.get("/events?n=3")
    assert r.field("content-type") == "text/event-stream" and r.field("cache-control") == "no-cache"
    assert r.field("x-accel-buffering") == "no"
    assert r.body == b"data: event 0\n\nevent: second\ndata: event 1\n\ndata: event 2\n\n"


def test_event_pings(plain):
    with plain.connect() as s:
        s.sendall(b"GET /events?n=0&end=0&ping_ms=50 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"3\r\n:\n\n\r\n" in read_until(s, b":\n\n\r\n3\r\n:\n\n\r\n")


def test_keep_alive_count(serve):
    s = serve(max_request=3)
    r = replies(s.ask(GET * 5))
    assert [x.field("connection") for x in r] == [None, None, "close"]


def test_keys(serve, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  first-key \r\nsecond\n")
    s = serve(keys=file)

    def status(headers):
        return s.get("/secret", "POST", headers=headers, body=b"x").status
    good = ["Authorization: Bearer first-key\r\n", "authorization: bearer second\r\n", "X-Api-Key: second\r\n"]
    bad = ["", "Authorization: Bearer first\r\n", "Authorization: Basic second\r\n", "X-Api-Key: \r\n",
           "X-Api-Key: # ours\r\n", "Authorization: Bearer\r\n", "X-Api-Key: first-keysecond\r\n"]
    assert [status(h) for h in good] == [200] * 3
    assert [status(h) for h in bad] == [401] * len(bad)
    file.write_text("third\n")
    s.send(signal.SIGHUP)
    s.wait("reload")
    assert [status(h) for h in good] == [401] * 3 and status("X-Api-Key: third\r\n") == 200
    file.unlink()
    s.send(signal.SIGHUP)
    s.wait("note ")
    assert status("X-Api-Key: third\r\n") == 200


@pytest.mark.parametrize("json_lines", [False, True])
def test_access_log(serve, tmp_path, json_lines):
    file = tmp_path / "log"
    s = serve(**{"log_json" if json_lines else "log": file})
    s.get("/hello?key=secret", headers='User-Agent: a"b\r\nX-Request-Id: id7\r\n')
    s.get("/nothing\"x")
    s.ask(b"garbage\r\n\r\n")
    deadline = time.monotonic() + 20
    while file.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
    text = file.read_text()
    assert "secret" not in text
    lines = text.splitlines()
    if json_lines:
        a, b, c = (json.loads(line) for line in lines)
        assert (a["method"], a["path"], a["status"], a["agent"], a["request_id"], a["end"], a["route"]) == \
            ("GET", "/hello", 200, 'a"b', "id7", "done", "/hello")
        assert b["status"] == 404 and b["path"] == '/nothing"x' and c["status"] == 400 and c["method"] == ""
    else:
        assert re.match(r'127\.0\.0\.1:\d+ \S+Z "GET /hello" 200 \d+ \d\.\d{3} done id7 "a\\"b"$', lines[0])
        assert '"GET /nothing\\"x" 404' in lines[1] and '" 400 ' in lines[2]
    file.rename(tmp_path / "old")
    s.send(signal.SIGHUP)
    s.wait("reload")
    s.get("/hello")
    while not file.exists() or file.read_text().count("\n") < 1:
        assert time.monotonic() < deadline
