"""OpenAI's Node client, unchanged, against margay serve; its cases are in node/cases.mjs."""
import json, os, re, subprocess

import pytest

from conftest import HERE
from serve_conftest import RIGHT, SAMPLES

CASES = re.findall(r'^  async "?([\w ,-]+?)"?\(\)', (HERE / "node" / "cases.mjs").read_text(), re.M)


@pytest.fixture(scope="module")
def results(node_packages, server):
    case = RIGHT[0]
    p = subprocess.run(["node", HERE / "node" / "cases.mjs", f"http://127.0.0.1:{server.port}/v1", SAMPLES / case["image"], case["answer"],
                        case["question"]], env={**os.environ, "OPENAI_FOLDER": str(node_packages)}, capture_output=True, text=True, timeout=120)
    lines = [json.loads(l) for l in p.stdout.splitlines()]
    assert p.returncode == 0 and lines, p.stderr[-2000:]
    return {l["name"]: l.get("error") for l in lines}


@pytest.mark.parametrize("name", CASES)
def test_node_client(results, name):
    assert results[name] is None, results[name]


def test_all_cases_are_known(results):
    assert sorted(results) == sorted(CASES) and len(CASES) > 10
