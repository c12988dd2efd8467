"""margay serve against faults that systems like it have had (numbers: tests/README.md)."""
import json, os, random, re, socket, struct, threading, time, zlib

import pytest

from conftest import RIGHT, SANITIZED, data_url, picture, question, slack
from test_serve import LONG, SLOW, Socket, begin, leave, png


def png_of(width, height, rows):
    """A PNG of these rows, each with its filter's byte before it."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows, 1)) + \
        chunk(b"IEND", b"")


def noise(seed, side=48):
    """A PNG that no other is like."""
    r = random.Random(seed)
    return png_of(side, side, b"".join(b"\0" + r.randbytes(3 * side) for _ in range(side)))


class Trap:
    """A port on this machine that must see nobody."""

    def __init__(self):
        self.s = socket.socket()
        self.s.bind(("127.0.0.1", 0))
        self.s.listen()
        self.port = self.s.getsockname()[1]

    def empty(self):
        self.s.settimeout(0.2)
        try:
            self.s.accept()
            return False
        except TimeoutError:
            return True


@pytest.mark.parametrize("allowed", [(), ("127.0.0.1", "localhost", "[::1]", "*.example", "*")], ids=["nothing allowed", "its names allowed"])
def test_47_no_address_of_our_own(serve, allowed):
    trap = Trap()
    options = [x for a in allowed for x in ("--allowed-media-domains", f"{a}:{trap.port}" if a != "*" else a)]
    try:
        s = serve(*options)
    except AssertionError:  # "*" is no host
        s = serve(*options[:-2])
    hosts = ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0.0.0.0", "[::]",
             "user@127.0.0.1", "127.0.0.1.", "localhost.", "a.example"]
    for host in hosts:
        for scheme in ("http", "https"):
            r = s.chat("x", f"{scheme}://{host}:{trap.port}/a.png")
            assert r.status == 400, (host, r.body)
    for url in ("http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/a.png", "ftp://localhost/a", "gopher://x/", "file:///etc/passwd",
                "/etc/passwd", "http://", "http:///a", "http://localhost:0/", "http://localhost:99999/"):
        assert s.chat("x", url).status == 400, url
    assert trap.empty()


def test_51_other_picture_same_words(server):
    groups = {}
    for c in RIGHT:
        groups.setdefault(c["question"], {})[c["answer"]] = c
    ask, by_answer = max(groups.items(), key=lambda g: len(g[1]))
    a, b, c = list(by_answer.values())[:3]
    for x in (a, b, a, c, b, a):
        assert server.chat(ask, picture(x["image"])).text == x["answer"]
    out = {}
    def one(i, x):
        out[i] = (server.chat(ask, picture(x["image"])).text, x["answer"])
    threads = [threading.Thread(target=one, args=(i, x)) for i, x in enumerate([a, b, c] * 3)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert all(got == right for got, right in out.values())


def test_44_detail(server):
    big = png(900, 700)
    tokens = {}
    for detail in ("low", "auto", "high", "ultra", None):
        image = {"type": "image_url", "image_url": {"url": data_url(big), **({"detail": detail} if detail else {})}}
        r = server.post("/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [image, {"type": "text", "text": "x"}]}]})
        assert r.status == 200, r.body
        tokens[detail] = r.json["usage"]["prompt_tokens_details"]["image_tokens"]
    assert tokens["low"] <= tokens["auto"] == tokens[None] == tokens["ultra"] <= tokens["high"], tokens  # the demo model looks coarsely


def test_45_body_over_the_limit(serve):
    s = serve("--max-body", 1)
    c = socket.create_connection(("127.0.0.1", s.port), timeout=20)
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n{")
    with c, c.makefile("rb") as f:
        refused = f.read()  # to the connection's end
    assert b" 413 " in refused.split(b"\r\n")[0] and b"1048576" in refused, refused
    assert s.chat("Hi", max_tokens=1).status == 200
    body = json.dumps({**question("Hi", max_tokens=1), "pad": ""}).encode()
    body = body[:-2] + b"x" * (1048576 - len(body)) + body[-2:]
    assert len(body) == 1048576 and s.post("/v1/chat/completions", body, Content_Type="application/json").status == 200


def test_55_refused_then_right(serve):
    """A request that is refused leaves nothing behind that later ones fall over; caches far too small for what comes."""
    s = serve("--ctx-size", 512, "--image-cache", 1, "--cache-ram", 1)
    case = RIGHT[0]
    r = s.chat("word " * 2000, picture(case["image"]))
    assert r.status == 400 and r.json["error"]["code"] == "context_length_exceeded"
    assert s.chat(case["question"], picture(case["image"])).text == case["answer"]
    for i in range(40 if SANITIZED else 150):
        assert s.chat("What?", noise(i), max_tokens=2).status == 200
    assert s.chat(case["question"], picture(case["image"])).text == case["answer"]
    s.wait(s.idle)


@pytest.mark.parametrize("mb", [0, 1])
def test_74_pictures_that_do_not_fit_together(serve, mb):
    s = serve("--image-cache", mb, "--cache-ram", mb)
    case, out = RIGHT[0], []
    big = [noise(100 + i, 600) for i in range(2)]
    def one():
        out.append(s.chat("What?", *big, max_tokens=2))
    threads = [threading.Thread(target=one) for _ in range(3)]
    [t.start() for t in threads], [t.join(120) for t in threads]
    assert [r.status for r in out] == [200] * 3
    for _ in range(2):
        assert s.chat(case["question"], picture(case["image"])).text == case["answer"]
    if mb == 0:
        assert s.chat(case["question"], picture(case["image"])).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_70_errors_say_nothing_of_the_inside(server):
    r = random.Random(7)
    good = json.dumps(question("MARK" * 40, picture(RIGHT[0]["image"]), top_p=1)).encode()
    seen = set()
    for i in range(60 if SANITIZED else 500):
        kind = i % 4
        if kind == 0:
            body = bytearray(good)
            for _ in range(r.randrange(1, 6)):
                body[r.randrange(len(body))] = r.randrange(256)
        elif kind == 1:
            body = good[:r.randrange(len(good))]
        elif kind == 2:
            data = bytearray(picture(RIGHT[i % len(RIGHT)]["image"]))
            for _ in range(20):
                data[r.randrange(len(data))] = r.randrange(256)
            body = json.dumps(question("x", bytes(data), max_tokens=1, stream=bool(i & 8))).encode()
        else:
            key = r.choice(["temperature", "messages", "model", "stop", "n", "logit_bias", "max_tokens", "seed", "stream_options", "tools"])
            body = json.dumps({**question("x", max_tokens=1), key: r.choice([{}, [], "MARK" * 40, -1, 1e300, None, [["MARK" * 40]], {"MARK" * 40: 1}])}).encode()
        reply = server.post("/v1/chat/completions", bytes(body), Content_Type="application/json")
        seen.add(reply.status)
        text = reply.body.decode(errors="replace")
        if '"error"' not in text:
            continue
        assert not re.search(r"0x[0-9a-fA-F]{6}|/(tmp|work|usr|home|root|build)/|MARK" + "MARK" * 16, text), text
    assert 400 in seen and not seen - {200, 400, 404}, seen


def test_70_errors_everywhere(server):
    """What is sent comes back nowhere: paths, headers, files, tokens, streams, sockets."""
    mark = "MARK" * 30
    post = lambda path, body, **h: server.post(path, body, **h)
    form = lambda name, data: (f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="{mark}"\r\n\r\n').encode() + data + b"\r\n--x--\r\n"
    multipart = {"Content_Type": "multipart/form-data; boundary=x"}
    replies = [server.get("/" + mark), server.get(f"/v1/models/{mark}"), server.get(f"/v1/files/{mark}"), server.call("DELETE", f"/v1/files/file-{mark}"),
               server.call("PUT", "/v1/models"), server.get("/v1/models", Host=mark + ".example"), post("/v1/files", form(mark, b"x"), **multipart),
               post("/v1/files", b"--y" + mark.encode(), **multipart), post("/tokenize", {"content": {mark: mark}}), post("/tokenize", mark),
               post("/detokenize", {"tokens": [mark]}), post("/detokenize", {"tokens": [1 << 40]}), post("/apply-template", {"messages": [{"role": mark}]}),
               post("/v1/completions", {"prompt": [mark, mark]}), post("/v1/completions", {"prompt": "x", "stop": {mark: mark}}),
               server.chat("x", "http://" + "m" * 100 + ".example/" + mark), server.chat("x", "margay-file:" + mark), server.chat("x", "file:///" + mark),
               server.chat("x", mark + ":" + mark), server.chat("x", f"data:{mark};base64,AAAA"), server.chat("x", mark), server.chat("x", "/" + mark)]
    for stream in (False, True):
        replies += [server.chat("x", b"GIF89a" + mark.encode(), stream=stream), server.chat("MARK " * 9000, stream=stream),
                    server.chat("x", picture(RIGHT[0]["image"])[:-500], stream=stream),
                    post("/v1/chat/completions", {"messages": [{"role": mark, "content": "x"}], "stream": stream}),
                    post("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": mark}]}], "stream": stream})]
    texts = [r.body.decode() + str(r.headers) for r in replies]
    assert [i for i, r in enumerate(replies) if r.status not in (400, 403, 404, 405)] == []
    w = Socket(server)
    for message in ("{" + mark, {"question": mark, "top_p": mark}, {"type": mark}, {"question": "x", "images": [mark]}):
        w.send(message)
        m = w.receive()
        assert m["type"] == "error", m
        texts.append(json.dumps(m))
    for text in texts:
        assert not re.search(r"0x[0-9a-fA-F]{6}|/(tmp|work|usr|home|root|build)/|(MARK){17}|m{65}", text), text


def test_36_stop_strings(server):
    """Cut at the earliest match, in a stream as in a whole reply; what only begins like a stop string is not lost."""
    case = max(RIGHT, key=lambda c: len(c["answer"]))
    want = case["answer"]
    ask = lambda stop, stream: server.chat(case["question"], picture(case["image"]), stop=stop, stream=stream)
    stops = {want[i:i + n] for n in (1, 2, 3, 5) for i in range(len(want) - n + 1)}
    stops = [[s] for s in sorted(stops)] + [[want[:k] + "\x01"] for k in range(1, len(want))] + [[want[k:] + "\x01", want[k:] + "x"] for k in range(len(want))]
    stops += [[want[5:9], want[3:7]], [want[2:4], want[2:9]], ["\x01", want[-1]], [want], [want + "x"]]
    for stop in stops[::4] if SANITIZED else stops:
        cut = want[:min((want.find(s) for s in stop if s in want), default=len(want))]
        whole, stream = ask(stop, False), ask(stop, True)
        assert whole.text == stream.streamed == cut, (stop, whole.text, stream.streamed)
        detail = whole.json["choices"][0]["stop_detail"]
        assert (detail == "stop_string") == (cut != want), (stop, detail)


def test_38_over_the_context(serve, large):
    """Told before anything is looked at, with how much there is and how much of it is pictures."""
    options, env = large
    s = serve(*options[:-3], "--ctx-size", 1024, env=env)
    case = RIGHT[0]
    for body, prompt, pictures in ((question("x", png(1000, 700), png(1000, 700, 7)), 1300, 1300), (question("word " * 1500), 1024, 0)):
        for stream in (False, True):
            begun = time.monotonic()
            r = s.post("/v1/chat/completions", {**body, "stream": stream})
            took = time.monotonic() - begun
            assert r.status == 400 and r.headers["Content-Type"] == "application/json", r.body
            e = r.json["error"]
            assert e["code"] == "context_length_exceeded" and e["type"] == "exceed_context_size_error"
            n = [int(x) for x in re.findall(r"\d+", e["message"])]
            assert n[0] >= prompt and (pictures <= n[1] < n[0]) and n[2] == 1024, e["message"]
            assert SANITIZED or took < slack()
    seen = re.search(r"margay_vision_encode_seconds_count (\d+)", s.get("/metrics").body.decode())
    assert seen.group(1) == "0"
    assert s.chat(case["question"], picture(case["image"])).text == case["answer"]
    n = s.chat("word").json["usage"]["prompt_tokens"]
    room = 1024 - n
    exact = lambda k: s.chat("word" + "\n" * k, max_tokens=5)
    full = next(k for k in range(room, room + 3) if exact(k).status == 400)
    assert exact(full).json["error"]["code"] == "context_length_exceeded"
    last = exact(full - 1)
    assert last.status == 200 and last.json["usage"]["prompt_tokens"] == 1023 and last.json["choices"][0]["finish_reason"] in ("length", "stop")


def test_45_large_bodies(server):
    """20 MB, with a length, in chunks, and after a client that waits for 100 Continue."""
    case = RIGHT[0]
    body = json.dumps({**question(case["question"], picture(case["image"])), "unread": "x" * (20 << 20)}).encode()
    assert server.post("/v1/chat/completions", body, Content_Type="application/json").text == case["answer"]
    pieces = (body[i:i + 100_000] for i in range(0, len(body), 100_000))
    assert server.post("/v1/chat/completions", pieces, Content_Type="application/json").text == case["answer"]
    c = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert c.recv(100).startswith(b"HTTP/1.1 100 ")
    c.sendall(body)
    assert b'"content":"' + case["answer"].encode() in b"".join(iter(lambda: c.recv(1 << 16), b""))


def test_45_cut_at_every_byte(server):
    """A body that ends early is an error, whether it says so or not; one that comes in two pieces is whole."""
    body = json.dumps(question("Hi", png(1, 1), max_tokens=1), separators=(",", ":")).encode()
    head = lambda n: b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % n
    def send(*pieces, end=False):
        c = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for p in pieces:
            c.sendall(p)
        if end:
            c.shutdown(socket.SHUT_WR)
        data = b"".join(iter(lambda: c.recv(1 << 16), b""))
        c.close()
        while data.startswith(b"HTTP/1.1 100"):
            data = data.partition(b"\r\n\r\n")[2]
        return data
    cuts = range(0, len(body), 7 if SANITIZED else 1)
    for i in cuts:
        said = send(head(i), body[:i])
        assert said.startswith(b"HTTP/1.1 400 ") and b'"error"' in said, (i, said)
        silent = send(head(len(body)), body[:i], end=True)
        assert silent == b"" or silent.startswith(b"HTTP/1.1 400 "), (i, silent)
        if i % 3 == 0:
            two = send(head(len(body)) + body[:i], body[i:])
            assert two.startswith(b"HTTP/1.1 200 "), (i, two)
    assert server.idle() and server.chat(RIGHT[0]["question"], picture(RIGHT[0]["image"])).text == RIGHT[0]["answer"]


def test_53_pictures_of_the_same_bytes(serve, large):
    """The form, how finely it is looked at and what is left out decide, not only the values."""
    options, env = large
    s = serve(*options, env=env)
    def ask(image, **wish):
        part = {"type": "image_url", "image_url": {"url": data_url(image), **{k: wish.pop(k) for k in ("detail",) if k in wish}}, **wish}
        r = s.post("/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [part, {"type": "text", "text": "x"}]}]})
        assert r.status == 200, r.body
        return r.json["images"][0]["cache"], r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    tall, wide = png(96, 480), png(480, 96)
    cold = ask(tall)
    assert cold[0] == "miss" and ask(tall) != cold and ask(tall)[0] == "hit"
    assert ask(wide)[0] == "miss" and ask(wide)[0] == "hit" and ask(tall)[0] == "hit"
    big = noise(3, 700)
    for wish in ({}, {"detail": "low"}, {"detail": "high", "max_pixels": 300_000}, {"min_pixels": 600_000}, {"prune": "near=200"}):
        assert ask(big, **wish)[0] == "miss", wish
        assert ask(big, **wish)[0] == "hit", wish
    colour = lambda v: ask(png(64, 64, v))[0]
    assert [colour(v) for v in (10, 11, 10, 11, 12)] == ["miss", "miss", "hit", "hit", "miss"]


def test_54_nearly_is_not_the_same(serve):
    """The same question about receipts, words and shapes, about a white page and one with a word: each gets its own answer."""
    s = serve("--answer-cache", 16, "--similar-cache")
    groups = {}
    for c in RIGHT:
        groups.setdefault(c["question"], []).append(c)
    groups = {ask: cases for ask, cases in groups.items() if len(cases) > 2}
    assert sum(len(cases) for cases in groups.values()) > 10
    for ask, cases in groups.items():
        for c in cases:
            r = s.chat(ask, picture(c["image"]), similar_cache=0.9)
            assert r.headers["x-cache"] == "miss" and r.text == c["answer"], c
    def page(word):
        rows = bytearray()
        for y in range(256):
            rows.append(0)
            for x in range(256):
                ink = word and 120 <= y < 132 and 100 <= x < 160 and (x // 4 + y // 3) % 2
                rows += b"\x10\x10\x10" if ink else b"\xff\xff\xff"
        return png_of(256, 256, bytes(rows))
    for p in (page(False), page(True), png(256, 256, 254), png(256, 256, 253)):
        assert s.chat("What?", p, max_tokens=2, similar_cache=0.9).headers["x-cache"] == "miss"
    assert s.chat("What?", page(True), max_tokens=2, similar_cache=0.9).headers["x-cache"] == "exact"


def test_69_no_path_is_opened(serve, tmp_path):
    """With and without a media folder: names out of it, links, folders, pipes, sockets, devices; by file:, plain or as an id."""
    root = tmp_path / "media"
    (root / "sub").mkdir(parents=True)
    case, good = RIGHT[0], picture(RIGHT[0]["image"])
    (root / "sub" / "in.png").write_bytes(good)
    (tmp_path / "out.png").write_bytes(good)
    (root / "up").symlink_to("..")
    (root / "sub" / "link.png").symlink_to(tmp_path / "out.png")
    (root / "inside.png").symlink_to("sub/in.png")
    os.mkfifo(root / "pipe.png")
    (root / "proc").symlink_to("/proc")
    (root / "zero.png").symlink_to("/dev/zero")
    (root / "empty.png").touch()
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(root / "socket.png"))
    names = ["/etc/passwd", "../out.png", "sub/../../out.png", "..%2fout.png", "%2e%2e/out.png", "up/out.png", "sub/link.png", "inside.png", "pipe.png", "zero.png",
             "proc/self/environ", "socket.png", "sub", "", ".", "..", "empty.png", "//etc/passwd", "sub/in.png/", "sub/in.png%00.jpg", "localhost/etc/passwd",
             str(tmp_path / "out.png"), "a" * 3000, "%zz", "nothing.png"]
    for s, allowed in ((serve(), False), (serve("--media-path", root), True)):
        texts = set()
        for name in names:
            for url in (f"file:{name}", f"file:///{name}", f"file://{name}", name, {"file_id": name}, f"FILE:///{name}", f"file:\\\\{name}"):
                if not url:
                    continue
                part = {"type": "image_url", "image_url": {"url": url} if isinstance(url, str) else url}
                for body in ({"messages": [{"role": "user", "content": [part, {"type": "text", "text": "x"}]}]},):
                    r = s.post("/v1/chat/completions", {**body, "max_tokens": 1})
                    assert r.status in (400, 404), (url, r.body)
                    assert str(tmp_path) not in r.body.decode() and "passwd" not in r.body.decode()
                    if isinstance(url, str) and url.startswith("file:/"):
                        texts.add(r.json["error"]["message"])
        assert len(texts) <= 3, texts  # they do not tell what there is
        r = s.chat(case["question"], "file:sub/in.png")
        assert (r.status == 200 and r.text == case["answer"]) if allowed else r.status == 400
    unix.close()


def test_73_queue_time(serve):
    s = serve("--parallel", 1, "--queue-time", 1, "--no-loop-check", env=SLOW)
    busy = begin(s)
    begun = time.monotonic()
    r = s.chat("Hi", max_tokens=1)
    assert r.status == 503 and r.json["error"]["code"] == "queue_timeout" and int(r.headers["Retry-After"]) >= 1
    assert 0.9 < time.monotonic() - begun < 15
    leave(*busy)
    s.wait(s.idle)
    assert s.chat("Hi", max_tokens=1).status == 200


def test_73_fair_by_key(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("many\nfew\n")
    s = serve("--api-key-file", keys, "--parallel", 1, "--no-loop-check", env=SLOW)
    order, threads = [], []
    def ask(key, n):
        for who in [key] * n:
            t = threading.Thread(target=lambda: (s.post("/v1/chat/completions", question("Go on.", **{**LONG, "max_tokens": 30}), X_Api_Key=who), order.append(who)))
            t.start()
            threads.append(t)
    waiting = lambda: s.get("/ready").json["waiting"]
    ask("many", 8)
    s.wait(lambda: waiting() >= 6)
    ask("few", 1)
    [t.join(120) for t in threads]
    assert len(order) == 9 and order.index("few") <= 4, order


def test_73_many_at_once_are_refused_at_once(serve):
    s = serve("--parallel", 1, "--max-queue", 4, "--no-loop-check", env=SLOW)  # that one's answer lasts
    busy = begin(s)
    before, status, took = s.memory(), [], []
    def one():
        begun = time.monotonic()
        r = s.chat("Hi", picture(RIGHT[0]["image"]), max_tokens=1)
        took.append(time.monotonic() - begun)
        status.append(r.status)
        assert r.status == 200 or int(r.headers["Retry-After"]) >= 1
    threads = [threading.Thread(target=one) for _ in range(60 if SANITIZED else 300)]
    [t.start() for t in threads]
    s.wait(lambda: len(status) >= len(threads) - 4, 60)
    leave(*busy)
    [t.join(60) for t in threads]
    assert status.count(503) >= len(threads) - 20 and status.count(200) >= 4 and set(status) == {200, 503}
    if not SANITIZED:
        assert s.memory() - before < 64 << 10  # KB
    s.wait(s.idle)
