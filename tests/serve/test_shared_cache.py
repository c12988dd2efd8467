"""margay serve --redis: what one has computed the next start and others have, and no answer depends on Redis being there.
A real redis-server; entries that somebody got at are made by scripts on it."""
import collections, re, subprocess, sys, threading, time

import pytest

from conftest import BIN, RIGHT, ROOT, SANITIZED, picture
from test_rows import noise

sys.path.append(str(ROOT / "tests" / "cli"))
from redis_server import certificates, redis  # noqa: E402,F401 (a fixture)

SLOWER = 5 if SANITIZED else 1


def metrics(server, **headers):
    out = collections.Counter()
    for line in server.get("/metrics", **headers).body.decode().splitlines():
        if line.startswith("margay_") and "_bucket" not in line:
            name, value = line.rsplit(" ", 1)
            out[name[7:]] = float(value)
    return out


def shared(server, what, label="", **headers):
    return metrics(server, **headers)[f"shared_cache_{what}" + (f"{{{label}}}" if label else "")]


def url_of(r, who=""):
    return f"redis://{who}127.0.0.1:{r.port}"


def cli(r, *words):
    p = subprocess.run(["redis-cli", "-p", str(r.port), *map(str, words)], capture_output=True, text=True, check=True)
    assert not p.stdout.startswith("ERR") and "error" not in p.stdout.lower(), p.stdout
    return p.stdout


def about(server, seed, text="What is it?", **more):
    return server.chat(text, noise(seed), max_tokens=8, **more)


def same(reply):
    """What has to be equal wherever an answer comes from; log-probabilities tell features apart by their last bit."""
    assert reply.status == 200, reply.body
    o = reply.json
    return o["choices"], o["usage"]["prompt_tokens"], o["usage"]["completion_tokens"], [i["tokens"] for i in o["images"]]


DETAIL = {"logprobs": True, "top_logprobs": 3}


def stored(server, n, kind="image", **headers):
    server.wait(lambda: shared(server, "stored_total", f'kind="{kind}"', **headers) >= n)


def told(server, word):
    return [line for line in server.log if "shared cache" in line and word in line]


def test_restart_and_second(serve, redis, tmp_path):
    """A new start keeps the hits of the last, a second server has them at once; every answer is the one without Redis."""
    n, r = 40, redis()
    alone = serve("--threads", 1)
    want = [same(about(alone, i, **DETAIL)) for i in range(n)]
    first = serve("--redis", url_of(r))
    assert [same(about(first, i, **DETAIL)) for i in range(n)] == want
    stored(first, n)
    assert shared(first, "hits_total", 'kind="image"') == 0 and metrics(first)["redis_up"] == 1
    # a packed file of its own, as on another machine
    second = serve("--redis", url_of(r), "--threads", 1, env={"MARGAY_CACHE_DIR": str(tmp_path / "cache")})
    assert [same(about(second, i, **DETAIL)) for i in range(n)] == want
    assert first.stop() == 0
    again = serve("--redis", url_of(r))
    replies = [about(again, i, **DETAIL) for i in range(n)]
    assert [same(x) for x in replies] == want
    for s in (second, again):
        m = metrics(s)
        assert m['shared_cache_hits_total{kind="image"}'] >= 0.95 * n and m["image_cache_hits_total"] >= 0.95 * n
        assert m['shared_cache_bytes_total{direction="read"}'] > 0 and m['shared_cache_stored_total{kind="image"}'] <= 0.05 * n
        assert m["shared_cache_read_seconds_count"] >= n
    for x in replies[:3]:
        assert x.json["images"][0]["cache"] == "hit"
    assert again.get("/ready").json["status"] == "ok"


def test_answers_shared(serve, redis):
    r = redis()
    options = ["--redis", url_of(r), "--answer-cache", 16]
    first = serve(*options)
    cases = RIGHT[:5]
    ask = lambda s, c, **more: s.chat(c["question"], picture(c["image"]), **more)
    cold = [ask(first, c, **DETAIL) for c in cases]
    assert [x.headers["x-cache"] for x in cold] == ["miss"] * 5
    stored(first, 5, "answer")
    assert first.stop() == 0
    again = serve(*options)
    warm = [ask(again, c, **DETAIL) for c in cases]
    assert [x.headers["x-cache"] for x in warm] == ["exact"] * 5
    assert [x.json["choices"] for x in warm] == [x.json["choices"] for x in cold]
    assert shared(again, "hits_total", 'kind="answer"') == 5 and shared(again, "queries_total", 'kind="image"') == 0
    stream = ask(again, cases[0], stream=True)
    assert stream.streamed == cases[0]["answer"]
    assert [ask(again, c).text for c in cases] == [c["answer"] for c in cases]


