#!/usr/bin/env python3
"""margay serve beside llama-server and OpenVINO GenAI's continuous batching: one run, one table.

usage: versus.py --model FOLDER [--margay build/margay] [--rounds 3] [--only margay,llama,openvino] [--rows streams,first,...]
                 [--lock FILE [--again N]] [--json FILE] [--margay-args "..."]

FOLDER is a Qwen3-VL checkpoint, random weights do; bench/peers/run.py or its make_gguf.py and make_openvino.py have made the
peers' files of it (--models says where they are), and setup.sh beside this file llama-server. All three run int8-class weights (margay int8, Q8_0
with the projector in f16, OpenVINO INT8), --threads threads, nothing guessed ahead.

All servers stay loaded; each measurement is taken from all in turn before the next begins, the turn's order moves by one from
round to round, and those that are not measured are stopped (SIGSTOP). Figures are medians of the rounds, with the range. Every
question is about a picture of its own that nobody has asked about before (OpenVINO can't do without one), the length of
each answer is forced. Rows:
  one      ms between two tokens of one answer
  eight    tokens a second of 8 answers at once, from the last one's first token to the first one's end
  first    first token of a question about a new 416 x 416 picture, nothing else running
  people   5 questions about 5 different 416 x 416 pictures at once, 32 tokens each: mean time of an answer, and its share of 5
           times the mean time alone (what sharing the machine perfectly, without any gain from it, would give)
  second   first token of a second question on a picture
  gap      the gaps of a stream that begin or end while a new 1200 x 800 picture is worked on for somebody else, to that
           one's first token
--lock FILE, for machines shared with builds, is held (flock) while one measurement of one round is taken, which waits for
the machine's rest first; --again N takes a measurement in which others had more than 5 % of the cores up to N times again.
--json FILE keeps what is measured, and continues a run from what is in it. Standard library only.
"""
import argparse, datetime, fcntl, json, os, pathlib, random, re, shlex, signal, socket, statistics, subprocess, sys, tempfile
import threading, time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "peers")]
from load import Client, png
import peer
import run as peers

QUESTION = "What is in the picture?"
ROWS = ["one", "eight", "first", "people", "second", "gap"]


class Server:
    """One server process: started when first asked for, stopped (SIGSTOP) while others are measured."""

    def __init__(self, name, label, command, cwd=None):
        self.name, self.label, self.command = name, label, command
        self.log = tempfile.NamedTemporaryFile("w+b", prefix=f"versus-{name}-", suffix=".log", delete=False)
        start = time.perf_counter()
        self.process = subprocess.Popen([str(c) for c in command], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL)
        self.port = self.wait()
        self.ready = time.perf_counter() - start

    def wait(self):
        for _ in range(3000):
            if self.process.poll() is not None:
                break
            text = pathlib.Path(self.log.name).read_text(errors="replace")
            m = re.search(r"listening on (?:http://)?[\d.]+:(\d+)", text)
            if m:
                return int(m[1])
            time.sleep(0.1)
        raise SystemExit(f"{self.name} did not start; see {self.log.name}")

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.go_on()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def seconds(self):
        """CPU time of the process so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self):
        m = re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())
        return int(m[1]) / 1024


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def commands(o):
    files = (o.models or o.venv / "models") / peers.model_key(o.model)
    python = o.venv / "bin/python"
    return {
        "margay": ("margay serve int8", [o.margay, "serve", "-m", o.model, "--weights", "int8", "-t", o.threads, "--port",
                                         0, "--draft", -1, *shlex.split(o.margay_args)]),
        "llama": ("llama-server Q8_0, -np 8", [
            o.venv / "llama-server/bin/llama-server", "-m", files / "text-q8_0.gguf", "--mmproj",
            files / "mmproj-f16.gguf", "-np", 8, "-c", 8 * 4096, "-t", o.threads, "-tb", o.threads,
            "--image-max-tokens", peer.MOST_IMAGE_TOKENS, "--port", free_port(), *shlex.split(o.llama_args)]),
        "openvino": ("OpenVINO GenAI INT8, continuous batching", [
            python, HERE / "openvino_server.py", files / "ov-int8", "--threads", o.threads, *shlex.split(o.openvino_args)]),
    }


# ---- what is measured: each takes a Client and a number that no other call has, and returns a dict of figures

def picture(width, height, seed):
    return png(width, height, seed)


def weight(times, tokens):
    """Tokens an event: one, but a token that is no whole character, or has no text, comes with the next one's event."""
    if not 0.8 * tokens <= len(times) <= tokens:
        raise SystemExit(f"{len(times)} events for {tokens} tokens")
    return tokens / len(times)


