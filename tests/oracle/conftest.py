"""The recorded cases are kept packed; a session's tests share one unpacked copy. MARGAY_BIN names the program."""
import os
import pathlib
import tarfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = pathlib.Path(os.environ.get("MARGAY_BIN", ROOT / "build" / "margay")).resolve()


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: more than a few seconds; left out under the sanitizers")


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """A folder as check_parity.py wants it: MODEL/ with checkpoint and cases/, and images/."""
    root = tmp_path_factory.mktemp("oracle")
    (root / "images").symlink_to(HERE / "images")
    for packed in HERE.glob("*/cases.tar.xz"):
        model = root / packed.parent.name
        model.mkdir()
        for f in packed.parent.iterdir():
            if f != packed:
                (model / f.name).symlink_to(f)
        with tarfile.open(packed) as tar:
            tar.extractall(model)
    return root
