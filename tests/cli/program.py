"""What the tests of the built program share: where it is, a clean environment, small pictures.

MARGAY_BIN names the program (default build/margay). Only the standard library is used here.
"""
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import tempfile
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
SAMPLES = DEMO / "samples"
BIN = pathlib.Path(os.environ.get("MARGAY_BIN", ROOT / "build" / "margay")).resolve()
LIMIT = 120  # seconds for one run, also under the sanitizers
CACHE = tempfile.TemporaryDirectory(prefix="margay-cache-")  # of converted weights: the demo model's once a session


def clean_env(tmp_path, **more):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("MARGAY_", "LLAMA_", "XDG_")) or k == "MARGAY_CPU"}
    env.update(HOME=str(tmp_path), XDG_CACHE_HOME=CACHE.name)
    env.update(more)
    return {k: v for k, v in env.items() if v is not None}  # None takes a variable away


class Margay:
    """Runs the program with a home of its own; every result has returncode, stdout, stderr as text."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path

    def __call__(self, *args, stdin=b"", env=None, **more):
        p = subprocess.run([str(BIN), *map(str, args)], input=stdin, capture_output=True, timeout=LIMIT,
                           env=clean_env(self.tmp_path, **(env or {})), **more)
        out = subprocess.CompletedProcess(p.args, p.returncode, p.stdout.decode(), p.stderr.decode())
        assert p.returncode >= 0, f"killed by signal {-p.returncode}: {out.stderr}"
        for word in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:"):
            assert word not in out.stderr, out.stderr
        return out

    def json(self, *args, **more):
        p = self(*args, "--json", **more)
        assert p.returncode == 0, p.stderr
        assert p.stdout.endswith("\n") and p.stdout.count("\n") == 1
        return json.loads(p.stdout)

    def start(self, *args, env=None, **more):
        def default_signals():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return subprocess.Popen([str(BIN), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=clean_env(self.tmp_path, **(env or {})), preexec_fn=default_signals, **more)


def open_terminal():
    """A pseudo-terminal's two ends; skips the test where the system has none (a bare chroot)."""
    try:
        return pty.openpty()
    except OSError as e:
        pytest.skip(f"no pseudo-terminals here: {e}")


def png(width, height, pixel):
    """A PNG of RGB pixels; pixel(x, y) gives (r, g, b)."""
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))
