#!/usr/bin/env python3
"""Runs margay and its peers on the same picture, question, threads and number of tokens; table and plot into docs/speed.md.

usage: run.py --model FOLDER --image PICTURE [--margay build/margay] [--variant NAME=BITS:ARGS]... [--only NAME,...]
              [--tokens 32] [--threads 2] [--runs 3] [--rounds 2] [--out docs/speed.md] [--no-write]

FOLDER is a Qwen3-VL checkpoint, random weights do (tools/make_weights.py). The peers' files are made from it when they are
missing (--models says where) by make_gguf.py and make_openvino.py; setup.sh makes the Python they need.

Each process has its turn alone; the order turns by one from round to round, so that a neighbour's noise falls on all.
Every run gets a picture that differs in one value, so that no cache helps. A variant of margay is a name, the width of its
decoder's weights in bits, and arguments in which {model} stands for FOLDER; the default is int8, int4 and bf16 of FOLDER:
    --variant "int8=8:--weights int8 -m {model}" ...      or a packed file: --variant "int8=8:-m /tmp/w8.safetensors"
margay converts a folder when it is first asked (uncounted, like the peers' first run) and keeps the result in its cache.
With random weights the answer repeats itself: switch drafts off in the variants, or decode looks faster than it is.
"""
import argparse, datetime, hashlib, json, os, pathlib, re, shlex, statistics, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import peer
import report

PICTURES = """
import sys
from PIL import Image, ImageOps
im = ImageOps.exif_transpose(Image.open(sys.argv[1])).convert("RGB")
for i, out in enumerate(sys.argv[2:]):
    r, g, b = im.getpixel((0, 0))
    copy = im.copy()
    copy.putpixel((0, 0), ((r + i) % 256, g, b))
    copy.save(out, compress_level=1)
print(*im.size)
"""
CHIPS = {(6, 143): "Sapphire Rapids", (6, 207): "Emerald Rapids", (6, 106): "Ice Lake", (6, 173): "Granite Rapids",
         (25, 17): "Zen 4", (25, 160): "Zen 4c", (25, 1): "Zen 3", (26, 2): "Zen 5", (26, 17): "Zen 5c"}

VARIANTS = [f"{name}={bits}:--weights {name} -m {{model}}" for name, bits in (("int8", 8), ("int4", 4), ("bf16", 16))]


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", type=pathlib.Path, required=True)
    ap.add_argument("--image", type=pathlib.Path, required=True)
    ap.add_argument("--question", default="What is in the picture?")
    ap.add_argument("--margay", type=pathlib.Path, default=ROOT / "build/margay")
    ap.add_argument("--variant", action="append", default=[])
    ap.add_argument("--only", default="", help="names or beginnings of names, e.g. margay,openvino-int8")
    ap.add_argument("--tokens", type=int, default=32)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--runs", type=int, default=3)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--venv", type=pathlib.Path, default=pathlib.Path("/opt/peers"))
    ap.add_argument("--models", type=pathlib.Path, help="where the peers' files are kept; default VENV/models")
    ap.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/speed.md")
    ap.add_argument("--json", type=pathlib.Path, help="also write everything measured here")
    ap.add_argument("--no-write", action="store_true", help="print the block, leave the docs alone")
    ap.add_argument("--machine", help="what to call the machine instead of what /proc/cpuinfo says")
    ap.add_argument("--timeout", type=int, default=900, help="seconds that one process may take")
    return ap.parse_args()


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()

    def field(name):
        m = re.search(rf"^{name}\s*:\s*(.*)$", text, re.M)
        return m.group(1) if m else ""
    chip = CHIPS.get((int(field("cpu family") or 0), int(field("model") or 0)), "")
    flags = set(field("flags").split())
    has = [words for flag, words in {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16",
                                     "amx_int8": "AMX"}.items() if flag in flags]
    name = re.sub(r"\((R|TM)\)", "", field("model name"))
    return f"{os.cpu_count()} cores of {name}{f' ({chip})' if chip else ''}, {' '.join(has)}"


def model_key(folder):
    """Names the peers' files: config and the sizes and times of the weights."""
    h = hashlib.sha256((folder / "config.json").read_bytes())
    for p in sorted(folder.glob("*.safetensors")):
        h.update(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}".encode())
    return h.hexdigest()[:12]


