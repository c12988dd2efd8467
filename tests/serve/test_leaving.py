"""margay serve: who leaves, at any moment, costs nothing more and disturbs nobody; what a kill leaves behind."""
import hashlib, http.client, json, os, random, re, shutil, signal, socket, subprocess, threading, time

import pytest

from conftest import BIN, RIGHT, ROOT, SANITIZED, data_url, picture, question, slack
from test_serve import LONG, SLOW, Socket, begin, leave, png

soon = lambda: (10 if SANITIZED else 1.5) * slack()  # seconds; 1 are promised, 0.3 to 0.8 measured


def count(s, phase):
    m = re.search(rf'requests_cancelled_total{{phase="{phase}"}} (\d+)', s.get("/metrics").body.decode())
    return int(m.group(1)) if m else 0


def until(r, what):
    """Reads a stream up to an event for which what(event) is true."""
    for line in r:
        if line.startswith(b"data: {") and what(json.loads(line[6:])):
            return
    raise AssertionError("the stream has ended")


def stage(name, at_least=0):
    def what(e):
        p = e.get("prompt_progress", {})
        return p.get("stage") == name and p.get("step", 0) >= at_least
    return what


def text(e):
    return e["choices"] and e["choices"][0]["delta"].get("content")


PHASES = {
    "queue": (lambda s: question("Hi", max_tokens=1), stage("queue")),
    "image": (lambda s: question("Look.", *[png(6000, 2000)] * 20, max_tokens=1), None),
    "vision": (lambda s: question("Look.", png(1400, 1400), max_tokens=1), stage("vision", 2)),
    "prefill": (lambda s: question("word " * 1500, max_tokens=1), stage("prefill", 1)),
    "decode": (lambda s: question("Go on.", **LONG), text),
}


@pytest.mark.parametrize("phase", PHASES)
def test_48_leaving(serve, large, phase):
    """The place is free within a second, in whatever phase; a neighbour's stream goes on."""
    options, env = large
    slow = phase in ("prefill", "decode")
    s = serve(*options, "--parallel", 1 if phase == "queue" else 2, env={**env, **(SLOW if slow else {})})
    neighbour = begin(s)
    busy = lambda: sum(x["is_processing"] for x in s.get("/slots").json)
    make, there = PHASES[phase]
    before = s.get("/ready").json
    c = s.connect()
    c.request("POST", "/v1/chat/completions", json.dumps({**make(s), "stream": True, "return_progress": True}))
    if there:
        r = c.getresponse()
        until(r, there)
        r.close()
    else:  # pictures may still be found wrong: the stream has not begun
        s.wait(lambda: busy() == 2)
    c.sock and c.sock.close()
    c.close()
    begun = time.monotonic()
    s.wait(lambda: s.get("/ready").json["waiting"] == 0 and busy() == 1, 60)
    took = time.monotonic() - begun
    s.wait(lambda: count(s, phase) == 1, 5)
    assert took < soon(), f"{took:.2f} s"
    for _ in range(40):
        until(neighbour[1], text)
    leave(*neighbour)
    s.wait(s.idle, soon() + 5)
    assert s.chat("Hi", max_tokens=1).status == 200


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_48_leaving_over_a_socket(serve, large, how):
    options, env = large
    s = serve(*options, env=env)
    w = Socket(s)
    w.send(png(1400, 1400))
    w.send({"question": "Look.", "id": "a", "max_tokens": 1})
    while (m := w.receive())["type"] != "progress" or m["stage"] != "vision" or m.get("step", 0) < 2:
        pass
    if how == "close":
        w.s.shutdown(socket.SHUT_RDWR)
        w.s.close()
    else:
        w.send({"type": "cancel", "id": "a"})
        while (m := w.receive())["type"] == "progress":
            pass
        assert m["type"] == "error" and m["error"]["code"] == "cancelled", m
    begun = time.monotonic()
    s.wait(s.idle, 60)
    assert time.monotonic() - begun < soon() and count(s, "vision") == 1


