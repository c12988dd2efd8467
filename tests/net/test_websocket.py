"""WebSocket by hand: handshake, frames, limits, closing, pings, slow and silent clients."""
import os
import socket
import struct
import time

import pytest

from server import DATA, SANITIZED, Reply, read_all, read_until

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
UPGRADE = {"Host": "x", "Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


def head(path="/ws", **change):
    fields = {**UPGRADE, **{k.replace("_", "-"): v for k, v in change.items()}}
    return (f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items() if v is not None)
            + "\r\n").encode()


def frame(opcode, data=b"", fin=True, mask=True, rsv=0, length=None):
    n = len(data) if length is None else length
    out = bytes([fin << 7 | rsv << 4 | opcode])
    size = bytes([mask << 7 | n]) if n < 126 else bytes([mask << 7 | 126]) + struct.pack(">H", n) if n < 65536 else \
        bytes([mask << 7 | 127]) + struct.pack(">Q", n)
    key = os.urandom(4) if mask else b""
    if mask:
        data = bytes(b ^ key[i % 4] for i, b in enumerate(data)) if len(data) < 100000 else masked(data, key)
    return out + size + key + data


def masked(data, key):
    n = len(data)
    pad = key * (n // 4 + 1)
    return (int.from_bytes(data, "big") ^ int.from_bytes(pad[:n], "big")).to_bytes(n, "big")


class Client:
    def __init__(self, server, path="/ws", more=b"", **change):
        self.s = server.connect()
        self.s.sendall(head(path, **change) + more)
        data = read_until(self.s, b"\r\n\r\n")
        self.reply = Reply(data)
        assert self.reply.status == 101, data
        self.data = self.reply.rest

    def send(self, *args, **more):
        self.s.sendall(frame(*args, **more))

    def take(self, n):
        while len(self.data) < n:
            part = self.s.recv(65536)
            assert part, "ended"
            self.data += part
        out, self.data = self.data[:n], self.data[n:]
        return out

    def recv(self):
        a, b = self.take(2)
        assert a & 0x70 == 0 and b & 0x80 == 0, "no extension, no mask from a server"
        n = b & 127
        n = struct.unpack(">H", self.take(2))[0] if n == 126 else struct.unpack(">Q", self.take(8))[0] if n == 127 else n
        return a & 15, self.take(n)

    def closed_with(self, code):
        opcode, data = self.recv()
        while opcode in (PONG, PING):
            opcode, data = self.recv()
        assert opcode == CLOSE and struct.unpack(">H", data[:2])[0] == code, (opcode, data[:100])

    def ends(self):
        assert read_all(self.s) in (b"", b"<reset>") and self.data == b""
        self.s.close()


def test_handshake(plain):
    c = Client(plain)
    assert c.reply.field("sec-websocket-accept") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert c.reply.field("upgrade") == "websocket" and c.reply.field("connection") == "Upgrade"
    assert c.reply.field("x-request-id") and c.reply.field("sec-websocket-protocol") is None
    c = Client(plain, Sec_WebSocket_Protocol="other, chat")
    assert c.reply.field("sec-websocket-protocol") == "chat"


@pytest.mark.parametrize("change,status", [
    ({"Upgrade": None}, 426), ({"Connection": "close"}, 426), ({"Sec_WebSocket_Version": "8"}, 426),
    ({"Sec_WebSocket_Version": None}, 426), ({"Sec_WebSocket_Key": None}, 400), ({"Sec_WebSocket_Key": "short"}, 400),
    ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403)])
def test_refused(plain, change, status):
    with plain.connect() as s:
        s.sendall(head(**change))
        assert Reply(read_until(s, b"}}")).status == status


def test_origins(serve):
    s = serve(origin="https://page.example")
    Client(s, Origin="https://page.example")
    Client(s, Origin="http://x")
    Client(s)


@pytest.fixture(params=["tcp", "tls"])
def server(request, serve):
    return serve(drain_ms=0, **({"cert": DATA / "first.pem", "key": DATA / "first.key"} if request.param == "tls" else {}))


def test_echo(server):
    c = Client(server, more=frame(TEXT, b"with the head"))
    assert c.recv() == (TEXT, b"with the head")
    for n in (0, 1, 125, 126, 127, 65535, 65536, 300000):
        data = os.urandom(n)
        c.send(BINARY, data)
        assert c.recv() == (BINARY, data)
    text = "größer 🌊 𠮷".encode()
    c.send(TEXT, text)
    assert c.recv() == (TEXT, text)
    c.send(PING, b"p" * 125)
    assert c.recv() == (PONG, b"p" * 125)
    c.send(PONG, b"unasked")
    c.send(CLOSE, b"\x03\xe8bye")
    c.closed_with(1000)
    c.ends()
    assert server.wait("end") == "end /ws done 1000"


def test_fragments(server):
    c = Client(server)
    whole = "aé🌊".encode() * 10
    for i in range(len(whole)):  # also inside characters, with control frames between
        c.send(TEXT if i == 0 else CONT, whole[i:i + 1], fin=i == len(whole) - 1)
        if i % 7 == 0:
            c.send(PING, b"%d" % i)
            assert c.recv() == (PONG, b"%d" % i)
    assert c.recv() == (TEXT, whole)
    c.send(BINARY, b"", fin=False)
    c.send(CONT, b"")
    assert c.recv() == (BINARY, b"")


