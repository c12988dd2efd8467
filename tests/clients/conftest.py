"""margay serve in front of other people's programs: OpenAI's clients for Python and Node, schemathesis, curl, nginx.

The Python packages of openai.txt and schemathesis.txt and the Node packages of node/ are installed once, below
build/clients. Where that can't be done (no network, no npm) the tests are skipped by name; in CI they fail.
"""
import hashlib, importlib.util, os, pathlib, shutil, subprocess, sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
KEPT = ROOT / "build" / "clients"
CI = os.environ.get("CI") == "true"

_spec = importlib.util.spec_from_file_location("serve_conftest", ROOT / "tests" / "serve" / "conftest.py")
serving = importlib.util.module_from_spec(_spec)
sys.modules["serve_conftest"] = serving
_spec.loader.exec_module(serving)
serve = serving.serve


def installed(name, of, command):
    """The folder that `command` (a function of it) fills, made anew when what it is made of has changed."""
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in of) + sys.version.encode()).hexdigest()[:16]
    folder = KEPT / f"{name}-{digest}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = ""
        for _ in range(3):
            p = command(folder)
            text = p.stdout.decode(errors="replace") if p else "not installed"
            if p and p.returncode == 0:
                break
        else:
            (pytest.fail if CI else pytest.skip)(f"{name}: {text[-400:]}")
        (folder / "done").touch()
    return folder


def from_pip(name):
    """The folder with what NAME.txt asks for, at the versions of constraints.txt."""
    files = [HERE / f"{name}.txt", HERE / "constraints.txt"]

    def command(folder):
        return subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", folder,
                               "-r", files[0], "-c", files[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return installed(name, files, command)


@pytest.fixture(scope="session")
def openai(python_packages):
    import openai
    return openai


@pytest.fixture(scope="session")
def python_packages():
    """The clients' folder, put on our own path. What checks the schema runs apart: it brings a pytest of its own."""
    folder = from_pip("openai")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder


@pytest.fixture(scope="session")
def schemathesis():
    """The folder for PYTHONPATH."""
    return from_pip("schemathesis")


@pytest.fixture(scope="session")
def node_packages():
    files = [HERE / "node" / "package.json", HERE / "node" / "package-lock.json"]

    def command(folder):
        if not shutil.which("npm"):
            return None
        for f in files:
            shutil.copy(f, folder)
        return subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return installed("node", files, command)


def cancelled(server, **headers):
    """How many requests it counts as given up by their clients."""
    lines = server.get("/metrics", **headers).body.decode().splitlines()
    return sum(int(l.split()[1]) for l in lines if l.startswith("margay_requests_cancelled_total{"))


@pytest.fixture(scope="module")
def server():
    s = serving.Server("--no-loop-check")
    yield s
    assert s.stop() == 0, "".join(s.log)
