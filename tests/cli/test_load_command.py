"""margay load: what it counts and measures against what a server is known to have done, and against margay serve.

Times have lower bounds that always hold (the server waited so long) and upper ones with room for a busy machine.
"""
import base64
import collections
import csv
import io
import json
import os
import re
import resource
import select
import signal
import ssl
import statistics
import subprocess
import threading
import time
import xml.etree.ElementTree as ET

import pytest

from load_server import LoadServer
from program import BIN, DEMO, LIMIT, SAMPLES, clean_env, open_terminal, png

SLOW = 3.0 if os.environ.get("MARGAY_BUILD") in ("sanitized", "tsan") else 1.0
ROOM = 0.15 * SLOW  # seconds that a busy machine may add
TIMES = ["first_token", "between_tokens", "per_token", "answer", "answer_from_sending", "sent_late"]
POINTS = ["p50", "p90", "p95", "p99", "p99_9", "max"]


@pytest.fixture
def server():
    s = LoadServer()
    yield s
    s.stop()


def ask(**script):
    return ["--question", json.dumps(script)]


def load(margay, server, *args, code=0, **more):
    """The JSON report; `code` is the exit status that is expected."""
    p = margay("load", server.url, *args, "--json", **more)
    assert p.returncode == code, (p.returncode, p.stderr, p.stdout[:300])
    return json.loads(p.stdout)


def errors(o):
    return {(e["kind"], e["status"], e["code"]): e["count"] for e in o["errors"]}