def test_byte_by_byte(server):
    c = Client(server)
    c.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for b in frame(TEXT, b"slowly") + frame(BINARY, b"x" * 200):
        c.s.sendall(bytes([b]))
    assert c.recv() == (TEXT, b"slowly") and c.recv() == (BINARY, b"x" * 200)


@pytest.mark.parametrize("data,code", [
    (frame(TEXT, b"\xff"), 1007), (frame(TEXT, b"\xed\xa0\x80"), 1007), (frame(TEXT, b"\xc3"), 1007),
    (frame(TEXT, b"x", mask=False), 1002), (frame(TEXT, b"x", rsv=4), 1002), (frame(3, b"x"), 1002),
    (frame(11, b"x"), 1002), (frame(CONT, b"x"), 1002), (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
    (frame(PING, b"x", fin=False), 1002), (frame(PING, b"x" * 126), 1002), (frame(CLOSE, b"\x03"), 1002),
    (frame(CLOSE, struct.pack(">H", 1005)), 1002), (frame(CLOSE, struct.pack(">H", 999)), 1002),
    (frame(CLOSE, b"\x03\xe8\xff"), 1007)])
def test_violations(plain, data, code):
    c = Client(plain)
    c.s.sendall(data)
    opcode, got = c.recv()
    assert opcode == CLOSE
    # Some of them wslay calls a protocol error; half a code it answers without one.
    assert got == b"" and code == 1002 or struct.unpack(">H", got[:2])[0] in (code, 1002), got
    c.ends()
    assert Reply(plain.ask(b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).status == 200


def test_message_limit(plain):
    c = Client(plain, "/ws?max=1000")
    c.send(BINARY, b"x" * 1000)
    assert c.recv() == (BINARY, b"x" * 1000)
    c.send(BINARY, b"x" * 1001)
    c.closed_with(1009)
    c = Client(plain, "/ws?max=1000")
    c.send(BINARY, b"x" * 600, fin=False)
    c.send(CONT, b"x" * 600)
    c.closed_with(1009)
    c = Client(plain, "/ws?max=1000")
    c.s.sendall(frame(BINARY, b"x", length=1 << 40))  # the first byte is enough
    c.closed_with(1009)


def test_server_closes(server):
    c = Client(server)
    c.send(TEXT, b"close")
    c.closed_with(1000)
    c.send(TEXT, b"ignored")
    c.send(CLOSE, b"\x03\xe8")
    c.ends()
    assert server.wait("end") == "end /ws done 1000"


@pytest.mark.parametrize("end", ["close", "reset", "half"])
def test_leaving_without_a_word(server, end):
    c = Client(server)
    server.wait("busy")
    start = time.monotonic()
    if end == "reset":
        c.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if end == "half":
        c.s.shutdown(socket.SHUT_WR)
    else:
        c.s.close()
    assert server.wait("end") == "end /ws left 0"
    assert time.monotonic() - start < (1.0 if SANITIZED else 0.1)


def test_pings_and_silence(serve):
    s = serve()
    c = Client(s, "/ws?ping_ms=200")
    for _ in range(4):
        assert c.recv() == (PING, b"")
        c.send(PONG)
    start = time.monotonic()
    assert c.recv() == (PING, b"")  # and now no answer
    assert s.wait("end") == "end /ws left 0"
    assert 0.3 < time.monotonic() - start < 5


def test_slow_reader_is_cut(serve):
    s = serve(max_queued=1000000)
    c = Client(s)
    c.send(TEXT, b"flood")
    assert s.wait("end") == "end /ws slow 0"
    assert len(read_all(c.s)) > 1000


def test_pings_of_one_who_does_not_read(serve):
    s = serve(max_queued=100000)
    c = Client(s)
    c.s.settimeout(20)
    data = frame(PING, b"x" * 100) * 1000
    try:
        for _ in range(1000):
            c.s.sendall(data)
    except OSError:
        pass
    assert s.wait("end") == "end /ws slow 0"


def test_no_frames_after_the_close(plain):
    c = Client(plain)
    c.s.sendall(frame(CLOSE, b"\x03\xe8") + frame(TEXT, b"late") * 100)
    c.closed_with(1000)
    c.ends()


def test_idle_sockets_make_room(serve):
    """Too many connections: the WebSocket whose last message is longest ago goes, none where something is under way."""
    s = serve(max_connection=4)
    busy, kept, a, b = Client(s, "/ws?busy=1"), Client(s, "/ws?keep=1"), Client(s), Client(s)
    a.send(TEXT, b"later than b's")
    assert a.recv() == (TEXT, b"later than b's")
    assert s.get("/hello").status == 503, "they have only just come"
    deadline = time.monotonic() + 30
    while s.get("/hello").status == 503:
        assert time.monotonic() < deadline
    b.closed_with(1013)
    b.ends()
    for c in (busy, kept, a):
        c.send(TEXT, b"still there")
        assert c.recv() == (TEXT, b"still there")
    more = []
    while True:  # until a's place, too, is taken by one where something is under way
        c = s.connect()
        c.sendall(head("/ws?busy=1"))
        if Reply(read_until(c, b"\r\n\r\n"), head_only=True).status == 101:
            more.append(c)
            if len(more) == 2:
                break
        assert time.monotonic() < deadline
    a.closed_with(1013)
    time.sleep(1.5)
    assert s.get("/hello").status == 503, "nothing idle is left"
