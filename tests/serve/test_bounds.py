"""What a client can make the server hold, or do on the loop's thread, by little work of its own, is bounded."""
import http.client, json, os, re, resource, struct, threading, time

import pytest

from conftest import RIGHT, SANITIZED, form, picture, question, upload
from test_rows import noise
from test_serve import LONG, SLOW, Socket, png

MB = 1 << 20


def bmp(width, height):
    """A BMP of one colour: its size is known."""
    row = (b"\x20\x40\x80" * width).ljust((3 * width + 3) // 4 * 4, b"\0")
    head = struct.pack("<2sIHHI", b"BM", 54 + len(row) * height, 0, 0, 54)
    return head + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(row) * height, 2835, 2835, 0, 0) + row * height


PICTURE = bmp(512, 450)
assert MB / 2 < len(PICTURE) < MB


def test_few_words_do_not_name_gigabytes(serve):
    """An uploaded picture may be named 64 times in one question: as much as could come in a body is held, and no more."""
    s = serve("--max-body", 1, "--max-image-bytes", MB)
    name = "margay-file:" + upload(s, PICTURE).json["id"]
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


def fill_with_pictures(s):
    """Sockets that hold all that they may together, and one that has been refused."""
    waiting, part = [], PICTURE + b"\0" * (60 * MB - len(PICTURE))
    for i in range(8):
        waiting.append(Socket(s))
        waiting[-1].send(part)
    s.wait(lambda: s.memory() > 470 << 10)
    last = Socket(s)
    last.send(part)
    m = last.receive()
    assert m["type"] == "error" and m["error"]["code"] == "busy", m
    return waiting, last, part


@pytest.mark.skipif(SANITIZED, reason="memory is the sanitizer's")
def test_pictures_of_many_websockets_are_bounded(serve):
    s = serve()
    open_until_then = fill_with_pictures(s)
    assert s.memory() < 700 << 10
    del open_until_then


def test_pictures_of_many_websockets(serve):
    """All connections together hold 512 MB of pictures without a question; with it they are free again."""
    s = serve()
    waiting, last, part = fill_with_pictures(s)
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
    new = upload(s, b"GIF89a").json["id"]
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


@pytest.mark.skipif(SANITIZED, reason="sanitizers reserve address space")
@pytest.mark.parametrize("mib", [220, 300, 400])
def test_little_address_space(serve, mib):
    """Under ulimit -v a crowd leaves nothing behind that simple questions would be refused for."""
    s = serve(before=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)))
    def one(i):
        for k in range(4):
            r = s.chat("What is it? " * 20, noise(i * 100 + k, 200 + 40 * k), max_tokens=40, ignore_eos=True)
            assert r.status in (200, 503)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
    [t.start() for t in threads], [t.join() for t in threads]
    case = RIGHT[0]
    for i in range(10):
        r = s.chat(f"Hello {i}", max_tokens=5)
        assert r.status == 200, r.body
        r = s.chat(case["question"], picture(case["image"]))
        assert r.status == 200 and r.text == case["answer"], r.body


def test_idle_sockets_give_way(serve):
    """Where there are no more descriptors an idle WebSocket goes, not one that waits for an answer."""
    s = serve("--no-loop-check", env=SLOW)
    busy, idle = Socket(s), [Socket(s) for _ in range(3)]
    busy.send({"question": "Go on.", "id": "long", **LONG})
    while busy.receive()["type"] != "token":
        pass
    time.sleep(1.2)  # what has only just come is spared
    n = len(os.listdir(f"/proc/{s.process.pid}/fd"))
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (n, n))
    for _ in range(3):
        assert s.get("/live").status == 200
    first = idle[0].f.read(4)
    assert first[0] == 0x88 and first[2:] == (1013).to_bytes(2, "big"), first
    assert busy.receive()["type"] == "token"
    idle[2].send({"question": "Hello", "max_tokens": 1})
    while (m := idle[2].receive())["type"] in ("progress", "token"):
        pass
    assert m["type"] == "result", m


def test_places_have_one_meaning(serve):
    """A question has its place while its picture is decoded: /slots, /metrics and /ready agree."""
    s, large = serve("--parallel", 2), png(9000, 4000)
    def numbers():
        m = s.get("/metrics").body.decode()
        return [int(re.search(rf"^margay_{name} (\d+)", m, re.M)[1]) for name in
                ('slots{state="busy"}', 'slots{state="idle"}', "requests_running", "requests_waiting")]
    decoding = lambda: [x["stage"] for x in s.get("/slots").json] == ["decode", "idle"]
    for attempt in range(5):
        thread = threading.Thread(target=lambda: s.chat("What?", large, max_tokens=1))
        thread.start()
        s.wait(decoding)
        seen, ready, still = numbers(), s.get("/ready").json, decoding()
        thread.join()
        if still:
            break
    assert still and seen == [1, 1, 1, 0] and (ready["running"], ready["waiting"]) == (1, 0)
    s.wait(s.idle)
    assert numbers() == [0, 2, 0, 0]


def test_bias_of_no_token(server):
    for wrong in ({"99999999": 1}, [[2147483647, -1]]):
        for body in (question("Hi", logit_bias=wrong), question("Hi", logit_bias=wrong, stream=True)):
            r = server.post("/v1/chat/completions", body)
            e = r.json["error"]
            assert r.status == 400 and (e["param"], e["code"], e["type"]) == ("logit_bias", "invalid_value", "invalid_request_error"), e
    r = server.post("/v1/completions", {"prompt": "Hi", "logit_bias": {"99999999": 1}})
    assert r.status == 400 and r.json["error"]["param"] == "logit_bias"
    w = Socket(server)
    w.send({"question": "Hi", "logit_bias": {"99999999": 1}, "id": "q"})
    m = w.receive()
    assert (m["type"], m["id"], m["error"]["param"]) == ("error", "q", "logit_bias"), m
