"""margay serve: nobody waits for another's large request; who may call it; idle WebSockets when it stops."""
import json, select, signal, socket, time

import pytest

from conftest import RIGHT, data_url, picture
from test_serve import LONG, Socket

TEXT = "the cat sat on a mat and looked at words, " * 40


def send_large(s, path, body):
    """The whole request is with the server afterwards; its reply is not read."""
    c = socket.create_connection(("127.0.0.1", s.port))
    data = json.dumps(body).encode()
    c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return c


@pytest.mark.parametrize("path, body", [
    ("/tokenize", {"content": TEXT * 4000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT * 20000}]}),
    ("/v1/completions", {"prompt": TEXT * 20000})], ids=lambda v: v if isinstance(v, str) else "")
def test_large_requests_are_read_beside_the_loop(server, path, body):
    large = send_large(server, path, body)
    begun = time.monotonic()
    assert server.get("/live").status == 200
    took = time.monotonic() - begun
    ready = bool(select.select([large], [], [], 0)[0])
    large.settimeout(60)
    assert large.recv(12)[9:] in ((b"200",) if path == "/tokenize" else (b"400", b"413")), path
    assert not ready or took < 0.01, "the reply to a question sent later came later"


def test_large_and_right(server):
    case = RIGHT[0]
    content = [{"type": "text", "text": case["question"]}, {"type": "image_url", "image_url": {"url": data_url(picture(case["image"]))}}]
    r = server.post("/v1/chat/completions", {"temperature": 0, "messages": [{"role": "user", "content": content}], "unread": "x" * 5_000_000})
    assert r.status == 200 and r.text == case["answer"]


def test_leaving_and_stopping_while_read(serve):
    s = serve("--drain-time", 0)
    for path in ("/tokenize", "/apply-template", "/v1/chat/completions") * 3:
        send_large(s, path, {"content": TEXT * 2000, "messages": [{"role": "user", "content": TEXT * 2000}]}).close()
    assert s.post("/tokenize", {"content": "a"}).json["tokens"]
    left = [send_large(s, "/tokenize", {"content": TEXT * 3000}) for _ in range(4)]
    assert s.stop(seconds=20) == 0
    for c in left:
        c.settimeout(5)
        try:
            answer = b"".join(iter(lambda: c.recv(1 << 16), b""))
        except ConnectionResetError:  # stopped before all of the request was read
            continue
        assert not answer or answer[9:12] in (b"200", b"503"), answer[:200]


def test_names(serve, tmp_path):
    status = lambda s, host: s.get("/v1/models", Host=host).status
    s = serve()
    good = ["localhost", f"127.0.0.1:{s.port}", "LOCALHOST:1", "margay.localhost", "[::1]:8080", "10.1.2.3", "localhost.",
            socket.gethostname()]
    bad = ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "1.2.3.x", "a"]
    assert [status(s, h) for h in good] == [200] * len(good)
    assert [status(s, h) for h in bad] == [403] * len(bad)
    assert s.get("/v1/models", Host="evil.example").json["error"]["code"] == "name_not_allowed"
    s = serve("--allowed-hosts", "ai.example", "--allowed-hosts", "*.team.example")
    assert [status(s, h) for h in ("ai.example", "AI.example:80", "a.team.example", "localhost")] == [200] * 4
    assert [status(s, h) for h in ("b.ai.example", "team.example", "xteam.example", "evil")] == [403] * 4
    s = serve("--allowed-hosts", "*")
    assert status(s, "evil.example") == 200
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    s = serve("--api-key-file", keys)
    assert s.get("/v1/models", Host="evil.example", X_Api_Key="k").status == 200
    s = serve("--host", "0.0.0.0")
    assert status(s, "evil.example") == 200


