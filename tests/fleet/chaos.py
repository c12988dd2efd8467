"""One gateway, three workers and Redis, killed (-9) and paused at random while clients ask: is each job answered once?

    MARGAY_BIN=build/margay python3 tests/fleet/chaos.py --jobs 1000 --seconds 300 --seed 1

Clients name their jobs (X-Margay-Job) and ask again under the same name when a connection breaks or the gateway says 503.
What must hold for each job: the answer is the one that a server without a queue gives; the queue has exactly one end
of it, and its bytes are those that the client has; it came in bounded time.
"""
import argparse, collections, json, pathlib, random, re, signal, statistics, sys, tempfile, threading, time

import conftest
from conftest import BASE, SLOW, Fleet, Program, serving
from serve_conftest import RIGHT, SAMPLES, Server, picture, question

LONG = {"ignore_eos": True, "temperature": 5, "top_k": 0, "top_p": 1}
LEASE = 2


class Asked:
    """One job as its client sees it."""

    def __init__(self, n, rng, long_tokens):
        self.n, self.id, self.tries, self.codes = n, f"job-{rng.getrandbits(128):032x}", 0, collections.Counter()
        self.stream = rng.random() < 0.6
        if rng.random() < 0.5:
            self.key = ("long", rng.randrange(4))
            self.body = {**question("Go on."), **LONG, "max_tokens": long_tokens, "seed": self.key[1]}
        else:
            case = RIGHT[rng.randrange(12)]
            self.key = (case["image"], case["question"])
            # Behind the end of the PNG something that makes it long enough to become a blob.
            self.body = question(case["question"], picture(case["image"]) + bytes(3000))
        self.body["stream"] = self.stream
        self.text = self.raw = self.seconds = None

    def understand(self, body):
        """The text, or None when it isn't a whole answer."""
        if not self.stream:
            choice = json.loads(body)["choices"][0]
            return choice["message"]["content"]
        body = re.sub(rb"^: ping\n\n", b"", body, flags=re.M)
        if b"data: {\"error\"" in body:
            self.codes[json.loads(body.split(b"data: ")[-1])["error"]["code"]] += 1
        if not body.endswith(b"data: [DONE]\n\n"):
            return None
        parts = [json.loads(e[6:]) for e in body.decode().split("\n\n") if e.startswith("data: {")]
        self.raw = body
        return "".join(c["delta"].get("content") or "" for p in parts for c in p["choices"])

    def ask(self, gateway, limit):
        began = time.monotonic()
        while self.text is None and time.monotonic() - began < limit:
            self.tries += 1
            try:
                c = serving.http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
                c.request("POST", "/v1/chat/completions", json.dumps(self.body), {"X-Margay-Job": self.id, "X-Margay-Detach": "1"})
                r = c.getresponse()
                body = r.read()
                if r.status == 200:
                    self.text = self.understand(body)
                    if not self.stream:
                        self.raw = body
                else:
                    self.codes[json.loads(body)["error"]["code"]] += 1
                    if r.status < 500 and r.status != 409:
                        raise AssertionError(body)
            except (OSError, serving.http.client.HTTPException, ValueError) as e:
                self.codes[type(e).__name__] += 1
            finally:
                c.close()
            if self.text is None:
                time.sleep(0.2)
        self.seconds = time.monotonic() - began


def references(args, env, long_tokens):
    """What a server without a queue answers."""
    server, out = Server(*args, "--parallel", 1, env=env), {}
    for case in RIGHT[:12]:
        out[case["image"], case["question"]] = server.chat(case["question"], picture(case["image"]) + bytes(3000)).text
    for seed in range(4):
        reply = server.post("/v1/chat/completions", {**question("Go on."), **LONG, "max_tokens": long_tokens, "seed": seed})
        out["long", seed] = reply.text
    server.stop()
    return out


class Monkey(threading.Thread):
    def __init__(self, fleet, gateway, workers, rng, pause):
        super().__init__(daemon=True)
        self.fleet, self.gateway, self.workers, self.rng, self.pause = fleet, gateway, workers, rng, pause
        self.deck, self.done, self.stop_asked, self.fault = [], collections.Counter(), threading.Event(), None

    def act(self):
        r = self.rng
        if not self.deck:  # each kind has its turn, in any order
            self.deck = ["kill worker"] * 2 + ["pause worker", "kill gateway", "pause gateway", "kill redis", "pause redis"]
            r.shuffle(self.deck)
        what = self.deck.pop()
        target = {"worker": r.choice(self.workers), "gateway": self.gateway, "redis": self.fleet.redis}[what.split()[1]]
        self.done[what] += 1
        if what == "kill redis":
            target.kill()
            time.sleep(r.uniform(0, 1.5))
            target.restart()
        elif what == "pause redis":
            target.pause()
            time.sleep(r.uniform(0.2, 3))
            target.resume()
        elif what.startswith("kill"):
            port = target.port
            target.kill()
            time.sleep(r.uniform(0, 1))
            target.start(port)
        else:
            target.signal(signal.SIGSTOP)
            time.sleep(r.uniform(0.2, 2 * LEASE))
            target.signal(signal.SIGCONT)

    def run(self):
        try:
            while not self.stop_asked.wait(self.rng.uniform(0.3, 1) * self.pause):
                self.act()
        except BaseException as e:
            self.fault = e


