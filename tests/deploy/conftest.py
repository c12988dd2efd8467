"""What the tests of deploy/ share: the server of tests/serve, and a root folder for containers."""
import importlib.util, os, pathlib, sys

import pytest

import contained

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CI = os.environ.get("CI") == "true"

_spec = importlib.util.spec_from_file_location("serve_conftest", ROOT / "tests" / "serve" / "conftest.py")
serving = importlib.util.module_from_spec(_spec)
sys.modules["serve_conftest"] = serving
_spec.loader.exec_module(serving)
BIN = pathlib.Path(serving.BIN).resolve()


@pytest.fixture(scope="session")
def container(tmp_path_factory):
    why = contained.possible()
    if why:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("root")
    for f in (folder, *folder.parents):  # user 10001 passes through
        if f != pathlib.Path("/") and f.owner() == "root" and f.is_relative_to("/tmp") and f != pathlib.Path("/tmp"):
            f.chmod(0o755)
    return contained.root(folder / "fs", BIN, ROOT / "models" / "demo")
