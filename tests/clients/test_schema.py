"""schemathesis: what /openapi.json promises, held against the server with made-up requests."""
import collections, json, os, re, subprocess, sys

import pytest

from conftest import HERE
from serve_conftest import RIGHT, data_url, picture

A = RIGHT[0]
LEFT_OUT = ("/ws", "/v1/jobs/{id}")  # no HTTP; a gateway's, see tests/fleet
SECONDS = 600


def run(server, folder, tmp_path, *args, key=None):
    """schemathesis' exit status and report. One worker: Python 3.11 fails now and then where two threads parse Python
    ("AST constructor recursion depth mismatch"), as hypothesis does."""
    url = f"http://127.0.0.1:{server.port}"
    keyed = {"X-Api-Key": key} if key else {}
    last = max(server.post("/tokenize", {"content": "<|vision_start|>"}, **keyed).json["tokens"])  # special tokens are the last
    env = {**os.environ, "PYTHONPATH": f"{folder}:{HERE}", "NO_COLOR": "1", "SCHEMATHESIS_HOOKS": "schema_hooks",
           "SCHEMA_URL": data_url(picture(A["image"])), "SCHEMA_VOCABULARY": str(last)}
    p = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--url", url, *(x for p in LEFT_OUT for x in ("--exclude-path", p)), "--workers", "1",
         "--seed", os.environ.get("SCHEMA_SEED", "7"), "--request-timeout", "60", "--output-sanitize", "false", *args,
         *(x for name, value in keyed.items() for x in ("--header", f"{name}: {value}"))],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, timeout=SECONDS)
    return p.returncode, re.sub(r"[A-Za-z0-9+/=]{400,}", "(base64)", p.stdout.decode(errors="replace"))


def test_openapi_holds(serve, schemathesis, tmp_path):
    """All checks there are. What the file allows is answered, what it forbids is refused (fields that it does not name are
    allowed), status, type, headers and bodies are as promised; a deleted file is gone."""
    log = tmp_path / "access.log"
    server = serve("--no-loop-check", "--access-log", log, "--access-log-json")
    code, report = run(server, schemathesis, tmp_path, "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "40", "--checks", "all")
    assert code == 0, report[-20000:]
    assert server.get("/health").status == 200
    seen = collections.Counter((r["method"], r["route"], r["status"]) for r in map(json.loads, log.read_text().splitlines()) if "schemathesis" in r["agent"])
    routes = {(m.upper(), p) for p, ops in server.get("/openapi.json").json["paths"].items() for m in ops if p not in LEFT_OUT}
    assert not [r for r in routes if not seen[(*r, 200)]], "never answered"
    asked = {r: (seen[(*r, 200)], seen[(*r, 400)]) for r in routes if r[0] == "POST"}
    assert len(asked) == 6 and not {r: n for r, n in asked.items() if n[0] < 10 or not n[1]}, asked


def test_keys_are_asked_for(serve, schemathesis, tmp_path):
    """Where the file says so, and nowhere else; with one, all is as without."""
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    server = serve("--api-key-file", keys)
    document = server.get("/openapi.json").json
    asked = {True: 0, False: 0}
    for path, operations in document["paths"].items():
        if path == LEFT_OUT[1]:
            continue
        for method, operation in operations.items():
            closed = operation.get("security") != []
            asked[closed] += 1
            call = lambda **headers: server.call(method.upper(), path.replace("{id}", "none"), b"" if method == "post" else None, **headers).status
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"X_Api_Key": "wrong"}):
                assert (call(**headers) == 401) == closed, (method, path, headers)
            assert ("401" in operation["responses"]) == closed, (method, path)
            for headers in ({"Authorization": "Bearer right"}, {"X_Api_Key": "right"}):
                assert call(**headers) != 401, (method, path, headers)
    assert asked[True] >= 16 and asked[False] >= 4
    code, report = run(server, schemathesis, tmp_path, "--phases", "examples,stateful", "--max-examples", "5", "--checks", "all", key="right")
    assert code == 0, report[-20000:]
