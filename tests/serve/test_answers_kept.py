"""margay serve --answer-cache, --similar-cache: what is asked again need not be answered again."""
import json, random, re, struct, subprocess, zlib

import pytest

from conftest import BIN, RIGHT, picture


def value(server, name):
    return sum(float(v) for v in re.findall(rf"^margay_{name} (\S+)$", server.get("/metrics").body.decode(), re.M))


def photo(noise=0, spot=False, side=224):
    """A PNG with hills of all sizes; `noise`: steps that single values are off by."""
    import math
    rng = random.Random(5)
    waves = [(math.cos(t) * f, math.sin(t) * f, 60 * 0.75 ** k)
             for k, (t, f) in enumerate((rng.random() * 6.28, 0.01 * 1.5 ** k) for k in range(8))]
    rng = random.Random(9)
    rows = bytearray()
    for y in range(side):
        rows.append(0)
        for x in range(side):
            v = 120 + sum(a * math.sin(x * u + y * w) for u, w, a in waves)
            if spot and 100 <= x < 104 and 90 <= y < 97:
                v = 260 - v
            for c in range(3):
                rows.append(max(0, min(255, int(v) + 9 * c + rng.randint(-noise, noise))))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b""))


def test_exact(serve):
    server = serve("--answer-cache", 16, "--api-key", "a", "--api-key", "b")
    case = RIGHT[0]
    as_a, as_b = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
    metric = lambda name: next(float(l.split()[-1]) for l in server.get("/metrics", **as_a).body.decode().splitlines()
                               if l.startswith(f"margay_{name} "))
    ask = lambda headers=as_a, **more: server.chat(case["question"], picture(case["image"]), headers=headers, **more)
    first, again = ask(), ask()
    assert first.status == again.status == 200 and first.text == again.text == case["answer"]
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "exact")
    assert (first.json["x_cache"], again.json["x_cache"]) == ("miss", "exact")
    for key in ("completion_tokens", "prompt_tokens"):
        assert first.json["usage"][key] == again.json["usage"][key]
    t = again.json["timings"]
    assert t["prompt_n"] == 0 and t["prompt_ms"] == 0 and t["predicted_ms"] == 0 and t["vision_ms"] == 0
    assert again.json["choices"][0]["finish_reason"] == first.json["choices"][0]["finish_reason"]
    other = ask(as_b)  # another key's caches are its own
    assert other.headers["x-cache"] == "miss" and other.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    never = ask(answer_cache=False)
    assert "x-cache" not in never.headers and "x_cache" not in never.json and never.text == case["answer"]
    assert "x_cache" not in ask(temperature=0.5).json
    stream = ask(stream=True)
    assert stream.streamed == case["answer"] and stream.events[-1] == "[DONE]"
    assert json.loads(stream.events[-2])["x_cache"] == "exact"
    logprobs = [ask(logprobs=True, top_logprobs=2).json for _ in range(2)]
    assert [l["x_cache"] for l in logprobs] == ["miss", "exact"]
    assert logprobs[0]["choices"] == logprobs[1]["choices"] and logprobs[0]["choices"][0]["logprobs"]["content"]
    assert metric("answer_cache_queries_total") == 6 and metric('answer_cache_hits_total{kind="exact"}') == 3
    assert server.get("/props", **as_a).json["answer_cache"] is True


def test_off_by_default(server):
    case = RIGHT[0]
    for _ in range(2):
        r = server.chat(case["question"], picture(case["image"]), answer_cache=True, similar_cache=0.95)
        assert r.text == case["answer"] and "x-cache" not in r.headers and "x_cache" not in r.json
        assert [w.split(":")[0] for w in r.json["warnings"]] == ["answer_cache", "similar_cache"]
    assert "warnings" not in server.chat("Hello", max_tokens=2, answer_cache=False).json
    assert server.get("/props").json["answer_cache"] is False


def test_near(serve):
    server = serve("--answer-cache", 16, "--similar-cache")
    ask = lambda *args, **more: server.chat("What is it?", photo(*args), max_tokens=8, **more)
    first = ask(0, similar_cache=True)
    assert first.headers["x-cache"] == "miss"
    near = ask(1, similar_cache=True)
    assert near.headers["x-cache"] == "near" and near.json["x_cache"] == "near" and near.text == first.text
    assert near.json["x_cache_distance"] == pytest.approx(float(near.headers["x-cache-distance"])) and near.json["x_cache_distance"] <= 0.1
    assert ask(0, True, similar_cache=True).headers["x-cache"] == "miss"  # something is there that was not
    assert ask(2).headers["x-cache"] == "miss"  # not wished
    assert value(server, r'answer_cache_hits_total\{kind="near"\}') == 1
    r = server.chat("What is it?", photo(), max_tokens=8, similar_cache=0.5)
    assert r.status == 400 and r.json["error"]["param"] == "similar_cache"


def test_needs_answer_cache():
    p = subprocess.run([BIN, "serve", "--port", "0", "--similar-cache"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 2 and "--answer-cache" in p.stderr
