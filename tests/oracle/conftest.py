"""The recorded cases are kept packed; a session's tests share one unpacked copy, and one cache of converted weights."""
import tarfile

import pytest

from recorded import HERE


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: more than a few seconds; left out under the sanitizers")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Never the user's own cache; each folder's weights are converted once a session."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("MARGAY_CACHE_DIR", str(folder))
        yield folder


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