def one(c, seed, o):
    times = []
    c.ask(QUESTION, picture(256, 256, seed), o.tokens, times)
    return {"ms_per_token": (times[-1] - times[0]) / (len(times) - 1) / weight(times, o.tokens) * 1e3}


def together_rate(lists, tokens):
    """Tokens a second of several answers while all of them run."""
    begin, end = max(l[0] for l in lists), min(l[-1] for l in lists)
    if end <= begin:
        raise SystemExit("the first answer was over before the last one's first token: more --tokens")
    return sum(sum(begin < t <= end for t in l) * weight(l, tokens) for l in lists) / (end - begin)


def eight(c, seed, o):
    lists = [[] for _ in range(8)]
    c.together([(QUESTION, picture(256, 256, seed + i), 2 * o.tokens, lists[i]) for i in range(8)])
    return {"tokens_per_s": together_rate(lists, 2 * o.tokens)}


def first(c, seed, o):
    return {"first_s": statistics.median(c.ask(QUESTION, picture(416, 416, seed + i), 2)[0] for i in range(3))}


def people(c, seed, o):
    pictures = [picture(416, 416, seed + i) for i in range(8)]
    alone = statistics.mean(c.ask(QUESTION, p, 32)[1] for p in pictures[:3])
    out = c.together([(QUESTION, p, 32) for p in pictures[3:]])[0]
    five = statistics.mean(total for _, total in out)
    return {"alone_s": alone, "five_s": five, "of_sharing": five / (5 * alone),
            "five_first_s": statistics.mean(f for f, _ in out)}


def second(c, seed, o):
    p = picture(416, 416, seed)
    before = c.ask(QUESTION, p, 8)[0]
    after = c.ask("And what colour has it?", p, 2)[0]
    return {"second_s": after, "of_first": after / before}


def touching(times, begin, end):
    """The gaps of a stream that overlap [begin, end]."""
    return [b - a for a, b in zip(times, times[1:]) if b > begin and a < end]


def p95(values):
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


def gap(c, seed, o):
    beside, over = [], threading.Event()
    t = threading.Thread(target=c.ask, args=(QUESTION, picture(256, 256, seed), 3000, beside, over))
    t.start()
    while len(beside) < 20:
        if not t.is_alive():
            raise SystemExit("gap: the stream ended early")
        time.sleep(0.01)
    idle = statistics.median(b - a for a, b in zip(beside[4:], beside[5:]))
    big = picture(1200, 800, seed + 1)
    begin = time.perf_counter()
    end = begin + c.ask(QUESTION, big, 2)[0]
    while beside[-1] <= end and t.is_alive():      # the gap that is open at the end counts whole
        time.sleep(0.01)
    over.set()
    t.join()
    gaps = touching(beside, begin, end)
    return {"idle_ms": idle * 1e3, "p95_ms": p95(gaps) * 1e3, "longest_ms": max(gaps) * 1e3, "big_first_s": end - begin,
            "tokens_meanwhile": sum(begin < t <= end for t in beside)}


MEASURES = {f.__name__: f for f in (one, eight, first, people, second, gap)}


# ---- turns

def cpu():
    v = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    return sum(v) / tick, (sum(v) - v[3] - v[4] - v[7]) / tick, v[7] / tick     # all, busy, stolen


NOISE = 0.05                     # share of the cores that others may take


