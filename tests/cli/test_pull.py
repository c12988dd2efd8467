"""pull against a server on this machine that drops, corrupts, redirects, stalls, lies and refuses (hub.py)."""
import fcntl
import hashlib
import json
import os
import random
import resource
import select
import shutil
import signal
import ssl
import subprocess
import threading
import time

import pytest

from hub import COMMIT, REPO, TOKEN, Hub
from program import BIN, open_terminal

MIB = 1 << 20
PIECE = 16 * MIB  # what a file of this size is cut into
BIG = random.Random(5).randbytes(33 * MIB + 12345)  # three pieces
SMALL = {
    "config.json": b'{"model_type": "qwen3_vl"}\n',
    "tokenizer.json": random.Random(6).randbytes(200_000),
    "chat_template.jinja": b"{{ messages }}\n",
    "generation_config.json": b"",
}
WEIGHTS = "model.safetensors"
UNNEEDED = {"README.md": b"read me", "onnx/model.safetensors": b"x", "pytorch_model.bin": b"x", ".gitattributes": b"x"}


@pytest.fixture
def hub():
    h = Hub({**SMALL, WEIGHTS: BIG, **UNNEEDED})
    yield h
    h.close()


@pytest.fixture
def little():
    """One small file of weights: one piece, no ranges."""
    h = Hub({**SMALL, WEIGHTS: BIG[:3 * MIB]})
    yield h
    h.close()


class Pull:
    def __init__(self, margay, tmp_path):
        self.margay, self.folder, self.token = margay, tmp_path / "m", ""

    def environment(self, hub, **more):
        off = {k: "" for k in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
                               "CURL_CA_BUNDLE", "SSL_CERT_FILE")}
        return {**off, "HF_ENDPOINT": hub.url, "HF_TOKEN": self.token, **more}

    def __call__(self, hub, *args, env=None, **more):
        p = self.margay("pull", REPO, "-o", self.folder, *args, env=self.environment(hub, **(env or {})), **more)
        assert TOKEN not in p.stdout + p.stderr
        return p

    def json(self, hub, *args, **more):
        p = self(hub, "--json", *args, **more)
        assert p.returncode == 0, p.stderr
        out = json.loads(p.stdout)
        return {**out, "file": {f["name"]: f for f in out["files"]}, "stderr": p.stderr}

    def start(self, hub, *args, **more):
        return self.margay.start("pull", REPO, "-o", self.folder, *args, env=self.environment(hub), **more)

    def whole(self, hub):
        """All files are there as the server has them, and nothing else."""
        needed = {n: d for n, d in hub.files.items() if n not in UNNEEDED}
        return ({p.name for p in self.folder.iterdir()} == set(needed)
                and all((self.folder / n).read_bytes() == d for n, d in needed.items()))

    def failed(self, p, *words):
        """Ended with 1 and these words, and without the weights under their name."""
        assert p.returncode == 1, (p.returncode, p.stderr)
        for word in words:
            assert word in p.stderr, p.stderr
        return not (self.folder / WEIGHTS).exists()


@pytest.fixture
def pull(margay, tmp_path):
    return Pull(margay, tmp_path)


def only_weights(answer):
    """An on_file that leaves other files alone."""
    return lambda r, name, data: answer(r, data) if name == WEIGHTS else False


# --- what is fetched ---

def test_fetches_what_is_needed(margay, hub, tmp_path):
    pull = Pull(margay, tmp_path)
    env = pull.environment(hub)
    p = margay("pull", REPO, env=env, cwd=tmp_path)
    pull.folder = tmp_path / "small"  # the repository's name
    assert p.returncode == 0 and p.stdout == "" and pull.whole(hub)
    assert "34.8 MB to small" in p.stderr
    assert 'ask -m small photo.jpg "' in p.stderr
    asked = [path for _, path, _ in hub.asked]
    assert asked[0] == f"/api/models/{REPO}/revision/main?blobs=true"
    assert all(path.startswith(f"/{REPO}/resolve/{COMMIT}/") for path in asked[1:])
    assert asked[-1].endswith(WEIGHTS) and not any(name in path for path in asked for name in UNNEEDED)
    assert all(h.get("User-Agent", "").startswith("margay/") and "Authorization" not in h for _, _, h in hub.asked)


