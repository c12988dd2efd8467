"""Fixtures of the tests of the HTTP server; see server.py."""
import pytest

from server import BIN, Server


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: more than a few seconds; left out under the sanitizers")


@pytest.fixture
def serve():
    """serve(**settings) starts a server; all are stopped, and must end well, after the test."""
    assert BIN.exists(), f"{BIN} is not built"
    started = []

    def start(**settings):
        started.append(Server(**settings))
        return started[-1]
    yield start
    for s in started:
        s.stop()


@pytest.fixture(scope="module")
def plain():
    """One server with default settings for a file's tests."""
    s = Server(drain_ms=0)
    yield s
    s.stop()