def quiet(patience=90):
    """Whether others leave the cores alone for two seconds within the time."""
    begin = time.monotonic()
    while time.monotonic() - begin < patience:
        a = cpu()
        time.sleep(2)
        b = cpu()
        if (b[1] - a[1]) / (b[0] - a[0]) < NOISE:
            return True
    return False


class Alone:
    """with Alone(o): the lock is held and the machine at rest, or the time for waiting is over."""

    def __init__(self, o):
        self.path, self.file = o.lock, None

    def __enter__(self):
        for _ in range(20 if self.path else 0):
            self.file = open(self.path, "a")
            fcntl.flock(self.file, fcntl.LOCK_EX)
            if quiet():
                break
            self.file.close()                          # what runs outside the lock may end meanwhile
            time.sleep(60)

    def __exit__(self, *error):
        if self.file:
            self.file.close()
            time.sleep(20)                             # others' turn


def idle(server, patience=120):
    """Waits until the server has nothing left to do, e.g. of an answer that was cut off."""
    for _ in range(patience):
        before = server.seconds()
        time.sleep(0.5)
        if server.seconds() - before < 0.03:
            return
    raise SystemExit(f"{server.name} does not come to rest")


def measure(o, servers, row, name):
    """The figures of one row from one server, and what others took of the machine meanwhile."""
    s = servers[name]
    s.go_on()
    own, (all0, busy0, stolen0) = sum(x.seconds() for x in servers.values()) + time.process_time(), cpu()
    figures = MEASURES[row](Client("127.0.0.1", s.port, o.tokens), random.randrange(1 << 30), o)
    all1, busy1, stolen1 = cpu()
    own = sum(x.seconds() for x in servers.values()) + time.process_time() - own
    figures["others"] = max(busy1 - busy0 - own, 0) / (all1 - all0)
    figures["stolen"] = (stolen1 - stolen0) / (all1 - all0)
    idle(s)
    s.pause()
    return figures


def turn(o, servers, row, number):
    """One measurement of one round, from every server in turn; again from those during which others took part of the machine."""
    names = list(servers)
    names = names[number % len(names):] + names[:number % len(names)]
    out = {}
    for _ in range(o.again + 1):
        with Alone(o):
            for name in names:
                if name in out and out[name]["others"] < NOISE:
                    continue
                out[name] = measure(o, servers, row, name)
                print(f"round {number + 1} {row} {name}: " + ", ".join(f"{k} {v:.3g}" for k, v in out[name].items()),
                      file=sys.stderr, flush=True)
        if max(f["others"] for f in out.values()) < NOISE:
            break
    return out


# ---- the table


LINES = [("1 stream, ms a token", "one", "ms_per_token", 1, -1),
         ("8 streams, tokens/s together", "eight", "tokens_per_s", 1, 1),
         ("8 streams against 1, times as many", None, "ratio", 2, None),
         ("first token, new 416 x 416 picture, s", "first", "first_s", 2, -1),
         ("5 people, 5 pictures, 32 tokens each: mean time, s", "people", "five_s", 2, -1),
         ("one of them alone, s", "people", "alone_s", 2, -1),
         ("5 people against 5 times one's alone", "people", "of_sharing", 2, None),
         ("5 people: first token, mean, s", "people", "five_first_s", 2, -1),
         ("second question on a picture: first token, s", "second", "second_s", 2, -1),
         ("the same against the first question's", "second", "of_first", 2, None),
         ("a stream alone, ms a gap", "gap", "idle_ms", 0, -1),
         ("a stream while a 1200 x 800 picture comes: p95 gap, ms", "gap", "p95_ms", 0, -1),
         ("longest gap, ms", "gap", "longest_ms", 0, -1),
         ("tokens of the stream meanwhile", "gap", "tokens_meanwhile", 0, None),
         ("first token of the 1200 x 800 picture meanwhile, s", "gap", "big_first_s", 1, -1)]