def rows(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


# --- figures

def test_known_delays(margay, server):
    o = load(margay, server, "--closed", 2, "--requests", 10, *ask(first=0.2, tokens=6, gap=0.05))
    assert o["requests"] == {"sent": 10, "ok": 10, "errors": 0, "left": 0, "unfinished": 0, "error_percent": 0,
                             "retry_after": 0, "per_second": pytest.approx(10 / o["elapsed_s"], rel=0.01)}
    t = o["times_ms"]
    assert {k: t[k]["n"] for k in TIMES} == {"first_token": 10, "between_tokens": 50, "per_token": 10, "answer": 10,
                                             "answer_from_sending": 10, "sent_late": 10}
    for key, least in (("first_token", 200), ("answer", 450), ("answer_from_sending", 450), ("per_token", 50)):
        # per_token is a mean of five gaps, whose first began a little late
        assert least * 0.97 <= t[key]["min"] <= t[key]["p50"] <= least + 1e3 * ROOM, key
    assert 45 <= t["between_tokens"]["p50"] <= 50 + 1e3 * ROOM
    assert o["tokens"]["completion"] == 60 == o["tokens"]["pieces"] and o["tokens"]["answers_with_usage"] == 10
    assert (o["tokens"]["prompt"], o["tokens"]["cached"], o["tokens"]["image"]) == (100, 40, 50)
    assert o["tokens"]["per_second"] == pytest.approx(60 / o["elapsed_s"], rel=0.01)
    assert o["elapsed_s"] >= 5 * 0.45
    assert o["connections"]["opened"] == 2 and o["connections"]["most_requests_at_a_time"] == 2


def test_percentiles_of_a_mixture(margay, server, tmp_path):
    """90 of 100 questions take 20 ms, 10 take 300: p50 and p90 are of the first kind or at its edge, p95 of the second."""
    (tmp_path / "q").write_text("\n".join([json.dumps({"first": 0.02, "k": i}) for i in range(9)] + ['{"first": 0.3}']))
    o = load(margay, server, "--closed", 8, "--requests", 400, "--questions", tmp_path / "q", "--seed", 5)
    slow = sum(r["script"]["first"] == 0.3 for r in server.asked)
    assert 20 < slow < 60
    t = o["times_ms"]["first_token"]
    assert 20 <= t["p50"] < 20 + 1e3 * ROOM and t["p50"] < 200
    share = slow / 400
    assert share > 0.05 and 299 <= t["p95"] <= 300 + 2e3 * ROOM
    buckets = o["answer_histogram_ms"]
    assert sum(n for _, _, n in buckets) == 400
    assert sum(n for low, _, n in buckets if low >= 299) >= slow
    assert all(high - low <= max(0.0011, high / 128 + 1e-3) for low, high, _ in buckets)


def test_percentiles_are_those_of_the_rows(margay, server, tmp_path):
    """The same run as CSV: every percentile of the table is the sorted rows', within 1 in 256."""
    (tmp_path / "q").write_text("\n".join(json.dumps({"first": 0.003 * i}) for i in range(30)))
    p = margay("load", server.url, "--closed", 5, "--requests", 300, "--questions", tmp_path / "q", "--csv")
    assert p.returncode == 0, p.stderr
    found = rows(p.stdout)
    assert len(found) == 300 and sorted(int(r["request"]) for r in found) == list(range(300))
    assert {int(r["client"]) for r in found} == set(range(5))
    assert all(r["outcome"] == "ok" and r["status"] == "200" and r["pieces"] == "3" for r in found)
    for label, column in (("first token", "first_token_ms"), ("whole answer", "answer_ms"),
                          ("  from sending", "answer_from_sending_ms")):
        line = next(l for l in p.stderr.splitlines() if l.startswith(label))
        n, mean, *shown = (float(x) for x in line[20:].split())
        values = sorted(float(r[column]) for r in found)
        assert n == 300 and mean == pytest.approx(statistics.mean(values), rel=0.01)
        for q, value in zip((0.5, 0.9, 0.95, 0.99, 0.999, 1), shown):
            exact = values[-(-int(q * 3000) // 10) - 1] if q < 1 else values[-1]
            assert value == pytest.approx(exact, rel=1 / 256 + 0.005), (label, q)


def test_answers_without_streams(margay, server):
    o = load(margay, server, "--no-stream", "--requests", 5, *ask(first=0.1, tokens=7))
    assert not any(r["body"]["stream"] or "stream_options" in r["body"] for r in server.asked)
    assert o["requests"]["ok"] == 5 and o["tokens"]["completion"] == 35 and o["tokens"]["pieces"] == 0
    assert o["times_ms"]["first_token"]["n"] == 0 and o["times_ms"]["first_token"]["p50"] is None
    assert 100 <= o["times_ms"]["answer"]["p50"] <= 100 + 1e3 * ROOM


def test_servers_that_differ(margay, server, tmp_path):
    """No usage: pieces are counted. No [DONE]: the finish_reason ends it."""
    o = load(margay, server, "--requests", 4, *ask(tokens=5, no_usage=True, no_done=True))
    assert o["requests"]["ok"] == 4 and o["tokens"]["completion"] == 20 and o["tokens"]["answers_with_usage"] == 0
    p = margay("load", server.url, "--requests", 4, *ask(tokens=5, no_usage=True))
    assert "4 answers came without usage" in p.stdout


# --- errors

SCRIPTS = [
    ({"tokens": 2}, None),
    ({"status": 429, "code": "rate_limited"}, ("status", 429, "rate_limited")),
    ({"status": 500}, ("status", 500, "kind")),
    ({"status": 503, "code": "queue full\"}"}, ("status", 503, "queue_full__")),
    ({"cut": 2}, ("cut", 200, None)),
    ({"raw": ""}, ("cut", None, None)),
    ({"raw": "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"}, ("cut", 200, None)),
    ({"raw": "SSH-2.0-x\r\n\r\n"}, ("malformed", None, "http")),
    ({"body": "data: {nope\n\n"}, ("malformed", 200, "json")),
    ({"body": "data: {\"object\": \"x\"}\n\n"}, ("malformed", 200, "no_choices")),
    ({"body": "data: " + "x" * (2 << 20)}, ("malformed", 200, "event_too_long")),
    ({"body": "<html>sign in</html>"}, ("malformed", 200, "no_events")),
    ({"plain": True}, ("malformed", 200, "not_a_stream")),
    ({"error": "out_of_memory"}, ("in_stream", 200, "out_of_memory")),
    ({"no_end": True, "no_done": True}, ("cut", 200, "no_end")),
]


def test_errors_by_kind(margay, server, tmp_path):
    """Every way to fail, in a mixture: the counts are those of the server's own record."""
    (tmp_path / "q").write_text("\n".join(json.dumps(s) for s, _ in SCRIPTS))
    o = load(margay, server, "--closed", 6, "--requests", 300, "--questions", tmp_path / "q")
    done = collections.Counter(json.dumps(r["script"]) for r in server.asked)
    # A cut before the first byte on a connection that was used before is asked once more, on a fresh one.
    again = o["connections"]["requests_sent_again"]
    expected = collections.Counter()
    for script, kind in SCRIPTS:
        n = done[json.dumps(script)]
        assert n >= 5, "the seed gives each its turn"
        if script == {"raw": ""}:
            n -= again
            assert 0 < again <= n
        if kind:
            expected[kind] += n
    assert errors(o) == dict(expected)
    assert o["requests"]["ok"] == done[json.dumps(SCRIPTS[0][0])]
    assert o["requests"]["errors"] == sum(expected.values()) == 300 - o["requests"]["ok"]
    assert o["requests"]["error_percent"] == pytest.approx(o["requests"]["errors"] / 3, abs=0.001)
    assert o["times_ms"]["answer"]["n"] == o["requests"]["ok"]


def test_time_outs(margay, server):
    """A server that goes silent, or only keeps the stream open, does not hold a client for ever."""
    for how in (True, "ping"):
        o = load(margay, server, "--requests", 3, "--timeout", 0.3, *ask(stall=how), code=1)
        assert errors(o) == {("timeout", 200, None): 3}
        assert 0.9 <= o["elapsed_s"] <= 0.9 + 4 * ROOM
    o = load(margay, server, "--requests", 2, "--timeout", 0.2, *ask(first=30), code=1)
    assert errors(o) == {("timeout", None, None): 2}


def test_refused_in_the_middle(margay, server):
    """The server stops: what is under way is cut, then connections are refused; clients pause and do not spin."""
    p = margay.start("load", server.url, "--closed", 3, "--duration", 2.5, "--json", "--no-keep-alive",
                     *ask(first=0.01))
    wait_for(lambda: len(server.asked) > 20)
    server.stop_listening()
    out, err = p.communicate(timeout=LIMIT)
    o = json.loads(out)
    assert p.returncode == 0, err
    assert o["requests"]["ok"] > 10
    refused = errors(o)[("refused", None, None)]
    assert 3 <= refused <= 3 * (2.5 / 0.5 + 10)  # pauses of 0.05, 0.1, ... 0.8, 1 s
    assert sum(s["errors"] for s in o["seconds"]) == o["requests"]["errors"]


def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_nobody_there(margay):
    for url, word in (("http://127.0.0.1:9", "can't connect to 127.0.0.1:9"), ("unix:/none/there", "/none/there"),
                      ("http://none.invalid", "none.invalid")):
        p = margay("load", url)
        assert p.returncode == 1 and p.stdout == "" and word in p.stderr, p.stderr


def test_retry_after_is_heeded(margay, server):
    """One client, refused with "come again in a second": three questions fit into 2.5 s, each at least a second apart."""
    o = load(margay, server, "--closed", 1, "--duration", 2.5, *ask(status=429, code="rate_limited", retry_after=1), code=1)
    times = [r["time"] for r in server.asked]
    assert len(times) == 3 == o["requests"]["retry_after"]
    assert all(b - a >= 0.99 for a, b in zip(times, times[1:]))
    server.requests.clear()
    load(margay, server, "--open", 20, "--requests", 10, *ask(status=429, retry_after=1), code=1)
    assert server.asked[-1]["time"] - server.asked[0]["time"] < 3  # an open loop asks on


# --- coordinated omission

def test_a_stall_is_not_hidden(margay, server):
    """The server stands still for a second. Of 50 questions that were due in it, each waited for what was left of it."""
    p = margay.start("load", server.url, "--open", 50, "--arrivals", "constant", "--duration", 4, "--json", *ask(tokens=1))
    wait_for(lambda: len(server.asked) >= 50)
    server.freeze(1.0)
    out, err = p.communicate(timeout=LIMIT)
    assert p.returncode == 0, err
    o = json.loads(out)
    t = o["times_ms"]["answer"]
    assert o["requests"]["ok"] == 200
    assert 1e3 * (1 - 0.02) <= t["max"] <= 1e3 * (1 + 3 * ROOM)
    slow = sum(n for low, _, n in o["answer_histogram_ms"] if low >= 500)
    assert 22 <= slow <= 25 + 50 * 2 * ROOM  # due in the first half of the stall: 25
    assert t["p50"] < 1e3 * ROOM and t["p95"] > 700
    assert o["times_ms"]["sent_late"]["p99"] < 1e3 * ROOM  # the tool itself was in time
    # A closed loop of one client has one slow answer in its whole run: the median of what it saw tells nothing.
    p = margay.start("load", server.url, "--closed", 1, "--duration", 3, "--think", 0.02, "--json", *ask(tokens=1))
    n = len(server.asked)
    wait_for(lambda: len(server.asked) >= n + 20)
    server.freeze(1.0)
    o = json.loads(p.communicate(timeout=LIMIT)[0])
    assert sum(n for low, _, n in o["answer_histogram_ms"] if low >= 500) == 1
    assert o["times_ms"]["answer"]["p95"] < 500


def test_waiting_for_a_connection_counts(margay, server):
    """20 a second on one connection that takes 100 ms each: ten wait more each second; the server alone knows nothing."""
    o = load(margay, server, "--open", 20, "--arrivals", "constant", "--requests", 40, "--max-connections", 1,
             *ask(first=0.1, tokens=1))
    t = o["times_ms"]
    assert o["connections"]["opened"] == 1 and o["requests"]["ok"] == 40
    assert 100 <= t["answer_from_sending"]["p50"] <= 100 + 1e3 * ROOM
    assert 40 * 100 - 39 * 50 <= t["answer"]["max"] <= 40 * (100 + 1e3 * ROOM)
    assert t["answer"]["p50"] >= 20 * 50 - 50
    assert t["sent_late"]["max"] >= 39 * 50
    p = margay("load", server.url, "--open", 20, "--requests", 20, "--max-connections", 1, *ask(first=0.1, tokens=1))
    assert "after they were due" in p.stdout


# --- who asks when

def due(margay, server, *args, seed=0):
    p = margay("load", server.url, *args, "--csv", "--seed", seed, *ask(tokens=1))
    assert p.returncode == 0, p.stderr
    return sorted(float(r["due_s"]) for r in rows(p.stdout))


def test_constant_arrivals(margay, server):
    times = due(margay, server, "--open", 40, "--arrivals", "constant", "--requests", 40)
    assert times == pytest.approx([i / 40 for i in range(40)], abs=2e-6)
    seen = [r["time"] for r in server.asked]
    assert all(abs((b - seen[0]) - i / 40) < ROOM for i, b in enumerate(seen))


def test_burst_arrivals(margay, server):
    times = due(margay, server, "--open", 20, "--arrivals", "burst:5", "--requests", 30)
    assert times == pytest.approx([i // 5 * 0.25 for i in range(30)], abs=2e-6)
    p = margay("load", server.url, "--open", 20, "--arrivals", "burst:5", "--requests", 30, "--json", *ask(first=0.1))
    assert json.loads(p.stdout)["connections"]["most_requests_at_a_time"] >= 5


def test_poisson_arrivals(margay, server):
    """The same seed gives the same times, another one others; gaps of an exponential distribution (5 standard errors)."""
    n, rate = 400, 200
    one = due(margay, server, "--open", rate, "--requests", n, seed=1)
    assert due(margay, server, "--open", rate, "--requests", n, seed=1) == pytest.approx(one, abs=2e-6)
    assert due(margay, server, "--open", rate, "--requests", 100, seed=2) != pytest.approx(one[:100], abs=1e-3)
    gaps = [b - a for a, b in zip([0] + one, one)]
    assert statistics.mean(gaps) * rate == pytest.approx(1, abs=5 / n ** 0.5)
    assert statistics.pstdev(gaps) * rate == pytest.approx(1, abs=5 * (2 / n) ** 0.5)
    assert sum(g > 1 / rate for g in gaps) / n == pytest.approx(0.368, abs=5 * (0.368 * 0.632 / n) ** 0.5)


def test_ramp(margay, server):
    times = due(margay, server, "--arrivals", "ramp:0-200", "--duration", 3)
    assert len(times) == pytest.approx(300, abs=5 * 300 ** 0.5)
    first_half = sum(t < 1.5 for t in times)
    assert first_half == pytest.approx(75, abs=5 * 75 ** 0.5)
    assert max(times) < 3


def test_duration_and_warm_up(margay, server):
    """Questions of the warm-up are asked and not counted; afterwards the time is the duration."""
    o = load(margay, server, "--open", 50, "--arrivals", "constant", "--warm-up", 1, "--duration", 1.5, *ask(tokens=1))
    assert len(server.asked) == 125 and o["requests"]["sent"] == 75
    assert [s["sent"] for s in o["seconds"][:2]] == [50, 25]
    assert o["elapsed_s"] == pytest.approx(1.5, abs=2 * ROOM)
    server.requests.clear()
    o = load(margay, server, "--closed", 2, "--warm-up", 0.5, "--requests", 10, *ask(first=0.1, tokens=1))
    assert o["requests"]["ok"] == 10 and 14 <= len(server.asked) <= 22


def test_think(margay, server):
    o = load(margay, server, "--closed", 4, "--think", 0.2, "--duration", 2, *ask(tokens=1))
    by_connection = collections.defaultdict(list)
    for r in server.asked:
        by_connection[r["connection"]].append(r["time"])
    gaps = [b - a for times in by_connection.values() for a, b in zip(times, times[1:])]
    assert len(by_connection) == 4 and min(gaps) >= 0.099
    assert 0.15 <= statistics.mean(gaps) <= 0.25 + ROOM
    assert 20 <= o["requests"]["ok"] <= 60


def test_clients_that_leave(margay, server):
    o = load(margay, server, "--closed", 8, "--requests", 200, "--abort", 0.5, *ask(first=0.02, tokens=10, gap=0.01))
    left = o["requests"]["left"]
    assert left == pytest.approx(100, abs=5 * 50 ** 0.5) and o["requests"]["ok"] == 200 - left
    assert o["requests"]["errors"] == 0 and o["times_ms"]["answer"]["n"] == 200 - left
    assert len(server.asked) == 200
    wait_for(lambda: server.open == 0)
    assert o["connections"]["opened"] >= left
    p = margay("load", server.url, "--requests", 3, "--abort", 1, *ask(first=30))
    assert p.returncode == 0, "they left on purpose"


# --- connections

def test_connections_are_kept(margay, server):
    load(margay, server, "--closed", 3, "--requests", 60, *ask(tokens=1))
    assert len({r["connection"] for r in server.asked}) == 3
    server.requests.clear()
    o = load(margay, server, "--closed", 3, "--requests", 30, "--no-keep-alive", *ask(tokens=1))
    assert len({r["connection"] for r in server.asked}) == 30 == o["connections"]["opened"]
    assert all(r["headers"]["connection"] == "close" for r in server.asked)


def test_connections_that_the_server_closes(margay, server):
    """Untold, after each reply: no question is lost, and none is an error."""
    o = load(margay, server, "--closed", 3, "--requests", 60, *ask(tokens=1, close=True))
    assert o["requests"]["ok"] == 60 and o["errors"] == []
    assert 60 <= o["connections"]["opened"] and len(server.asked) == 60


@pytest.mark.slow
def test_a_thousand_clients(margay, server):
    o = load(margay, server, "--closed", 1000, "--requests", 3000, *ask(first=1, tokens=2))
    assert o["requests"]["ok"] == 3000 and o["connections"]["opened"] == 1000
    assert o["connections"]["most_requests_at_a_time"] == 1000 == server.most_open
    assert o["elapsed_s"] < 3 * (1 + 10 * SLOW)


def limited(soft, hard):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_open_files(margay, server):
    args = [BIN, "load", server.url, "--closed", "150", "--requests", "300", "--json", *ask(first=0.3)]
    env = clean_env(margay.tmp_path)
    p = subprocess.run(args, capture_output=True, preexec_fn=limited(64, 400), env=env, timeout=LIMIT)
    assert p.returncode == 0 and json.loads(p.stdout)["connections"]["opened"] == 150, p.stderr
    p = subprocess.run(args, capture_output=True, preexec_fn=limited(64, 200), env=env, timeout=LIMIT)
    assert p.returncode == 1 and b"150 connections need 214 open files, the hard limit is 200" in p.stderr
    args[3:5] = ["--open", "1000"]
    p = subprocess.run(args, capture_output=True, preexec_fn=limited(64, 100), env=env, timeout=LIMIT)
    o = json.loads(p.stdout)
    assert p.returncode == 0 and o["connections"]["opened"] == 36 == o["load"]["max_connections"]
    assert o["requests"]["ok"] == 300


# --- what is sent

def test_requests(margay, server, tmp_path):
    load(margay, server, "--requests", 2, "--question", 'Say "é" \\ and\ttab', "--max-tokens", 17, "--model", 'm"x',
         "--header", "X-Team: blue", "--header", "X-Empty:", "--extra", '{"temperature": 0, "max_tokens": null, "seed": 4}',
         "--api-key", "k1", "--api-key", "k2", "--closed", 2)
    for r in server.asked:
        assert r["method"] == "POST" and r["path"] == "/v1/chat/completions"
        assert r["body"] == {"model": 'm"x', "temperature": 0, "seed": 4, "stream": True,
                             "stream_options": {"include_usage": True},
                             "messages": [{"role": "user", "content": [{"type": "text", "text": 'Say "é" \\ and\ttab'}]}]}
        assert r["headers"]["x-team"] == "blue" and r["headers"]["content-type"] == "application/json"
        assert r["headers"]["host"] == f"127.0.0.1:{server.port}"
    assert {r["headers"]["authorization"] for r in server.asked} == {"Bearer k1", "Bearer k2"}
    assert len(server.requests) == 2  # a model that is named is not asked for
    server.requests.clear()
    o = load(margay, server, "--requests", 1, env={"MARGAY_API_KEY": "secret"})
    assert [r["headers"]["authorization"] for r in server.requests] == ["Bearer secret"] * 2
    assert o["model"] == "scripted" == server.asked[0]["body"]["model"] and server.asked[0]["body"]["max_tokens"] == 128
    (tmp_path / "keys").write_text("# mine\n  filed  \r\n\n")
    server.requests.clear()
    load(margay, server, "--requests", 1, "--api-key-file", tmp_path / "keys")
    assert server.asked[0]["headers"]["authorization"] == "Bearer filed"


@pytest.mark.parametrize("given, path", [("", "/v1"), ("/", "/v1"), ("/v1", "/v1"), ("/v1/", "/v1"), ("/api/v1", "/api/v1"),
                                         ("/paas/v4", "/paas/v4"), ("/a", "/a/v1"), ("/v1/chat/completions", "/v1"),
                                         ("/odd/chat/completions", "/odd")])
def test_paths(margay, server, given, path):
    p = margay("load", server.url + given, "--requests", 1)
    assert p.returncode == 0, p.stderr
    assert [r["path"] for r in server.requests] == [path + "/models", path + "/chat/completions"]


def test_pictures(margay, server, tmp_path):
    """Each once before one comes again, byte for byte; what is no picture is passed over; the seed decides the order."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    files = {}
    for i in range(7):
        files[f"p{i}.bin"] = png(4 + i, 5, lambda x, y: (x * 9, y * 9, i))
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_bytes(files["p0.bin"])
    (folder / "sub").mkdir()
    orders = []
    for seed in (1, 1, 2):
        server.requests.clear()
        load(margay, server, "--pictures", folder, "--requests", 21, "--seed", seed, "--question", "What?")
        sent = []
        for r in server.asked:
            picture, text = r["body"]["messages"][0]["content"]
            assert text == {"type": "text", "text": "What?"} and picture["type"] == "image_url"
            kind, _, data = picture["image_url"]["url"].partition(";base64,")
            assert kind == "data:image/png"
            sent.append(next(k for k, v in files.items() if v == base64.b64decode(data, validate=True)))
        for i in range(0, 21, 7):
            assert sorted(sent[i:i + 7]) == sorted(files)
        orders.append(sent)
    assert orders[0] == orders[1] != orders[2]
    p = margay("load", server.url, "--pictures", folder / "sub")
    assert p.returncode == 1 and "no picture in" in p.stderr


# --- output

def test_json_has_its_members(margay, server):
    """Programs rely on these names: members may be added, none may go."""
    o = load(margay, server, "--requests", 3, *ask(tokens=2))
    assert set(o) >= {"url", "model", "load", "interrupted", "elapsed_s", "requests", "errors", "times_ms", "relative_error",
                      "answer_histogram_ms", "tokens", "connections", "seconds"}
    assert set(o["load"]) >= {"loop", "clients", "think_s", "duration_s", "requests", "warm_up_s", "abort", "timeout_s",
                              "max_connections", "keep_alive", "stream", "max_tokens", "pictures", "uploaded", "questions",
                              "seed"}
    assert set(o["requests"]) >= {"sent", "ok", "errors", "left", "unfinished", "error_percent", "retry_after", "per_second"}
    assert list(o["times_ms"]) == TIMES
    assert all(set(t) >= {"n", "mean", "min", *POINTS} for t in o["times_ms"].values())
    assert set(o["tokens"]) >= {"prompt", "cached", "image", "completion", "pieces", "answers_with_usage", "per_second"}
    assert set(o["connections"]) >= {"opened", "requests_sent_again", "most_requests_at_a_time", "bytes_received"}
    assert set(o["seconds"][0]) >= {"second", "sent", "ok", "errors", "pieces", "under_way", "answer_p50_ms",
                                    "answer_p95_ms", "answer_max_ms"}
    assert o["load"]["loop"] == "closed" and o["relative_error"] == pytest.approx(1 / 256, abs=1e-5)
    o = load(margay, server, "--open", 100, "--arrivals", "burst:3", "--requests", 3, *ask(tokens=2))
    assert o["load"]["loop"] == "open" and o["load"]["arrivals"] == "burst:3" and o["load"]["rate"] == 100


def test_seconds(margay, server):
    o = load(margay, server, "--open", 20, "--arrivals", "constant", "--duration", 3, *ask(first=0.25, tokens=4))
    s = o["seconds"]
    assert [r["second"] for r in s] == list(range(len(s))) and 3 <= len(s) <= 4
    assert [r["sent"] for r in s[:3]] == [20, 20, 20]
    assert sum(r["ok"] for r in s) == 60 and sum(r["pieces"] for r in s) == 240
    assert s[0]["ok"] == pytest.approx(15, abs=1 + 20 * ROOM) and s[0]["under_way"] >= 4
    assert s[1]["answer_p50_ms"] >= 250 and s[1]["answer_p50_ms"] <= s[1]["answer_p95_ms"] * 1.01
    assert s[-1]["under_way"] == 0


def svg_of(path):
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    width, height = float(root.get("width")), float(root.get("height"))
    for e in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(e.get(k, 0)) for k in ("x", "y", "width", "height"))
        assert 0 <= x and x + w <= width + 0.1 and 0 <= y and y + h <= height + 0.1 and w >= 0 and h >= 0
    for e in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in e.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height
    return root, [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]


def test_svg(margay, server, tmp_path):
    (tmp_path / "q").write_text('{"first": 0.05, "tokens": 4}\n{"status": 500}\n')
    o = load(margay, server, "--open", 40, "--duration", 3, "--questions", tmp_path / "q", "--svg", tmp_path / "a.svg",
             "--model", "<m> & \"n\"")
    root, texts = svg_of(tmp_path / "a.svg")
    assert any("<m> & \"n\"" in t for t in texts) and any("errors in" in t for t in texts)
    for p in ("p50", "p95", "p99"):
        shown = next(t for t in texts if t.startswith(p + " "))
        assert float(shown.split()[1]) == pytest.approx(o["times_ms"]["answer"][p], rel=0.01)
    fills = collections.Counter(e.get("fill") for e in root.iter("{http://www.w3.org/2000/svg}rect"))
    assert fills["#de2d26"] >= 3 and fills["#9ecae1"] >= 4 and fills["#fdae6b"] >= 2
    load(margay, server, "--requests", 1, "--plot", tmp_path / "b.svg", *ask(status=500), code=1)
    svg_of(tmp_path / "b.svg")  # nothing worked: still a picture
    load(margay, server, "--requests", 1, "--plot", tmp_path / "c.svg")
    svg_of(tmp_path / "c.svg")
    p = margay("load", server.url, "--requests", 1, "--svg", tmp_path / "no" / "d.svg")
    assert p.returncode == 1 and "d.svg" in p.stderr


def test_table(margay, server):
    p = margay("load", server.url, "--requests", 4, *ask(tokens=3))
    for word in ("requests", "answers", "errors", "tokens", "connections", "first token", "between tokens", "whole answer",
                 "p99.9", "model scripted", "1 client;"):
        assert word in p.stdout, word
    assert "nan" not in p.stdout and "inf" not in p.stdout and p.stderr == ""
    assert not any(line != line.rstrip() for line in p.stdout.splitlines())


def test_csv_of_errors_and_names(margay, server, tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / 'a "b", c.png').write_bytes(png(4, 4, lambda x, y: (1, 2, 3)))
    p = margay("load", server.url, "--requests", 2, "--pictures", tmp_path / "p", "--csv", *ask(status=503, code="full"))
    assert p.returncode == 1
    for r in rows(p.stdout):
        assert r["picture"] == 'a "b", c.png' and r["outcome"] == "status" and r["status"] == "503" and r["code"] == "full"
        assert r["first_token_ms"] == "" == r["answer_ms"] == r["completion_tokens"]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(margay, server, tmp_path, sig):
    p = margay.start("load", server.url, "--closed", 4, "--duration", 600, "--json", "--svg", tmp_path / "a.svg",
                     *ask(first=0.05))
    wait_for(lambda: len(server.asked) > 40)
    begin = time.monotonic()
    p.send_signal(sig)
    out, err = p.communicate(timeout=LIMIT)
    assert time.monotonic() - begin < 5 * SLOW and p.returncode == 130, err
    o = json.loads(out)
    assert o["interrupted"] and o["requests"]["ok"] > 20 and o["requests"]["unfinished"] <= 4
    assert o["requests"]["ok"] + o["requests"]["unfinished"] == o["requests"]["sent"] and o["errors"] == []
    svg_of(tmp_path / "a.svg")


def test_fail_above(margay, server, tmp_path):
    (tmp_path / "q").write_text('{"first": 0.1}\n' * 3 + '{"first": 0.1, "status": 500}\n')
    args = ["--closed", 4, "--requests", 80, "--questions", tmp_path / "q"]
    load(margay, server, *args)
    load(margay, server, *args, "--fail-above", "60%", "--fail-above", "first.p50=90000", "--fail-above", "answer.max=90000")
    for limit in ("5", "errors=1", "first.p95=99", "answer.p50=90.5", "answer.max=1"):
        p = margay("load", server.url, *args, "--fail-above", limit)
        assert p.returncode == 1 and f"--fail-above {limit}: it is" in p.stderr and "answers" in p.stdout
    p = margay("load", server.url, "--requests", 3, *ask(status=500))
    assert p.returncode == 1 and "no request was answered" in p.stderr


def test_progress_on_a_terminal(margay, server):
    ours, theirs = open_terminal()
    p = subprocess.Popen([str(BIN), "load", server.url, "--closed", "2", "--duration", "1.5", "--json", *ask(first=0.02)],
                         stdout=subprocess.PIPE, stderr=theirs, env=clean_env(margay.tmp_path))
    os.close(theirs)
    text = b""
    while True:
        if select.select([ours], [], [], LIMIT)[0]:
            try:
                data = os.read(ours, 4096)
            except OSError:
                break
            if not data:
                break
            text += data
    out = p.communicate(timeout=LIMIT)[0]
    os.close(ours)
    assert json.loads(out)["requests"]["ok"] > 10
    lines = re.findall(rb"margay: \[[#.]{12}\] (\d+) s: (\d+) answers, 0 errors", text)
    assert len(lines) >= 3 and int(lines[-1][1]) > int(lines[0][1])
    assert text.endswith(b"\r\x1b[K")  # wiped before the report


@pytest.mark.parametrize("args, words", [
    (["--closed", "2", "--open", "3"], ["--closed", "--open"]),
    (["--closed", "0"], ["--closed"]),
    (["--open", "0"], ["--open"]),
    (["--open", "1", "--think", "1"], ["--think"]),
    (["--arrivals", "constant"], ["--open RATE"]),
    (["--open", "1", "--arrivals", "ramp:1-2"], ["ramp", "--open"]),
    (["--arrivals", "ramp:1-2", "--requests", "5"], ["--duration"]),
    (["--open", "1", "--arrivals", "burst:x"], ["burst:N"]),
    (["--question", "a", "--questions", "b"], ["one of them"]),
    (["--json", "--csv"], ["one of them"]),
    (["--upload"], ["--pictures"]),
    (["--header", "nothing"], ["Name: value"]),
    (["--header", "a: b\r\nc: d"], ["Name: value"]),
    (["--header", "Host: x"], ["can't set Host"]),
    (["--fail-above", "much"], ["--fail-above"]),
    (["--fail-above", "first.p0=3"], ["--fail-above"]),
    (["--fail-above", "first.p101=3"], ["--fail-above"]),
    (["--max-tokens", "0"], ["--max-tokens"]),
    (["--api-prefix", "x"], ["--api-prefix"]),
    (["ftp://x"], ["ftp"]),
    (["http://u:p@x"], ["password"]),
    (["http://x/?a=b"], ["without ?"]),
    (["unix:relative"], ["unix:"]),
    (["http://a", "http://b"], ["one argument"]),
    (["--abort", "2"], ["--abort"]),
    (["--api-key", "a b"], ["API key"]),
])
def test_wrong_usage(margay, args, words):
    p = margay("load", *args)
    assert p.returncode in (1, 2) and p.stdout == ""
    for word in words:
        assert word in p.stderr, p.stderr


def test_wrong_extra(margay, server):
    for extra in ("[1]", "{", '{"messages": []}', '{"stream": false}', '{"a": 1, "a": 2}'):
        p = margay("load", server.url, "--requests", 1, "--extra", extra)
        assert p.returncode == 2 and "--extra" in p.stderr and not server.asked


def test_help(margay):
    p = margay("help", "load")
    for word in ("--closed", "--open", "--arrivals", "--[no-]stream", "--plot", "--svg", "--fail-above", "--api-key-file",
                 "Ctrl-C"):
        assert word in p.stdout
    assert "MARGAY_MODEL" not in p.stdout  # a folder, of no use here


# --- margay serve

class Serve:
    def __init__(self, tmp_path, *args):
        self.process = subprocess.Popen([str(BIN), "serve", "-m", str(DEMO), *map(str, args)], stderr=subprocess.PIPE,
                                        text=True, env=clean_env(tmp_path))
        for line in self.process.stderr:
            if "listening on" in line:
                self.url = line.split()[-1]
                break
        else:
            raise AssertionError("it did not start")
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, "".join(self.log)
        self.reader.join(10)


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(*args):
        started.append(Serve(tmp_path, *args))
        return started[-1]
    yield start
    for s in started:
        s.stop()


def test_margay_serve(margay, serve):
    """Pictures as data URLs and uploaded; usage with picture and cached tokens; the table of the samples' answers."""
    s = serve("--port", 0)
    o = load(margay, s, "--closed", 4, "--requests", 60, "--pictures", SAMPLES, "--question", "What does it say?",
             "--max-tokens", 8)
    assert o["requests"]["ok"] == 60 and o["model"] == "demo"
    assert o["tokens"]["answers_with_usage"] == 60 and o["tokens"]["image"] > 60
    assert 60 <= o["tokens"]["completion"] <= 480
    assert o["load"]["pictures"] == len(list(SAMPLES.glob("*.png")))
    o = load(margay, s, "--open", 30, "--requests", 60, "--pictures", SAMPLES, "--upload", "--question", "What does it say?",
             "--max-tokens", 8)
    assert o["requests"]["ok"] == 60 and o["load"]["uploaded"]
    assert o["tokens"]["cached"] > 0  # the same pictures and question again
    o = load(margay, s, "--no-stream", "--requests", 5)
    assert o["requests"]["ok"] == 5 and o["tokens"]["completion"] > 0
    o = load(margay, s, "--requests", 2, "--extra", '{"temperature": -1}', code=1)
    assert errors(o) == {("status", 400, "invalid_value"): 2}


def test_margay_serve_keys(margay, serve, tmp_path):
    (tmp_path / "keys").write_text("right\n")
    s = serve("--port", 0, "--api-key-file", tmp_path / "keys")
    load(margay, s, "--requests", 2, "--api-key-file", tmp_path / "keys")
    p = margay("load", s.url, "--requests", 2)
    assert p.returncode == 1 and "API key (--api-key)" in p.stderr
    o = load(margay, s, "--requests", 2, "--api-key", "wrong", "--model", "m", code=1)
    assert errors(o) == {("status", 401, "invalid_api_key"): 2}


def test_unix_socket(margay, serve, tmp_path):
    path = tmp_path / "m.sock"
    serve("--unix-socket", path, "--api-prefix", "/x")
    p = margay("load", f"unix:{path}", "--closed", 20, "--requests", 40, "--api-prefix", "/x", "--json")
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout)["requests"]["ok"] == 40


def test_https(margay, serve, tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    s = serve("--port", 0, "--ssl-cert-file", cert, "--ssl-key-file", key)
    assert s.url.startswith("https://")
    port = s.url.rsplit(":", 1)[1].strip("/")
    o = load(margay, s, "--closed", 4, "--requests", 40, "--pictures", SAMPLES, "--ca-file", cert)
    assert o["requests"]["ok"] == 40 and o["connections"]["opened"] == 4
    s.url = f"https://localhost:{port}"
    assert load(margay, s, "--requests", 2, "--insecure")["requests"]["ok"] == 2
    assert load(margay, s, "--requests", 2, env={"SSL_CERT_FILE": str(cert)})["requests"]["ok"] == 2
    p = margay("load", s.url, "--requests", 2)
    assert p.returncode == 1 and "tls" in p.stderr and "--ca-file" in p.stderr
    o = load(margay, s, "--requests", 2, "--model", "m", code=1)
    assert errors(o) == {("tls", None, "certificate"): 2}
    s.url = f"http://127.0.0.1:{port}"  # plain words to a TLS port
    o = load(margay, s, "--requests", 2, "--model", "m", code=1)
    assert {k for k, _, _ in errors(o)} <= {"cut", "malformed"}
