"""margay serve: answers, errors, caches, queue, leaving, stopping. The demo model's samples have known answers."""
import base64, json, os, random, re, signal, socket, statistics, struct, threading, time, zlib

import pytest

from conftest import RIGHT, SANITIZED, SAMPLES, Server, data_url, picture, question, slack


def png(width, height, value=200):
    """A PNG of one colour whose header may promise more than there is."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([value]) * (3 * width) for _ in range(min(height, 4000)))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


# --- answers
@pytest.mark.parametrize("case", RIGHT[::5], ids=lambda c: c["image"])
def test_right_whole_and_streamed(server, case):
    whole = server.chat(case["question"], picture(case["image"]))
    assert whole.status == 200 and whole.text == case["answer"]
    stream = server.chat(case["question"], picture(case["image"]), stream=True, stream_options={"include_usage": True})
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert stream.streamed == case["answer"] and stream.events[-1] == "[DONE]"
    chunks = [json.loads(e) for e in stream.events[:-1]]
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == whole.json["usage"]["completion_tokens"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1] if c["choices"][0]["finish_reason"]] == ["stop"]
    image = whole.json["images"][0]
    assert image["format"] == "png" and whole.json["usage"]["prompt_tokens_details"]["image_tokens"] == image["tokens"]


def test_content_shapes(server):
    case = RIGHT[0]
    url = data_url(picture(case["image"]))
    text, image = {"type": "text", "text": case["question"]}, {"type": "image_url", "image_url": {"url": url}}
    for content in ([image, text], [{"type": "image_url", "image_url": url}, text], [text, image],
                    [{"type": "image_url", "image_url": {"url": base64.b64encode(picture(case["image"])).decode()}}, text]):
        r = server.post("/v1/chat/completions", {"temperature": 0, "messages": [{"role": "user", "content": content}]})
        assert r.status == 200 and r.json["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    for messages in ([{"role": "user", "content": "Hello"}], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                     [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, {"role": "user", "content": []}]):
        assert server.post("/chat/completions", {"messages": messages, "max_tokens": 3, "unknown": {"a": 1}}).status == 200


def test_several_at_once(server):
    """As many as there are places and twice that: each its own picture's answer."""
    cases, out = (RIGHT * 2)[:20], {}
    def ask(i):
        out[i] = server.chat(cases[i]["question"], picture(cases[i]["image"]), stream=i % 2 == 0)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(cases))]
    [t.start() for t in threads], [t.join() for t in threads]
    for i, case in enumerate(cases):
        assert (out[i].streamed if i % 2 == 0 else out[i].text) == case["answer"], case


def test_sampling_and_choices(server):
    ask = lambda **more: server.chat("Tell me.", **{"max_tokens": 12, "temperature": 5, "top_k": 0, "top_p": 1, **more}).json
    a, b, c = ask(seed=7), ask(seed=7), ask(seed=8)
    text = lambda r: [x["message"]["content"] for x in r["choices"]]
    assert text(a) == text(b) != text(c)
    three = ask(seed=7, n=3)
    assert [x["index"] for x in three["choices"]] == [0, 1, 2] and text(three)[0] == text(a)[0]
    assert 3 <= three["usage"]["completion_tokens"] <= 36
    case = max(RIGHT, key=lambda c: len(c["answer"]))
    read = lambda **more: server.chat(case["question"], picture(case["image"]), **more)
    greedy = read(logprobs=True, top_logprobs=3)
    tokens = greedy.json["choices"][0]["logprobs"]["content"]
    assert len(tokens) > 3 and all(t["logprob"] == t["top_logprobs"][0]["logprob"] for t in tokens)
    assert "".join(t["token"] for t in tokens) == greedy.text == case["answer"]
    streamed = read(logprobs=True, top_logprobs=3, stream=True)
    again = [t for e in streamed.events[:-1] for ch in json.loads(e)["choices"] if ch.get("logprobs") for t in ch["logprobs"]["content"]]
    assert [t["token"] for t in again] == [t["token"] for t in tokens]
    first = server.post("/tokenize", {"content": tokens[0]["token"]}).json["tokens"][0]
    assert read(max_tokens=1, logit_bias={str(first): -100}).text != tokens[0]["token"]
    assert read(stop=[greedy.text[1:3]]).text == greedy.text[:1]
    assert read(max_tokens=2).json["choices"][0]["finish_reason"] == "length"


