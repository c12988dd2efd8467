"""margay serve: one client, or one key, can neither hold up the others nor take all memory."""
import os, signal, socket, struct, threading, time

import pytest

from conftest import RIGHT, picture, question
from test_serve import Socket


def upload(s, data, **headers):
    body = b'--XyZ\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + data + b"\r\n--XyZ--\r\n"
    return s.call("POST", "/v1/files", body, Content_Type="multipart/form-data; boundary=XyZ", **headers)


def frame(kind, data):
    """As a client sends it: masked, with a key of zeros."""
    n = len(data)
    head = bytes([0x80 | n]) if n < 126 else b"\xfe" + struct.pack(">H", n)
    return bytes([0x80 | kind]) + head + b"\0\0\0\0" + data


class Peak:
    """Most memory that the server had meanwhile, in MB."""

    def __init__(self, s):
        self.s, self.over, self.mb = s, threading.Event(), 0

    def look(self):
        while not self.over.wait(0.005):
            self.mb = max(self.mb, self.s.memory() / 1024)

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@pytest.mark.parametrize("one", [frame(10, b"x" * 100), frame(1, b'{"type":"cancel"}')], ids=["pongs", "texts"])
def test_a_socket_that_never_pauses(serve, one):
    s, over = serve(), threading.Event()
    w = Socket(s)

    def pour():
        data = one * 50000
        try:
            while not over.is_set():
                w.s.sendall(data)
        except OSError:
            pass
    thread = threading.Thread(target=pour)
    thread.start()
    time.sleep(0.3)
    late = []
    try:
        for _ in range(20):
            begun = time.monotonic()
            assert s.get("/live").status == 200  # gave no answer at all as long as it was poured
            late.append(time.monotonic() - begun)
    finally:
        over.set()
        w.s.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert sorted(late)[10] < 1, late


def test_asking_about_an_upload_copies_nothing(serve):
    s = serve()
    case = RIGHT[0]
    id = upload(s, picture(case["image"]) + bytes(15_000_000)).json["id"]
    body, status = question("What?", *[f"margay-file:{id}"] * 4, max_tokens=1), []
    with Peak(s) as peak:
        threads = [threading.Thread(target=lambda: status.append(s.post("/v1/chat/completions", body).status)) for _ in range(16)]
        [t.start() for t in threads], [t.join() for t in threads]
    assert status == [200] * 16
    assert peak.mb < 300, "64 pictures of 15 MB were held"
    assert s.chat(case["question"], f"margay-file:{id}").text == case["answer"]


def test_uploads_in_use_are_kept(serve):
    """Who still reads a deleted one gets all of it."""
    s = serve()
    data = os.urandom(1 << 20) * 15
    id = upload(s, data).json["id"]
    c = s.connect()
    c.request("GET", f"/v1/files/{id}/content")
    r = c.getresponse()
    begin = r.read(1000)
    assert s.call("DELETE", f"/v1/files/{id}").status == 200 and s.get(f"/v1/files/{id}").status == 404
    assert begin + r.read() == data
    c.close()


def test_many_small_uploads_are_bounded(serve):
    s = serve()
    c = s.connect()
    for i in range(4400):
        if i % 900 == 0:
            c.close()
        c.request("POST", "/v1/files", b'--XyZ\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--XyZ--\r\n',
                  {"Content-Type": "multipart/form-data; boundary=XyZ"})
        r = c.getresponse()
        assert r.read() and r.status == 200
    c.close()
    assert len(s.get("/v1/files").json["data"]) == 4096


def test_one_keys_uploads_do_not_push_out_anothers(serve, tmp_path):
    (tmp_path / "keys").write_text("a\nb\n")
    s = serve("--api-key-file", tmp_path / "keys")
    mine = upload(s, b"x" * 1000, X_Api_Key="a").json["id"]
    theirs = [upload(s, b"y" * 30_000_000, X_Api_Key="b").json["id"] for _ in range(10)]
    there = lambda id, key: s.get(f"/v1/files/{id}", X_Api_Key=key).status == 200
    assert there(mine, "a") and not there(mine, "b")
    assert [there(id, "b") for id in theirs] == [False] * 2 + [True] * 8


def test_replies_that_nobody_reads(serve):
    s = serve()
    id = upload(s, bytes(15_000_000)).json["id"]
    unread = []
    for _ in range(40):
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"GET /v1/files/%s/content HTTP/1.1\r\nHost: localhost\r\n\r\n" % id.encode())
        unread.append(c)
    assert all(c.recv(12) == b"HTTP/1.1 200" for c in unread)
    assert s.memory() < 300 << 10, "each had a copy"
    for c in unread:
        c.close()


def test_a_log_whose_reader_has_stopped(serve, tmp_path):
    os.mkfifo(tmp_path / "log")
    fd = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    s = serve("--access-log", tmp_path / "log")
    path = "/live?" + "x" * 20  # 64 KB are full after some hundred lines
    for _ in range(2000):
        c = s.connect()
        c.timeout = 30
        c.request("GET", path)
        assert c.getresponse().status == 200
        c.close()
    assert os.read(fd, 1 << 20).count(b"/live") > 100
    assert s.get("/models").status == 200
    end = time.monotonic() + 30
    while b"/models" not in os.read(fd, 1 << 20):  # it goes on when it is read again
        assert time.monotonic() < end
    os.close(fd)
    assert s.get("/live").status == 200


def test_a_key_that_is_withdrawn_ends_its_sockets_questions(serve, tmp_path):
    (tmp_path / "keys").write_text("old\nother\n")
    s = serve("--api-key-file", tmp_path / "keys")
    w = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    w.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Api-Key: old\r\n"
              b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
    c = Socket.__new__(Socket)
    c.s, c.f = w, w.makefile("rb")
    while c.f.readline().strip():
        pass
    for data in ("", "x" * 100_000):
        c.send({"question": "Hello", "max_tokens": 1, "id": "a", "unread": data})
        while (m := c.receive())["type"] in ("progress", "token"):
            pass
        assert m["type"] == "result", m
    (tmp_path / "keys").write_text("other\n")
    s.process.send_signal(signal.SIGHUP)
    s.wait(lambda: s.get("/v1/models", X_Api_Key="old").status == 401)
    for data in ("", "x" * 100_000):
        c.send({"question": "Hello", "max_tokens": 1, "id": "a", "unread": data})
        m = c.receive()
        assert m["type"] == "error" and m["error"]["code"] == "invalid_api_key", m
    w.close()