def figures_of(result, name, row, key):
    if row:
        return [r[key] for r in result["turns"].get(row, {}).get(name, [])]
    ones, eights = (figures_of(result, name, *k) for k in (("one", "ms_per_token"), ("eight", "tokens_per_s")))
    return [e * a / 1e3 for a, e in zip(ones, eights)]


def table(result):
    """Markdown. A figure is the median of the rounds with its range; behind a peer's: how many times margay's is better."""
    names = list(result["labels"])
    out = ["| | " + " | ".join(result["labels"][n] for n in names) + " |", "|---" * (len(names) + 1) + "|"]
    for label, row, key, digits, better in LINES:
        cells = []
        own = figures_of(result, "margay", row, key)
        for n in names:
            v = figures_of(result, n, row, key)
            if not v:
                cells.append("")
                continue
            text = f"{statistics.median(v):,.{digits}f} ({min(v):,.{digits}f}-{max(v):,.{digits}f})"
            if n != "margay" and own and better:
                times = (statistics.median(v) / statistics.median(own)) ** -better
                text += f", **{times:.2f}**"
            cells.append(text)
        if any(cells):
            out.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def notes(result):
    every = [r for row in result["turns"].values() for runs in row.values() for r in runs]
    others, stolen = (statistics.mean(r[k] for r in every) for k in ("others", "stolen"))
    most = max(r["others"] for r in every)
    ready = ", ".join(f"{result['labels'][n]} {s['ready']:.1f} s and {s['peak_mib']:,.0f} MiB"
                      for n, s in result["servers"].items())
    return (f"Others used {others:.1%} of the cores while measured (at most {most:.1%} in one measurement), {stolen:.1%} "
            f"were stolen. Start to listening and peak memory: {ready}.")


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--margay", type=pathlib.Path, default=HERE.parents[1] / "build/margay")
    ap.add_argument("--venv", type=pathlib.Path, default=pathlib.Path("/opt/peers"))
    ap.add_argument("--models", type=pathlib.Path, help="where the peers' files are kept; default VENV/models")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--only", default="margay,llama,openvino")
    ap.add_argument("--rows", default=",".join(ROWS))
    ap.add_argument("--lock")
    ap.add_argument("--again", type=int, default=0, help="times a noisy turn is taken again")
    ap.add_argument("--json", type=pathlib.Path)
    for name in ("margay", "llama", "openvino"):
        ap.add_argument(f"--{name}-args", default="", help=f"more arguments for {name}'s server")
    return ap.parse_args()


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))              # the servers, stopped ones too, are not left
    result = {"turns": {}, "labels": {}, "servers": {}}
    if o.json and o.json.exists():
        result = json.loads(o.json.read_text())
    wanted = {n: c for n, c in commands(o).items() if n in o.only.split(",")}
    servers = {}
    try:
        for name, (label, command) in wanted.items():
            print(f"starting {name}: {' '.join(map(str, command))}", file=sys.stderr, flush=True)
            with Alone(o):
                s = servers[name] = Server(name, label, command)
                result["labels"][name] = label
                c = Client("127.0.0.1", s.port, o.tokens)
                for size in ((256, 256), (416, 416), (1200, 800)):       # buffers, kernels made for a shape
                    c.ask(QUESTION, picture(*size, random.randrange(1 << 30)), 4)
                idle(s)
                s.pause()
        for number in range(o.rounds):
            for row in o.rows.split(","):
                if all(len(result["turns"].get(row, {}).get(n, [])) > number for n in servers):
                    continue
                for name, figures in turn(o, servers, row, number).items():
                    result["turns"].setdefault(row, {}).setdefault(name, []).append(figures)
                for name, s in servers.items():
                    result["servers"][name] = {"ready": s.ready, "peak_mib": s.peak_mib()}
                result["date"], result["machine"] = datetime.date.today().isoformat(), peers.machine()
                if o.json:
                    o.json.write_text(json.dumps(result, indent=1))
    finally:
        for s in servers.values():
            s.stop()
    print(f"{result['machine']}, {result['date']}\n\n{table(result)}\n\n{notes(result)}")


if __name__ == "__main__":
    main()