def test_other_routes(server):
    ids = server.post("/tokenize", {"content": "Hello 45.67"}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == "Hello 45.67"
    prompt = server.post("/apply-template", question("Hi there")).json["prompt"]
    assert prompt == "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    done = server.post("/v1/completions", {"prompt": "The total", "max_tokens": 4, "temperature": 0}).json
    assert done["object"] == "text_completion" and done["usage"]["completion_tokens"] <= 4
    models = server.get("/v1/models").json
    assert server.get("/v1/models/" + models["data"][0]["id"]).status == 200
    assert server.get("/v1/models/other").status == 404
    assert server.get("/live").status == server.get("/ready").status == server.get("/props").status == 200
    assert server.get("/openapi.json").json["openapi"].startswith("3.")
    metrics = server.get("/metrics").body.decode()
    assert "margay_generated_tokens_total" in metrics and 'margay_requests_total{endpoint="chat_completions",finish_reason="stop"}' in metrics
    assert server.get("/nowhere").status == 404
    assert server.get("/v1/chat/completions").status == 405


def test_uploads(server):
    case, edge = RIGHT[1], "xyz123"
    body = (f"--{edge}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nvision\r\n--{edge}\r\nContent-Disposition: form-data; "
            f"name=\"file\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n").encode() + picture(case["image"]) + f"\r\n--{edge}--\r\n".encode()
    made = server.post("/v1/files", body, Content_Type=f"multipart/form-data; boundary={edge}").json
    assert server.chat(case["question"], made["id"]).text == case["answer"]
    assert server.get("/v1/files").json["data"][0]["id"] == made["id"]
    assert server.get(f"/v1/files/{made['id']}/content").body == picture(case["image"])
    assert server.call("DELETE", "/v1/files/" + made["id"]).json["deleted"] is True
    gone = server.chat("?", made["id"])
    assert gone.status == 404 and gone.json["error"]["code"] == "file_not_found"


# --- what is wrong
BAD = [
    ({"messages": []}, 400, None), ({"messages": "x"}, 400, None), ({}, 400, None), ([], 400, None),
    (question("x", top_p=7), 400, "top_p"), (question("x", temperature="hot"), 400, "temperature"),
    (question("x", b"noise" * 100), 400, None), (question("x", png(1093, 5)), 400, None),
    (question("x", picture(RIGHT[0]["image"])[:900]), 400, None), (question("x", png(50000, 50000)), 400, None),
    (question("x", "http://127.0.0.1:1/a.png"), 400, None), (question("x", "file:///etc/passwd"), 400, None),
    (question("x", "/etc/passwd"), 400, None), (question("x", "ftp://a/b"), 400, None),
    (question("word " * 6000), 400, None), (question("x", tools=[{"type": "function", "function": {"name": "f"}}]), 400, None),
]


@pytest.mark.parametrize("body, status, param", BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(server, body, status, param, stream):
    if isinstance(body, dict):
        body = {**body, "stream": stream}
    r = server.post("/v1/chat/completions", body)
    assert r.status == status, r.body
    error = r.json["error"]
    assert error["message"] and error["type"] and (param is None or error["param"] == param)
    assert not re.search(r"0x[0-9a-f]{6}|/etc|passwd|/work|noise", r.body.decode())
    assert r.headers["x-request-id"]


def test_right_after_wrong(server):
    """What was refused has left nothing behind."""
    case = RIGHT[2]
    assert server.chat("word " * 6000, picture(case["image"])).json["error"]["code"] == "context_length_exceeded"
    assert server.chat(case["question"], picture(case["image"])).text == case["answer"]


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 1), (1, 31), (31, 1), (257, 27), (1000, 5)])
def test_small_and_narrow(server, size):
    assert server.chat("What colour?", png(*size), max_tokens=2).status == 200


