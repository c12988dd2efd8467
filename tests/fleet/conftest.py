"""Gateways, workers and a real redis-server. MARGAY_BIN names the program."""
import importlib.util, pathlib, sys

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "cli"))

from redis_server import redis  # noqa: E402,F401  a fixture