def test_pages_of_other_sites(serve, tmp_path):
    ask = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    s = serve("--cors-origin", "https://good.example")
    post = lambda s, **h: s.post("/v1/chat/completions", ask, Content_Type="text/plain", **h).status
    assert post(s) == post(s, Origin="https://good.example") == 200
    assert post(s, Origin=f"http://127.0.0.1:{s.port}") == 200
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        r = s.post("/v1/chat/completions", ask, Content_Type="text/plain", Origin=origin)
        assert r.status == 403 and r.json["error"]["code"] == "origin_not_allowed"
    assert s.get("/health", Origin="https://evil.example").status == 200
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    s = serve("--api-key-file", keys)
    assert post(s, Origin="https://evil.example") == 401
    assert post(s, Origin="https://evil.example", X_Api_Key="k") == 200


def test_idle_sockets_do_not_hold_the_stop(serve):
    s = serve("--drain-time", 60, "--no-loop-check")
    idle, busy = [Socket(s) for _ in range(3)], Socket(s)
    busy.send({"question": "Go on.", "id": "a", **LONG, "max_tokens": 200})
    while busy.receive()["type"] != "token":
        pass
    begun = time.monotonic()
    s.process.send_signal(signal.SIGTERM)
    for w in idle:
        assert w.f.read(2)[0] & 15 == 8  # close
    while (m := busy.receive())["type"] == "token":
        pass
    assert m["type"] == "result", m
    assert s.process.wait(30) == 0 and time.monotonic() - begun < 30


def test_times_with_each_token(server):
    case = RIGHT[0]
    r = server.chat(case["question"], picture(case["image"]), stream=True, timings_per_token=True)
    chunks = [json.loads(e) for e in r.events if e != "[DONE]"]
    timed = [c["timings"] for c in chunks if c.get("choices") and c["choices"][0]["delta"].get("content")]
    assert timed and [t["predicted_n"] for t in timed] == sorted({t["predicted_n"] for t in timed})
    assert all(t["prompt_n"] + t["cache_n"] > 5 and t["prompt_ms"] >= 0 for t in timed) and timed[-1]["predicted_n"] > 1
    assert [t["total_ms"] for t in timed] == sorted(t["total_ms"] for t in timed)
    r = server.chat(case["question"], picture(case["image"]), stream=True)
    chunks = [json.loads(e) for e in r.events if e != "[DONE]"]
    assert not [c for c in chunks if "timings" in c and not c["choices"][0]["finish_reason"]]


def test_large_questions_over_a_socket(server):
    """Each keeps the pictures that came before it; what comes while it is read is not held up."""
    a, b, w = RIGHT[0], RIGHT[4], Socket(server)
    pad = "x" * 3_000_000
    w.send(picture(a["image"]))
    w.send({"question": a["question"], "temperature": 0, "id": "large", "unread": pad})
    w.send(picture(b["image"]))
    w.send({"question": b["question"], "temperature": 0, "id": "small"})
    w.send({"question": "Go on.", "id": "gone", "unread": pad, **LONG})
    w.send({"type": "cancel", "id": "gone"})
    last = {}
    while len(last) < 3:
        m = w.receive()
        if m["type"] in ("result", "error"):
            last[m["id"]] = m
    assert last["large"]["text"] == a["answer"] and last["small"]["text"] == b["answer"], last
    assert last["gone"].get("stop_detail") == "cancelled" or last["gone"]["error"]["code"] == "cancelled", last["gone"]
    w.send('{"question": "' + pad)
    assert w.receive()["type"] == "error"
    for i in range(12):
        w.send({"question": "Go on.", "id": f"q{i}", "unread": pad[:100_000], **LONG})
    refused = set()
    while len(refused) < 4:
        m = w.receive()
        if m["type"] == "error":
            refused.add(m.get("id") or len(refused))
            assert m["error"]["code"] == "rate_limited", m
    w.send({"type": "cancel"})
    w.s.close()
    server.wait(server.idle)


def test_a_file_without_keys_lets_nobody_in_and_says_so(serve, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("# none yet\n\n")
    s = serve("--api-key-file", keys)
    assert s.get("/v1/models").status == 401 and s.get("/v1/models", X_Api_Key="").status == 401
    assert any("no key" in line for line in s.log), s.log
    keys.write_text("a-key\n")
    s.process.send_signal(signal.SIGHUP)
    s.wait(lambda: s.get("/v1/models", X_Api_Key="a-key").status == 200)
