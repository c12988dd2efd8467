"""schemathesis: what /openapi.json promises, held against the server with made-up requests."""
import os, subprocess, sys

import pytest

LEFT_OUT = "/ws"  # no HTTP


def test_openapi_holds(server, python_packages, tmp_path):
    url = f"http://127.0.0.1:{server.port}"
    out = tmp_path / "report.txt"
    with out.open("wb") as f:
        p = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--url", url, "--exclude-path", LEFT_OUT,
             "--max-examples", "25", "--seed", "7", "--phases", "examples,coverage,fuzzing", "--workers", "2", "--no-color",
             "--request-timeout", "60", "--checks",
             "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"],
            cwd=tmp_path, stdout=f, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(python_packages)}, timeout=600)
    text = out.read_text(errors="replace")
    assert p.returncode == 0, text[-12000:]
    assert server.get("/health").status == 200