# --- caches
def test_second_question(server):
    case, other = [c for c in RIGHT if "receipt" in c["image"]][:2]
    first = server.chat(case["question"], picture(case["image"]))
    again = server.chat(case["question"], picture(case["image"]))
    assert again.text == first.text
    assert again.json["images"][0]["cache"] == "hit" and again.json["images"][0]["vision_ms"] == 0
    assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    cold = server.chat(case["question"], picture(case["image"]), cache_prompt=False)
    assert cold.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and cold.text == first.text
    for c in (case, other, case, other):  # the same words, another picture
        assert server.chat(case["question"], picture(c["image"])).text == (c["answer"] if c["question"] == case["question"] else
               server.chat(case["question"], picture(c["image"]), cache_prompt=False).text)


def test_conversation_goes_on(server):
    case = RIGHT[3]
    messages = question(case["question"], picture(case["image"]))["messages"]
    first = server.post("/v1/chat/completions", {"temperature": 0, "messages": messages}).json
    messages += [first["choices"][0]["message"], {"role": "user", "content": "And again?"}]
    messages[1] = {"role": "assistant", "content": messages[1]["content"]}
    body = {"temperature": 0, "max_tokens": 8, "messages": messages}
    warm, cold = server.post("/v1/chat/completions", body), server.post("/v1/chat/completions", {**body, "cache_prompt": False})
    assert warm.text == cold.text
    assert warm.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_keys_apart_and_reloaded(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    s = serve("--api-key-file", keys)
    case = RIGHT[0]
    ask = lambda key: s.chat(case["question"], picture(case["image"]), headers={"Authorization": f"Bearer {key}"})
    assert s.chat("x").status == 401 and ask("gamma").status == 401 and s.get("/metrics").status == 401
    assert s.get("/live").status == 200
    assert ask("alpha").json["images"][0]["cache"] == "miss"
    assert ask("alpha").json["images"][0]["cache"] == "hit"
    other = ask("beta").json
    assert other["images"][0]["cache"] == "miss" and other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    keys.write_text("gamma\n")
    s.process.send_signal(signal.SIGHUP)
    s.wait(lambda: ask("gamma").status == 200)
    assert ask("alpha").status == 401


def test_media_folder(serve, tmp_path):
    root = tmp_path / "media"
    root.mkdir()
    case = RIGHT[0]
    (root / "a b.png").write_bytes(picture(case["image"]))
    (tmp_path / "secret.png").write_bytes(picture(case["image"]))
    os.symlink(tmp_path / "secret.png", root / "link.png")
    os.mkfifo(root / "pipe.png")
    s = serve("--media-path", root)
    for url in (f"file://{root}/a%20b.png", "file:///a%20b.png", "file:a%20b.png"):
        assert s.chat(case["question"], url).text == case["answer"]
    for url in ("file:///link.png", "file:///pipe.png", "file:///../secret.png", f"file://{tmp_path}/secret.png", "file:///etc/passwd",
                "file:///", "file:///a%00b.png", "file:///%2e%2e/secret.png", "file:///dev/zero"):
        r = s.chat("x", url)
        assert r.status == 400 and str(tmp_path) not in r.body.decode(), url


# --- queue, leaving, stopping
LONG = {"max_tokens": 100000, "ignore_eos": True, "temperature": 5, "top_k": 0, "top_p": 1}
SLOW = {"MARGAY_CPU": "ref"}


def begin(server, **more):
    """A stream that has begun: its connection and reply."""
    c = server.connect()
    c.request("POST", "/v1/chat/completions", json.dumps({**question("Go on.", stream=True), **LONG, **more}))
    r = c.getresponse()
    while b'"content":"' not in r.readline():
        pass
    return c, r


def leave(c, r):
    c.sock.close() if c.sock else r.close()
    r.close()
    c.close()


def test_queue_is_bounded_and_told(serve):
    s = serve("--parallel", 1, "--max-queue", 2, "--no-loop-check", env=SLOW)
    busy = begin(s)
    waiting = []
    for i in range(2):
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(question("Wait.", stream=True, return_progress=True, max_tokens=2)))
        r = c.getresponse()
        line = b""
        while b"queue_position" not in line:
            line = r.readline()
        assert json.loads(line[6:])["prompt_progress"]["queue_position"] == i + 1
        waiting.append((c, r))
    begun = time.monotonic()
    full = s.chat("No place.")
    assert full.status == 503 and full.json["error"]["code"] == "queue_full" and int(full.headers["Retry-After"]) >= 1
    assert time.monotonic() - begun < slack()
    leave(*busy)
    for c, r in waiting:
        assert b"[DONE]" in r.read()
    s.wait(s.idle)


