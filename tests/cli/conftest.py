"""Fixtures of the tests of the built program; see program.py."""
import json

import pytest

from program import BIN, SAMPLES, Margay


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: more than a few seconds; left out under the sanitizers")


@pytest.fixture
def margay(tmp_path):
    assert BIN.exists(), f"{BIN} is not built"
    return Margay(tmp_path)


@pytest.fixture(scope="session")
def samples():
    return [json.loads(line) for line in (SAMPLES / "samples.jsonl").read_text().splitlines()]
