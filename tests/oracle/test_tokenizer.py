"""The published tokenizer through `margay tokenize`: every recorded string, its ids, and the text back."""
import gzip
import json
import subprocess

import pytest

from recorded import BIN, HERE

DATA = HERE.parent / "data" / "text"
VECTORS = [json.loads(line) for line in gzip.decompress((DATA / "vectors.jsonl.gz").read_bytes()).splitlines()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_bytes(gzip.decompress((DATA / "tokenizer.json.gz").read_bytes()))
    stdin = "".join(json.dumps(v["text"]) + "\n" for v in VECTORS)
    p = subprocess.run([str(BIN), "tokenize", "--model", str(folder)], input=stdin.encode(), capture_output=True,
                       timeout=120)
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


def test_all_are_answered(answers):
    assert len(answers) == len(VECTORS) == 1591


def test_ids(answers):
    wrong = [v["text"] for v, a in zip(VECTORS, answers) if a["ids"] != v["ids"]]
    assert not wrong, (len(wrong), wrong[:3])


def test_text_back(answers):
    wrong = [v["text"] for v, a in zip(VECTORS, answers) if a["text"] != v["decoded"]]
    assert not wrong, (len(wrong), wrong[:3])
