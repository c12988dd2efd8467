"""The page as it is served: what it may do, how it is kept, and what of a folder is never served."""
import gzip
import hashlib
import os
import re

import pytest

from conftest import ROOT, Server

DIST = ROOT / "web" / "dist"
INDEX = (DIST / "index.html").read_bytes()
NAMES = sorted(p.relative_to(DIST).as_posix() for p in DIST.rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def server():
    s = Server()
    yield s
    s.stop()


def test_every_file_is_served_as_it_was_built_with_its_type_and_safely(server):
    types = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
             ".svg": "image/svg+xml", ".png": "image/png", ".webmanifest": "application/manifest+json"}
    assert len(NAMES) >= 6
    for name in NAMES:
        data, kind = (DIST / name).read_bytes(), types["." + name.rsplit(".", 1)[1]]
        for accept in ({}, {"Accept-Encoding": "gzip, br"}):
            r = server.get("/" + name, **accept)
            assert (r.status, r.headers["Content-Type"]) == (200, kind), name
            packed = r.headers["Content-Encoding"] == "gzip"
            assert (gzip.decompress(r.body) if packed else r.body) == data, name
            # Both forms say that there are two: a cache in between would else give out the wrong one.
            assert not packed or accept
            assert ("Accept-Encoding" in (r.headers["Vary"] or "")) == (server.get("/" + name, **{"Accept-Encoding": "gzip"}).headers["Content-Encoding"] == "gzip")
            assert packed or not accept or len(data) < 8000 or name.endswith(".png"), name
            assert r.headers["X-Content-Type-Options"] == "nosniff"
            hashed = name.startswith("assets/")
            assert ("immutable" in r.headers["Cache-Control"]) == hashed and (hashed or r.headers["Cache-Control"] == "no-cache")
            policy = dict(d.strip().split(" ", 1) for d in r.headers["Content-Security-Policy"].split(";"))
            assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
            assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
            assert "unsafe" not in str(policy) and "*" not in str(policy) and "http" not in str(policy)
            assert policy["require-trusted-types-for"] == "'script'"
    assert server.get("/").body == INDEX
    assert all(name in INDEX.decode() for name in re.findall(r"assets/index-[\w-]+\.(?:js|css)", " ".join(NAMES)))


def test_what_a_browser_has_is_not_sent_again(server):
    for accept in ({}, {"Accept-Encoding": "gzip"}):
        first = server.get("/", **accept)
        tag = first.headers["ETag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = server.get("/", **accept, **{"If-None-Match": known})
            assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag), known
            assert again.headers["Content-Security-Policy"]
        assert server.get("/", **accept, **{"If-None-Match": '"0123456789abcdef0123"'}).status == 200
    assert server.get("/").headers["ETag"] != server.get("/", **{"Accept-Encoding": "gzip"}).headers["ETag"]


def test_other_paths_and_methods_are_as_before(server):
    for path in ("/assets/none.js", "/assets/", "/index.htm", "/web/dist/index.html", "/assets/..%2findex.html", "/%2e%2e/etc/passwd"):
        r = server.get(path)
        assert r.status == 404 and r.json["error"]["code"] == "not_found", path
        assert "Content-Security-Policy" not in r.headers or r.json
    assert server.get("/v1/none").status == 404
    metrics = server.get("/metrics").body.decode()
    assert 'margay_http_requests_total{route="page",method="GET",code="200"}' in metrics


def test_the_page_needs_no_key_and_what_it_asks_does():
    s = Server("--api-key", "k")
    try:
        assert s.get("/").status == 200 and s.get("/favicon.svg").status == 200
        assert s.get("/props").status == s.get("/metrics").status == s.get("/v1/models").status == 401
        images = s.get("/props", **{"X-Api-Key": "k"}).json["images"]
        assert images["transfer_side"] == 1024 and images["transfer_side_high"] == 4096
    finally:
        s.stop()


@pytest.mark.parametrize("protocols, status", [
    ("margay, margay.key.c2VzYW1l", 101), ("margay.key.c2VzYW1l", 101), ("margay, margay.key.c2VzYW1m", 401),
    ("margay, xmargay.key.c2VzYW1l", 401), ("margay, margay.key.", 401), ("margay, margay.key." + "A" * 9000, 401), ("margay", 401)])
def test_a_key_for_a_browsers_websocket(protocols, status):
    s = Server("--api-key", "sesame")
    try:
        r = s.get("/ws", **{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": protocols})
        assert r.status == status
        if status == 101:
            named = r.headers["Sec-WebSocket-Protocol"]
            assert named == ("margay" if protocols.startswith("margay,") else None)
    finally:
        s.stop()


def test_no_page_and_prefix():
    s = Server("--no-ui")
    try:
        assert s.get("/").status == s.get("/favicon.svg").status == 404 and s.get("/props").status == 200
    finally:
        s.stop()
    s = Server("--api-prefix", "/a/b")
    try:
        r = s.get("/a/b")
        assert r.status == 308 and r.headers["Location"] == "/a/b/"
        assert s.get("/a/b/").body == INDEX and s.get("/").status == s.get("/a/bc").status == 404
    finally:
        s.stop()


def test_a_folder_and_nothing_beside_it(tmp_path):
    site, secret = tmp_path / "site", tmp_path / "secret.txt"
    (site / "sub").mkdir(parents=True)
    secret.write_text("secret")
    (site / "index.html").write_text("mine")
    (site / "sub" / "x.js").write_text("let x;")
    (site / "link").symlink_to(secret)
    (site / "up").symlink_to(tmp_path)
    os.mkfifo(site / "fifo")
    s = Server("--path", site)
    try:
        assert s.get("/").body == b"mine"
        r = s.get("/sub/x.js")
        assert r.body == b"let x;" and r.headers["Content-Type"].startswith("text/javascript") and r.headers["Cache-Control"] == "no-cache"
        assert r.headers["ETag"].strip('"') == hashlib.sha256(b"let x;").hexdigest()[:20]
        assert s.get("/sub/x.js", **{"If-None-Match": r.headers["ETag"]}).status == 304
        (site / "index.html").write_text("changed")
        assert s.get("/").body == b"changed"
        for path in ("/link", "/up/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/sub/..%2f..%2fsecret.txt", "/fifo", "/sub", "/sub/",
                     "//" + str(secret), "/%2f" + str(secret)[1:], "/none"):
            r = s.get(path)
            assert r.status == 404 and b"secret" not in r.body.replace(b"not_found", b""), path
        assert s.get("/props").status == 200  # the API goes first
        # That every path may be a file does not make every path known to other methods.
        for path in ("/none", "/sub/x.js", "/v1/none"):
            r = s.post(path, b"{}")
            assert r.status == 404 and "Allow" not in r.headers, path
        r = s.post("/props", b"{}")
        assert r.status == 405 and r.headers["Allow"] == "GET, HEAD, OPTIONS"
    finally:
        s.stop()
