"""Fault 68: a tied checkpoint that carries lm_head.weight all the same, and one that has nothing else."""
import json
import shutil
import struct
import subprocess

import numpy as np
import pytest

from recorded import BIN, HERE

EMBED = "model.language_model.embed_tokens.weight"


def rewrite(folder, change):
    """A copy of tiny-tied whose tensors went through change({name: (dtype, shape, bytes)})."""
    source = HERE / "tiny-tied"
    folder.mkdir()
    for f in source.iterdir():
        if f.is_file() and f.suffix == ".json":
            shutil.copy(f, folder / f.name)
    data = (source / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    tensors = {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
               for k, v in head.items()}
    change(tensors)
    at, out = 0, {}
    for k, (dtype, shape, raw) in tensors.items():
        out[k] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text +
                                               b"".join(raw for _, _, raw in tensors.values()))
    return folder


def trace(model, oracle, out, weights="f32"):
    case = oracle / "tiny-tied" / "cases" / "text_only"
    p = subprocess.run([str(BIN), "trace", "--model", str(model), "--messages", str(case / "case.json"), "--images",
                        str(oracle / "images"), "--weights", weights, "--max-tokens", "24", "--out", str(out)],
                       capture_output=True, text=True, timeout=120)
    want = np.load(case / "logits.npy")
    return p, want


@pytest.mark.parametrize("weights, limit", [("f32", 3e-5), ("int8", 0.15)])
@pytest.mark.parametrize("kind", ["extra", "only"])
def test_equal_head_is_fine(oracle, tmp_path, kind, weights, limit):
    def change(t):
        t["lm_head.weight"] = t.pop(EMBED) if kind == "only" else t[EMBED]
    p, want = trace(rewrite(tmp_path / "m", change), oracle, tmp_path / "out", weights)
    assert p.returncode == 0, p.stderr
    got = np.load(tmp_path / "out" / "logits.npy")
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


@pytest.mark.parametrize("weights", ["f32", "int8"])
def test_different_head_is_refused(oracle, tmp_path, weights):
    def change(t):
        dtype, shape, raw = t[EMBED]
        t["lm_head.weight"] = (dtype, shape, raw[::-1])
    p, _ = trace(rewrite(tmp_path / "m", change), oracle, tmp_path / "out", weights)
    assert p.returncode == 1 and "tie_word_embeddings" in p.stderr and "lm_head.weight" in p.stderr
