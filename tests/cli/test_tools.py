"""tokenize, trace's refusals, and the example program of the public API."""
import json
import subprocess

import pytest

from program import BIN, DEMO, LIMIT, ROOT, SAMPLES


def tokenize(margay, *texts, args=()):
    stdin = "".join(json.dumps(t) + "\n" for t in texts).encode()
    p = margay("tokenize", "--model", DEMO, *args, stdin=stdin)
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


def test_tokenize_gives_the_text_back(margay):
    texts = ["", "What does it say?", 'quotes " and \\ back', "tab\tnew\nline\r\n\u0000\u001f", "\u00e9\u4f60\U0001F30A"]
    got = tokenize(margay, *texts)
    assert [g["text"] for g in got] == texts and got[0]["ids"] == []
    assert all(isinstance(i, int) for g in got for i in g["ids"])


def test_special_tokens(margay):
    config = json.loads((DEMO / "tokenizer.json").read_text())
    end = next(t["id"] for t in config["added_tokens"] if t["content"] == "<|im_end|>")
    assert tokenize(margay, "<|im_end|>")[0]["ids"] == [end]
    plain = tokenize(margay, "<|im_end|>", args=["--no-special"])[0]
    assert end not in plain["ids"] and plain["text"] == "<|im_end|>"


def test_tokenize_answers_each_line_at_once():
    p = subprocess.Popen([str(BIN), "tokenize", "--model", str(DEMO)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for text in ("a", "b"):
        p.stdin.write(json.dumps(text).encode() + b"\n")
        p.stdin.flush()
        assert json.loads(p.stdout.readline())["text"] == text
    p.stdin.close()
    assert p.wait(timeout=LIMIT) == 0


@pytest.mark.parametrize("line", [b"[1]", b"{", b"nonsense", b'"a" "b"', b'"\xff"', b"3"])
def test_tokenize_refuses(margay, line):
    p = margay("tokenize", "--model", DEMO, stdin=b'"fine"\n' + line + b"\n")
    assert p.returncode == 1 and "line 2" in p.stderr and len(p.stdout.splitlines()) == 1


def test_tokenize_needs_no_more_than_tokenizer_json(margay, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    p = margay("tokenize", "--model", tmp_path, stdin=b'"Hello"\n')
    assert p.returncode == 0 and json.loads(p.stdout)["text"] == "Hello"
    assert margay("tokenize", "--model", tmp_path / "x", stdin=b'"Hello"\n').returncode == 1


def test_tokenize_full_disk():
    with open("/dev/full", "wb") as full:
        p = subprocess.run([str(BIN), "tokenize", "--model", str(DEMO)], input=b'"a"\n', stdout=full,
                           stderr=subprocess.PIPE, timeout=LIMIT)
    assert p.returncode == 1 and b"No space left" in p.stderr


@pytest.mark.parametrize("messages, word", [
    ("{}", "no list of messages"), ("[", "line 1"), ('{"messages": []}', "no list of messages"),
    ('{"messages": [{"role": "boss", "content": "x"}]}', "message 1: role"),
    ('{"messages": [{"role": "user", "content": "x"}, {"role": "user"}]}', "message 2: content"),
    ('{"messages": [{"role": "user", "content": [{"type": "sound"}]}]}', "message 1: a part"),
    ('{"messages": [{"role": "user", "content": [{"type": "image", "image": "none.png"}]}]}', "none.png"),
    ('{"messages": [{"role": "user", "content": [{"type": "image", "image": "none.png\\u0000x"}]}]}', "zero byte"),
    ('{"messages": [{"role": "user", "content": [{"type": "image", "image": "/' + "x" * 5000 + '"}]}]}', "too long"),
    ('{"messages": [{"role": "user", "content": [3]}]}', "message 1: a part"),
])
def test_trace_refuses(margay, tmp_path, messages, word):
    (tmp_path / "case.json").write_text(messages)
    p = margay("trace", "-m", DEMO, "--messages", tmp_path / "case.json", "--images", tmp_path, "--out", tmp_path / "o")
    assert p.returncode == 1 and word in p.stderr, p.stderr


def test_trace_writes_stages(margay, tmp_path):
    np = pytest.importorskip("numpy")
    (tmp_path / "case.json").write_text(json.dumps({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": "ocr_line_001.png"}, {"type": "text", "text": "Read this."}]}]}))
    p = margay("trace", "-m", DEMO, "--messages", tmp_path / "case.json", "--images", SAMPLES, "--max-tokens", "3",
               "--out", tmp_path / "o")
    assert p.returncode == 0, p.stderr
    ids = np.load(tmp_path / "o" / "input_ids.npy")
    grid = np.load(tmp_path / "o" / "image_grid_thw.npy")
    assert np.load(tmp_path / "o" / "position_ids.npy").shape == (3, len(ids))
    assert np.load(tmp_path / "o" / "vision.npy").shape[0] == grid.prod() // 4
    assert len(np.load(tmp_path / "o" / "greedy.npy")) == 3


def test_example_program(margay):
    source = ROOT / "examples" / "ask.c"
    assert len(source.read_text().splitlines()) <= 60
    includes = [line for line in source.read_text().splitlines() if line.startswith('#include "')]
    assert includes == ['#include "margay/margay.h"']
    program = BIN.parent / "example_ask"
    p = subprocess.run([str(program), str(DEMO), str(SAMPLES / "ocr_line_001.png"), "What does it say?"],
                       capture_output=True, text=True, timeout=LIMIT)
    assert (p.returncode, p.stdout) == (0, "$83.84\n"), p.stderr
    p = subprocess.run([str(program), str(DEMO), "/none.png", "?"], capture_output=True, text=True, timeout=LIMIT)
    assert p.returncode == 1 and "none.png" in p.stderr
