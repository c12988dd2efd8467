"""Every stage of every recorded case, at every weight mode, through check_parity.py's own comparison."""
import json
import tarfile

import numpy as np
import pytest

import check_parity
from recorded import BIN, HERE


def names():
    """MODEL/CASE of all packed cases, without unpacking them."""
    found = []
    for packed in sorted(HERE.glob("*/cases.tar.xz")):
        with tarfile.open(packed) as tar:
            found += [f"{packed.parent.name}/{m.name.split('/')[1]}" for m in tar.getmembers()
                      if m.name.endswith("/case.json")]
    return sorted(found)


@pytest.mark.parametrize("tier", ["best", "avx2", "ref"])
@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("name", names())
def test_case(oracle, name, weights, tier, monkeypatch):
    """Each kernel tier gives the reference's stages, not only the one this machine picks."""
    if tier != "best":
        monkeypatch.setenv("MARGAY_CPU", tier)
    model, case = name.split("/")
    bad, worst = check_parity.check(str(BIN), oracle / model, oracle / model / "cases" / case, oracle / "images",
                                    weights)
    assert not bad, (bad, worst)
    info = json.loads((oracle / model / "cases" / case / "case.json").read_text())
    pictures = [p for m in info["messages"] if isinstance(m["content"], list) for p in m["content"]
                if p["type"] == "image"]
    assert ("vision" in worst) == bool(pictures), "a stage was not compared"
    assert "logits" in worst
    assert ("prune" in info) == case.startswith("pruned_") == (oracle / model / "cases" / case / "kept.npy").exists()


def test_all_cases_are_here():
    models = {n.split("/")[0] for n in names()}
    assert models == {"tiny-tied", "tiny-untied"} and len(names()) == 21


@pytest.mark.parametrize("name", [n for n in names() if "/pruned_" in n])
def test_pruned_from_the_pictures_themselves(oracle, name, tmp_path):
    """check_parity.py compares features on recorded pixels only; without them the kept cells alone are cut."""
    model, case = name.split("/")
    folder = oracle / model / "cases" / case
    info = json.loads((folder / "case.json").read_text())
    check_parity.run(str(BIN), oracle / model, folder, oracle / "images", "f32", 4, tmp_path, prune=info["prune"])
    for stage in ("kept", "input_ids", "position_ids"):
        assert (np.load(tmp_path / f"{stage}.npy") == np.load(folder / f"{stage}.npy")).all(), stage
    for stage in ("vision", "deepstack_0", "logits"):
        want = np.load(folder / f"{stage}.npy")
        assert np.abs(np.load(tmp_path / f"{stage}.npy") - want).max() <= 3e-5 * np.abs(want).max(), stage


def test_a_wrong_stage_is_noticed(oracle, tmp_path):
    """The comparison itself can fail: with another case's pixels it must."""
    case = oracle / "tiny-tied" / "cases" / "one_image"
    copy = tmp_path / "one_image"
    copy.mkdir()
    for f in case.iterdir():
        (copy / f.name).write_bytes(f.read_bytes())
    data = bytearray((copy / "vision.npy").read_bytes())
    data[-1] ^= 0x80  # the sign of the last value
    (copy / "vision.npy").write_bytes(data)
    bad, _ = check_parity.check(str(BIN), oracle / "tiny-tied", copy, oracle / "images", "f32")
    assert len(bad) == 1 and "vision off by" in bad[0]
