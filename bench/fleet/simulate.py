#!/usr/bin/env python3
"""What a fleet does: the queue's own script (src/store/job_queue.lua) in a real redis-server, with workers, people and time made up.

usage: simulate.py [--workers 1,8,64] [--load 0.8] [--seconds 60] [--costs FILE] [--json] ...     (--help)

Which job goes to which worker is decided by the script itself, the one that margay runs: each submit, take and last emit of the
simulation is a call of it. Only TIME is replaced, by a line put before the script, so that an hour passes as fast as Redis answers.
What is made up:

    people    conversations begin at random (Poisson), each of a tenant and about a picture of its own; the next question comes some
              seconds after an answer. One tenant has half of them, and may hand in a heap of jobs at once
    worker    P places. Looking at a picture and reading the prompt takes the whole worker (one after another), less when the
              picture is in its cache; then tokens, one a step for every answer under way. Times are docs/speed.md's.
    Redis     one thread: a call waits until those before it are done. What a call costs is measured (calibrate) on a real
              redis-server, by its processor time and the bytes it counts; what workers and gateways ask regularly (beats, looks
              for work, reaping, events) is a load that is always there and slows the rest.

The times between calls (beats, looks, flushes of text) are those of src/server/puller.c and are named in RATES.
"""
import argparse
import collections
import heapq
import importlib.util
import json
import os
import pathlib
import random
import socket
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LUA = pathlib.Path(os.environ.get("MARGAY_QUEUE_LUA", ROOT / "src" / "store" / "job_queue.lua"))
NAME = "margay:{q:sim}:"
CLOCK = """local real, virtual = redis, {string.match(KEYS[2], 'clock (%d+) (%d+)$')}
local redis = {call = function(what, ...) if what == 'TIME' then return virtual end return real.call(what, ...) end,
               error_reply = real.error_reply}
"""
# A second, for each worker: signs of life; looks for work while there is room; reaping, and asking what it holds. For each gateway: reaping.
# Of all that would reap, one a second does; the others' calls see that and cost no more than a take that finds nothing.
RATES = {"beat": 2.0, "look": 2.0, "reap": 1.0, "mine": 1.0}
GATEWAYS, GATEWAY_READS = 2, 1000  # a gateway reads what has come since its last time, so at most so often
LOOK_AHEAD, AGED_MS, RECENT = 32, 30_000, 64

# One worker, seconds: docs/speed.md, int8, 416 x 416 (169 tokens), two cores of Zen 4 and of Emerald Rapids with AMX; the wide one is
# what 16 cores of the latter come to if they scale (not measured).
MACHINES = {"zen4-2": {"vision": 0.89, "prompt": 0.75, "step": 0.061, "row": 0.004}, "amx-2": {"vision": 0.5, "prompt": 0.34, "step": 0.07, "row": 0.003},
            "wide": {"vision": 0.08, "prompt": 0.06, "step": 0.02, "row": 0.001}}