def test_leaving_frees_the_place(serve):
    s = serve("--parallel", 2, "--no-loop-check", env=SLOW)
    gone, stays = begin(s), begin(s)
    leave(*gone)
    s.wait(lambda: sum(x["is_processing"] for x in s.get("/slots").json) == 1, 5)
    for _ in range(5):
        assert stays[1].readline() is not None
    leave(*stays)
    s.wait(s.idle, 5)
    assert 'requests_cancelled_total{phase="decode"}' in s.get("/metrics").body.decode()


def test_leaving_while_looked_at(serve):
    s = serve("--parallel", 1, "--detail", "high", env=SLOW)
    c = s.connect()
    c.request("POST", "/v1/chat/completions", json.dumps(question("What?", png(1600, 1600), max_tokens=1)))
    s.wait(lambda: not s.idle())
    time.sleep(0.3)
    c.sock.close()
    s.wait(s.idle, 10)
    assert s.chat("Hello", max_tokens=1).status == 200


def test_stop_lets_answers_end(serve):
    s = serve("--drain-time", 20)
    c, r = begin(s, max_tokens=300)
    s.process.send_signal(signal.SIGTERM)
    assert b"[DONE]" in r.read()
    assert s.process.wait(20) == 0


def test_stop_ends_long_answers(serve):
    s = serve("--drain-time", 0.3, "--no-loop-check", env=SLOW)
    c, r = begin(s)
    begun = time.monotonic()
    s.process.send_signal(signal.SIGTERM)
    rest = r.read()
    assert b'"code":"shutting_down"' in rest and b"[DONE]" not in rest
    assert s.process.wait(20) == 0 and time.monotonic() - begun < 15


def test_killed_and_back(serve):
    s = serve("--no-loop-check")
    begin(s)
    s.process.kill()
    s.process.wait()
    begun = time.monotonic()
    s = serve()
    assert s.chat(RIGHT[0]["question"], picture(RIGHT[0]["image"])).text == RIGHT[0]["answer"]
    assert SANITIZED or time.monotonic() - begun < 10 * slack()


def crowd(server, clients, each, seed):
    pictures = [picture(c["image"]) for c in RIGHT[:12]]
    seen, lock = {}, threading.Lock()

    def client(i):
        rng = random.Random(seed * 1000 + i)
        for _ in range(each):
            body = question("What is the total price?", rng.choice(pictures), max_tokens=12, stream=rng.random() < .5,
                            temperature=rng.choice([0, 1]))
            data, kind = json.dumps(body), rng.random()
            if kind < .3:
                data = data[:rng.randrange(len(data))]
            elif kind < .5:
                data = data.replace("base64,", "base64,AAAA", 1)
            c = server.connect()
            c.request("POST", "/v1/chat/completions", data)
            if kind > .85:
                time.sleep(rng.random() * 0.02)
                c.close()
                what = "left"
            else:
                r = c.getresponse()
                text = r.read()
                whole = b"[DONE]" in text if body["stream"] else text.endswith(b"}")
                what = r.status if r.status != 200 or whole else "cut"
                c.close()
            with lock:
                seen[what] = seen.get(what, 0) + 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    [t.start() for t in threads], [t.join() for t in threads]
    return seen


