#!/usr/bin/env python3
"""What several people at once get from margay serve: one table of medians, to standard output.

usage: load.py --model FOLDER [--margay build/margay] [--weights int8] [--tokens 64] [--runs 3]

Starts a server of its own and measures, with random pictures that nobody has asked about before:
  streams   tokens a second of 1 and of 8 answers at once (text questions, guesses off)
  gap       time between two tokens of a stream: alone, and while a 1200 x 800 picture is looked at for somebody else
  people    5 questions about 5 different 416 x 416 pictures at once: their mean time, against 5 times the mean time
            that each takes alone (what sharing the machine perfectly would give without any gain from sharing passes)
  second    first token of a second question on a picture, against the first question's
Standard library only. Any OpenAI-compatible server will do with --url, for comparison.
"""
import argparse, base64, http.client, json, os, random, statistics, struct, subprocess, sys, threading, time, zlib


def png(width, height, seed):
    rng = random.Random(seed)
    rows = b"".join(b"\0" + bytes((x * 7 + y * 3 + rng.randrange(40) + seed) & 255 for x in range(width) for _ in "rgb")
                    for y in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


class Client:
    def __init__(self, host, port, tokens):
        self.host, self.port, self.tokens = host, port, tokens

    def ask(self, text, picture=None, tokens=None, times=None, over=None):
        """Seconds to the first token and to the end; times gets the clock of each token; over (an Event) cuts it off."""
        content = [{"type": "text", "text": text}]
        if picture:
            content.insert(0, {"type": "image_url", "image_url": {"url": picture}})
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "temperature": 0,
                           "stream": True, "ignore_eos": True, "max_tokens": tokens or self.tokens})
        c = http.client.HTTPConnection(self.host, self.port, timeout=600)
        start = time.perf_counter()
        c.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            raise SystemExit(f"{r.status}: {r.read()[:300]}")
        first = None
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            delta = json.loads(line[6:]).get("choices") or [{}]
            if (delta[0].get("delta") or {}).get("content"):
                now = time.perf_counter()
                first = first or now
                if times is not None:
                    times.append(now)
            if over and over.is_set():
                break
        r.close()
        c.close()
        return (first or time.perf_counter()) - start, time.perf_counter() - start

    def together(self, questions):
        out = [None] * len(questions)
        def one(i):
            out[i] = self.ask(*questions[i])
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(questions))]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return out, time.perf_counter() - start


def gaps(times):
    return [b - a for a, b in zip(times, times[1:])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model")
    p.add_argument("--margay", default="build/margay")
    p.add_argument("--weights", default="int8")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--url", help="host:port of a server that runs already")
    o = p.parse_args()
    server = None
    if o.url:
        host, port = o.url.rsplit(":", 1)
    else:
        server = subprocess.Popen([o.margay, "serve", "-m", o.model, "--weights", o.weights, "--port", "0", "--draft", "-1"],
                                  stderr=subprocess.PIPE, text=True)
        for line in server.stderr:
            if "listening on" in line:
                host, port = line.split("//")[1].strip().rsplit(":", 1)
                break
        threading.Thread(target=server.stderr.read, daemon=True).start()
    c = Client(host, int(port), o.tokens)
    seed = random.randrange(1 << 20)
    try:
        c.ask("Warm up.", tokens=4)
        one, eight = [], []
        for run in range(o.runs):
            (_, total), = c.together([(f"Count. {seed} {run}",)])[0]
            times = []
            c.ask(f"Count on. {seed} {run}", None, o.tokens, times)
            one.append((len(times) - 1) / (times[-1] - times[0]))
            lists = [[] for _ in range(8)]
            c.together([(f"Say {i} {seed} {run}", None, o.tokens, lists[i]) for i in range(8)])
            begin, end = max(l[0] for l in lists), min(l[-1] for l in lists)
            eight.append(sum(sum(begin <= t <= end for t in l) - 1 for l in lists) / (end - begin))
        print(f"streams: 1: {statistics.median(one):.1f} tokens/s, 8: {statistics.median(eight):.1f} tokens/s, "
              f"{statistics.median(eight) / statistics.median(one):.2f} times as many")
        idle, busy, worst = [], [], []
        for run in range(o.runs):
            alone, beside, looked = [], [], []
            c.ask(f"Alone {seed} {run}", None, 24, alone)
            t = threading.Thread(target=c.ask, args=(f"Go on {seed} {run}", None, 1000 if o.tokens > 40 else 300, beside))
            t.start()
            while len(beside) < 5:
                time.sleep(0.01)
            begin = time.perf_counter()
            first, _ = c.ask("What is it?", png(1200, 800, seed + run), 2)
            end = begin + first
            g = [b - a for a, b in zip(beside, beside[1:]) if begin < b < end]
            idle.append(statistics.median(gaps(alone)))
            busy.append(statistics.quantiles(g, n=20)[-1] if len(g) > 2 else float("nan"))
            worst.append(max(g, default=float("nan")))
            t.join()
        i = statistics.median(idle)
        print(f"gap: alone {i * 1e3:.0f} ms, beside a new 1200 x 800 picture p95 {statistics.median(busy) * 1e3:.0f} ms "
              f"({statistics.median(busy) / i:.1f} times), longest {statistics.median(worst) * 1e3:.0f} ms")
        alone, five = [], []
        for run in range(o.runs):
            pictures = [png(416, 416, seed + 100 + 10 * run + k) for k in range(10)]
            alone.append(statistics.mean(c.ask("What is it?", q, 32)[1] for q in pictures[:5]))
            five.append(statistics.mean(t for _, t in c.together([("What is it?", q, 32) for q in pictures[5:]])[0]))
        a, f = statistics.median(alone), statistics.median(five)
        print(f"people: 1: {a:.2f} s, 5 at once: {f:.2f} s on average, {f / (5 * a):.2f} of 5 times one's")
        first, second = [], []
        for run in range(o.runs):
            q = png(416, 416, seed + 1000 + run)
            first.append(c.ask("What is it?", q, 2)[0])
            second.append(c.ask("And what colour has it?", q, 2)[0])
        f, s = statistics.median(first), statistics.median(second)
        print(f"second: first token {f:.2f} s, of a second question {s:.2f} s, {s / f:.2f}")
    finally:
        if server:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