def test_json_and_a_second_run(pull, hub):
    first = pull.json(hub, "--revision", "refs/pr/1")
    assert first["repo"] == REPO and first["revision"] == "refs/pr/1" and first["commit"] == COMMIT
    assert first["folder"] == str(pull.folder)
    assert first["bytes"] == first["received_bytes"] == len(BIG) + sum(map(len, SMALL.values()))
    assert first["file"][WEIGHTS]["sha256"] == hashlib.sha256(BIG).hexdigest()
    assert first["file"]["config.json"]["git_sha1"] == hub.entry("config.json")["blobId"]
    assert {f["state"] for f in first["files"]} == {"fetched"}
    before = len(hub.asked)
    second = pull.json(hub)
    assert {f["state"] for f in second["files"]} == {"kept"} and second["received_bytes"] == 0
    assert len(hub.asked) == before + 1  # the list


def test_a_damaged_file_is_replaced(pull, little):
    assert pull(little).returncode == 0
    weights = pull.folder / WEIGHTS
    weights.write_bytes(BIG[1:3 * MIB + 1])
    (pull.folder / "config.json").write_bytes(b"{}")
    got = pull.json(little)
    assert {n for n, f in got["file"].items() if f["state"] == "fetched"} == {WEIGHTS, "config.json"} and pull.whole(little)


def test_ranges_come_in_parallel(pull, hub):
    meet = threading.Barrier(3, timeout=10)  # breaks when fewer come at a time

    def answer(r, data):
        meet.wait()
        return False
    hub.on_file = only_weights(answer)
    got = pull.json(hub, "--connections", "3", "--retries", "0")
    assert pull.whole(hub) and got["file"][WEIGHTS]["received_bytes"] == len(BIG)
    ranges = sorted(h["Range"] for _, path, h in hub.asked if path.endswith(WEIGHTS))
    assert ranges == sorted(f"bytes={i}-{min(i + PIECE, len(BIG)) - 1}" for i in range(0, len(BIG), PIECE))


def test_shards_and_their_index(pull, little):
    del little.files[WEIGHTS]
    little.files.update({"model-00001-of-00002.safetensors": b"a" * 1000, "model-00002-of-00002.safetensors": b"b" * 999,
                         "model.safetensors.index.json": b'{"weight_map": {}}', "preprocessor_config.json": b"{}"})
    assert pull(little).returncode == 0 and pull.whole(little)


# --- what breaks on the way ---

def test_dropped_connections(pull, hub):
    def answer(r, data):
        if hub.tries[WEIGHTS] > 8:
            return False
        r.send_body(r.head_of(data)[:3 * MIB + 17])
        r.cut()
    hub.on_file = only_weights(answer)
    got = pull.json(hub)
    assert pull.whole(hub) and got["file"][WEIGHTS]["received_bytes"] == len(BIG)  # nothing twice
    assert "again in" in got["stderr"]


def test_a_server_that_drops_at_once_is_given_up(pull, little):
    little.on_file = only_weights(lambda r, data: r.cut())
    p = pull(little, "--retries", "2")
    assert pull.failed(p, WEIGHTS, "127.0.0.1", "(3 tries)")
    assert little.tries[WEIGHTS] in (3, 4)  # libcurl itself asks again where a connection was kept alive