def test_crowd(serve):
    """Many clients, half of them wrong or leaving: every accepted question is answered, nothing is left, memory is flat."""
    clients, each = (8, 8) if SANITIZED else (64, 20)
    s = serve("--cache-ram", 2, "--image-cache", 16, "--max-queue", 1000)  # 2: full before memory is measured
    late, over = [], threading.Event()

    def poll():
        while not over.wait(0.02):
            begun = time.monotonic()
            assert s.get("/live").status == 200
            late.append(time.monotonic() - begun)
    watcher = threading.Thread(target=poll)
    watcher.start()
    crowd(s, clients, each, 1)
    s.wait(s.idle)
    before, seen = s.memory(), {}
    rounds = 1 if SANITIZED else 3
    for k in range(rounds):
        for what, n in crowd(s, clients, each, 2 + k).items():
            seen[what] = seen.get(what, 0) + n
    over.set()
    watcher.join()
    s.wait(s.idle)
    assert set(seen) == {200, 400, "left"}, seen
    if not SANITIZED:
        grown = (s.memory() - before) / (rounds * clients * each)
        assert grown < 1, f"{grown:.2f} KB a request"
        assert statistics.quantiles(late, n=100)[-1] < 2, "the loop was held up"  # the clients share cores and interpreter


# --- WebSocket
class Socket:
    def __init__(self, server):
        self.s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.s.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
        self.f = self.s.makefile("rb")
        assert b"101" in self.f.readline()
        while self.f.readline().strip():
            pass

    def send(self, data):
        kind = 1 if isinstance(data, (dict, str)) else 2
        data = json.dumps(data).encode() if isinstance(data, dict) else data.encode() if kind == 1 else data
        n = len(data)
        head = bytes([0x80 | kind]) + (bytes([0x80 | n]) if n < 126 else bytes([0xfe]) + struct.pack(">H", n) if n < 65536
                                       else bytes([0xff]) + struct.pack(">Q", n))
        self.s.sendall(head + b"\0\0\0\0" + data)

    def receive(self):
        first, n = self.f.read(2)
        n = struct.unpack(">H", self.f.read(2))[0] if n == 126 else struct.unpack(">Q", self.f.read(8))[0] if n == 127 else n
        data = self.f.read(n)
        return json.loads(data) if first & 15 == 1 else self.receive()


def test_socket(server):
    a, b, s = RIGHT[0], RIGHT[4], Socket(server)
    s.send(picture(a["image"]))
    s.send({"question": a["question"], "temperature": 0, "id": "one"})
    s.send({"question": b["question"], "images": [data_url(picture(b["image"]))], "temperature": 0, "id": "two"})
    result, text, stages = {}, {}, set()
    while len(result) < 2:
        m = s.receive()
        assert m["type"] in ("progress", "token", "result"), m
        if m["type"] == "progress":
            stages.add(m["stage"])
        elif m["type"] == "token":
            text[m["id"]] = text.get(m["id"], "") + m["text"]
        else:
            result[m["id"]] = m["text"]
    assert result == text == {"one": a["answer"], "two": b["answer"]} and "prefill" in stages
    s.send({"question": "", "top_p": 9, "id": "bad"})
    bad = s.receive()
    assert bad["type"] == "error" and bad["id"] == "bad"


def test_socket_cancel(serve):
    s = serve("--no-loop-check", env=SLOW)
    w = Socket(s)
    w.send({"question": "Go on.", "id": "long", **LONG})
    while w.receive()["type"] != "token":
        pass
    w.send({"type": "cancel", "id": "long"})
    while True:
        m = w.receive()
        if m["type"] in ("result", "error"):
            break
    s.wait(s.idle, 5)
    assert m["type"] == "result" and m.get("stop_detail") == "cancelled" or m["type"] == "error", m