def run(folder, large, jobs, seconds, seed, clients=12, limit=90, pause=1.5, long_tokens=2500, tell=print):
    rng = random.Random(seed)
    args, env = large
    wanted = references(args, env, long_tokens)
    fleet = Fleet(folder)
    queue = ["--queue-lease", LEASE, "--queue-tries", 50]
    try:
        gateway = fleet.gateway(*queue, "--queue-keep", 86400)
        workers = [fleet.worker(*queue, "--parallel", 3, *args, env=env) for _ in range(3)]
        asked = [Asked(n, rng, long_tokens) for n in range(jobs)]
        todo, lock, began = list(asked), threading.Lock(), time.monotonic()

        def client():
            while True:
                with lock:
                    if not todo:
                        return
                    a = todo.pop(0)
                wait = began + a.n * seconds / jobs - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                a.ask(gateway, limit)
        monkey = Monkey(fleet, gateway, workers, rng, pause)
        monkey.start()
        threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        took = time.monotonic() - began
        monkey.stop_asked.set()
        monkey.join(30)
        assert not monkey.fault, repr(monkey.fault)
        redis = fleet.redis.client()
        wrong = check(redis, asked, wanted)
        times = sorted(a.seconds for a in asked)
        attempts = collections.Counter(redis("HGET", BASE + "job:" + a.id, "attempt") for a in asked)
        tell(f"{jobs} jobs in {took:.0f} s, {len(wrong)} wrong; done to them: {dict(monkey.done)}")
        tell(f"seconds to the answer: median {statistics.median(times):.2f}, 95 % {times[int(len(times) * .95)]:.2f}, longest {times[-1]:.2f}")
        tell(f"attempts: {dict(attempts)}; asked again: {sum(a.tries > 1 for a in asked)}; "
             f"clients met: {dict(sum((a.codes for a in asked), collections.Counter()))}")
        keys = {k: redis("HGET", BASE + "meta", k) for k in ("waiting", "bytes", "submitted", "takeovers", "released", "ended:done", "ended:dead")}
        tell(f"queue: {keys}")
        notes = collections.Counter(re.sub(r"job-[0-9a-f]+", "JOB", line).strip() for p in fleet.programs for line in p.log
                                    if "listening" not in line and "the queue is" not in line)
        tell(f"said: {[n for n in notes.items() if 'margay: ' in n[0] and not re.search('demo|printed|receipt|margay pull|margay ask|loading', n[0])]}")
        assert not wrong, wrong[:10]
        assert int(keys["ended:done"]) == int(keys["submitted"]) == jobs and keys["waiting"] == keys["bytes"] == "0"
        assert redis("XLEN", BASE + "jobs") == 0 and redis("EXISTS", BASE + "dead") == 0
        return monkey.done, times
    finally:
        for p in fleet.programs:
            if p.process.poll() is None:
                p.signal(signal.SIGCONT)
        fleet.close()


def check(redis, asked, wanted):
    wrong = []
    for a in asked:
        events = redis("XRANGE", BASE + "ev:" + a.id, "-", "+")
        fields = [dict(zip(e[1][::2], e[1][1::2])) for e in events]
        ends = [f["e"] for f in fields if "e" in f]
        data = "".join(f.get("d", "") for f in fields).encode(errors="surrogateescape")
        if a.text is None:
            wrong.append((a.n, a.id, "no answer", dict(a.codes), ends))
        elif ends != ["done"] or "e" not in fields[-1]:
            wrong.append((a.n, a.id, "ends", ends))
        elif sum("h" in f for f in fields) != 1:
            wrong.append((a.n, a.id, "heads"))
        elif a.text != wanted[a.key]:
            wrong.append((a.n, a.id, a.key, "another answer", a.text[:80], wanted[a.key][:80]))
        elif data != a.raw:
            wrong.append((a.n, a.id, "other bytes", len(data), len(a.raw)))
    return wrong


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--jobs", type=int, default=1000)
    ap.add_argument("--seconds", type=float, default=300)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--pause", type=float, default=1.5)
    o = ap.parse_args()

    class Folders:
        def mktemp(self, name):
            return pathlib.Path(tempfile.mkdtemp(prefix="margay-" + name))
    large = getattr(serving.large, "__wrapped__", None) or serving.large.__pytest_wrapped__.obj
    run(Folders().mktemp("chaos"), large(Folders()), o.jobs, o.seconds, o.seed, pause=o.pause)
