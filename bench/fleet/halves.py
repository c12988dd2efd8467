#!/usr/bin/env python3
"""Two workers with half of the cores each against one with all of them, behind the same gateway: answers a second.

usage: halves.py --model FOLDER [--margay build/margay] [--weights int8] [--rounds 3] [--clients 8] [--jobs 32] [--tokens 32] [--side 256]
                 [--lock FILE] [--json FILE]

Starts a redis-server (append-only file, synced always, as deploy/redis has it), a gateway and, turn about, one worker on all
processors of this process' affinity mask or two that have half of them each (--cpu-range, so many threads). A round is --jobs
questions about pictures of their own (--side a side) by --clients clients that each wait for their answer; time counts from the first
question to the last answer. One worker has --parallel of --clients, each of both half of that. Rounds take turns in changing order; figures are
medians with the range. Issue 7 asks for at least 0.95. --lock FILE (flock) is held for each round.
Also: the share of its time that a round was held up by others (/proc/stat), and answers a second without a queue, from one server.
Standard library only.
"""
import argparse, concurrent.futures, fcntl, json, os, pathlib, random, re, signal, socket, statistics, subprocess, sys, tempfile, threading, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "server"))
from load import Client, png


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Program:
    def __init__(self, command):
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        self.port, lines = None, []
        for line in self.process.stderr:
            lines.append(line)
            m = re.search(r"listening on (?:http://)?[\d.]+:(\d+)", line)
            if m:
                self.port = int(m[1])
                break
        if not self.port:
            raise SystemExit("".join(lines))
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def busy():
    v = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(v) / os.sysconf("SC_CLK_TCK"), (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def round_of(port, o):
    client = Client("127.0.0.1", port, o.tokens)
    pictures = [png(o.side, o.side, random.randrange(1 << 30)) for _ in range(o.jobs)]
    client.ask("Warm up.", tokens=2)
    with concurrent.futures.ThreadPoolExecutor(o.clients) as pool:
        begin = time.perf_counter()
        list(pool.map(lambda p: client.ask("What is in the picture?", p, o.tokens), pictures))
        return o.jobs / (time.perf_counter() - begin)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--margay", default="build/margay")
    p.add_argument("--weights", default="int8")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--jobs", type=int, default=32)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--side", type=int, default=256)
    p.add_argument("--lock")
    p.add_argument("--json")
    o = p.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one processor can't be halved")
    half = len(cores) // 2
    name = lambda list_: ",".join(map(str, list_))
    redis_port = free_port()
    folder = tempfile.TemporaryDirectory(prefix="halves-")
    redis = subprocess.Popen(["redis-server", "--port", str(redis_port), "--dir", folder.name, "--save", "", "--appendonly", "yes",
                              "--appendfsync", "always"], stdout=subprocess.DEVNULL)
    queue = f"redis://127.0.0.1:{redis_port}"
    time.sleep(1)
    common = ["-m", o.model, "--weights", o.weights, "--port", 0]
    worker = lambda places, processors: Program([o.margay, "worker", *common, "--queue", queue, "--parallel", places, "-t",
                                                 len(processors), "--cpu-range", name(processors)])
    kinds = {"one": lambda: [worker(o.clients, cores)],
             "halves": lambda: [worker(o.clients // 2, c) for c in (cores[:half], cores[half:])],
             "no queue": lambda: [Program([o.margay, "serve", *common, "--parallel", o.clients, "-t", len(cores)])]}
    out = {k: [] for k in kinds}
    gateway = Program([o.margay, "serve", "--queue", queue, "--port", 0])
    try:
        for number in range(o.rounds):
            order = list(kinds)
            for kind in order[number % 3:] + order[:number % 3]:
                lock = open(o.lock, "a") if o.lock else None
                if lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                programs = kinds[kind]()
                try:
                    all0, busy0 = busy()
                    rate = round_of(programs[0].port if kind == "no queue" else gateway.port, o)
                    all1, busy1 = busy()
                finally:
                    for program in programs:
                        program.stop()
                    if lock:
                        lock.close()
                out[kind].append(rate)
                print(f"round {number + 1} {kind}: {rate:.3f} answers/s, cores in use {(busy1 - busy0) / (all1 - all0):.2f}",
                      file=sys.stderr, flush=True)
    finally:
        gateway.stop()
        redis.terminate()
        redis.wait()
    middle = {k: statistics.median(v) for k, v in out.items()}
    for k, v in out.items():
        print(f"| {k} | {middle[k]:.3f} ({min(v):.3f}-{max(v):.3f}) | {middle[k] / middle['one']:.3f} |")
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"answers_per_s": out, "cores": len(cores)}) + "\n")


if __name__ == "__main__":
    main()