def test_79_stopping_tells_everybody(serve):
    """A stream, a whole reply, one in the queue and a socket: each gets a last word, the status is 0."""
    s = serve("--parallel", 3, "--drain-time", 0.3, "--no-loop-check", env=SLOW)
    c, stream = begin(s)
    out = {}
    def whole():
        out["whole"] = s.post("/v1/chat/completions", question("Go on.", **LONG))
    t = threading.Thread(target=whole)
    t.start()
    w = Socket(s)
    w.send({"question": "Go on.", "id": "w", **LONG})
    while w.receive()["type"] != "token":
        pass
    s.wait(lambda: sum(x["is_processing"] for x in s.get("/slots").json) == 3)
    waiting = s.connect()
    waiting.request("POST", "/v1/chat/completions", json.dumps(question("Wait.", stream=True, return_progress=True)))
    until(waiting.getresponse(), stage("queue"))
    queued = s.connect()
    queued.request("POST", "/v1/chat/completions", json.dumps(question("Wait.")))
    s.wait(lambda: s.get("/ready").json["waiting"] == 2)
    begun = time.monotonic()
    s.process.send_signal(signal.SIGTERM)
    rest = stream.read()
    last = [e for e in rest.split(b"\n\n") if e][-1]
    assert last.startswith(b"data: ") and json.loads(last[6:])["error"]["code"] == "shutting_down"
    t.join(20)
    assert out["whole"].status == 503 and out["whole"].json["error"]["code"] == "shutting_down"
    r = queued.getresponse()
    assert r.status == 503 and json.loads(r.read())["error"]["code"] == "shutting_down"
    while (m := w.receive())["type"] == "token":
        pass
    assert m["type"] == "error" and m["id"] == "w" and m["error"]["code"] == "shutting_down"
    first, n = w.f.read(2)
    assert first & 15 == 8 and int.from_bytes(w.f.read(2), "big") == 1001
    assert s.process.wait(20) == 0 and time.monotonic() - begun < 10 * (3 if SANITIZED else 1)


@pytest.mark.skipif(SANITIZED, reason="times")
def test_killed_in_the_middle(serve, tmp_path):
    """kill -9 under load: nothing on disk is damaged, and a warm server is ready again within a second."""
    env = {"MARGAY_CACHE_DIR": str(tmp_path)}
    s = serve(env=env)
    packed = [f for f in tmp_path.iterdir() if f.suffix == ".safetensors"]
    assert len(packed) == 1
    digest = lambda: hashlib.sha256(packed[0].read_bytes()).hexdigest()
    good, listing = digest(), sorted(os.listdir(tmp_path))
    took = []
    for i in range(4):
        streams = [begin(s) for _ in range(3)]
        clients = []
        for k in range(8):
            c = s.connect()
            c.request("POST", "/v1/chat/completions", json.dumps(question("What?", picture(RIGHT[k]["image"]))))
            clients.append(c)
        time.sleep(random.random() * 0.02)
        s.process.kill()
        s.process.wait()
        for c, r in streams:
            with pytest.raises((OSError, http.client.IncompleteRead)):  # not as if it had ended
                r.read()
        begun = time.monotonic()
        s = serve(env=env)  # returns once /health says 200
        assert s.get("/ready").status == 200
        took.append(time.monotonic() - begun)
        assert s.chat(RIGHT[i]["question"], picture(RIGHT[i]["image"])).text == RIGHT[i]["answer"]
    assert digest() == good and sorted(os.listdir(tmp_path)) == listing
    assert min(took) < slack(), took
    subprocess.run([BIN, "convert", "--verify", packed[0]], check=True, capture_output=True)


def test_killed_while_it_converts(serve, tmp_path):
    """The next start finds no half file, or one that it does not take for whole."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "models" / "demo", model, ignore=shutil.ignore_patterns("samples"))
    cache = tmp_path / "cache"
    rng, killed = random.Random(3), 0
    for i in range(4 if SANITIZED else 12):
        shutil.rmtree(cache, ignore_errors=True)
        p = subprocess.Popen([BIN, "serve", "-m", model, "--port", "0"], stderr=subprocess.PIPE, env={**os.environ, "MARGAY_CACHE_DIR": str(cache)})
        end = time.monotonic() + 5
        while not (cache.exists() and os.listdir(cache)) and time.monotonic() < end and p.poll() is None:
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.03)
        p.kill()
        p.wait()
        p.stderr.close()
        whole = [f for f in cache.glob("*.safetensors")]
        killed += not whole
        s = serve("-m", model, env={"MARGAY_CACHE_DIR": str(cache)})
        case = RIGHT[i]
        assert s.chat(case["question"], picture(case["image"])).text == case["answer"]
        assert s.stop() == 0
        left = sorted(f.suffix for f in cache.iterdir())
        assert left in ([".lock", ".safetensors"], [".safetensors"]), os.listdir(cache)
    assert killed, "every conversion was over before it was killed"