def systems(o, files):
    """name -> label, group, bits, command without question and pictures (None for margay), arguments after them"""
    out = {}
    for v in o.variant or VARIANTS:
        m = re.fullmatch(r"([\w.+-]+)=(\d+):(.*)", v)
        if not m:
            sys.exit(f"--variant wants NAME=BITS:ARGS, not {v}")
        args = [a.replace("{model}", str(o.model)) for a in shlex.split(m[3])]
        out[f"margay-{m[1]}"] = (f"margay {m[1]}", "margay", int(m[2]), None, args)
    python, newer = o.venv / "bin/python", o.venv / "newer/bin/python"
    for bits, kind in ((8, "int8"), (4, "int4")):
        out[f"openvino-{kind}"] = (f"OpenVINO GenAI {kind}", "OpenVINO", bits,
                                   [python, HERE / "openvino_peer.py", files / f"ov-{kind}"], [])
    for bits, kind in ((8, "q8_0"), (4, "q4_0")):
        out[f"llamacpp-{kind}"] = (f"llama.cpp {kind.upper()}", "llama.cpp", bits,
                                   [python, HERE / "llamacpp_peer.py", files / f"text-{kind}.gguf"],
                                   ["--mmproj", files / "mmproj-f16.gguf"])
    out["transformers-bf16"] = ("transformers bf16", "transformers", 16, [newer, HERE / "transformers_peer.py", o.model],
                                [])
    only = [n for n in o.only.split(",") if n]
    return {k: v for k, v in out.items() if not only or any(k.startswith(n) for n in only)}


