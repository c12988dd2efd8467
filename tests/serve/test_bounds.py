"""What a client can make the server hold, or do on the loop's thread, by little work of its own, is bounded."""
import http.client, json, struct, time

from conftest import question
from test_serve import LONG, SLOW, Socket

MB = 1 << 20


def bmp(width, height):
    """A BMP of one colour: its size is known."""
    row = (b"\x20\x40\x80" * width).ljust((3 * width + 3) // 4 * 4, b"\0")
    head = struct.pack("<2sIHHI", b"BM", 54 + len(row) * height, 0, 0, 54)
    return head + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(row) * height, 2835, 2835, 0, 0) + row * height


PICTURE = bmp(512, 450)
assert MB / 2 < len(PICTURE) < MB


def form(data, edge="xyz123"):
    head = f"--{edge}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n".encode()
    return head + data + f"\r\n--{edge}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={edge}"}


def upload(server, data):
    body, fields = form(data)
    c = server.connect()
    c.request("POST", "/v1/files", body, fields)
    r = c.getresponse()
    assert r.status == 200, r.read()
    return json.loads(r.read())["id"]


def test_few_words_do_not_name_gigabytes(serve):
    """An uploaded picture may be named 64 times in one question: as much as could come in a body is held, and no more."""
    s = serve("--max-body", 1, "--max-image-bytes", MB)
    name = "margay-file:" + upload(s, PICTURE)
    assert s.chat("Colour?", name, max_tokens=1).status == 200
    for stream in (False, True):
        r = s.chat("Colour?", *[name] * 64, max_tokens=1, stream=stream)
        assert r.status == 400 and r.json["error"]["code"] == "image_too_large" and str(MB) in r.json["error"]["message"]
        assert r.json["error"]["param"].startswith("messages[0].content[1]")
    assert s.chat("Colour?", name, max_tokens=1).status == 200


def test_pictures_before_a_websockets_question(serve):
    s = serve("--max-body", 1, "--max-image-bytes", MB)
    w = Socket(s)
    for i in range(3):  # what waits is the question's own: the next one may have as much again
        w.send(PICTURE)
        w.send(PICTURE)
        m = w.receive()
        assert m["type"] == "error" and m["error"]["code"] == "image_too_large" and str(MB) in m["error"]["message"], m
        w.send({"question": "Colour?", "max_tokens": 1, "id": "q"})
        while m["type"] != "result":
            m = w.receive()
            assert m["type"] in ("progress", "token", "result"), m
        assert len(m["images"]) == 1, m


def test_pictures_of_many_websockets(serve):
    """All connections together hold 512 MB of pictures without a question; with it they are free again."""
    s = serve()
    waiting, part = [], PICTURE + b"\0" * (60 * MB - len(PICTURE))
    for i in range(8):
        waiting.append(Socket(s))
        waiting[-1].send(part)
    s.wait(lambda: s.memory() > 470 << 10)
    last = Socket(s)
    last.send(part)
    m = last.receive()
    assert m["type"] == "error" and m["error"]["code"] == "busy", m
    assert s.memory() < 700 << 10
    waiting.pop().s.close()
    def again():
        last.send(part)
        last.send({"type": "cancel"})
        last.send({"question": "", "top_p": 9, "id": "mark"})  # an answer to this alone: the picture was taken
        first = last.receive()
        if first["error"]["code"] == "busy":
            last.receive()
        return first["error"]["code"] != "busy"
    s.wait(again)


def test_uploads_are_bounded_in_number(serve):
    """Small files are many within the budget of bytes, and the list is searched on the loop's thread."""
    s = serve()
    body, fields = form(b"GIF89a")
    c, first, names = s.connect(), None, set()
    for i in range(4100):
        c.request("POST", "/v1/files", body, fields)
        r = c.getresponse()
        data = r.read()
        if r.status == 200 and r.getheader("Connection") == "close":
            c.close()
        assert r.status == 200, data
        names.add(json.loads(data)["id"])
        first = first or json.loads(data)["id"]
        last = json.loads(data)["id"]
    kept = [f["id"] for f in s.get("/v1/files").json["data"]]
    assert len(names) == 4100 and len(kept) == 4096 == len(set(kept)) and kept[0] == last and first not in kept
    assert s.get("/v1/files/" + first).status == 404 and s.get("/v1/files/" + last).status == 200
    assert s.call("DELETE", "/v1/files/" + last).status == 200  # the newest goes, and another takes its place
    new = upload(s, b"GIF89a")
    kept = [f["id"] for f in s.get("/v1/files").json["data"]]
    assert len(kept) == 4096 and kept[0] == new and last not in kept


def test_retry_after_is_the_time_it_takes(serve):
    """A full queue tells how long answers have taken here, not a fixed number."""
    s = serve("--parallel", 1, "--max-queue", 1, "--no-loop-check", env=SLOW)
    mean, tokens = 0, 400
    for _ in range(12):
        begun = time.monotonic()
        assert s.post("/v1/chat/completions", {**question("Go on."), **LONG, "max_tokens": tokens}).status == 200
        took = time.monotonic() - begun
        mean = 0.8 * mean + 0.2 * took if mean else took
        if mean > 6.6:  # longer than any fixed number that could be told instead
            break
        tokens = int(min(tokens * 20 / took, 30000))
    assert mean > 6.6, f"{mean:.1f} s after answers of up to {tokens} tokens"
    held = []
    for i in range(2):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/chat/completions", json.dumps({**question("Go on."), **LONG, "stream": True}))
        held.append(c)
        s.wait(lambda: (s.get("/ready").json["running"], s.get("/ready").json["waiting"]) == (1, i))
    full = s.chat("No place.")
    after = int(full.headers["Retry-After"])
    assert full.status == 503 and full.json["error"]["code"] == "queue_full"
    assert abs(after - mean) <= 1.5, (after, mean)
    for c in held:
        c.close()
