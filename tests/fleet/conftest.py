"""Gateways, workers and a real redis-server. MARGAY_BIN names the program."""
import importlib.util, json, os, pathlib, re, signal, subprocess, sys, threading, time

import pytest

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "cli"))

from redis_server import RedisServer, redis  # noqa: E402,F401  a fixture
from resp import Redis  # noqa: E402

_spec = importlib.util.spec_from_file_location("serve_conftest", ROOT / "tests" / "serve" / "conftest.py")
serving = importlib.util.module_from_spec(_spec)
sys.modules["serve_conftest"] = serving
_spec.loader.exec_module(serving)

large = serving.large  # a fixture
BASE = "margay:{q:default}:"
SLOW = 4 if serving.SANITIZED else 1


class KeptRedis(RedisServer):
    """With its commands in a file: it can be killed and comes back with all that it has acknowledged."""

    def __init__(self, folder, *args):
        super().__init__(folder, "--appendonly", "yes", "--appendfsync", "always", *args)

    def kill(self):
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def restart(self):
        self.process = subprocess.Popen([*self.process.args[:2], str(self.port), *self.process.args[3:]],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.wait()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def client(self):
        return Redis(self.port)


class Program(serving.Server):
    """A gateway ("serve") or a worker; can be killed, paused and started anew at the same port."""

    def __init__(self, command, url, *args, env=None, port=0):
        self.command, self.args, self.env, self.n_log = command, (url, *args), env, []
        self.start(port)

    def start(self, port):
        url, *args = self.args
        self.process = subprocess.Popen([serving.BIN, self.command, "--queue", url, "--port", str(port), *map(str, args)],
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(self.env or {})})
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if "listening on" in line:
                break
        else:
            raise AssertionError("".join(self.log))
        self.reader = threading.Thread(target=lambda log=self.log, p=self.process: log.extend(p.stderr), daemon=True)
        self.reader.start()
        self.port = int(re.search(r":(\d+)(/\S*)?$", self.log[-1].strip())[1])

    def ready(self):
        self.wait(lambda: self.get("/health").status == 200)
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert not [l for l in self.log if "Sanitizer" in l or "runtime error" in l], "".join(self.log)

    def signal(self, sig):
        self.process.send_signal(sig)

    def open_stream(self, body, **headers):
        c = self.connect()
        c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {k.replace("_", "-"): v for k, v in headers.items()})
        return c, c.getresponse()

    def metric(self, name):
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith("margay_" + name + " "):
                return float(line.split()[-1])


class Fleet:
    def __init__(self, folder):
        self.redis = KeptRedis(folder)
        self.programs = []

    def gateway(self, *args, **more):
        self.programs.append(Program("serve", self.redis.url, *args, **more))
        return self.programs[-1].ready()

    def worker(self, *args, **more):
        self.programs.append(Program("worker", self.redis.url, "--cache-ram", 32, "--image-cache", 32, "--threads", 1, *args, **more))
        return self.programs[-1].ready()

    def close(self):
        for p in self.programs:
            if p.process.poll() is None:
                p.signal(signal.SIGCONT)
                assert p.stop() == 0, "".join(p.log)
            assert not [l for l in p.log if "Sanitizer" in l or "runtime error" in l], "".join(p.log)
        self.redis.stop()


@pytest.fixture
def fleet(tmp_path):
    f = Fleet(tmp_path)
    yield f
    f.close()