def prepare(o, names, files):
    """Makes the peers' files; a peer whose files can't be made fails in its row, not here."""
    python = o.venv / "bin/python"
    for script, prefix in (("make_openvino.py", "openvino-"), ("make_gguf.py", "llamacpp-")):
        types = [n[len(prefix):] for n in names if n.startswith(prefix)]
        if types:
            done = subprocess.run([python, HERE / script, o.model, files, "--types", ",".join(types)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                print(f"{script}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)


def cpu_times():
    v = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(v), sum(v) - v[3] - v[4], v[7]                        # all, busy (stolen too), stolen


class Failed(Exception):
    pass


def process(command, timeout, load):
    """Runs one process; (its standard output, wall ms, peak MiB). `load` sums up what the cores did meanwhile."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before, start = cpu_times(), time.perf_counter()
        child = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        usage, status = None, None
        while status is None:
            pid, code, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                status = os.waitstatus_to_exitcode(code)
            elif time.perf_counter() - start > timeout:
                child.kill()
                timeout = float("inf")
            else:
                time.sleep(0.005)
        wall, after = time.perf_counter() - start, cpu_times()
        child.returncode = status
        tick = os.sysconf("SC_CLK_TCK")
        load["all"] += (after[0] - before[0]) / tick
        load["others"] += max((after[1] - before[1] - after[2] + before[2]) / tick - usage.ru_utime - usage.ru_stime, 0)
        load["steal"] += (after[2] - before[2]) / tick
        out.seek(0), err.seek(0)
        if timeout == float("inf"):
            raise Failed(f"ended after {wall:.0f} s")
        if status:
            lines = err.read().decode(errors="replace").strip().splitlines() or [f"status {status}"]
            raise Failed(lines[-1][:200].replace("|", "/"))
        return out.read().decode(), wall * 1e3, usage.ru_maxrss / 1024


def ask(o, args, picture, load):
    """One run of margay: a whole process."""
    out, wall, peak = process([o.margay, "ask", *args, "--json", "--ignore-eos", "-n", o.tokens, "-t", o.threads, picture,
                               o.question], o.timeout, load)
    a = json.loads(out)
    if len(a["token_ids"]) != o.tokens:
        raise Failed(f"{len(a['token_ids'])} tokens instead of {o.tokens}")
    run = {k: a["timings"][k] for k in peer.PHASES}
    run.update(token_ids=a["token_ids"], prompt_tokens=a["usage"]["prompt_tokens"])
    return run, {"load_ms": wall - a["timings"]["total_ms"], "peak_rss_mb": peak, "image_tokens":
                 a["usage"]["prompt_tokens_details"]["image_tokens"]}


def one_turn(o, spec, pictures, load):
    """(runs, facts) of one system in one round"""
    _, _, _, command, args = spec
    if command is None:
        ask(o, args, pictures[0], load)                       # the peers' first run is not counted either
        both = [ask(o, args, p, load) for p in pictures[1:]]
        facts = {**both[-1][1], "load_ms": statistics.median(f["load_ms"] for _, f in both),
                 "peak_rss_mb": max(f["peak_rss_mb"] for _, f in both), "cold_first_token_ms": None}
        return [r for r, _ in both], facts
    out, _, peak = process([*command, o.question, *pictures, *args, "--tokens", o.tokens, "--threads", o.threads, "--runs",
                            o.runs], o.timeout, load)
    facts = json.loads(out.strip().splitlines()[-1])
    return facts.pop("runs"), {**facts, "peak_rss_mb": peak}


def combine(spec, runs, facts):
    label, group, bits, _, _ = spec
    row = {**facts[-1], **peer.summary(runs), "label": label, "group": group, "bits": bits, "runs": runs,
           "token_ids": runs[-1]["token_ids"], "load_ms": statistics.median(f["load_ms"] for f in facts),
           "peak_rss_mb": max(f["peak_rss_mb"] for f in facts), "cold_ms": None}
    cold = [f["cold_first_token_ms"] for f in facts if f["cold_first_token_ms"] is not None]
    if cold:
        row["cold_ms"] = max(statistics.median(cold) - row["first_token_ms"]["median"], 0)
    return row


def measure(o, specs, pictures, load):
    names, runs, facts, errors = list(specs), {}, {}, {}
    for r in range(o.rounds):
        for name in names[r % len(names):] + names[:r % len(names)]:
            if name in errors:
                continue
            print(f"round {r + 1} of {o.rounds}: {name}", file=sys.stderr, flush=True)
            try:
                got, fact = one_turn(o, specs[name], pictures[r], load)
                runs.setdefault(name, []).extend(got)
                facts.setdefault(name, []).append(fact)
            except (Failed, OSError, ValueError, KeyError) as e:
                errors[name] = str(e)
                print(f"{name} failed: {e}", file=sys.stderr)
    rows = []
    for name in names:
        label, group, bits, _, _ = specs[name]
        rows.append({"name": name, "label": label, "group": group, "bits": bits, "error": errors[name]}
                    if name in errors else {"name": name, **combine(specs[name], runs[name], facts[name])})
    return rows


def margay_version(o):
    text = subprocess.run([o.margay, "version"], capture_output=True, text=True).stdout.split("\n")[0].strip()
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    return text, git


def write(o, run):
    stem = f"speed-peers-{run['date']}"
    n = 1
    while (o.out.parent / f"{stem}-{n}.svg").exists():
        n += 1
    plot = o.out.parent / f"{stem}-{n}.svg"
    plot.write_text(report.svg(run))
    o.out.write_text(report.insert(o.out.read_text() if o.out.exists() else "# Speed\n", report.block(run, plot.name)))
    print(f"wrote {o.out} and {plot}", file=sys.stderr)


def main():
    o = options()
    files = (o.models or o.venv / "models") / model_key(o.model)
    specs = systems(o, files)
    if not specs:
        sys.exit("--only leaves nothing to run")
    prepare(o, specs, files)
    version, git = margay_version(o)
    load = {"all": 1e-9, "others": 0.0, "steal": 0.0}
    with tempfile.TemporaryDirectory() as tmp:
        # a set of o.runs + 1 pictures a round; the same sets for every system
        pictures = [[f"{tmp}/{r}-{i}.png" for i in range(o.runs + 1)] for r in range(o.rounds)]
        size = subprocess.run([o.venv / "bin/python", "-c", PICTURES, o.image, *sum(pictures, [])], check=True,
                              capture_output=True, text=True).stdout.split()
        rows = measure(o, specs, pictures, load)
    cfg = json.load(open(o.model / "config.json"))
    for row in rows:
        if row["group"] == "margay":
            row.update(version=version, layers=cfg["text_config"]["num_hidden_layers"],
                       vision_blocks=cfg["vision_config"]["depth"])
    run = {"machine": o.machine or machine(), "date": datetime.date.today().isoformat(), "commit": git, "rows": rows,
           "model": f"Folder `{o.model.resolve().name}`", "image": f"{size[0]} x {size[1]}", "tokens": o.tokens,
           "threads": o.threads, "rounds": o.rounds, "runs": o.runs, "others": load["others"] / load["all"],
           "steal": load["steal"] / load["all"]}
    if o.json:
        o.json.write_text(json.dumps(run, indent=1))
    print(report.block(run, "plot.svg"))
    if not o.no_write:
        write(o, run)
    sys.exit(any("error" in r for r in rows))


if __name__ == "__main__":
    main()
