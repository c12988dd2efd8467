#!/usr/bin/env python3
"""Long runs against one margay serve, by hand; prints figures, exits 1 when something is wrong.

usage: MARGAY_BIN=build/margay soak.py crowd [--clients 64] [--each 200]        test_crowd's at full size, under any build
       MARGAY_BIN=build/margay soak.py pictures [-n 5000] [--side 96] [--cache 16]     different pictures, caches of so many MB
Further arguments after -- are margay's.
"""
import argparse, contextlib, http.client, json, os, pathlib, random, re, statistics, subprocess, sys, threading, time

from conftest import Server
from test_rows import noise
from test_serve import crowd


def held(s):
    """All memory, and what of it is in the caches."""
    metrics = s.get("/metrics").body.decode()
    caches = sum(float(v) for v in re.findall(r"^margay_cache_bytes\S* (\S+)$", metrics, re.M))
    return f"{s.memory() / 1024:.1f} MB, {caches / (1 << 20):.1f} in caches"


def rss(s):
    text = pathlib.Path(f"/proc/{s.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)), int(re.search(r"VmHWM:\s+(\d+)", text).group(1))


def watch_live(port):
    """Asks /live each 20 ms on a new connection until standard input ends, and prints the seconds that each took (JSON)."""
    over, late = threading.Event(), []
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("asking", flush=True)
    while not over.wait(0.02):
        begun = time.perf_counter()
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("GET", "/live")
        assert c.getresponse().read()
        c.close()
        late.append(time.perf_counter() - begun)
    print(json.dumps(late))


@contextlib.contextmanager
def live_watched(s):
    """By a process of its own, first in line for the cores where that is allowed: a thread beside the crowd's would measure the turns
    of the interpreter."""
    watcher = subprocess.Popen([sys.executable, __file__, "live", str(s.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, watcher.pid, -15)
    assert watcher.stdout.readline() == "asking\n"
    late = []
    try:
        yield late
    finally:
        late += json.loads(watcher.communicate()[0])


def run_crowd(s, o):
    with live_watched(s) as late:
        crowd(s, o.clients, max(1, 200 // o.clients), 1)
        s.wait(s.idle, 600)
        before, begun, seen = s.memory(), time.monotonic(), {}
        parts = 4
        for k in range(parts):
            for what, n in crowd(s, o.clients, o.each // parts, 2 + k).items():
                seen[what] = seen.get(what, 0) + n
            s.wait(s.idle, 600)
            print(f"  {(k + 1) * o.clients * (o.each // parts)} requests: {held(s)}", flush=True)
        seconds = time.monotonic() - begun
    n = sum(seen.values())
    print(f"crowd: {o.clients} clients x {o.each // parts * parts}: {n} requests in {seconds:.1f} s, {dict(sorted(seen.items(), key=str))}")
    print(f"  /live each 20 ms, {len(late)} times, client on the same cores: median {statistics.median(late) * 1e3:.1f} ms, p99 "
          f"{statistics.quantiles(late, n=100)[98] * 1e3:.1f} ms, most {max(late) * 1e3:.1f} ms")
    print(f"  memory {before / 1024:.1f} -> {s.memory() / 1024:.1f} MB, {(s.memory() - before) / n:.3f} KB a request; RSS now and most: "
          f"{rss(s)[0] / 1024:.0f}, {rss(s)[1] / 1024:.0f} MB")
    return set(seen) <= {200, 400, "left"}


def run_pictures(s, o):
    at, lock, good = iter(range(o.n)), threading.Lock(), []

    def one():
        while True:
            with lock:
                i = next(at, None)
            if i is None:
                return
            r = s.chat("What?", noise(i, o.side + i % 32), max_tokens=2)
            with lock:
                good.append(r.status == 200)
                if len(good) % max(1, o.n // 20) == 0:
                    print(f"  {len(good)} pictures: {held(s)}", flush=True)
                    marks.append((len(good), s.memory()))
    marks = []
    threads = [threading.Thread(target=one) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    half = marks[len(marks) // 2:]
    slope = (half[-1][1] - half[0][1]) / (half[-1][0] - half[0][0])
    print(f"pictures: {o.n}, caches {o.cache} MB each: second half {slope:+.3f} KB a picture")
    return all(good) and len(good) == o.n


def main():
    if sys.argv[1:2] == ["live"]:
        return watch_live(int(sys.argv[2]))
    own, _, more = " ".join(sys.argv[1:]).partition(" -- ")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["crowd", "pictures"])
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--each", type=int, default=200)
    p.add_argument("-n", type=int, default=5000)
    p.add_argument("--side", type=int, default=96)
    p.add_argument("--cache", type=int, default=16)
    o = p.parse_args(own.split())
    random.seed(1)
    s = Server("--cache-ram", o.cache, "--image-cache", o.cache, "--max-queue", 1000, *more.split())
    ok = run_crowd(s, o) if o.what == "crowd" else run_pictures(s, o)
    s.wait(s.idle, 600)
    code = s.stop(seconds=600)
    reports = [l for l in s.log if "Sanitizer" in l or "runtime error" in l]
    print(f"status {code}, {len(reports)} sanitizer reports")
    if reports or code:
        print("".join(s.log)[-6000:])
    sys.exit(not ok or code != 0 or bool(reports))


if __name__ == "__main__":
    main()
