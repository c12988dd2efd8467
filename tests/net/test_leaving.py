"""Clients that leave, at every state of an exchange; slow ones; limits on time and number."""
import json
import resource
import socket
import struct
import time

import pytest

from server import DATA, LIMIT, SANITIZED, Reply, read_all, read_until, replies

SOON = 0.1 if not SANITIZED else 1.0  # seconds within which a client's leaving must be told
GET = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


def request(path, method="GET", more="", version="1.1"):
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n{more}\r\n".encode()


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def leave(server, s, path, how, reason="left"):
    start = time.monotonic()
    reset(s) if how == "reset" else s.close()
    line = server.wait(f"end {path} ")
    assert line.split()[2] == reason, line
    assert time.monotonic() - start < SOON, f"told after {time.monotonic() - start:.3f} s"


@pytest.fixture(params=["tcp", "tls", "unix"])
def transport(request, serve, tmp_path):
    if request.param == "tls":
        return serve(cert=DATA / "first.pem", key=DATA / "first.key", drain_ms=0)
    if request.param == "unix":
        return serve(unix=tmp_path / "socket", drain_ms=0)
    return serve(drain_ms=0)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("more", [b"", GET, GET * 2000, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nabc"],
                         ids=["alone", "pipelined", "much pipelined", "half pipelined"])
def test_while_the_reply_is_pending(transport, how, more):
    s = transport.connect()
    s.sendall(request("/never") + more)
    transport.wait("busy")
    leave(transport, s, "/never", how)
    assert transport.ask(request("/hello", more="Connection: close\r\n")).endswith(b"hello\n")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_after_a_large_body(transport, how):
    s = transport.connect()
    s.sendall(request("/never", "POST", "Content-Length: 3000000\r\n") + b"x" * 3000000)
    transport.wait("busy")
    leave(transport, s, "/never", how)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("path", ["/events?end=0", "/events?end=0&n=0", "/chunks?end=0"])
def test_during_a_stream(transport, how, path):
    s = transport.connect()
    s.sendall(request(path) + GET)
    transport.wait("busy")
    leave(transport, s, path.split("?")[0], how)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_http_1_0(transport, how):
    s = transport.connect()
    s.sendall(request("/never", version="1.0"))
    transport.wait("busy")
    leave(transport, s, "/never", how)


def test_half_close_is_not_leaving(transport):
    """The sending side alone is shut down: TCP and Unix sockets get the reply, also as events."""
    if transport.tls:
        pytest.skip("ssl has no half-close")
    for path in ("/later?ms=300", "/events?n=2"):
        s = transport.connect()
        s.sendall(request(path))
        s.shutdown(socket.SHUT_WR)
        got = replies(read_all(s))
        assert got[-1].status == 200 and all(r.status == 100 for r in got[:-1])
        assert transport.wait("end ").split()[2] == "done"
    s = transport.connect()
    s.sendall(request("/events?end=0&n=1&ping_ms=100"))
    s.shutdown(socket.SHUT_WR)
    read_until(s, b":\n\n\r\n3\r\n:\n\n")
    s.close()  # TCP shows nothing of it until the next ping
    assert transport.wait("end ", 1.0 + SOON) == "end /events left"


def test_half_closed_then_gone(transport):
    if transport.tls:
        pytest.skip("ssl has no half-close")
    s = transport.connect()
    s.sendall(request("/never"))
    transport.wait("busy")
    s.shutdown(socket.SHUT_WR)
    if transport.port:
        read_until(s, b"100 Continue\r\n\r\n")
    leave(transport, s, "/never", "reset")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_early(transport, how):
    """In the handshake, head, body, and between requests: nothing stays."""
    head = request("/echo", "POST", "Content-Length: 10\r\n")
    for data in (b"", b"G", head[:30], head, head + b"abc", GET):
        for raw in ([False, True] if transport.tls else [False]):
            s = transport.connect(tls=False) if raw else transport.connect()
            s.sendall(data)
            if data == GET and not raw:
                read_until(s, b"hello\n")
            reset(s) if how == "reset" else s.close()
    deadline = time.monotonic() + LIMIT
    while True:
        reply = Reply(transport.ask(request("/stats", more="Connection: close\r\n")))
        if json.loads(reply.body) | {"refused": 0} == {"connection": 1, "exchange": 1, "body_bytes": 0, "refused": 0}:
            return
        assert time.monotonic() < deadline, reply.body


def test_while_a_long_reply_goes_out(transport):
    s = transport.connect()
    s.sendall(request("/pour?n=10000"))
    assert s.recv(1000)
    leave(transport, s, "/pour", "close")


# --- slow clients ---

def test_no_idle_loop(transport):
    """A half-closed or pending connection costs no processor time."""
    s = transport.connect()
    s.sendall(request("/never") + GET * 100)
    transport.wait("busy")
    if not transport.tls:
        s.shutdown(socket.SHUT_WR)
    time.sleep(0.2)

    def used():
        with open(f"/proc/{transport.process.pid}/stat") as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
    before = used()
    time.sleep(0.5)
    assert used() - before <= 2, "clock ticks"
    s.close()


@pytest.mark.parametrize("sent,setting", [(b"", {"head": 0.3}), (b"GET / HT", {"head": 0.3}), (GET, {"idle": 0.3})])
def test_time_for_a_head(serve, sent, setting):
    s = serve(**setting)
    with s.connect() as c:
        c.sendall(sent)
        start = time.monotonic()
        data = read_all(c)
        assert 0.25 < time.monotonic() - start < 5
        if sent == b"GET / HT":
            assert Reply(data).status == 408
        else:
            assert data == b"" or data.endswith(b"hello\n")


def test_drip(serve):
    """One byte now and then does not extend the time of a head; a body needs an average rate."""
    s = serve(head=0.5, body=0.5, body_rate=100000)
    for start in (b"GET /", request("/echo", "POST", "Content-Length: 100\r\n")):
        with s.connect() as c:
            c.sendall(start)
            begun = time.monotonic()
            c.settimeout(0.1)
            data = b""
            while time.monotonic() - begun < 20:
                try:
                    c.sendall(b"x")
                    data += c.recv(1000)
                    break
                except socket.timeout:
                    pass
            assert Reply(data).status == 408
            assert 0.4 < time.monotonic() - begun < 5


def test_handshake_takes_too_long(serve):
    s = serve(cert=DATA / "first.pem", key=DATA / "first.key", head=0.3)
    with s.connect(tls=False) as c:
        c.sendall(b"\x16\x03\x01")
        assert read_all(c) in (b"", b"<reset>")
    assert s.get("/hello").status == 200


def test_slow_reader_is_cut_by_its_queue(serve):
    s = serve(max_queued=100000)
    with s.connect() as c:
        c.sendall(request("/chunks?n=100000&size=10000"))
        assert s.wait("write") == "write limit"
        assert s.wait("end") == "end /chunks slow"
        data = read_all(c)
        assert not data.endswith(b"0\r\n\r\n")


def test_slow_reader_is_cut_by_time(serve):
    s = serve(write=0.3, max_queued=1 << 30)
    with s.connect() as c:
        c.sendall(request("/chunks?n=3000&size=10000"))
        assert s.wait("end") == "end /chunks slow"


def test_drain_callback_keeps_the_queue_small(serve):
    s = serve(max_queued=50000)
    with s.connect() as c:
        c.sendall(request("/pour?n=2000", more="Connection: close\r\n"))
        time.sleep(0.2)
        assert len(Reply(read_all(c)).body) == 20_000_000
    assert s.wait("end") == "end /pour done"


def test_aborted_stream_has_no_end(serve):
    s = serve()
    with s.connect() as c:
        c.sendall(request("/chunks?end=0&abort=1"))
        data = read_all(c)
        assert data.endswith(b"5\r\nxxxxx\r\n")


# --- many ---

def test_500_at_once(serve):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1300:
        pytest.skip("too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1300), hard))
    s = serve()
    all = [s.connect() for _ in range(500)]
    for i, c in enumerate(all):
        c.sendall(request(f"/later?ms={i % 50}", more="Connection: close\r\n"))
    for c in all:
        assert Reply(read_all(c)).body == b"later\n"
        c.close()
    all = [s.connect() for _ in range(500)]
    for c in all:
        c.sendall(request("/events?end=0&n=1"))
    for c in all:
        read_until(c, b"event 0")
    for c in all:
        c.close()
    for _ in range(500):
        while not s.wait("end").startswith("end /events left"):
            pass


def test_too_many(serve):
    s = serve(max_connection=10)
    busy = [s.connect() for _ in range(10)]
    for c in busy:
        c.sendall(request("/never"))
        s.wait("busy")
    start = time.monotonic()
    for _ in range(20):
        r = s.get("/hello")
        assert r.status == 503 and r.field("retry-after") == "1"
    assert time.monotonic() - start < 20 * SOON
    busy.pop().close()
    s.wait("end /never left")
    assert s.get("/hello").status == 200


def test_idle_connections_make_room(serve):
    s = serve(max_connection=5)
    idle = [s.connect() for _ in range(5)]
    for c in idle:
        c.sendall(GET)
        read_until(c, b"hello\n")
    assert s.get("/hello").status == 200
    assert idle[0].recv(1) == b"", "the one idle longest was closed"
    idle[4].sendall(GET)
    read_until(idle[4], b"hello\n")


def test_silent_connections_make_room(serve):
    """Connections that never ask anything keep nobody out for long."""
    s = serve(max_connection=5)
    silent = [s.connect() for _ in range(5)]
    deadline = time.monotonic() + LIMIT
    while s.get("/hello").status == 503:
        assert time.monotonic() < deadline
    silent[4].sendall(GET)
    read_until(silent[4], b"hello\n")


def test_without_descriptors(serve):
    s = serve()
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (24, 24))
    busy = [s.connect() for _ in range(40)]
    s.wait("note no more descriptors")
    for c in busy:
        c.close()
    assert s.get("/hello").status == 200