def test_tenants_apart(serve, redis):
    """Row 57: what key A has asked tells key B nothing, neither by an answer nor by time."""
    r = redis()
    options = ["--redis", url_of(r), "--answer-cache", 16, "--api-key", "a-key", "--api-key", "b-key"]
    a, b = {"X-Api-Key": "a-key"}, {"X-Api-Key": "b-key"}
    first = serve(*options)
    about(first, 1, headers=a)
    stored(first, 1, "answer", X_Api_Key="a-key")
    assert first.stop() == 0
    other = serve(*options)
    x = about(other, 1, headers=b)
    assert x.headers["x-cache"] == "miss" and x.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    hits = lambda kind: shared(other, "hits_total", f'kind="{kind}"', X_Api_Key="a-key")
    assert hits("image") == hits("answer") == 0
    assert about(other, 1, headers=a).headers["x-cache"] == "exact" and hits("answer") == 1
    other.wait(lambda: shared(other, "stored_total", 'kind="answer"', X_Api_Key="a-key") == 1)
    keys = [k for k in cli(r, "--scan", "--pattern", "margay:*").split() if re.search(":[pa]:", k)]
    assert len(keys) == 4 and len({k.split(":")[4] for k in keys}) == 2
    assert all(re.fullmatch(r"margay:\{\d+\}:v1:[pa]:[0-9a-f]{32}:[0-9a-f]{64}", k) for k in keys)
    assert not re.search("a-key|b-key", cli(r, "--scan"))


DAMAGE = {  # one entry: KEYS[1] its key
    "another version": "local h = redis.call('HGET', KEYS[1], 'h') redis.call('HSET', KEYS[1], 'h', string.sub(h, 1, 8) .. '\\2' .. string.sub(h, 10))",
    "truncated front": "redis.call('HSET', KEYS[1], 'h', string.sub(redis.call('HGET', KEYS[1], 'h'), 1, 100))",
    "truncated body": "redis.call('HSET', KEYS[1], '0', string.sub(redis.call('HGET', KEYS[1], '0'), 1, -5))",
    "a changed byte": "local b = redis.call('HGET', KEYS[1], '0') redis.call('HSET', KEYS[1], '0', string.char((string.byte(b) + 1) % 256) .. string.sub(b, 2))",
    "foreign bytes": "redis.call('HSET', KEYS[1], 'h', string.rep('what', 54))",
    "a foreign key": "redis.call('SET', KEYS[1], 'what')",
    "another's entry": "local o = redis.call('HGETALL', KEYS[2]) redis.call('HSET', KEYS[1], unpack(o))",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_wrong_entries(serve, redis, kind):
    """They are ignored, counted and mended; the answers are right."""
    r, n = redis(), 4
    first = serve("--redis", url_of(r))
    want = [same(about(first, i, **DETAIL)) for i in range(n)]
    stored(first, n)
    assert first.stop() == 0
    keys = sorted(k for k in cli(r, "--scan").split() if ":p:" in k)
    assert len(keys) == n
    for i, k in enumerate(keys):  # of each other's entries a copy of the next is one of a changed one: all are wrong
        cli(r, "EVAL", DAMAGE[kind], 2, k, keys[(i + 1) % n])
    again = serve("--redis", url_of(r))
    assert [same(about(again, i, **DETAIL)) for i in range(n)] == want
    stored(again, n)
    assert shared(again, "errors_total", 'reason="damaged"') == n and shared(again, "hits_total", 'kind="image"') == 0
    assert again.stop() == 0
    mended = serve("--redis", url_of(r))
    assert [same(about(mended, i, **DETAIL)) for i in range(n)] == want
    assert shared(mended, "hits_total", 'kind="image"') == n


class Load:
    """Clients that each ask about ever new pictures; `of(begin, end)`: seconds of those that ended in between."""

    def __init__(self, server, clients=4):
        self.server, self.ends, self.bad, self.over = server, [], [], False
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, k):
        seed = 1000000 * (k + 1)
        while not self.over:
            seed += 1
            begin = time.monotonic()
            try:
                status = about(self.server, seed).status
            except OSError as e:
                status = e
            end = time.monotonic()
            self.ends.append((end, end - begin))
            if status != 200:
                self.bad.append(status)

    def of(self, begin, end):
        return sorted(took for at, took in self.ends if begin <= at < end)

    def stop(self):
        self.over = True
        for t in self.threads:
            t.join()


def p99(times):
    assert len(times) >= 20, len(times)
    return times[min(len(times) - 1, int(len(times) * 0.99))]


def state(server):
    reply = server.get("/ready")
    assert reply.status == 200
    return reply.json["status"]


