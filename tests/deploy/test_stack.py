"""What deploy/compose.yaml starts, by hand: both Redis by start.sh with their users, gateway and workers contained; the command lines are the file's own."""
import http.client, json, os, re, signal, socket, subprocess, time

import pytest

import contained
from conftest import BIN, DEPLOY
from serve_conftest import RIGHT, picture, question
from test_files import FLEET, compose
from test_redis import cache, redis  # fixtures

pytestmark = pytest.mark.skipif(not FLEET, reason="margay has no queue yet")
A = RIGHT[0]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Part:
    """A service of the file, on a port of its own, under a made-up service manager."""

    def __init__(self, container, name, ports):
        """ports: {host: port} of the file's Redis servers."""
        s = compose()["services"][name]
        self.port = free_port()
        args = [self.port if a == "8080" else "127.0.0.1" if a == "0.0.0.0" else a for a in s["command"]]
        env = {k: re.sub(r"\$\{MARGAY_REDIS_PASSWORD[^}]*\}", "secret1", re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", v)) for k, v in s["environment"].items()}
        env = {k: re.sub(r"@(\w+):6379", lambda m: f"@127.0.0.1:{ports[m[1]]}", v) for k, v in env.items()}
        assert "secret1" in env["MARGAY_QUEUE"]
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = f"margay-stack-{os.getpid()}-{self.port}"
        self.manager.bind("\0" + address)
        self.manager.settimeout(60)
        self.c = contained.Contained(container, *args, env={**env, "NOTIFY_SOCKET": "@" + address, "WATCHDOG_USEC": "2000000"}, stderr=subprocess.PIPE)
        os.set_blocking(self.c.process.stderr.fileno(), False)
        self.told(b"READY=1")

    def told(self, text):
        while (data := self.manager.recv(4096)) != text:
            assert data
        return True

    def stop(self):
        os.kill(self.c.pid(), signal.SIGTERM)
        code = self.c.process.wait(60)
        self.manager.close()
        self.c.process.stderr.close()
        return code


def ask(port, **more):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("POST", "/v1/chat/completions", json.dumps(question(A["question"], picture(A["image"]), **more)), {"Content-Type": "application/json"})
    r = c.getresponse()
    out = r.status, r.read()
    c.close()
    return out


def keys(r):
    out, at = set(), "0"
    while True:
        at, some = r("SCAN", at, "COUNT", 1000)
        out |= set(some)
        if at == "0":
            return out


def test_the_stack(container, redis, cache):
    """Answers through gateway and queue, streamed and not; a worker that is stopped leaves no job behind; all end with 0.
    Features are in the cache's Redis and nowhere else; a worker that is new finds them there."""
    r, c = redis("margay", "secret1"), cache("margay", "secret1")
    port = {"redis": r.socket.getpeername()[1], "cache": c.socket.getpeername()[1]}
    gateway = Part(container, "gateway", port)
    workers = [Part(container, f"worker-{i}", port) for i in (1, 2)]
    health = ["health", f"http://127.0.0.1:{gateway.port}/ready"]
    end = time.monotonic() + 30
    while contained.run(container, *health).returncode:
        assert time.monotonic() < end
    for left in (2, 1):
        for stream in (False, True):
            status, body = ask(gateway.port, stream=stream)
            assert status == 200, body
            text = body.decode()
            if stream:
                assert text.endswith("data: [DONE]\n\n")
                text = "".join(json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in text.split("\n\n")
                               if e.startswith("data: {") and json.loads(e[6:])["choices"])
            else:
                text = json.loads(text)["choices"][0]["message"]["content"]
            assert text == A["answer"]
        if left == 2:
            assert workers.pop().stop() == 0
    features = [k for k in keys(c) if ":v1:p:" in k]
    assert features and all(k.startswith("margay:{q:") for k in keys(r)) and not [k for k in keys(c) if k.startswith("margay:{q:")]
    gateway.told(b"WATCHDOG=1"), workers[0].told(b"WATCHDOG=1")
    assert r("XLEN", "margay:{q:default}:jobs") == 0
    assert workers[0].stop() == 0
    new = Part(container, "worker-1", port)
    assert ask(gateway.port)[0] == 200
    h = http.client.HTTPConnection("127.0.0.1", new.port, timeout=30)
    h.request("GET", "/metrics")
    metrics = h.getresponse().read().decode()
    h.close()
    assert re.search(r'^margay_shared_cache_hits_total\{kind="image"\} 1$', metrics, re.M), metrics
    assert new.stop() == 0 and gateway.stop() == 0