def test_nobody_listens(pull, little):
    little.close()
    p = pull(little, "--retries", "1")
    assert p.returncode == 1 and "127.0.0.1" in p.stderr and "(2 tries)" in p.stderr and not pull.folder.exists()


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_corrupted_once(pull, hub, name):
    def answer(r, n, data):
        if n != name or hub.tries[name] > 1:
            return False
        body = bytearray(r.head_of(data))
        body[len(body) // 2] ^= 1
        r.send_body(body)
    hub.on_file = answer
    got = pull.json(hub)
    assert pull.whole(hub) and got["file"][name]["received_bytes"] == 2 * len(hub.files[name])
    assert f"{name}: the checksum is wrong" in got["stderr"]


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_corrupted_always(pull, little, name):
    little.on_file = lambda r, n, data: n == name and r.send_body(r.head_of(data[:-1] + b"!" if data[-1:] != b"!" else data[:-1] + b"?"))
    p = pull(little)
    assert pull.failed(p, name, "wrong checksum, twice") and little.tries[name] == 2
    assert not list(pull.folder.glob(name + "*"))


def test_stalls(pull, hub):
    def answer(r, data):
        if hub.tries[WEIGHTS] > 2:
            return False
        r.send_body(r.head_of(data)[:2 * MIB])
        r.wfile.flush()
        select.select([r.connection], [], [], 40)  # until the client gives up
        r.close_connection = True
    hub.on_file = only_weights(answer)
    start = time.monotonic()
    got = pull.json(hub, "--stall-time", "1")
    assert pull.whole(hub) and time.monotonic() - start < 30 and "127.0.0.1 stalls" in got["stderr"]
    assert got["file"][WEIGHTS]["received_bytes"] == len(BIG)


def test_server_errors_heal(pull, little):
    def answer(r, name, data):
        if name == WEIGHTS and little.tries[name] <= 2:
            return r.answer((500, 503)[little.tries[name] - 1], b"x" * 100_000)
        return False
    little.on_file = answer
    p = pull(little)
    assert p.returncode == 0 and pull.whole(little) and "answers 503" in p.stderr


def test_too_many_requests(pull, little):
    little.on_file = lambda r, n, d: r.answer(429, Retry_After=1) if n == WEIGHTS and little.tries[n] == 1 else False
    start = time.monotonic()
    p = pull(little)
    assert p.returncode == 0 and pull.whole(little) and time.monotonic() - start >= 1
    assert "429 (too many requests); again in 1.0 s" in p.stderr


def test_too_long_a_wait_is_not_waited_for(pull, little):
    little.on_file = only_weights(lambda r, d: r.answer(503, Retry_After=9999))
    assert pull.failed(pull(little), "answers 503", "9999 seconds") and little.tries[WEIGHTS] == 1


def test_server_errors_are_given_up(pull, little):
    little.on_file = only_weights(lambda r, d: r.answer(502))
    assert pull.failed(pull(little, "--retries", "1"), "answers 502", "(2 tries)") and little.tries[WEIGHTS] == 2


@pytest.mark.parametrize("chunked", [False, True])
def test_a_server_that_knows_no_ranges(pull, hub, chunked):
    plain = []

    def answer(r, data):
        plain.append("Range" not in r.headers)
        r.send_response(200)
        if chunked:
            r.send_header("Transfer-Encoding", "chunked")
            r.end_headers()
            for i in range(0, len(data), MIB):
                r.wfile.write(b"%x\r\n" % len(data[i:i + MIB]) + data[i:i + MIB] + b"\r\n")
            return r.wfile.write(b"0\r\n\r\n")
        r.send_header("Content-Length", str(len(data)))
        r.end_headers()
        if plain[-1] and sum(plain) == 1:  # the whole breaks once, and begins anew
            r.send_body(data[:5 * MIB])
            return r.cut()
        r.send_body(data)
    hub.on_file = only_weights(answer)
    p = pull(hub)
    assert p.returncode == 0 and pull.whole(hub) and sum(plain) == (1 if chunked else 2)


LIES = {
    "another range": lambda r, d: ranged(r, d, 1, len(d)),
    "an earlier range": lambda r, d: ranged(r, d, -1 if r.range_of(d)[0] else 0, len(d)),
    "another size": lambda r, d: ranged(r, d, 0, len(d) + 1),
    "no range told": lambda r, d: r.answer(206, d[:PIECE]),
    "a longer file": lambda r, d: r.answer(200, d + b"x"),
    "a page of its own": lambda r, d: r.answer(200, b"<html>please log in</html>"),
    "nothing": lambda r, d: r.answer(200),
    "less than promised": lambda r, d: (r.send_body(r.head_of(d)[:-1]), r.cut()),
    "more than asked for": lambda r, d: flood(r, d),
}


def ranged(r, data, shift, total):
    first, end = r.range_of(data)
    r.answer(206, data[first:end], Content_Range=f"bytes {first + shift}-{end - 1 + shift}/{total}")


def flood(r, data):
    first, end = r.range_of(data)
    r.send_response(206)
    r.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
    r.send_header("Connection", "close")
    r.close_connection = True
    r.end_headers()
    r.send_body(data[first:end] + b"surplus")


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_ranges_and_sizes(pull, hub, lie):
    hub.on_file = only_weights(LIES[lie])
    assert pull.failed(pull(hub, "--retries", "0", "--connections", "2"), WEIGHTS)
    assert hub.tries[WEIGHTS] <= 3
    hub.on_file = None  # and an honest server goes on from there
    assert pull(hub).returncode == 0 and pull.whole(hub)


def test_lies_heal(pull, hub):
    hub.on_file = only_weights(lambda r, d: LIES["another range"](r, d) if hub.tries[WEIGHTS] <= 3 else False)
    p = pull(hub)
    assert p.returncode == 0 and pull.whole(hub) and "another range than was asked for" in p.stderr


def test_the_list_says_another_size(pull, little):
    little.listing = little.list()
    next(e for e in little.listing["siblings"] if e["rfilename"] == WEIGHTS)["size"] += 5
    p = pull(little, "--retries", "0")
    assert pull.failed(p, WEIGHTS, f"{3 * MIB} bytes, not {3 * MIB + 5}")


# --- redirects and the token ---

def to_cdn(hub, server, answer=None):
    """Weights are redirected to the other server, which serves them."""
    hub.on_file = only_weights(lambda r, d: r.answer(302, Location=f"http://127.0.0.1:{server.server_port}/blob?Signature=SECRET"))
    hub.on_cdn = answer or (lambda r: r.send_body(r.head_of(hub.files[WEIGHTS])))


def test_the_token_stays_with_the_endpoint(pull, hub):
    cdn = hub.more()
    to_cdn(hub, cdn)
    pull.token = TOKEN
    assert pull(hub, "--connections", "1").returncode == 0 and pull.whole(hub)
    at_home = [h for port, _, h in hub.asked if port != cdn.server_port]
    away = [h for port, _, h in hub.asked if port == cdn.server_port]
    assert all(h["Authorization"] == f"Bearer {TOKEN}" for h in at_home)
    assert len(away) == 3 and not any("Authorization" in h or TOKEN in str(h) for h in away)
    assert hub.tries[WEIGHTS] == 1  # the redirect's end is remembered for the other pieces


def test_a_signed_address_expires(pull, hub):
    cdn = hub.more()
    served = []

    def answer(r):
        served.append(r.headers["Range"])
        return r.answer(403) if len(served) == 2 else r.send_body(r.head_of(hub.files[WEIGHTS]))
    to_cdn(hub, cdn, answer)
    p = pull(hub, "--connections", "1")
    assert p.returncode == 0 and pull.whole(hub) and hub.tries[WEIGHTS] == 2 and "SECRET" not in p.stderr


def test_relative_redirects(pull, little):
    def answer(r, name, data):
        if name == WEIGHTS and little.tries[name] == 1:
            return r.answer(307, b"moved" * 30_000, Location=f"/{REPO}/resolve/{COMMIT}/{WEIGHTS}?again")
        return False
    little.on_file = answer
    real = little.files[WEIGHTS]
    pull.token = TOKEN
    assert pull(little).returncode == 1  # "?again" is not known there: a final 404
    little.tries.clear()
    little.on_file = only_weights(lambda r, d: r.answer(301, Location="tokenizer.json"))
    little.files["tokenizer.json"] = real
    p = pull(little)
    assert p.returncode == 0, p.stderr
    assert [h["Authorization"] for _, path, h in little.asked if path.endswith("tokenizer.json")][-1] == f"Bearer {TOKEN}"


def test_redirects_in_a_circle(pull, little):
    little.on_file = only_weights(lambda r, d: r.answer(302, Location=r.path))
    assert pull.failed(pull(little), "more than 10 redirects") and little.tries[WEIGHTS] == 11


@pytest.mark.parametrize("to, word", [
    ("file:///etc/passwd", "only http and https"), ("ftp://127.0.0.1/x", "only http and https"),
    ("gopher://127.0.0.1:1/x", "only http and https"), ("http://user:pw@127.0.0.1:1/x", "user or a password"),
    ("http://", "redirect"), ("//", "redirect"), (None, "a redirect to nowhere"),
])
def test_redirects_that_are_not_followed(pull, little, to, word):
    little.on_file = only_weights(lambda r, d: r.answer(302, **({"Location": to} if to else {})))
    p = pull(little, "--retries", "0")
    assert pull.failed(p, WEIGHTS, word) and little.tries[WEIGHTS] == 1 and "pw" not in p.stderr
    little.on_file = None
    little.on_api = lambda r: r.answer(302, **({"Location": to} if to else {}))
    assert pull.failed(pull(little, "--retries", "0"), REPO, word)


@pytest.fixture
def tls(tmp_path):
    """A hub behind TLS with a certificate of its own for 127.0.0.1, and that certificate's file."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl program")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                    key, "-out", cert, "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    h = Hub({**SMALL, WEIGHTS: BIG[:3 * MIB]})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    h.server.socket = context.wrap_socket(h.server.socket, server_side=True)
    h.url = h.url.replace("http:", "https:")
    yield h, str(cert)
    h.close()


def test_certificates_are_checked(pull, tls):
    hub, cert = tls
    p = pull(hub)
    assert pull.failed(p, "certificate") and not hub.asked
    assert pull(hub, env={"HF_ENDPOINT": hub.url.replace("127.0.0.1", "localhost"), "CURL_CA_BUNDLE": cert}).returncode == 1
    assert not hub.asked  # another host than the certificate's
    assert pull(hub, env={"CURL_CA_BUNDLE": cert}).returncode == 0 and pull.whole(hub)


def test_no_way_from_https_to_http(pull, tls):
    hub, cert = tls
    cdn = hub.more()
    to_cdn(hub, cdn)
    p = pull(hub, env={"CURL_CA_BUNDLE": cert})
    assert pull.failed(p, "from https to http") and not any(port == cdn.server_port for port, _, _ in hub.asked)


def test_the_proxy_of_the_environment(pull, little):
    proxy = little.more()
    little.on_cdn = lambda r: (setattr(r, "path", r.path.replace("http://hub.invalid:80", "").replace("http://hub.invalid", "")),
                               little.on_api(r) if "/api/" in r.path
                               else r.send_body(r.head_of(little.files[r.path.rsplit("/")[-1]])))
    pull.token = TOKEN
    p = pull(little, env={"HF_ENDPOINT": "http://hub.invalid", "http_proxy": f"http://127.0.0.1:{proxy.server_port}"})
    assert p.returncode == 0 and pull.whole(little)
    assert all(port == proxy.server_port and path.startswith("http://hub.invalid/") for port, path, _ in little.asked)
    assert "HF_TOKEN travels unencrypted to hub.invalid" in p.stderr


# --- refusals ---

@pytest.mark.parametrize("status, token, words", [
    (401, "", ["401", "gated or private", "HF_TOKEN"]), (403, "", ["403", "accept its terms", "HF_TOKEN"]),
    (401, TOKEN, ["401", "the one that is set may not"]), (403, TOKEN, ["403", "the one that is set may not"]),
    (404, "", ["404", "no owner/small with a revision main"]), (410, "", ["answers 410"]),
])
def test_refusals(pull, little, status, token, words):
    pull.token = token
    little.on_file = only_weights(lambda r, d: r.answer(status, b"no"))
    assert pull.failed(pull(little), *words) and little.tries[WEIGHTS] == 1
    little.on_api = lambda r: r.answer(status, b"no")
    assert pull.failed(pull(little), *words)


@pytest.mark.parametrize("name", [
    "../model.safetensors", "/tmp/model.safetensors", "a/../../model.safetensors", "..", "a//b", "a/", "./a", "a/./b",
    "model\n.safetensors", "model\u001b[2J.safetensors", "", 7, None,
])
def test_evil_names(pull, little, tmp_path, name):
    little.listing = little.list()
    little.listing["siblings"].insert(1, {"rfilename": name, "size": 3, "blobId": "0" * 40})
    before = sorted(p.name for p in tmp_path.iterdir())
    p = pull(little)
    assert pull.failed(p, REPO) and "\x1b" not in p.stderr and sorted(q.name for q in tmp_path.iterdir()) == before
    assert len(little.asked) == 1


def test_odd_names_are_left_alone(pull, little):
    little.listing = little.list()
    for name in ("onnx/model.safetensors", "model\\..\\x.safetensors", "model 2.safetensors", "model\u00e4.safetensors", "a" * 5000,
                 ".model.safetensors", "model.safetensors.exe", "chat_template" + "x" * 300):
        little.listing["siblings"].append({"rfilename": name, "size": 3, "blobId": "0" * 40})
    assert pull(little).returncode == 0 and pull.whole(little)


def changed(little, name, **fields):
    listing = little.list()
    for e in listing["siblings"]:
        if e["rfilename"] == name:
            e.update(fields)
    return listing


@pytest.mark.parametrize("listing, word", [
    (lambda h: b"<html>", "not valid JSON"), (lambda h: b"[]", "wanted an object"), (lambda h: b"", "ends too early"),
    (lambda h: b'{"sha": "x"}', "lists no files"), (lambda h: b'{"siblings": {}}', "lists no files"),
    (lambda h: b"[" * 100_000, "levels deep"), (lambda h: b'{"a": "' + b"x" * (9 << 20) + b'"}', "8388608 bytes, the limit"),
    (lambda h: {"siblings": [{"rfilename": f"f{i}"} for i in range(10001)]}, "10001 files"),
    (lambda h: {"siblings": [{"rfilename": f"model{i}.safetensors"} for i in range(300)]}, "more than 256"),
    (lambda h: {"siblings": [e for e in h.list()["siblings"] if e["rfilename"] != WEIGHTS]}, "no model*.safetensors"),
    (lambda h: {"siblings": [e for e in h.list()["siblings"] if e["rfilename"] != "config.json"]}, "no config.json"),
    (lambda h: {"siblings": h.list()["siblings"] * 2}, "listed twice"),
    (lambda h: changed(h, WEIGHTS, lfs={"sha256": "12", "size": 3}), "SHA-256"),
    (lambda h: changed(h, "config.json", blobId="../../x"), "blobId"),
    (lambda h: changed(h, WEIGHTS, size=1 << 50), "the limit is"),
    (lambda h: {**h.list(), "sha": "f" * 40}, "the server lists"),
])
def test_lists_that_are_refused(pull, little, listing, word):
    little.listing = listing(little)
    revision = COMMIT if word == "the server lists" else "main"
    p = pull(little, "--revision", revision)
    assert pull.failed(p, word) and not pull.folder.exists() and len(little.asked) == 1


@pytest.mark.parametrize("args", [
    [], ["a", "b"], ["small"], ["a/b/c"], ["../small"], ["owner/.."], ["/small"], ["owner/"], ["owner/na me"], ["owner/x?y"],
    ["-x/y"], [".x/y"], ["o/" + "n" * 97], [REPO, "--revision", "../x"], [REPO, "--revision", "a b"], [REPO, "--revision", "/a"],
    [REPO, "--revision", "x#y"], [REPO, "--connections", "0"], [REPO, "--connections", "17"], [REPO, "--retries", "-1"],
])
def test_usage(margay, little, args):
    p = margay("pull", *args, env={"HF_ENDPOINT": little.url})
    assert p.returncode == 2 and not little.asked, p.stderr


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1", "file:///etc", "127.0.0.1", "http://u:p@127.0.0.1", "http://127.0.0.1/?x",
                                      "http://127.0.0.1/#x", "http:// 127.0.0.1", "x" * 2000])
def test_endpoints_that_are_not_asked(margay, endpoint):
    p = margay("pull", REPO, env={"HF_ENDPOINT": endpoint})
    assert p.returncode == 2 and "HF_ENDPOINT" in p.stderr


def test_a_token_that_is_none(pull, little):
    p = pull(little, env={"HF_TOKEN": "se\r\nX-Evil: cret"})
    assert p.returncode == 1 and "token" in p.stderr and "cret" not in p.stderr and not little.asked


def test_an_endpoint_with_a_path(pull, little):
    asked = []

    def at_path(r):
        asked.append(r.path)
        return r.answer(404)
    little.on_cdn = at_path
    server = little.more()
    p = pull(little, env={"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}/mirror//"})
    assert p.returncode == 1 and asked == [f"/mirror/api/models/{REPO}/revision/main?blobs=true"]


# --- interruptions ---

def state_of(folder):
    """Bytes that the state says are there."""
    text = (folder / (WEIGHTS + ".part.state")).read_text().split("\n")
    assert text[0].startswith("margay-part-1 ") and text[-1] == ""
    return sum(int(line) for line in text[1:-1])


def asked_bytes(hub, since):
    """Bytes of the weights that requests have asked for."""
    ranges = [h["Range"].removeprefix("bytes=").split("-") for _, path, h in hub.asked[since:] if path.endswith(WEIGHTS)]
    return sum(int(last) - int(first) + 1 for first, last in ranges)


def slow(hub, rate=6 * MIB):
    hub.on_file = only_weights(lambda r, d: r.send_body(r.head_of(d), piece=1 << 16, rate=rate))


def stop_in_the_middle(pull, hub, sig, least=3 * MIB):
    """Starts, signals when some of the weights have come; (exit status, stderr, bytes that are there)."""
    slow(hub)
    p = pull.start(hub)
    end = time.monotonic() + 30
    while time.monotonic() < end and p.poll() is None:
        try:
            if state_of(pull.folder) >= least:
                break
        except (OSError, AssertionError):
            pass
        time.sleep(0.01)
    p.send_signal(sig)
    _, err = p.communicate(timeout=20)
    hub.on_file = None
    done = state_of(pull.folder)
    assert least <= done < len(BIG) and not (pull.folder / WEIGHTS).exists()
    return p.returncode, err.decode(), done


def test_killed_and_gone_on_with(pull, hub):
    code, _, done = stop_in_the_middle(pull, hub, signal.SIGKILL)
    assert code == -signal.SIGKILL
    # What the state says is there is there.
    part = (pull.folder / (WEIGHTS + ".part")).read_bytes()
    lines = (pull.folder / (WEIGHTS + ".part.state")).read_text().split("\n")[1:-1]
    for i, got in enumerate(map(int, lines)):
        assert part[i * PIECE:i * PIECE + got] == BIG[i * PIECE:i * PIECE + got]
    before = len(hub.asked)
    got = pull.json(hub)
    assert pull.whole(hub) and got["file"][WEIGHTS]["state"] == "resumed"
    assert got["file"][WEIGHTS]["received_bytes"] == len(BIG) - done == asked_bytes(hub, before)
    assert got["file"]["config.json"]["state"] == "kept"


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_gone_on_with(pull, hub, sig):
    code, err, done = stop_in_the_middle(pull, hub, sig)
    assert code == 130 and "goes on from there" in err
    got = pull.json(hub)
    assert pull.whole(hub) and got["file"][WEIGHTS]["received_bytes"] == len(BIG) - done


def test_interrupted_while_it_waits(pull, little):
    little.on_file = only_weights(lambda r, d: r.answer(503, Retry_After=60))
    p = pull.start(little)
    while b"again in 60" not in p.stderr.readline():
        pass
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=10) == 130
    p.communicate()


@pytest.mark.parametrize("harm", ["another version", "state cut", "state of nonsense", "state too large", "part cut", "bytes changed"])
def test_leftovers_that_are_not_used(pull, hub, harm):
    folder = pull.folder
    stop_in_the_middle(pull, hub, signal.SIGKILL, least=MIB)
    part, state = folder / (WEIGHTS + ".part"), folder / (WEIGHTS + ".part.state")
    text = state.read_text()
    if harm == "another version":
        hub.files[WEIGHTS] = BIG[::-1]
    elif harm == "state cut":
        state.write_text(text[:-5])
    elif harm == "state of nonsense":
        state.write_text(text.replace("\n0", "\nx"))
    elif harm == "state too large":
        lines = text.split("\n")
        state.write_text("\n".join([lines[0], f"{PIECE + 1:020}"] + lines[2:]))
    elif harm == "part cut":
        os.truncate(part, MIB)
    else:
        got = [int(line) for line in text.split("\n")[1:-1]]
        with part.open("r+b") as f:  # in a piece that has some: four connections share a MiB or more
            f.seek(got.index(max(got)) * PIECE)
            f.write(b"\0" * 1000)
    got = pull.json(hub)
    assert pull.whole(hub)
    # Changed bytes can be seen in the checksum only, after the rest has come.
    assert got["file"][WEIGHTS]["received_bytes"] == len(BIG) or harm == "bytes changed" and "once more" in got["stderr"]


def test_two_at_a_time(pull, little):
    pull.folder.mkdir()
    fd = os.open(pull.folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert pull.failed(pull(little), "another margay pull")
    os.close(fd)
    assert pull(little).returncode == 0


# --- the disk ---

def test_a_disk_too_small(pull, hub, tmp_path):
    pull.folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", pull.folder], capture_output=True).returncode:
        pytest.skip("can't mount a small file system here")
    try:
        p = pull(hub)
        assert pull.failed(p, "needs 34.8 MB more", "21.0 MB are free") and len(hub.asked) == 1
        assert list(pull.folder.iterdir()) == []
        # The room goes while it is at work: the list tells less than there is.
        hub.listing = hub.list()
        for e in hub.listing["siblings"]:
            if e["rfilename"] == WEIGHTS:
                del e["size"], e["lfs"]["size"]
        assert pull.failed(pull(hub), "reserve room", "No space left")
    finally:
        subprocess.run(["umount", "-l", pull.folder], check=True)


def test_a_limit_on_file_sizes(pull, hub):
    p = pull(hub, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30 * MIB, 30 * MIB)))
    assert pull.failed(p, WEIGHTS, "File too large")
    assert pull(hub).returncode == 0 and pull.whole(hub)


def test_a_folder_that_cannot_be(pull, little, tmp_path):
    (tmp_path / "f").write_text("")
    for folder in (tmp_path / "f", tmp_path / "f" / "x", "/proc/nowhere", "x" * 5000):
        pull.folder = folder
        assert pull(little).returncode in (1, 2)
    pull.folder = tmp_path / "a" / "b" / "c"
    assert pull(little).returncode == 0 and pull.whole(little)


# --- servers that tell less ---

def bare(hub):
    """A list without sizes and checksums."""
    hub.listing = {"siblings": [{"rfilename": name} for name in hub.files]}


def test_without_sizes_and_checksums(pull, hub):
    bare(hub)
    got = pull.json(hub)
    assert pull.whole(hub) and got["commit"] is None and "no checksum" in got["stderr"]
    assert got["file"][WEIGHTS]["bytes"] == len(BIG) and "sha256" not in got["file"][WEIGHTS]
    assert all("/resolve/main/" in path for _, path, _ in hub.asked[1:])


@pytest.mark.parametrize("change", [False, True])
def test_without_checksums_the_etag_decides(pull, hub, change):
    bare(hub)
    _, _, done = stop_in_the_middle(pull, hub, signal.SIGKILL, least=MIB)
    if change:
        hub.files[WEIGHTS] = BIG[::-1]
    got = pull.json(hub)
    assert pull.whole(hub) and got["file"][WEIGHTS]["received_bytes"] == len(BIG) - (0 if change else done)


def test_a_size_that_nobody_tells(pull, little):
    bare(little)

    def answer(r, data):
        r.send_response(200)
        r.send_header("Connection", "close")
        r.close_connection = True
        r.end_headers()
        r.wfile.write(data)
    little.on_file = only_weights(answer)
    assert pull.failed(pull(little), WEIGHTS, "doesn't tell its size")


# --- progress ---

def test_the_bar_on_a_terminal(pull, hub):
    slow(hub)
    ours, theirs = open_terminal()
    env = pull.environment(hub)
    p = subprocess.Popen([str(BIN), "pull", REPO, "-o", str(pull.folder)], stderr=theirs, stdout=subprocess.PIPE,
                         env={**os.environ, **env, "HOME": str(pull.folder)})
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    os.close(ours)
    assert p.wait(timeout=30) == 0
    text = seen.decode()
    bars = [line for line in text.split("\r\x1b[K") if line.startswith("margay: [")]
    assert len(bars) > 3 and all(len(line.rstrip("\r\n")) < 80 for line in bars)
    assert any("MB/s" in line and "left" in line and "34.8 MB" in line for line in bars)
    assert text.rstrip().endswith("\"What is this?\"")


def test_quiet(pull, little):
    p = pull(little, "--no-progress")
    assert p.returncode == 0 and p.stderr == "" and p.stdout == ""
