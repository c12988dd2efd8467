"""The server's own life: TLS and its reload, Unix sockets, ports, stopping."""
import http.client
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time

import pytest

from server import BIN, DATA, Reply, Server, read_all, read_until

GET = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


def tls_server(serve, tmp_path, **more):
    for name in ("pem", "key"):
        shutil.copy(DATA / f"first.{name}", tmp_path / f"now.{name}")
    return serve(cert=tmp_path / "now.pem", key=tmp_path / "now.key", **more)


def test_tls(serve, tmp_path):
    s = tls_server(serve, tmp_path)
    context = ssl.create_default_context(cafile=DATA / "first.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    c = http.client.HTTPSConnection("localhost", s.port, context=context, timeout=30)
    body = bytes(range(256)) * 20000
    c.request("POST", "/echo", body=body)
    assert c.getresponse().read() == body
    assert c.sock.selected_alpn_protocol() == "http/1.1" and c.sock.version() in ("TLSv1.3", "TLSv1.2")
    c.request("GET", "/info")
    assert b"tls=1\n" in c.getresponse().read()
    c.request("GET", "/pour?n=500")
    assert len(c.getresponse().read()) == 5_000_000
    c.close()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with old.wrap_socket(socket.create_connection(("127.0.0.1", s.port))) as t:
        t.sendall(GET)
        read_until(t, b"hello\n")
    with s.connect(tls=False) as t:
        t.sendall(GET)
        assert b"200" not in read_all(t)
    assert s.get("/hello").status == 200


def test_tls_reload_keeps_connections(serve, tmp_path):
    s = tls_server(serve, tmp_path)
    with s.connect() as old:
        old.sendall(b"GET /later?ms=500 HTTP/1.1\r\nHost: x\r\n\r\n")
        for name in ("pem", "key"):
            shutil.copy(DATA / f"second.{name}", tmp_path / f"now.{name}")
        s.send(signal.SIGHUP)
        s.wait("reload")
        with pytest.raises(ssl.SSLCertVerificationError):
            s.connect()
        with s.connect(ca=DATA / "second.pem") as new:
            new.sendall(GET)
            read_until(new, b"hello\n")
        read_until(old, b"later\n")
        old.sendall(GET)
        read_until(old, b"hello\n")
    (tmp_path / "now.pem").write_text("no certificate")
    s.send(signal.SIGHUP)
    assert "now.pem" in s.wait("note ")
    with s.connect(ca=DATA / "second.pem") as new:
        new.sendall(GET)
        read_until(new, b"hello\n")


def test_tls_files_that_do_not_fit(tmp_path):
    for cert, key in (("first.pem", "second.key"), ("README", "first.key"), ("first.pem", "none")):
        p = subprocess.run([str(BIN), f"cert={DATA / cert}", f"key={DATA / key}"], capture_output=True, text=True,
                           timeout=30)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p.stderr


def test_unix_socket(serve, tmp_path):
    path = tmp_path / "socket"
    s = serve(unix=path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert s.get("/info").body.count(b"peer=unix\n") == 1
    p = subprocess.run([str(BIN), f"unix={path}"], capture_output=True, text=True, timeout=30)
    assert p.returncode == 1 and "already" in p.stderr
    assert s.get("/hello").status == 200
    s.stop()
    assert not path.exists()


def test_stale_unix_socket_is_replaced(serve, tmp_path):
    path = tmp_path / "socket"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    assert path.exists()
    assert serve(unix=path).get("/hello").status == 200
    file = tmp_path / "file"
    file.write_text("kept")
    p = subprocess.run([str(BIN), f"unix={file}"], capture_output=True, text=True, timeout=30)
    assert p.returncode == 1 and file.read_text() == "kept"


def test_another_servers_unix_socket_is_left(serve, tmp_path):
    """One that has taken the path over while the first still drains."""
    path = tmp_path / "socket"
    old = serve(unix=path)
    path.unlink()
    new = serve(unix=path)
    old.stop()
    assert path.exists() and new.get("/hello").status == 200
    new.stop()
    assert not path.exists()


def test_both_at_once(serve, tmp_path):
    s = serve(host="127.0.0.1", unix=tmp_path / "socket")
    assert s.get("/hello").status == 200
    with socket.socket(socket.AF_UNIX) as u:
        u.connect(str(tmp_path / "socket"))
        u.sendall(GET)
        read_until(u, b"hello\n")


def test_addresses(serve):
    has6 = socket.has_ipv6
    if has6:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            has6 = False
    named = {a[4][0] for a in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    for host, targets in [("localhost", [t for t in named if has6 or ":" not in t]), ("0.0.0.0", ["127.0.0.1"]),
                          *([("::", ["::1", "127.0.0.1"])] if has6 else [])]:
        s = serve(host=host)
        for t in targets:
            with socket.create_connection((t, s.port), timeout=30) as c:
                c.sendall(b"GET /info HTTP/1.1\r\nHost: x\r\n\r\n")
                assert f"peer={'[' if ':' in t else ''}".encode() in read_until(c, b"tag=3\n")
    p = subprocess.run([str(BIN), "host=256.1.1.1"], capture_output=True, text=True, timeout=30)
    assert p.returncode == 1 and "256.1.1.1" in p.stderr


# --- stopping ---

def test_stop_when_idle(serve):
    s = serve(drain_ms=20000)
    c = s.connect()
    c.sendall(GET)
    read_until(c, b"hello\n")
    start = time.monotonic()
    s.stop()
    assert time.monotonic() - start < 5
    assert c.recv(1) == b""


def test_drain_lets_replies_finish(serve):
    s = serve(drain_ms=20000)
    with s.connect() as c:
        c.sendall(b"GET /later?ms=400 HTTP/1.1\r\nHost: x\r\n\r\n")
        with s.connect() as d:
            d.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
            with s.connect() as probe:  # served after the two above were read
                probe.sendall(GET)
                read_until(probe, b"hello\n")
            start = time.monotonic()
            s.send(signal.SIGTERM)
            with pytest.raises(OSError):
                while time.monotonic() - start < 20:
                    socket.create_connection(("127.0.0.1", s.port), timeout=5).close()
            d.sendall(b"cd")
            assert Reply(read_all(d)).body == b"abcd"
        r = Reply(read_all(c))
        assert r.body == b"later\n" and r.field("connection") == "close"
    assert s.process.wait(30) == 0 and time.monotonic() - start < 5


def test_deadline_calls_on_stop(serve):
    s = serve(drain_ms=300)
    never, events, silent = s.connect(), s.connect(), s.connect()
    never.sendall(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
    events.sendall(b"GET /events?end=0 HTTP/1.1\r\nHost: x\r\n\r\n")
    silent.sendall(b"GET /never?stop=0 HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in range(3):
        s.wait("busy")
    half = s.connect()
    half.sendall(b"GET /hel")
    start = time.monotonic()
    s.send(signal.SIGTERM)
    assert Reply(read_all(never)).status == 503
    assert read_all(events).endswith(b"data: stopped\n\n\r\n0\r\n\r\n")
    assert read_all(silent) in (b"", b"<reset>")
    assert read_all(half) in (b"", b"<reset>")
    assert 0.25 < time.monotonic() - start < 5
    assert s.process.wait(30) == 0
    ends = sorted(s.wait("end") for _ in range(3))
    assert ends == ["end /events done", "end /never done", "end /never stopped"]


def test_second_stop_shortens(serve):
    s = serve(drain_ms=60000)
    c = s.connect()
    c.sendall(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
    s.wait("busy")
    s.send(signal.SIGTERM)
    s.wait("stopping")
    s.send(signal.SIGINT)
    assert Reply(read_all(c)).status == 503
    assert s.process.wait(30) == 0


def test_stop_with_a_client_that_does_not_read(serve):
    s = serve(drain_ms=100, max_queued=1 << 30)
    with s.connect() as c:
        c.sendall(b"GET /chunks?n=2000&size=10000 HTTP/1.1\r\nHost: x\r\n\r\n")
        s.wait("busy")
        start = time.monotonic()
        s.send(signal.SIGTERM)
        assert s.wait("end") == "end /chunks stopped"
        assert s.process.wait(30) == 0 and time.monotonic() - start < 5


def test_upgraded_connections_are_told(serve):
    s = serve(drain_ms=100)
    with s.connect() as c:
        c.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                  b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        s.wait("busy")
        s.send(signal.SIGTERM)
        data = read_until(c, b"\x88")
        while len(data.partition(b"\r\n\r\n")[2]) < 4:
            data += c.recv(100)
        assert data.partition(b"\r\n\r\n")[2][2:4] == b"\x03\xe9"
        c.sendall(b"\x88\x82\0\0\0\0\x03\xe9")
        read_all(c)
    assert s.wait("end") == "end /ws done 1001"
    assert s.process.wait(30) == 0