def test_paused_under_load(serve, redis):
    """Row 58: Redis stands still. Nobody gets an error, nobody waits more than the limit, soon nobody waits at all; it
    is used again within 5 s of its return."""
    r = redis()
    server = serve("--redis", url_of(r))
    load = Load(server)
    try:
        time.sleep(4)
        calm, paused = load.of(0, time.monotonic()), time.monotonic()
        r.pause()
        try:
            server.wait(lambda: metrics(server)["redis_up"] == 0, 5)
            opened = time.monotonic()
            assert state(server) == "degraded" and "Redis" in server.get("/ready").json["detail"]
            time.sleep(4)
        finally:
            r.resume()
        back = time.monotonic()
        server.wait(lambda: metrics(server)["redis_up"] == 1, 5)
        recovered = time.monotonic() - back
        before = shared(server, "stored_total", 'kind="image"')
        server.wait(lambda: shared(server, "stored_total", 'kind="image"') > before, 5)
    finally:
        load.stop()
    while_paused, later = load.of(paused, back), load.of(opened + 0.3, back)
    print(f"p99 calm {p99(calm) * 1e3:.0f} ms, paused {p99(while_paused) * 1e3:.0f} ms, once open {p99(later) * 1e3:.0f} ms, "
          f"opened after {opened - paused:.2f} s, back after {recovered:.2f} s")
    assert not load.bad and recovered < 5 and opened - paused < 2
    assert p99(while_paused) < p99(calm) + 0.3 * SLOWER and p99(later) < p99(calm) + 0.15 * SLOWER
    assert max(while_paused) < max(calm) + 0.5 * SLOWER
    assert state(server) == "ok"
    assert len(told(server, "going on without")) == 1 and len(told(server, "is back")) == 1
    m = metrics(server)
    assert m['shared_cache_dropped_total{what="read"}'] > 0 and m['shared_cache_errors_total{reason="failed"}'] > 0


def test_killed_and_restarted(serve, redis, tmp_path):
    r = redis()
    server = serve("--redis", url_of(r))
    want = [same(about(server, i, **DETAIL)) for i in range(4)]
    stored(server, 4)
    load = Load(server, 2)
    try:
        for turn in range(2):
            r.process.kill()
            r.process.wait()
            server.wait(lambda: metrics(server)["redis_up"] == 0, 5)
            time.sleep(0.5)
            assert state(server) == "degraded"
            r = redis(port=r.port)
            begin = time.monotonic()
            server.wait(lambda: metrics(server)["redis_up"] == 1, 5)
            assert time.monotonic() - begin < 5
            assert len(told(server, "is back")) == turn + 1
    finally:
        load.stop()
    assert not load.bad
    # the new server is empty: what is asked now is put there
    before = shared(server, "stored_total", 'kind="image"')
    for i in range(4):
        about(server, 500 + i)
    stored(server, before + 4)
    other = serve("--redis", url_of(r))
    for i in range(4):
        about(other, 500 + i)
    assert shared(other, "hits_total", 'kind="image"') == 4
    assert [same(about(other, i, **DETAIL)) for i in range(4)] == want


def test_not_let_in(serve, redis):
    """A wrong password, and nobody there: the server starts, says so once, and answers."""
    r = redis("--requirepass", "s3cret")
    server = serve("--redis", "redis://:s3cret@127.0.0.1:%d" % r.port)
    about(server, 1)
    stored(server, 1)
    for url in (f"redis://:wr0ng@127.0.0.1:{r.port}", url_of(r), "redis://:wr0ng@127.0.0.1:1"):
        s = serve(env={"MARGAY_REDIS": url})
        assert same(about(s, 1)) == same(about(server, 1)) and state(s) == "degraded"
        time.sleep(1.5)
        assert metrics(s)["redis_up"] == 0
        lines = told(s, "")
        assert len(lines) == 1 and "going on without Redis" in lines[0], lines
        assert s.stop() == 0
        assert not re.search("s3cret|wr0ng", "".join(s.log))


def test_tls(serve, redis, tmp_path):
    """A server that wants a certificate of its clients."""
    folder = certificates(tmp_path)
    r = redis(tls=folder)
    trust = ["--redis", f"rediss://localhost:{r.port}", "--redis-ca-file", folder / "ca.pem"]
    known = [*trust, "--redis-cert-file", folder / "server.pem", "--redis-key-file", folder / "server.key"]
    server = serve(*known)
    assert about(server, 1).status == 200
    stored(server, 1)
    again = serve(*known)
    about(again, 1)
    assert shared(again, "hits_total", 'kind="image"') == 1
    for options in (trust, known[:2]):  # no certificate; an authority that is not known
        s = serve(*options)
        assert about(s, 1).status == 200 and state(s) == "degraded" and len(told(s, "going on without")) == 1


@pytest.mark.parametrize("args", [["--redis", "http://x"], ["--redis", "redis://user@h"], ["--redis-budget", "1"], ["--redis-ttl", "0"]])
def test_usage(args):
    p = subprocess.run([BIN, "serve", "--port", "0", *args], capture_output=True, text=True, timeout=60)
    assert p.returncode == 2, p.stderr


def test_expiry_and_budget(serve, redis):
    """Entries carry their expiry, and what is counted of them is what is there, below the budget."""
    r = redis()
    server = serve("--redis", url_of(r), "--redis-ttl", 300, "--redis-budget", 16)
    for i in range(30):
        about(server, i)
    stored(server, 30)
    keys = cli(r, "--scan").split()
    entries = [k for k in keys if ":p:" in k]
    assert len(entries) == 30
    for k in entries:
        assert 290 < int(cli(r, "TTL", k)) <= 300
    counted = sum(int(cli(r, "HGET", k, "")) for k in keys if k.endswith(":sizes"))
    held = sum(sum(int(cli(r, "HSTRLEN", k, f)) for f in ("h", "0")) for k in entries)
    assert held < counted <= 16 << 20 and all(int(cli(r, "TTL", k)) > 0 for k in keys)
