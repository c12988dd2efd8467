"""--prune from the outside: what is counted, what is refused, where it may stand. Expected cells are counted by hand."""
import json

import pytest

from program import DEMO, SAMPLES, png

RECEIPT = SAMPLES / "receipt_total_001.png"


@pytest.fixture
def halves(tmp_path):
    """4 x 4 cells; the right half is 5 steps brighter in one channel."""
    path = tmp_path / "halves.png"
    path.write_bytes(png(128, 128, lambda x, y: (90, 100 + 5 * (x >= 64), 110)))
    return path


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.png"
    path.write_bytes(png(128, 128, lambda x, y: (90, 100, 110)))
    return path


def ask(margay, *args, **more):
    return margay.json("ask", "-m", DEMO, "-n", "2", *args, "What is it?", **more)


@pytest.mark.parametrize("how, kept", [("off", 16), ("exact", 2), ("near=0", 2), ("near=4", 2), ("near=5", 1), ("near=005", 1),
                                       ("near=255", 1)])
def test_counts(margay, halves, how, kept):
    o, dense = ask(margay, "--prune", how, halves), ask(margay, halves)
    i = o["images"][0]
    assert (i["cells"], i["kept"], i["tokens"]) == (16, kept, kept)
    assert dense["images"][0]["kept"] == dense["images"][0]["cells"] == 16  # off unless asked
    assert o["usage"]["prompt_tokens_details"]["image_tokens"] == kept
    assert o["usage"]["prompt_tokens"] == dense["usage"]["prompt_tokens"] - 16 + kept
    assert (how == "off") == (o["token_ids"] == dense["token_ids"] and kept == 16)


def test_one_colour_fits_a_small_context(margay, plain):
    args = ["ask", "-m", DEMO, "-c", "28", "-n", "2", plain, "What is it?"]
    p = margay(*args)
    assert p.returncode == 1 and "16 of them from pictures" in p.stderr
    assert margay("ask", "--prune=exact", *args[1:]).returncode == 0


def test_several_pictures(margay, halves, plain):
    o = ask(margay, "--prune", "exact", halves, RECEIPT, plain)
    cells, kept = ([i[key] for i in o["images"]] for key in ("cells", "kept"))
    assert (cells[0], kept[0], cells[2], kept[2]) == (16, 2, 16, 1)
    assert 1 < kept[1] < cells[1]
    assert o["usage"]["prompt_tokens_details"]["image_tokens"] == sum(kept)


@pytest.mark.parametrize("how", ["near", "near=", "near=256", "near=-1", "near=+1", "near= 1", "near=1x", "near=1.5", "near=0x10",
                                 "near=1000", "near=99999999999999999999", "NEAR=1", "exactly", "on", "5"])
@pytest.mark.parametrize("command", ["ask", "chat", "trace"])
def test_refused(margay, tmp_path, command, how):
    (tmp_path / "case.json").write_text('{"messages": [{"role": "user", "content": "x"}]}')
    args = {"ask": [RECEIPT, "x"], "chat": [RECEIPT],
            "trace": ["--messages", tmp_path / "case.json", "--out", tmp_path / "o"]}[command]
    p = margay(command, "-m", DEMO, "--prune", how, *args)
    assert p.returncode == 2 and p.stdout == "" and "--prune takes off, exact, or near=N" in p.stderr, p.stderr
    assert "loading" not in p.stderr


def test_empty_is_refused(margay):
    p = margay("ask", "-m", DEMO, "--prune", "", RECEIPT, "x")
    assert p.returncode == 2 and "--prune is empty" in p.stderr


def test_environment_and_ini(margay, tmp_path, halves):
    ini = tmp_path / "a.ini"
    ini.write_text("prune = near=5\n")
    def kept(*args, **env):
        return ask(margay, *args, halves, env=env)["images"][0]["kept"]
    assert kept(MARGAY_PRUNE="exact") == 2
    assert kept("--config", ini) == 1
    assert kept("--config", ini, MARGAY_PRUNE="exact") == 2
    assert kept("--config", ini, "--prune", "off", MARGAY_PRUNE="exact") == 16


def test_verbose_says_it(margay, halves):
    args = ["ask", "-m", DEMO, "-v", "-n", "1", halves, halves, "What is it?"]
    p = margay(*args[:3], "--prune", "exact", *args[3:])
    assert "picture 1: 2 of 16 cells kept" in p.stderr and "picture 2: 2 of 16 cells kept" in p.stderr
    assert "kept" not in margay(*args).stderr


def test_folder(margay, tmp_path, halves, plain):
    p = margay("ask", "-m", DEMO, "-n", "1", "--prune", "exact", "--folder", tmp_path, "What is it?")
    assert p.returncode == 0, p.stderr
    assert {o["image"]: o["images"][0]["kept"] for o in map(json.loads, p.stdout.splitlines())} == {"halves.png": 2, "plain.png": 1}


def test_chat_of_several_turns(margay, halves):
    """Pictures of both kinds, a second turn, and /clear; that reuse equals a cold run is in tests/unit/engine."""
    picture = SAMPLES / "ocr_line_001.png"
    p = margay("chat", "-m", DEMO, "-v", "--prune", "exact", halves,
               stdin=f"/image {picture}\nWhat does it say?\nWhat does it say?\n/clear\n/image {picture}\nWhat does it say?\n".encode())
    assert p.returncode == 0, p.stderr
    assert "picture 1: png, 128 x 128, seen as 128 x 128, 2 tokens, pruned" in p.stderr
    assert p.stdout.splitlines()[-1] == "$83.84"


def test_trace_writes_kept(margay, tmp_path, halves):
    np = pytest.importorskip("numpy")
    (tmp_path / "case.json").write_text(json.dumps({"messages": [{"role": "user", "content": [
        {"type": "image", "image": "halves.png"}, {"type": "image", "image": "halves.png"}, {"type": "text", "text": "?"}]}]}))
    args = ["trace", "-m", DEMO, "--messages", tmp_path / "case.json", "--images", tmp_path, "--max-tokens", "2"]
    for how, kept in (("exact", [0, 2, 16, 18]), ("near=5", [0, 16]), ("off", None)):
        out = tmp_path / how
        p = margay(*args, "--prune", how, "--out", out)
        assert p.returncode == 0, p.stderr
        assert np.load(out / "pixel_values.npy").shape[0] == 2 * 64  # of the whole pictures
        if kept is None:
            assert not (out / "kept.npy").exists()
        else:
            assert np.load(out / "kept.npy").tolist() == kept
            assert len(np.load(out / "vision.npy")) == len(kept)
            pos = np.load(out / "position_ids.npy")
            t, _, w = pos[:, (pos != pos[0]).any(0)]  # a picture's first cell has equal positions
            assert (w - t).tolist() == [k % 4 for k in kept if k % 16]
