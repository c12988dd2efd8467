"""Where the recorded cases and the program are. MARGAY_BIN names the program (default build/margay)."""
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = pathlib.Path(os.environ.get("MARGAY_BIN", ROOT / "build" / "margay")).resolve()