def redis_server(folder):
    spec = importlib.util.spec_from_file_location("redis_server", ROOT / "tests" / "cli" / "redis_server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RedisServer(folder)


class Redis:
    """One connection; several commands at a time when they are known."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, *args):
        out = [b"*%d\r\n" % len(args)]
        for a in args:
            a = a if isinstance(a, bytes) else str(a).encode()
            out.append(b"$%d\r\n%s\r\n" % (len(a), a))
        self.socket.sendall(b"".join(out))

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))] if rest != b"-1" else None
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2].decode(errors="replace") if rest != b"-1" else None
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return int(rest) if kind == b":" else rest.decode()

    def __call__(self, *args):
        self.send(*args)
        return self.reply()

    def info(self):
        return dict(l.split(":", 1) for l in self("INFO").splitlines() if ":" in l)


class Queue:
    """The script, at a time of our choosing."""

    def __init__(self, redis, name=NAME, look_ahead=LOOK_AHEAD, aged=AGED_MS, script=None):
        self.redis, self.meta, self.calls, self.look_ahead, self.aged = redis, name + "meta", collections.Counter(), look_ahead, aged
        self.sha = redis("SCRIPT", "LOAD", CLOCK + (script or LUA.read_text()))

    def __call__(self, now, op, *args):
        self.calls[op] += 1
        us = int(now * 1e6) + 10**15
        return self.redis("EVALSHA", self.sha, 2, self.meta, f"{self.meta[:-4]}clock {us // 10**6} {us % 10**6}", op, *args)

    def submit(self, now, id, tenant, picture, most):
        blobs = ["0", picture] if picture else []
        return self(now, "submit", id, tenant, "normal", 1, "g1", 3_600_000, 600, 3600, most, 1 << 40, 200_000, "/v1/chat/completions",
                    BODY, len(blobs) // 2, *blobs)

    def take(self, now, worker, n, recent):
        return self(now, "take", worker, n, self.look_ahead, self.aged, *recent)[1:]

    def end(self, now, id, attempt):
        return self(now, "emit", id, attempt, "", 0, "", "done", "")


BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "margay-blob:0"}}, {"type": "text", "text": "What is the total of this receipt?" * 8}]}]})
EVENT = 'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"Qwen3-VL-2B-' \
        'Instruct","choices":[{"index":0,"delta":{"content":" total"},"finish_reason":null}]}\n\n'
HEAD = "200\nContent-Type: text/event-stream\nCache-Control: no-cache\nX-Accel-Buffering: no\n"


def calibrate(workers, picture_bytes, n=400):
    """{operation: {"us": processor time of Redis for a call, "in", "out": bytes}} with so many workers registered."""
    costs = {}
    with tempfile.TemporaryDirectory() as folder:
        server = redis_server(folder)
        redis = Redis(server.port)
        queue = Queue(redis, "margay:{q:cal}:")

        def measure(what, n, fn):
            a = redis.info()
            for i in range(n):
                fn(i)
            b = redis.info()
            cpu = sum(float(b[k]) - float(a[k]) for k in ("used_cpu_sys", "used_cpu_user"))
            costs[what] = {"us": max(1.0, cpu / n * 1e6 - overhead / n), "in": (int(b["total_net_input_bytes"]) - int(a["total_net_input_bytes"])) / n,
                           "out": (int(b["total_net_output_bytes"]) - int(a["total_net_output_bytes"]) - len(b)) / n}
        overhead = 0
        measure("nothing", 5, lambda i: None)
        overhead = costs.pop("nothing")["us"] * 5  # of INFO itself
        picture, tenant = os.urandom(picture_bytes), "a" * 32
        now, holders = 1000.0, max(workers, n // 8)  # eight jobs each
        for i in range(workers):
            queue(now, "beat", f"host-{i}", 30000, 8, json.dumps({"model": "m" * 20, "n": i}))
        queue(now, "reap", 10**9, 3)
        queue(now, "inbox", "g1")
        # A job's whole life, as puller.c and gateway_link.c call it.
        measure("blob", 100, lambda i: queue(now, "blob", tenant, f"{i:064x}", 3600, picture))
        measure("blob_get", 100, lambda i: redis("GET", f"margay:{{q:cal}}:blob:{tenant}:{i:064x}"))
        measure("submit", n, lambda i: queue.submit(now, f"job-{i:032x}", tenant, f"{i % 100:064x}", 10**6))
        measure("take", n, lambda i: queue.take(now, f"host-{i % holders}", 1, [f"{j:064x}" for j in range(1000, 1000 + RECENT)]))
        measure("take_empty", n, lambda i: queue.take(now, f"host-{i % holders}", 1, [f"{j:064x}" for j in range(1000, 1000 + RECENT)]))
        measure("emit", n, lambda i: queue(now, "emit", f"job-{i:032x}", 1, HEAD if i < 0 else "", 0, EVENT, "", ""))
        measure("read", n, lambda i: redis("XRANGE", f"margay:{{q:cal}}:ev:job-{i:032x}", "(0-0", "+", "COUNT", 64))
        measure("inbox", n, lambda i: redis("XREAD", "COUNT", 1, "STREAMS", "margay:{q:cal}:gw:g1", f"{i}-0"))
        measure("beat", n, lambda i: queue(now, "beat", f"host-{i % workers}", 30000, 8, "", *sum(([f"job-{j:032x}", 1] for j in range(i % 50, i % 50 + 8)), [])))
        measure("mine", 100, lambda i: queue(now, "mine", f"host-{i % holders}"))
        measure("reap", min(100, n), lambda i: queue(now, "reap", 10**9, 3))
        measure("look", n, lambda i: redis("XREAD", "COUNT", 1, "BLOCK", 1, "STREAMS", "margay:{q:cal}:jobs", "$") if i % 20 == 0 else
                redis("XREAD", "COUNT", 1, "STREAMS", "margay:{q:cal}:jobs", "99999999999999-0"))
        measure("end", n, lambda i: queue.end(now, f"job-{i:032x}", 1))
        redis.socket.close()
        server.stop()
    return costs


class Worker:
    __slots__ = ("name", "free", "compute", "recent", "n", "waiting")

    def __init__(self, i, places):
        self.name, self.free = f"host-{i}", places
        self.compute = 0.0  # until when its looking and reading are taken
        self.recent = collections.OrderedDict()  # digests, newest last
        self.n, self.waiting = 0, False


class Fleet:
    """One queue in virtual time."""

    def __init__(self, o, n_worker, costs, rate):
        self.o, self.costs, self.rate = o, costs, rate
        self.rng = random.Random(o.seed)
        self.machine = MACHINES[o.machine]
        self.workers = [Worker(i, o.places) for i in range(n_worker)]
        self.events, self.order = [], 0
        self.redis_free = 0.0
        self.since = o.seconds / 3  # what is counted begins when the fleet has filled
        self.said = 0  # tokens, since then
        self.calls, self.bytes_in, self.bytes_out, self.redis_busy = collections.Counter(), 0.0, 0.0, 0.0
        self.jobs, self.waiting = {}, 0
        self.done, self.refused = [], 0
        self.hits = self.asked_again = 0
        self.blobs = set()
        self.last_seen = set()  # pictures that some worker has looked at
        self.shares = self.tenants()
        # What is asked all the time, as a share of Redis' one thread.
        reapers = (n_worker + GATEWAYS) * RATES["reap"]
        self.steady = {"beat": n_worker * RATES["beat"], "mine": n_worker * RATES["mine"], "reap": 1, "take_empty": reapers - 1}
        tokens = rate * o.tokens
        self.steady["emit"] = tokens  # each token of a stream by itself: a step takes longer than the 30 ms for which text is gathered
        self.steady["read"] = self.steady["inbox"] = min(tokens, GATEWAYS * GATEWAY_READS)
        self.background = sum(n * costs[k]["us"] for k, n in self.steady.items()) * 1e-6

    def tenants(self):
        """[(name, share of what is asked)]: the first asks half of it, the others divide the rest."""
        n = self.o.tenants
        return [(f"{i:032x}", 1.0 if n == 1 else 0.5 if i == 0 else 0.5 / (n - 1)) for i in range(n)]

    def at(self, when, fn, *args):
        self.order += 1
        heapq.heappush(self.events, (when, self.order, fn, args))

    def call(self, now, what, n=1.0):
        """Redis works on this for a while; when it is done."""
        c = self.costs[what]
        took = n * c["us"] * 1e-6 / max(0.02, 1 - self.background)
        self.redis_free = max(self.redis_free, now) + took
        if self.since <= now < self.o.seconds:
            self.redis_busy += n * c["us"] * 1e-6
            self.calls[what] += n
            self.bytes_in += n * c["in"]
            self.bytes_out += n * c["out"]
        return self.redis_free

    # --- people ---
    def arrive(self, now, queue, tenant, share):
        self.submit(now, queue, tenant)
        if now < self.o.seconds:
            self.at(now + self.rng.expovariate(self.rate * share / self.o.questions), self.arrive, queue, tenant, share)

    def submit(self, now, queue, tenant, picture=None):
        id, picture = f"job-{len(self.jobs):032x}", picture or f"{self.rng.getrandbits(256):064x}"
        if picture not in self.blobs:
            self.blobs.add(picture)
            self.call(now, "blob")
        when = self.call(now, "submit")
        told = queue.submit(now, id, tenant, picture, self.o.most)
        if told[0] == "missing":
            queue(now, "blob", tenant, picture, 3600, "x")
            told = queue.submit(now, id, tenant, picture, self.o.most)
        self.jobs[id] = (now, tenant, picture)
        if told[0] != "ok":
            self.refused += 1
            return
        self.waiting += 1
        self.wake(when, queue)

    # --- workers ---
    def wake(self, now, queue):
        """Redis tells all that wait for work, in the order in which they began to; each then looks."""
        waiting = [w for w in self.workers if w.waiting]
        if not waiting:
            return
        self.rng.shuffle(waiting)
        when = self.call(now, "look", len(waiting))
        for w in waiting:
            w.waiting = False
            if self.waiting > 0:
                self.at(when, self.take, queue, w)
            else:
                self.at(self.call(when, "take_empty"), self.block, queue, w)

    def block(self, now, queue, w):
        if self.waiting > 0 and w.free:
            self.take(now, queue, w)
        else:
            w.waiting = w.free > 0

    def take(self, now, queue, w):
        if not w.free:
            return
        if self.waiting <= 0:
            self.at(self.call(now, "take_empty"), self.block, queue, w)
            return
        jobs = queue.take(now, w.name, w.free, reversed(w.recent))
        if not jobs:
            self.waiting = 0
            self.at(self.call(now, "take_empty"), self.block, queue, w)
            return
        when = self.call(now, "take", len(jobs))
        self.waiting -= len(jobs)
        for job in jobs:
            w.free -= 1
            self.start(when, queue, w, job)
        if w.free:
            self.at(when, self.take, queue, w)

    def start(self, now, queue, w, job):
        came, tenant, picture = self.jobs[job[0]]
        m = self.machine
        hit = picture in w.recent
        again = picture in self.last_seen
        self.asked_again += again
        self.hits += hit
        self.last_seen.add(picture)
        if not hit:
            now = self.call(now, "blob_get")
        w.recent[picture] = True
        w.recent.move_to_end(picture)
        if len(w.recent) > RECENT:
            w.recent.popitem(last=False)
        look = m["prompt"] * 0.14 if hit else m["vision"] + m["prompt"]
        begins = max(now, w.compute)
        w.compute = begins + look
        first = begins + look
        running = self.o.places - w.free
        tokens = max(1, int(self.rng.expovariate(1 / self.o.tokens)))
        ends = first + tokens * (m["step"] + m["row"] * running)
        self.at(ends, self.end, queue, w, job[0], job[1], tokens, (came, tenant, begins - came, first - came))

    def end(self, now, queue, w, id, attempt, tokens, times):
        self.call(now, "end")
        queue.end(now, id, attempt)
        w.free += 1
        w.n += 1
        self.done.append((*times, now))
        if self.since <= now < self.o.seconds:
            self.said += tokens
        if now < self.o.seconds and self.rng.random() < 1 - 1 / self.o.questions:
            self.at(now + self.rng.expovariate(1 / self.o.think), self.submit, queue, times[1], self.jobs[id][2])
        if self.waiting > 0:
            self.take(now, queue, w)
        else:
            w.waiting = True

    def run(self, queue):
        for w in self.workers:
            w.waiting = True
        for tenant, share in self.shares:
            self.at(self.rng.expovariate(self.rate * share / self.o.questions), self.arrive, queue, tenant, share)
        for _ in range(self.o.burst):
            self.at(self.o.seconds / 4, self.submit, queue, self.shares[0][0])
        last = 0.0
        while self.events and last < self.o.seconds * 20:
            last, _, fn, args = heapq.heappop(self.events)
            fn(last, *args)
        return self.report(last)

    def report(self, last):
        span = self.o.seconds - self.since
        steady = dict(self.steady, emit=self.said / span)
        steady["read"] = steady["inbox"] = min(steady["emit"], GATEWAYS * GATEWAY_READS)
        us = self.redis_busy / span + sum(n * self.costs[k]["us"] for k, n in steady.items()) * 1e-6
        n_in = self.bytes_in / span + sum(n * self.costs[k]["in"] for k, n in steady.items())
        n_out = self.bytes_out / span + sum(n * self.costs[k]["out"] for k, n in steady.items())
        waits = sorted(d[2] for d in self.done)
        firsts = sorted(d[3] for d in self.done)

        def share(values, p):
            return values[min(len(values) - 1, int(p * len(values)))] if values else None
        small = sorted(d[2] for d in self.done if d[1] != self.shares[0][0])
        served = collections.Counter(d[1] for d in self.done if self.since <= d[4] < self.o.seconds)
        rest = [served[t] / s for t, s in self.shares[1:]]
        jain = sum(rest) ** 2 / (len(rest) * sum(x * x for x in rest)) if rest and sum(rest) else 1.0
        return {"workers": len(self.workers), "jobs": len(self.jobs), "done": len(self.done), "refused": self.refused, "offered_per_s": self.rate,
                "done_per_s": sum(served.values()) / span, "wait_p50": share(waits, 0.5), "wait_p95": share(waits, 0.95), "wait_p99": share(waits, 0.99),
                "first_p95": share(firsts, 0.95), "small_wait_p95": share(small, 0.95), "jain_small": jain,
                "affinity_hits": self.hits / self.asked_again if self.asked_again else None,
                "redis_load": us, "redis_ops_per_s": sum(self.calls.values()) / span + sum(steady.values()), "redis_in_mb_s": n_in / 1e6,
                "redis_out_mb_s": n_out / 1e6, "redis_load_idle": sum(self.steady[k] * self.costs[k]["us"] for k in ("beat", "mine", "reap", "take_empty")) * 1e-6,
                "seconds": last, "script_calls": 0}


def rate_of(o, machine, n_worker):
    """Jobs a second that so many workers can do at most: looking takes a worker alone, tokens are shared."""
    m, p = MACHINES[machine], o.places
    look = (m["vision"] + m["prompt"]) / o.questions + (1 - 1 / o.questions) * m["prompt"] * 0.14
    each = max(look, (look + o.tokens * (m["step"] + m["row"] * p)) / p)
    return n_worker / each


def simulate(o, n_worker, costs=None, script=None):
    costs = costs or calibrate(n_worker, o.picture_kb * 1000)
    rate = o.load * rate_of(o, o.machine, n_worker)
    with tempfile.TemporaryDirectory() as folder:
        server = redis_server(folder)
        redis = Redis(server.port)
        queue = Queue(redis, look_ahead=o.look_ahead, aged=int(o.aged * 1000), script=script)
        try:
            fleet = Fleet(o, n_worker, costs, rate)
            out = fleet.run(queue)
            # The script's own books, at the end: nothing waits, nothing runs, and the stream that KEDA looks at is empty.
            meta = redis("HGETALL", NAME + "meta")
            meta = dict(zip(meta[::2], meta[1::2]))
            out["left_waiting"], out["left_entries"] = int(meta.get("waiting", 0)), redis("XLEN", NAME + "jobs")
            out["script_calls"] = sum(queue.calls.values())
        finally:
            redis.socket.close()
            server.stop()
    return out


def options(args=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--workers", default="1,8,64", help="numbers of workers, one run each")
    ap.add_argument("--places", type=int, default=8, help="answers at a time of one worker (--parallel)")
    ap.add_argument("--machine", choices=MACHINES, default="amx-2")
    ap.add_argument("--load", type=float, default=0.8, help="what is asked, as a share of what the workers can do")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--tenants", type=int, default=20)
    ap.add_argument("--questions", type=float, default=2, help="mean number of questions of a conversation")
    ap.add_argument("--think", type=float, default=5, help="mean seconds between an answer and the next question")
    ap.add_argument("--tokens", type=float, default=64, help="mean length of an answer")
    ap.add_argument("--burst", type=int, default=0, help="jobs that the first tenant hands in at once, after a quarter of the time")
    ap.add_argument("--most", type=int, default=10**6, help="jobs that may wait")
    ap.add_argument("--picture-kb", type=int, default=150)
    ap.add_argument("--costs", help="JSON file of what calls cost; without it they are measured first")
    ap.add_argument("--write-costs", help="measure what calls cost, for each number of workers, and write them there")
    ap.add_argument("--look-ahead", type=int, default=LOOK_AHEAD, help="jobs of a tenant among which a worker's pictures decide; 1: they don't")
    ap.add_argument("--aged", type=float, default=AGED_MS / 1000, help="seconds after which a job isn't passed for a picture's sake")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--json", action="store_true")
    return ap.parse_args(args)


def costs_for(o, n_worker):
    """Of a file: {"N workers": costs}; the nearest number."""
    if not o.costs:
        return None
    kept = json.loads(pathlib.Path(o.costs).read_text())["workers"]
    return kept[min(kept, key=lambda k: abs(int(k) - n_worker))]


def main():
    o = options()
    numbers = [int(n) for n in o.workers.split(",")]
    if o.write_costs:
        text = {"workers": {str(n): calibrate(n, o.picture_kb * 1000) for n in numbers}, "picture_kb": o.picture_kb}
        pathlib.Path(o.write_costs).write_text(json.dumps(text, indent=1) + "\n")
        return
    rows = [simulate(o, n, costs_for(o, n)) for n in numbers]
    if o.json:
        print(json.dumps(rows, indent=1))
        return
    print("| workers | jobs/s asked, done | wait p50 / p95 / p99 s | the small tenants' p95 s | hits of those asked again | Redis: load, calls/s, MB/s in, out |")
    print("|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['workers']} | {r['offered_per_s']:.1f}, {r['done_per_s']:.1f} | {r['wait_p50']:.2f} / {r['wait_p95']:.2f} / {r['wait_p99']:.2f} | "
              f"{r['small_wait_p95'] or 0:.2f} | {100 * (r['affinity_hits'] or 0):.0f} % | {100 * r['redis_load']:.1f} %, {r['redis_ops_per_s']:.0f}, "
              f"{r['redis_in_mb_s']:.1f}, {r['redis_out_mb_s']:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
