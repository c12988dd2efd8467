"""margay convert, packed files, and the cache of folders converted at first use.

The container's rules are checked by a reader of this file's own; what a packed file answers by comparing with its folder.
"""
import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess

import pytest

from program import BIN, DEMO, ROOT, SAMPLES, clean_env

PICTURE = SAMPLES / "receipt_total_001.png"
QUESTION = "What is the total price?"
TINY = ROOT / "tests" / "oracle" / "tiny-untied"
MANIFEST = 1024
PACKED_ALIGN = 4096


@pytest.fixture
def demo(tmp_path):
    """A copy of the demo model that may be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for f in DEMO.iterdir():
        if f.is_file():
            shutil.copy2(f, folder / f.name)
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def ask(margay, model, *args, **more):
    return margay("ask", "-m", model, *args, PICTURE, QUESTION, **more)


def answer(margay, model, *args, **more):
    p = ask(margay, model, "--json", *args, **more)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def files(folder):
    return sorted(f.name for f in folder.iterdir()) if folder.exists() else []


def packed(cache):
    found = [f for f in (cache / "margay").iterdir() if f.suffix == ".safetensors"]
    assert len(found) == 1, files(cache / "margay")
    return found[0]


def read_container(path):
    """{name: (dtype, shape, offset in the file, bytes)} by the rules of safetensors, which are checked."""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    def no_twice(pairs):
        assert len(dict(pairs)) == len(pairs), "a key is there twice"
        return dict(pairs)
    head = json.loads(data[8:8 + n].decode(), object_pairs_hook=no_twice)
    meta = head.pop("__metadata__")
    assert all(isinstance(v, str) for v in meta.values()) and data[8:9] == b"{"
    size = {"U8": 1, "BF16": 2, "F32": 4, "I32": 4}
    at, tensors = 0, {}
    for name, t in sorted(head.items(), key=lambda i: i[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        count = 1
        for d in t["shape"]:
            count *= d
        assert begin == at and end - begin == count * size[t["dtype"]], name
        assert (8 + n + begin) % size[t["dtype"]] == 0, name
        tensors[name] = (t["dtype"], t["shape"], 8 + n + begin, data[8 + n + begin:8 + n + end])
        at = end
    assert 8 + n + at == len(data)
    return meta, tensors


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16"])
@pytest.mark.parametrize("model", [DEMO, TINY], ids=lambda m: m.name)
def test_container(margay, tmp_path, model, weights):
    out = tmp_path / "out.safetensors"
    p = margay("convert", model, "-o", out, "--weights", weights)
    assert p.returncode == 0, p.stderr
    assert files(tmp_path) == ["out.safetensors"]
    meta, t = read_container(out)
    assert meta["format"] == "margay" and meta["weights"] == weights
    matrices = [n for n, v in t.items() if v[0] == "BF16" or n.endswith(".packed")]
    assert matrices and all(t[n][2] % PACKED_ALIGN == 0 for n in matrices)
    if weights == "bf16":
        assert not [n for n in t if n.endswith(".packed")]
    for n in matrices:
        if n.endswith(".packed"):
            dtype, (panels, blocks, block), _, raw = t[n]
            base = n[:-len("packed")]
            assert dtype == "U8" and block in (2048, 1088)
            assert t[base + "scale"][:2] == ("F32", [panels * 32]) and t[base + "sum"][:2] == ("I32", [panels * 32])
    kinds = {t[n][1][2] for n in matrices if n.endswith(".packed")}
    assert kinds == {"int8": {2048}, "int4": {2048, 1088}, "bf16": set()}[weights]
    assert all(set(v[3]) <= {0} for n, v in t.items() if n.startswith("margay.pad."))
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert t["margay.file." + name][3] == (model / name).read_bytes()
    manifest = json.loads(t["margay.json"][3])
    data = out.read_bytes()
    small = t["margay.json"][2] + MANIFEST
    split = small + manifest["small_bytes"]
    assert hashlib.sha256(data[:t["margay.json"][2]]).hexdigest() == manifest["head_sha256"]
    assert hashlib.sha256(data[small:split]).hexdigest() == manifest["small_sha256"]
    assert hashlib.sha256(data[split:]).hexdigest() == manifest["matrices_sha256"]
    assert len(data) - split == manifest["matrices_bytes"] and split % PACKED_ALIGN == 0
    assert min(t[n][2] for n in matrices) == split


def craft(path, change):
    """A packed file with what `change` makes of its tensors, laid out anew, with the digests right."""
    meta, t = read_container(path)
    t = {n: (v[0], v[1], v[3]) for n, v in t.items() if not n.startswith("margay.pad.")}
    manifest = json.loads(t.pop("margay.json")[2])
    change(t)
    order = sorted(t, key=lambda n: 2 if t[n][0] == "BF16" or n.endswith(".packed") else t[n][0] == "U8")
    head = {"__metadata__": meta, "margay.json": {"dtype": "U8", "shape": [MANIFEST], "data_offsets": [0, MANIFEST]}}
    at, split, body = MANIFEST, 0, []
    for i, n in enumerate(order):
        if t[n][0] == "BF16" or n.endswith(".packed"):
            pad = -at % PACKED_ALIGN
            if pad:
                head[f"margay.pad.{i}"] = {"dtype": "U8", "shape": [pad], "data_offsets": [at, at + pad]}
                body.append(bytes(pad))
                at += pad
            split = split or at
        head[n] = {"dtype": t[n][0], "shape": t[n][1], "data_offsets": [at, at + len(t[n][2])]}
        body.append(t[n][2])
        at += len(t[n][2])
    text, body = json.dumps(head).encode(), b"".join(body)
    text += b" " * (-(8 + len(text)) % PACKED_ALIGN)
    text = struct.pack("<Q", len(text)) + text
    parts = {"head": text, "small": body[:split - MANIFEST], "matrices": body[split - MANIFEST:]}
    for name, data in parts.items():
        manifest[name + "_sha256"] = hashlib.sha256(data).hexdigest()
        if name != "head":
            manifest[name + "_bytes"] = len(data)
    path.write_bytes(text + json.dumps(manifest).encode().ljust(MANIFEST) + body)


def rename_parts(t, old, panels, new):
    """The first panels of the packed matrix `old` under each of the names."""
    for end, size in ("packed", 0), ("scale", 128), ("sum", 128):
        dtype, shape, data = t.pop(f"{old}.{end}")
        n = panels * (size or shape[1] * shape[2])
        for name in new:
            t[f"{name}.{end}"] = (dtype, [panels * 32] if size else [panels, *shape[1:]], data[:n])


LAYER = "model.language_model.layers.1."


def v_not_packed(t):
    rename_parts(t, LAYER + "self_attn.qkv_proj", 8, [LAYER + "self_attn.qk_proj"])
    t[LAYER + "self_attn.v_proj.weight"] = ("BF16", [64, 192], b"\x11\x3c" * (64 * 192))


def gate_apart(t):
    rename_parts(t, LAYER + "mlp.gate_up_proj", 14, [LAYER + "mlp.gate_proj", LAYER + "mlp.up_proj"])


def up_not_packed(t):
    rename_parts(t, LAYER + "mlp.gate_up_proj", 14, [LAYER + "mlp.gate_proj"])
    t[LAYER + "mlp.up_proj.weight"] = ("BF16", [448, 192], b"\x11\x3c" * (448 * 192))


def sub_scale(t):
    """16 times a nibble's -8 is no byte; with weights of zero the sums say nothing."""
    name = next(n for n, v in t.items() if n.endswith(".packed") and v[1][2] == 1088)
    dtype, shape, data = t[name]
    panel = (bytes([16]) * 64 + bytes([0x88]) * 1024) * shape[1]
    t[name] = (dtype, shape, panel + data[len(panel):])
    other = name[:-len("packed")] + "sum"
    t[other] = (*t[other][:2], bytes(128) + t[other][2][128:])


