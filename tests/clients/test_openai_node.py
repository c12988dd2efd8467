"""OpenAI's Node client, unchanged, against margay serve; its cases are in node/cases.mjs, each is one here."""
import json, os, re, shutil, subprocess

import pytest

from conftest import CI, HERE
from serve_conftest import RIGHT, SAMPLES, Server
from test_openai_python import SHAPES

CASES = re.findall(r'^  async "?([\w ,-]+?)"?\(\)', (HERE / "node" / "cases.mjs").read_text(), re.M) + [f"shape: {name}" for name in SHAPES]


@pytest.fixture(scope="module")
def results(node_packages, server, tmp_path_factory):
    if not shutil.which("node"):
        (pytest.fail if CI else pytest.skip)("node is not installed")
    keys = tmp_path_factory.mktemp("node") / "keys"
    keys.write_text("right\n")
    keyed = Server("--api-key-file", keys)
    slow = Server("--no-loop-check", env={"MARGAY_CPU": "ref"})
    full = Server("--parallel", 1, "--max-queue", 1, "--no-loop-check", "--drain-time", 0.2, env={"MARGAY_CPU": "ref"})
    url = lambda s: f"http://127.0.0.1:{s.port}/v1"
    setup = {"main": url(server), "slow": url(slow), "keys": url(keyed), "full": {"url": url(full), "pid": full.process.pid}, "shapes": list(SHAPES.values()),
             "cases": [{"image": str(SAMPLES / c["image"]), "question": c["question"], "answer": c["answer"]} for c in RIGHT[:12]]}
    try:
        p = subprocess.run(["node", HERE / "node" / "cases.mjs"], input=json.dumps(setup), env={**os.environ, "OPENAI_FOLDER": str(node_packages)},
                           capture_output=True, text=True, timeout=180)
    finally:
        stopped = [s.stop() for s in (keyed, slow, full)]
    assert stopped == [0, 0, 0]
    lines = [json.loads(l) for l in p.stdout.splitlines()]
    assert p.returncode == 0 and lines, p.stderr[-2000:]
    return {l["name"]: l.get("error") for l in lines}


@pytest.mark.parametrize("name", CASES)
def test_node_client(results, name):
    assert results[name] is None, results[name]


def test_all_cases_are_known(results):
    assert sorted(results) == sorted(CASES) and len(CASES) == len(set(CASES)) > 40
