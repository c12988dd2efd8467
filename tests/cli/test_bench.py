"""margay bench on the demo model: what it prints is there, finite and consistent. No test looks at how fast it is."""
import csv
import io
import json
import math
import resource
import signal
import statistics
import struct
import subprocess
import xml.etree.ElementTree as ET

import pytest

from program import BIN, DEMO, LIMIT, SAMPLES, Margay, clean_env

FIGURES = ["image_ms", "vision_ms", "prefill_ms", "first_token_ms", "decode_ms_per_token", "second_question_ms",
           "ready_ms", "first_request_ms", "peak_rss_mb", "rss_anon_mb"]
LIMITED = {"vision_ms": "vision", "prefill_ms": "prefill", "first_token_ms": "first_token",
           "decode_ms_per_token": "decode", "second_question_ms": "second_question"}
SHORT = ["--runs", "2", "-n", "4", "--no-warmup"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(the JSON, the SVG's text) of one run."""
    tmp = tmp_path_factory.mktemp("bench")
    o = Margay(tmp).json("bench", "-m", DEMO, "--weights", "bf16", "--runs", "3", "-n", "5", "--plot", tmp / "a.svg")
    return o, (tmp / "a.svg").read_text()


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for v in value:
            yield from numbers(v)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def test_fields(run):
    o, _ = run
    for key in ("machine", "limits", "model", "weights", "image", "prompt_tokens", "generated_tokens", *FIGURES):
        assert key in o, key
    for key in ("cpu", "tier", "threads", "cores", "steal_share"):
        assert key in o["machine"], key
    for key in ("read_gb_s", "bf16_gflop_s", "f32_gflop_s"):
        assert o["limits"][key] > 0, key
    assert all(math.isfinite(x) for x in numbers(o))
    assert all(o[key] > 0 for key in FIGURES)
    assert o["model"] == "demo" and o["weights"] == "bf16" and not o["random_weights"]
    assert o["generated_tokens"] == 5 and len(o["runs"]) == 3
    assert set(o["decode_batch"]) == {"1", "2", "4", "8"} == set(o["decode_batch_share_of_limit"])
    assert all(ms > 0 for ms in o["decode_batch"].values())


def test_figures_are_the_runs_medians(run):
    o, _ = run
    for key in FIGURES[:6]:
        values = [r[key] for r in o["runs"]]
        assert o[key] == pytest.approx(statistics.median(values), abs=1e-3)
        assert o["range"][key] == [min(values), max(values)]
    for r in o["runs"]:
        assert r["first_token_ms"] >= r["vision_ms"] + r["prefill_ms"]


def test_shares(run):
    o, _ = run
    for key, name in LIMITED.items():
        share = o[name + "_share_of_limit"]
        assert share == pytest.approx(o["least"][key] / o[key], rel=1e-3, abs=1e-3)
        assert share > 0
        if name != "decode" or not o["work"]["decode_in_cache"]:
            assert share <= 1.2
    assert not any(key + "_share_of_limit" in o for key in ("image", "ready", "peak_rss", "rss_anon"))


def test_limits_by_threads(run):
    o, _ = run
    rows = o["limits"]["by_threads"]
    threads = [r["threads"] for r in rows]
    assert threads == sorted(set(threads)) and threads[-1] == o["machine"]["threads"]
    for key in ("read_gb_s", "bf16_gflop_s", "f32_gflop_s"):
        assert rows[-1][key] == o["limits"][key]
    assert o["limits"]["rounds"] == 4  # before, between and after three runs
    assert o["limits"]["bf16_gflop_s"] >= o["limits"]["f32_gflop_s"]
    assert max(o["limits"]["instructions_g_s"].values()) >= o["limits"]["f32_gflop_s"]


def test_work_by_the_configuration(run):
    """The operations and bytes, counted here from config.json, and the shortest times that follow."""
    o, _ = run
    config = json.loads((DEMO / "config.json").read_text())
    v, t = config["vision_config"], config["text_config"]
    n, hidden = o["image"]["patches"], v["hidden_size"]
    wide = 4 * hidden
    mergers = 1 + len(v["deepstack_visual_indexes"])
    products = (n * 3 * 2 * 16 * 16 * hidden
                + v["depth"] * n * (4 * hidden ** 2 + 2 * hidden * v["intermediate_size"] + 2 * n * hidden)
                + mergers * (n // 4) * wide * (wide + v["out_hidden_size"]))
    assert o["work"]["vision_gflop"] == pytest.approx(2e-9 * products, abs=1e-4)
    assert o["least"]["vision_ms"] == pytest.approx(
        o["work"]["vision_gflop"] / o["limits"]["bf16_gflop_s"] * 1e3, rel=1e-2)
    q, kv = t["num_attention_heads"] * t["head_dim"], t["num_key_value_heads"] * t["head_dim"]
    layer = t["hidden_size"] * (2 * q + 2 * kv + 3 * t["intermediate_size"])
    tokens = o["prompt_tokens"] + o["second_prompt_tokens"] + o["generated_tokens"] / 2
    least = 2 * (t["num_hidden_layers"] * layer + t["vocab_size"] * t["hidden_size"])
    assert least < o["work"]["decode_mb_per_token"] * 1e6 < least + 2 * 2 * kv * t["num_hidden_layers"] * (tokens + 1)
    assert o["image"]["tokens"] == n // 4


def test_integer_weights(margay, tmp_path):
    """The default; the products' limit is then that of bytes, attention's that of bf16. Also as one packed file."""
    o = margay.json("bench", "-m", DEMO, *SHORT, "--cache-dir", tmp_path / "cache")
    assert o["weights"] == "int8"
    n, v = o["image"]["patches"], json.loads((DEMO / "config.json").read_text())["vision_config"]
    attention = 2e-9 * 2 * n * n * v["hidden_size"] * v["depth"]
    limits = o["limits"]
    products = limits.get("int8_gop_s", limits["bf16_gflop_s"])
    least = (o["work"]["vision_gflop"] - attention) / products + attention / limits["bf16_gflop_s"]
    assert o["least"]["vision_ms"] == pytest.approx(least * 1e3, rel=1e-2)
    file = next((tmp_path / "cache").glob("*-int8.safetensors"))
    p = margay.json("bench", "-m", file, *SHORT)
    assert p["weights"] == "int8" and p["model"] == file.name
    assert p["work"] == o["work"] and p["prompt_tokens"] == o["prompt_tokens"]


def test_plot(run):
    o, svg = run
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("demo" in t and "bf16" in t for t in texts)
    for word in ("vision", "prefill", "first token", "second question", "one conversation"):
        assert word in texts
    width = float(root.get("width"))
    for e in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(e.get("x", 0)) and float(e.get("x", 0)) + float(e.get("width")) <= width
        assert float(e.get("width")) >= 0
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) == 1 + 2 * (5 + len(o["decode_batch"]))  # background; bar and limit each


@pytest.mark.slow
def test_csv(margay):
    p = margay("bench", "-m", DEMO, *SHORT, "--csv")
    assert p.returncode == 0, p.stderr
    rows = list(csv.reader(io.StringIO(p.stdout, newline=""), strict=True))
    assert rows[0] == ["name", "unit", "value", "least", "greatest", "share_of_limit"]
    assert all(len(r) == 6 for r in rows)
    named = {r[0]: r for r in rows[1:]}
    assert len(named) == len(rows) - 1
    for key in FIGURES:
        value, least, greatest = (float(x) for x in named[key][2:5])
        assert least <= value <= greatest
        assert bool(named[key][5]) == (key in LIMITED)
    assert named["model"][2] == "demo" and named["runs"][2] == "2"


def test_table(margay):
    p = margay("bench", "-m", DEMO, *SHORT, "-t", "1", "--batch", "1,2")
    assert p.returncode == 0, p.stderr
    for word in ("vision", "prefill", "first token", "each further token", "second question", "start to ready",
                 "peak memory", "limits", "1 thread"):
        assert word in p.stdout, word
    assert "2 threads" not in p.stdout and "nan" not in p.stdout and "inf" not in p.stdout
    assert not any(line != line.rstrip() for line in p.stdout.splitlines())
    assert "2 conversations" in p.stdout


def test_picture_and_prompt(margay):
    o = margay.json("bench", "-m", DEMO, "--runs", "1", "-n", "2", "--no-warmup", "--size", "64x96",
                    "--prompt-tokens", "60")
    assert (o["image"]["width"], o["image"]["height"], o["image"]["format"]) == (64, 96, "bmp")
    assert 57 <= o["prompt_tokens"] <= 60
    o = margay.json("bench", "-m", DEMO, "--runs", "1", "-n", "2", "--no-warmup", "--image", SAMPLES / "colour_000.png",
                    env={"MARGAY_CPU": "avx2"})
    assert o["image"]["format"] == "png" and o["machine"]["tier"] in ("avx2", "ref")
    assert not any("512" in name or "tdp" in name for name in o["limits"]["instructions_g_s"])


@pytest.mark.parametrize("args, words", [
    (["--size", "416"], ["--size", "WIDTHxHEIGHT"]),
    (["--size", "0x5"], ["--size", "from 1"]),
    (["--size", "30000x30000"], ["pixels"]),
    (["--size", "4x4x4"], ["WIDTHxHEIGHT"]),
    (["--size", "-4x4"], ["WIDTHxHEIGHT"]),
    (["--json", "--csv"], ["one of them"]),
    (["--image", "-"], ["it is a file"]),
    (["--image", "a", "--image", "b"], ["one --image"]),
    (["--image", "a", "--size", "4x4"], ["one of them"]),
    (["--batch", "0"], ["--batch"]),
    (["--batch", "1,,2"], ["--batch"]),
    (["--batch", "17"], ["--batch"]),
    (["-n", "1"], ["--max-tokens"]),
    (["--runs", "0"], ["--runs"]),
    (["--shape", "llama"], ["qwen3-vl-2b|demo"]),
    (["--shape", "demo", "-m", "x"], ["leave -m out"]),
    (["--prompt-tokens", "3", "--runs", "1"], ["--prompt-tokens 3"]),
    (["picture.png"], ["no arguments"]),
])
def test_wrong_usage(margay, args, words):
    p = margay("bench", *args)
    assert p.stdout == "" and p.returncode in (1, 2)
    for word in words:
        assert word in p.stderr, p.stderr


@pytest.mark.parametrize("args, word", [
    (["-m", "/none"], "/none"),
    (["-m", DEMO, "--image", "/none.png"], "/none.png"),
    (["-m", DEMO, "-c", "20"], "the context holds 20"),
])
def test_failures(margay, args, word):
    p = margay("bench", "--no-progress", *args)
    assert p.returncode == 1 and p.stdout == "" and p.stderr.count(word) == 1, p.stderr


def test_plot_that_cannot_be_written(margay, tmp_path):
    p = margay("bench", "-m", DEMO, *SHORT, "--plot", tmp_path / "no" / "a.svg")
    assert p.returncode == 1 and "a.svg" in p.stderr


@pytest.mark.parametrize("order", ["", "x", "99:5", "99:5:1", "-1:-1:-1"])
def test_a_child_without_a_parent(margay, order):
    p = margay("bench", "-m", DEMO, env={"MARGAY_BENCH_CHILD": order, "MARGAY_BENCH_FOLDER": str(DEMO)})
    assert p.returncode == 1 and p.stdout == ""


@pytest.mark.slow
def test_names_are_escaped(margay, tmp_path):
    """A folder's name goes into JSON, CSV and SVG."""
    model = tmp_path / 'a "b" & <c>,\u00e9'
    model.symlink_to(DEMO)
    o = margay.json("bench", "-m", model, *SHORT, "--plot", tmp_path / "a.svg")
    assert o["model"] == model.name
    texts = [e.text for e in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert any('a "b" & <c>,' in t for t in texts)


# --- random weights

def cache_of(tmp_path):
    return tmp_path / "cache" / "margay"


def shape(margay, tmp_path, *args, **more):
    return margay("bench", "--shape", "demo", *SHORT, "--json", *args, env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
                  **more)


def read_tensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    out, end = {}, 0
    for name, t in header.items():
        begin, stop = t["data_offsets"]
        assert begin == end and t["dtype"] == "BF16" and stop - begin == 2 * math.prod(t["shape"])
        words = struct.unpack(f"<{(stop - begin) // 2}H", data[8 + n + begin:8 + n + stop])
        out[name] = t["shape"], words
        end = stop
    assert len(data) == 8 + n + end
    return out


def value(word):
    return struct.unpack("<f", struct.pack("<I", word << 16))[0]


def test_random_weights(margay, tmp_path):
    p = shape(margay, tmp_path)
    assert p.returncode == 0, p.stderr
    o = json.loads(p.stdout)
    assert o["random_weights"] and o["model"] == "demo"
    made = [f for f in cache_of(tmp_path).iterdir() if f.is_dir()]
    assert len(made) == 1
    weights = made[0] / "model.safetensors"
    random, real = read_tensors(weights), read_tensors_shapes(DEMO / "model.safetensors")
    assert {name: s for name, (s, _) in random.items()} == real
    matrix = [value(w) for w in random["model.language_model.layers.0.mlp.up_proj.weight"][1]]
    assert abs(statistics.fmean(matrix)) < 5e-4 and statistics.pstdev(matrix) == pytest.approx(0.02, rel=0.02)
    assert sum(abs(x) < 0.02 for x in matrix) / len(matrix) == pytest.approx(0.68, abs=0.02)  # as a normal one
    assert set(random["model.language_model.norm.weight"][1]) == {0x3f80}
    stamp = weights.stat().st_mtime_ns
    assert shape(margay, tmp_path).returncode == 0 and weights.stat().st_mtime_ns == stamp
    with open(weights, "r+b") as f:  # a damaged one is made anew
        f.truncate(1000)
    part = made[0].with_name(made[0].name + ".part")  # what a killed process leaves
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    assert shape(margay, tmp_path).returncode == 0
    assert read_tensors(weights).keys() == real.keys() and not part.exists()


def read_tensors_shapes(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return {name: t["shape"] for name, t in header.items() if name != "__metadata__"}


@pytest.mark.slow
def test_two_at_once(tmp_path):
    env = clean_env(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    cmd = [str(BIN), "bench", "--shape", "demo", *SHORT, "--json"]
    both = [subprocess.Popen(cmd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for p in both:
        out, err = p.communicate(timeout=LIMIT)
        assert p.returncode == 0, err
        json.loads(out)


def test_no_room_for_random_weights(margay, tmp_path):
    """A file that can't grow: an error, and nothing is left behind."""
    p = shape(margay, tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert p.returncode == 1 and p.stdout == "" and "too large" in p.stderr, p.stderr
    assert [f for f in cache_of(tmp_path).iterdir() if f.is_dir()] == []


def test_no_place_for_random_weights(margay, tmp_path):
    (tmp_path / "cache").write_text("a file")
    p = shape(margay, tmp_path)
    assert p.returncode == 1 and "cache" in p.stderr
    env = {k: v for k, v in clean_env(tmp_path).items() if k not in ("HOME", "XDG_CACHE_HOME")}
    p = subprocess.run([str(BIN), "bench", "--shape", "demo"], env=env, capture_output=True, text=True, timeout=LIMIT)
    assert p.returncode == 1 and "--cache-dir" in p.stderr


@pytest.mark.slow
def test_interrupt(margay):
    p = margay.start("bench", "-m", DEMO, "--runs", "100", "-n", "200")
    for line in p.stderr:
        if b"run 1 of" in line:
            break
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=LIMIT) == 130
    assert p.stdout.read() == b""