@pytest.mark.parametrize("change, weights, why", [
    (lambda t: None, "int8", None), (lambda t: None, "int4", None),
    (v_not_packed, "int8", "some of q, k, v are packed"), (gate_apart, "int8", "packed apart"),
    (up_not_packed, "int8", "packed apart"), (sub_scale, "int4", "damaged")])
def test_crafted(margay, tmp_path, change, weights, why):
    """Digests are no proof of sense: whoever makes a file makes them too."""
    out = tmp_path / "out.safetensors"
    assert margay("convert", DEMO, "-o", out, "--weights", weights).returncode == 0
    right = ask(margay, out).stdout
    craft(out, change)
    p = ask(margay, out)
    if why:
        assert p.returncode == 1 and why in p.stderr and p.stdout == "", p.stderr
    else:
        assert p.returncode == 0 and p.stdout == right, p.stderr


@pytest.mark.parametrize("weights", ["int8", "int4", "bf16"])
def test_answers_as_the_folder(margay, tmp_path, weights):
    out = tmp_path / "out.safetensors"
    assert margay("convert", DEMO, "-o", out, "--weights", weights).returncode == 0
    folder, file = answer(margay, DEMO, "--weights", weights), answer(margay, out)
    assert file["token_ids"] == folder["token_ids"] and file["text"] == folder["text"]
    assert answer(margay, out, "--weights", weights)["token_ids"] == file["token_ids"]
    for other in {"int8", "int4", "bf16", "f32"} - {weights}:
        p = ask(margay, out, "--weights", other)
        assert p.returncode == 1 and p.stdout == "", p.stderr
        assert f"holds {weights} weights" in p.stderr and "out.safetensors" in p.stderr


def test_same_bytes_again(margay, tmp_path):
    for i, threads in enumerate("113"):
        assert margay("convert", TINY, "-o", tmp_path / f"{i}", "-t", threads).returncode == 0
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_json_and_table(margay, tmp_path):
    out = tmp_path / "out.safetensors"
    o = margay.json("convert", DEMO, "-o", out, "--weights", "int4")
    assert o["file"] == str(out) and o["weights"] == "int4" and o["bytes"] == out.stat().st_size and o["seconds"] > 0
    _, t = read_container(out)
    stored = sum(len(v[3]) for n, v in t.items() if v[0] == "BF16" or n.endswith(".packed"))
    assert sum(m["bytes"] for m in o["matrices"]) == stored
    config = json.loads((DEMO / "config.json").read_text())["text_config"]
    rows = {(m["part"], m["kept"]): m for m in o["matrices"]}
    gate = rows["gate, up", "int4"]
    inner = config["num_hidden_layers"] - 2  # the first and the last stay at 8 bit
    assert gate["count"] == inner
    assert gate["weights"] == inner * 2 * config["intermediate_size"] * config["hidden_size"]
    for m in o["matrices"]:
        low, high = {"bf16": (0, 0.3), "int8": (0.1, 2), "int4": (3, 12)}[m["kept"]]
        assert low <= m["off_percent"] <= high, m
    p = margay("convert", DEMO, "-o", out, "--weights", "int4")
    assert p.returncode == 0 and "gate, up" in p.stdout and f"{out}: " in p.stdout
    assert len(p.stdout.splitlines()) == len(o["matrices"]) + 2


def test_default_is_int8(margay, tmp_path):
    assert margay.json("convert", DEMO, "-o", tmp_path / "a")["weights"] == "int8"


@pytest.mark.parametrize("place", ["header", "manifest", "small", "first", "middle", "last"])
def test_verify(margay, tmp_path, place):
    out = tmp_path / "out.safetensors"
    assert margay("convert", TINY, "-o", out).returncode == 0
    p = margay("convert", "--verify", out)
    assert p.returncode == 0 and p.stdout == f"{out}: whole, int8 weights\n"
    _, t = read_container(out)
    data = bytearray(out.read_bytes())
    manifest, matrices = t["margay.json"][2], min(v[2] for n, v in t.items() if n.endswith(".packed"))
    at = {"header": data.index(b'"shape"') + 1, "manifest": data.index(b'"matrices_sha256":"', manifest) + 20,
          "small": manifest + MANIFEST, "first": matrices, "middle": (matrices + len(data)) // 2, "last": len(data) - 1}
    data[at[place]] ^= 1
    out.write_bytes(data)
    p = margay("convert", "--verify", out)
    assert p.returncode == 1 and p.stdout == "" and p.stderr.startswith("margay: "), p.stderr
    if place != "header":
        assert "damaged" in p.stderr


def test_verify_what_is_not_packed(margay, tmp_path):
    p = margay("convert", "--verify", DEMO)
    assert p.returncode == 1 and "not a packed file" in p.stderr
    p = margay("convert", "--verify", DEMO / "model.safetensors")
    assert p.returncode == 1 and "not a packed file" in p.stderr
    p = margay("convert", "--verify", tmp_path / "none")
    assert p.returncode == 1 and "none" in p.stderr
    (tmp_path / "empty").touch()
    assert margay("convert", "--verify", tmp_path / "empty").returncode == 1


def test_usage(margay, tmp_path):
    for args, word in ((["convert", DEMO], "-o FILE"), (["convert"], "one folder"),
                       (["convert", DEMO, DEMO, "-o", tmp_path / "x"], "one argument"),
                       (["convert", DEMO, "-o", tmp_path / "x", "--weights", "f32"], "int8, int4 or bf16"),
                       (["convert", DEMO, "-o", ""], "-o is empty")):
        p = margay(*args)
        assert p.returncode == 2 and word in p.stderr and p.stdout == "", p.stderr
    assert files(tmp_path) == []
    p = margay("convert", tmp_path / "none", "-o", tmp_path / "x")
    assert p.returncode == 1 and "none" in p.stderr
    assert files(tmp_path) == []


def test_onto_an_existing_file(margay, tmp_path):
    """Whoever has the old one open keeps it."""
    out = tmp_path / "out.safetensors"
    out.write_text("old")
    with out.open() as old:
        assert margay("convert", TINY, "-o", out).returncode == 0
        assert old.read() == "old"
    assert margay("convert", "--verify", out).returncode == 0
    assert files(tmp_path) == ["out.safetensors"]


def test_in_the_current_folder(margay, tmp_path):
    assert margay("convert", TINY, "-o", "here", cwd=tmp_path).returncode == 0
    assert files(tmp_path) == ["here"]
    assert margay("convert", "--verify", "here", cwd=tmp_path).returncode == 0


def test_onto_a_folder(margay, tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("sub", "none/x", "sub/"):
        p = margay("convert", TINY, "-o", f"{tmp_path}/{name}")
        assert p.returncode == 1 and p.stderr.startswith("margay: "), (name, p.stderr)
    assert files(tmp_path) == ["sub"] and files(tmp_path / "sub") == []


def test_onto_what_is_no_file(margay, tmp_path):
    """A rename would put a file in its place, for root even in that of /dev/null."""
    os.mkfifo(tmp_path / "fifo")
    os.symlink("/dev/null", tmp_path / "link")
    for name in ("fifo", "link"):
        p = margay("convert", TINY, "-o", tmp_path / name)
        assert p.returncode == 1 and f"{name} is there and is not a regular file" in p.stderr, p.stderr
    assert (tmp_path / "fifo").is_fifo() and (tmp_path / "link").is_char_device() and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("how", ["same", "hard link", "symbolic link"])
def test_onto_its_own_source(margay, demo, tmp_path, how):
    source = demo / "model.safetensors"
    before, out = source.read_bytes(), source if how == "same" else tmp_path / "out"
    if how == "hard link":
        os.link(source, out)
    elif how == "symbolic link":
        os.symlink(source, out)
    p = margay("convert", demo, "-o", out)
    assert p.returncode == 2 and "file of the checkpoint that is to be converted" in p.stderr
    assert source.read_bytes() == before


def test_name_too_long(margay, tmp_path):
    """Said before the work, though the new file's name alone would fit."""
    p = margay("convert", TINY, "-o", tmp_path / ("x" * 250))
    assert p.returncode == 1 and "File name too long" in p.stderr and files(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(margay, tmp_path):
    (tmp_path / "sub").mkdir(mode=0o555)
    p = margay("convert", TINY, "-o", tmp_path / "sub" / "x")
    assert p.returncode == 1 and "sub" in p.stderr


def test_folder_on_which_nobody_writes(margay):
    p = margay("convert", TINY, "-o", "/proc/x")
    assert p.returncode == 1 and "/proc/x" in p.stderr


def limited(n):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))


def test_no_space(margay, tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_text("old")
    for n in (0, 4096, 1000000):
        p = margay("convert", TINY, "-o", out, preexec_fn=limited(n))
        assert p.returncode == 1 and "out.safetensors" in p.stderr, p.stderr
        assert files(tmp_path) == ["out.safetensors"] and out.read_text() == "old"


def signalled(margay, folder, out, sig):
    """A conversion that got the signal while it was writing: (process, stderr). On a busy machine not the first one."""
    for _ in range(10):
        p = margay.start("convert", folder, "-o", out, "-t", "1", "--weights", "int4")
        while p.poll() is None and not writes_into(p.pid, out.parent):
            pass
        p.send_signal(sig)
        _, err = p.communicate(timeout=60)
        if p.returncode:
            return p, err
        out.unlink()
    raise AssertionError("too quick to be stopped")


def writes_into(pid, folder):
    """It holds an open file there, of some size already."""
    try:
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(fd).startswith(f"{folder}/") and fd.stat().st_size > 100000:
                return True
    except OSError:  # closed meanwhile, or the process has ended
        pass
    return False


@pytest.fixture
def large(tmp_path):
    """The demo model with the vocabulary's rows many times over: some seconds of work."""
    folder = tmp_path / "large"
    folder.mkdir()
    for f in DEMO.iterdir():
        if f.is_file() and f.suffix == ".json":
            shutil.copy(f, folder / f.name)
    config = json.loads((folder / "config.json").read_text())
    n = 400000
    config["text_config"]["vocab_size"] = n
    config.pop("vocab_size", None)
    (folder / "config.json").write_text(json.dumps(config))
    data = (DEMO / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + length])
    name = "model.language_model.embed_tokens.weight"
    rows, k = head[name]["shape"]
    out, at = {}, 0
    for key, t in head.items():
        if key == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        size = (end - begin) // rows * n if key == name else end - begin
        out[key] = {"dtype": t["dtype"], "shape": [n, k] if key == name else t["shape"], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for key in out:
            begin, end = (8 + length + i for i in head[key]["data_offsets"])
            raw = data[begin:end]
            f.write((raw * (n // rows + 1))[:n * (len(raw) // rows)] if key == name else raw)
    return folder


def test_killed(margay, tmp_path, large):
    out = tmp_path / "o" / "out.safetensors"
    out.parent.mkdir()
    p, _ = signalled(margay, large, out, signal.SIGKILL)
    assert p.returncode == -signal.SIGKILL
    left = files(out.parent)  # where the system has no O_TMPFILE the next conversion removes it
    assert left in ([], [f"out.safetensors.tmp-{p.pid}"])
    assert margay("convert", TINY, "-o", out).returncode == 0
    assert files(out.parent) == ["out.safetensors"]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(margay, tmp_path, large, sig):
    out = tmp_path / "o" / "out.safetensors"
    out.parent.mkdir()
    p, err = signalled(margay, large, out, sig)
    assert p.returncode == 130 and b"interrupted" in err, (p.returncode, err)
    assert files(out.parent) == []


def test_leftovers_of_the_dead(margay, tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f"x.tmp-{dead.pid}").touch()
    keep = [f"x.tmp-{os.getpid()}", f"y.tmp-{dead.pid}", "x.tmp-1x", "x.tmp-", "x.tmp--1"]
    for name in keep:
        (tmp_path / name).touch()
    assert margay("convert", TINY, "-o", tmp_path / "x").returncode == 0
    assert files(tmp_path) == sorted(["x", *keep])


# The cache

def in_cache(cache):
    return {"XDG_CACHE_HOME": str(cache)}


def test_first_use_converts(margay, demo, cache):
    p = ask(margay, demo, "-v", env=in_cache(cache))
    assert p.returncode == 0 and f"converting {demo} to int8" in p.stderr and "weights int8" in p.stderr
    file = packed(cache)
    assert file.name.startswith("model-") and file.name.endswith("-int8.safetensors")
    assert margay("convert", "--verify", file).returncode == 0
    before = file.stat()
    q = ask(margay, demo, "-v", env=in_cache(cache))
    assert q.stdout == p.stdout and "converting" not in q.stderr
    after = file.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    r = ask(margay, demo, "-v", "--weights", "int4", env=in_cache(cache))
    assert "to int4" in r.stderr
    assert sorted(f.name[-16:] for f in (cache / "margay").glob("*.safetensors")) == ["int4.safetensors", "int8.safetensors"]
    assert answer(margay, file)["text"] + "\n" == p.stdout


def test_where_the_cache_is(margay, demo, tmp_path):
    for env, args, where in (({"MARGAY_CACHE_DIR": str(tmp_path / "a")}, [], tmp_path / "a"),
                             ({"MARGAY_CACHE_DIR": str(tmp_path / "a")}, ["--cache-dir", tmp_path / "b"], tmp_path / "b"),
                             ({"XDG_CACHE_HOME": None}, [], tmp_path / ".cache" / "margay"),
                             ({"XDG_CACHE_HOME": "relative"}, [], tmp_path / ".cache" / "margay"),
                             ({"XDG_CACHE_HOME": str(tmp_path / "c" / "d")}, [], tmp_path / "c" / "d" / "margay")):
        assert ask(margay, demo, *args, env=env).returncode == 0
        assert len(list(where.glob("model-*-int8.safetensors"))) == 1, where


def test_two_folders_of_one_name(margay, demo, tmp_path, cache):
    other = tmp_path / "other" / "model"
    shutil.copytree(demo, other)
    link = tmp_path / "link"
    link.symlink_to(demo)
    for folder in (demo, other, link):
        assert ask(margay, folder, env=in_cache(cache)).returncode == 0
    assert len(list((cache / "margay").glob("*.safetensors"))) == 2


@pytest.mark.parametrize("change", ["time", "size", "config", "new file"])
def test_a_changed_folder_is_noticed(margay, demo, cache, change):
    assert ask(margay, demo, env=in_cache(cache)).returncode == 0
    if change == "time":
        os.utime(demo / "model.safetensors", ns=(0, 1234567890123456789))
    elif change == "size":
        with (demo / "tokenizer.json").open("a") as f:
            f.write("\n")
    elif change == "config":
        text = (demo / "config.json").read_text()
        (demo / "config.json").write_text(text)
    else:
        (demo / "chat_template.jinja").write_text("")
    p = ask(margay, demo, "-v", env=in_cache(cache))
    assert p.returncode == 0 and "made anew: the checkpoint has changed since" in p.stderr
    assert "made anew" not in ask(margay, demo, "-v", env=in_cache(cache)).stderr


def test_other_weights_with_the_same_times(margay, demo, cache):
    """Image builders set all times alike, copying keeps them: what is in the files counts too."""
    weights = demo / "model.safetensors"
    right = ask(margay, demo, env=in_cache(cache)).stdout
    before, st = weights.read_bytes(), weights.stat()
    n = 8 + struct.unpack("<Q", before[:8])[0]
    weights.write_bytes(before[:n] + bytes(len(before) - n))
    os.utime(weights, ns=(st.st_atime_ns, st.st_mtime_ns))
    p = ask(margay, demo, "-v", env=in_cache(cache))
    assert p.returncode == 0 and "made anew: the checkpoint has changed since" in p.stderr and p.stdout != right


def test_cache_path_just_too_long(margay, demo, tmp_path):
    """The lock's name fits into a path, the longer one of the file on its way does not: also only a warning."""
    right = ask(margay, demo, env=in_cache(tmp_path / "cache")).stdout
    folder = str(tmp_path / "long") + "/q" * 2048
    try:
        for n in range(4045, 4062):
            p = ask(margay, demo, env={"MARGAY_CACHE_DIR": folder[:n].rstrip("/")})
            assert p.returncode == 0 and p.stdout == right, (n, p.stderr)
    finally:  # too deep for pytest's own clearing up
        subprocess.run(["rm", "-rf", tmp_path / "long"], check=True)


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped small", "flipped panel", "text", "other format"])
def test_a_damaged_cache_is_made_anew(margay, demo, cache, how):
    right = ask(margay, demo, env=in_cache(cache))
    file = packed(cache)
    whole = file.read_bytes()
    _, t = read_container(file)
    data = bytearray(whole)
    if how == "truncated":
        data = data[:len(data) // 2]
    elif how == "empty":
        data = b""
    elif how == "flipped small":
        data[t["margay.json"][2] + MANIFEST + 100] ^= 4
    elif how == "flipped panel":
        data[min(v[2] for n, v in t.items() if n.endswith(".packed"))] ^= 4
    elif how == "text":
        data = b"hello"
    else:
        at = data.index(b'{"format":', t["margay.json"][2])
        data[at + 10] = ord("9")
    file.write_bytes(data)
    p = ask(margay, demo, env=in_cache(cache))
    why = "of another version" if how == "other format" else "damaged"
    assert p.returncode == 0 and p.stdout == right.stdout and why in p.stderr and "made anew" in p.stderr, p.stderr
    assert packed(cache).read_bytes() == whole


def test_two_at_once(margay, demo, cache):
    """Both answer, one converts."""
    args = [str(BIN), "ask", "-m", str(demo), "-v", str(PICTURE), QUESTION]
    for _ in range(3):
        shutil.rmtree(cache, ignore_errors=True)
        running = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=clean_env(cache.parent, **in_cache(cache))) for _ in range(3)]
        ended = [(*p.communicate(timeout=120), p.returncode) for p in running]
        assert [e[2] for e in ended] == [0] * 3, ended
        assert len({e[0] for e in ended}) == 1
        assert sum("converting " in e[1] for e in ended) == 1
        assert margay("convert", "--verify", packed(cache)).returncode == 0


def one_warning(p, right):
    assert p.returncode == 0 and p.stdout == right, p.stderr
    lines = [s for s in p.stderr.splitlines() if "converting in memory" in s]
    assert len(lines) == 1, p.stderr


def test_without_a_cache(margay, demo, tmp_path):
    right = ask(margay, demo, env=in_cache(tmp_path / "cache")).stdout
    one_warning(ask(margay, demo, env={"XDG_CACHE_HOME": None, "HOME": None}), right)
    one_warning(ask(margay, demo, env={"XDG_CACHE_HOME": None, "HOME": ""}), right)
    one_warning(ask(margay, demo, env={"XDG_CACHE_HOME": "/proc/none"}), right)
    (tmp_path / "file").touch()
    one_warning(ask(margay, demo, env={"XDG_CACHE_HOME": str(tmp_path / "file")}), right)
    one_warning(ask(margay, demo, "--cache-dir", tmp_path / "file" / "x"), right)


def mounted(tmp_path, how, *args):
    """The program where `how` (a shell command about $D, an empty or full folder) has mounted something."""
    shell = f'{how} && exec "$@"'
    p = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
    if p.returncode:
        pytest.skip("no namespaces for mounts here")
    return subprocess.run(["unshare", "-rm", "sh", "-c", shell, "sh", str(BIN), *map(str, args)], capture_output=True,
                          text=True, timeout=120, env=clean_env(tmp_path, D=str(tmp_path / "cache")))


def test_full_disk(margay, demo, tmp_path, cache):
    """Found before anything is written; the answer comes all the same."""
    right = ask(margay, demo, env=in_cache(cache)).stdout
    p = mounted(tmp_path, "mount -t tmpfs -o size=2m none $D", "ask", "-m", demo, "--cache-dir", cache, PICTURE, QUESTION)
    if "mount:" in p.stderr:
        pytest.skip(p.stderr)
    one_warning(p, right)
    assert "MB free" in p.stderr
    p = mounted(tmp_path, "mount -t tmpfs -o size=2m none $D", "convert", demo, "-o", cache / "x")
    assert p.returncode == 1 and "needs" in p.stderr and "MB free" in p.stderr


def test_read_only_cache(margay, demo, tmp_path, cache):
    right = ask(margay, demo, "--cache-dir", cache).stdout
    how = "mount --bind $D $D && mount -o remount,ro,bind $D"
    p = mounted(tmp_path, how, "ask", "-m", demo, "--cache-dir", cache, PICTURE, QUESTION)
    if "mount:" in p.stderr:
        pytest.skip(p.stderr)
    assert p.stdout == right and "memory" not in p.stderr  # what is there is used
    one_warning(mounted(tmp_path, how, "ask", "-m", demo, "--weights", "int4", "--cache-dir", cache, PICTURE, QUESTION),
                right)


def test_folder_that_does_not_fit_its_configuration(margay, demo, cache, tmp_path):
    """What a folder's own opening refuses is refused when it is converted, too."""
    config = json.loads((demo / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] -= 1
    (demo / "config.json").write_text(json.dumps(config))
    said = []
    for weights in ("f32", "int8"):
        p = ask(margay, demo, "--weights", weights, env=in_cache(cache))
        assert p.returncode == 1 and "num_hidden_layers 3" in p.stderr, (weights, p.stderr)
        said.append(p.stderr.splitlines()[-1])
    assert said[0] == said[1]
    p = margay("convert", demo, "-o", tmp_path / "x")
    assert p.returncode == 1 and "num_hidden_layers 3" in p.stderr
    assert files(tmp_path) == ["cache", "model"]


def test_weights_are_pages_of_the_file(margay, large, tmp_path):
    """77 MB of rows are not copied: they are the file's own pages, shared by all who use it."""
    out = tmp_path / "out.safetensors"
    assert margay("convert", large, "-o", out).returncode == 0
    assert out.stat().st_size > 80e6
    env = clean_env(tmp_path, **in_cache(tmp_path / "cache"))
    p = subprocess.Popen([str(BIN), "chat", "-m", str(out), "-n", "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, env=env)
    try:
        p.stdin.write(b"hello\n")
        p.stdin.flush()
        assert p.stdout.readline()
        status = pathlib.Path(f"/proc/{p.pid}/status").read_text()
        mb = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in status.splitlines() if line.endswith(" kB")}
    finally:
        p.stdin.close()
        p.wait(60)
    if os.environ.get("MARGAY_BUILD") != "sanitized":  # their shadow counts as the program's own
        assert mb["RssFile"] > 70, mb
        assert mb["RssAnon"] < 50, mb
