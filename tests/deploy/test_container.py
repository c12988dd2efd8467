"""Rows 78 and 79: as user 10001 on a read-only root, without capabilities, as PID 1; also behind the units' system call filter."""
import http.client, json, os, pathlib, shutil, signal, subprocess, threading, time

import pytest

import contained
from conftest import CI, DEPLOY, ROOT
from serve_conftest import RIGHT, SANITIZED, data_url, form, picture, question

A = RIGHT[0]


class Served:
    """margay serve in a container; the network is the host's."""

    def __init__(self, folder, *args, **more):
        self.c = contained.Contained(folder, "serve", "--port", 0, *args, stderr=subprocess.PIPE, **more)
        self.log = []
        for line in self.c.process.stderr:
            self.log.append(line)
            if "listening on" in line:
                break
        else:
            raise AssertionError("".join(self.log))
        self.port = int(self.log[-1].rsplit(":", 1)[1])
        self.reader = threading.Thread(target=lambda: self.log.extend(self.c.process.stderr), daemon=True)
        self.reader.start()
        end = time.monotonic() + 120
        while self.call("GET", "/ready")[0] != 200:
            assert time.monotonic() < end and self.c.process.poll() is None, "".join(self.log)
            time.sleep(0.02)

    def call(self, method, path, body=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        if isinstance(body, dict):
            body, headers = json.dumps(body), {"Content-Type": "application/json"}
        c.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        out = r.status, r.read()
        c.close()
        return out

    def stop(self, sig=signal.SIGTERM):
        if self.c.process.poll() is None:
            os.kill(self.c.pid(), sig)
        code = self.c.process.wait(60)
        self.reader.join()
        self.c.process.stderr.close()
        return code


@pytest.fixture
def served(container):
    made = []

    def start(*args, **more):
        made.append(Served(container, *args, **more))
        return made[-1]
    yield start
    for s in made:
        if s.c.process.poll() is None:
            s.stop(signal.SIGKILL)


def no_complaint(text):
    assert not [w for w in ("Sanitizer", "runtime error", "denied", "Read-only") if w in text], text


def test_it_is_one(container, served):
    """What the kernel says of the process: the test would be worth nothing in a container that isn't one."""
    s = served()
    status = pathlib.Path(f"/proc/{s.c.pid()}/status").read_text()
    field = dict(l.split(":\t", 1) for l in status.splitlines())
    assert field["Uid"].split() == ["10001"] * 4 and field["Gid"].split() == ["10001"] * 4 and field["Groups"].strip() == ""
    assert all(int(field[c], 16) == 0 for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert field["NoNewPrivs"] == "1" and field["NSpid"].split()[-1] == "1"
    mounts = pathlib.Path(f"/proc/{s.c.pid()}/mounts").read_text().splitlines()
    assert next(m for m in mounts if m.split()[1] == "/").split()[3].startswith("ro")
    assert s.stop() == 0


def test_ask(container):
    p = contained.run(container, "ask", "-", A["question"], stdin=picture(A["image"]))
    assert p.returncode == 0 and p.stdout.strip() == A["answer"], p
    no_complaint(p.stderr)
    p = contained.run(container, "ask", "-m", "/usr/local/share/margay/demo", "--weights", "int8", "-", A["question"], stdin=picture(A["image"]))
    assert p.returncode == 0 and p.stdout.strip() == A["answer"], p  # nowhere to keep the packed file


@pytest.mark.parametrize("env", [{}, {"HOME": "/"}, {"HOME": "/nowhere"}, {"MARGAY_CACHE_DIR": "/var/cache/margay"}, {"XDG_CACHE_HOME": "/proc"}],
                         ids=["no HOME", "HOME read-only", "HOME missing", "cache read-only", "cache impossible"])
def test_serve_and_page(served, env):
    """Questions with pictures in the body, an upload as the page makes it, the page itself; at most one warning about the cache."""
    s = served("-m", "/usr/local/share/margay/demo", env=env)
    status, body = s.call("POST", "/v1/chat/completions", question(A["question"], picture(A["image"])))
    assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == A["answer"]
    data, kind = form(picture(A["image"]))
    status, body = s.call("POST", "/v1/files", data, **kind)
    assert status == 200, body
    status, body = s.call("POST", "/v1/chat/completions", question(A["question"], f"margay-file:{json.loads(body)['id']}"))
    assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == A["answer"]
    large = form(os.urandom(30_000_000))
    assert s.call("POST", "/v1/files", large[0], **large[1])[0] in (200, 400)
    status, body = s.call("GET", "/")
    assert status == 200 and b"<!doctype html>" in body[:40].lower()
    assert s.call("GET", "/metrics")[0] == 200
    assert s.stop() == 0
    text = "".join(s.log)
    assert sum("cache" in l for l in s.log) <= 1, text


def test_a_cache_that_may_be_written(container, served, tmp_path):
    """A volume of the user's own: converted once, used from then on."""
    volume = tmp_path / "cache"
    volume.mkdir()
    os.chown(volume, contained.USER, contained.USER)
    for _ in range(2):
        s = served("-m", "/usr/local/share/margay/demo", "--weights", "int8", env={"MARGAY_CACHE_DIR": "/var/cache/margay"},
                   volumes={"/var/cache/margay": (volume, "rw")})
        assert s.call("POST", "/v1/chat/completions", question(A["question"], picture(A["image"])))[0] == 200
        assert s.stop() == 0
        files = sorted(volume.glob("*.safetensors"))
        assert len(files) == 1 and files[0].stat().st_uid == contained.USER
        first = files[0].stat().st_mtime_ns if _ == 0 else first
        assert files[0].stat().st_mtime_ns == first
        assert not any("cache" in l for l in s.log)


def test_a_model_that_may_not_be_read(container, tmp_path):
    """The error says what and why, at once."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "models" / "demo", model, ignore=shutil.ignore_patterns("samples"))
    subprocess.run(["chmod", "-R", "go-rwx", model], check=True)
    p = contained.run(container, "ask", "-m", "/model", "Hello?", volumes={"/model": (model, "ro")})
    assert p.returncode == 1 and "/model" in p.stderr and "Permission denied" in p.stderr, p


def test_health_within(container, served):
    s = served()
    p = contained.run(container, "health", f"http://127.0.0.1:{s.port}")
    assert p.returncode == 0 and p.stdout.endswith("200, ok\n")
    assert s.stop() == 0
    assert contained.run(container, "health", f"http://127.0.0.1:{s.port}").returncode == 1


def test_stop_in_the_midst(served):
    """Row 79: as PID 1, SIGTERM while an answer is written: an event at the end, status 0, in time."""
    s = served("--no-loop-check", "--drain-time", 1, env={"MARGAY_CPU": "ref"})
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", "/v1/chat/completions", json.dumps(question("Go on.", max_tokens=100000, ignore_eos=True, temperature=5, top_k=0, top_p=1,
                                                                  stream=True)), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert b"data: " in r.readline()
    begun = time.monotonic()
    os.kill(s.c.pid(), signal.SIGTERM)
    rest = r.read()
    assert s.stop() == 0 and time.monotonic() - begun < (30 if SANITIZED else 9)
    last = json.loads(rest.rstrip().split(b"\n\n")[-1][6:])
    assert last["error"]["code"] == "shutting_down" and b"[DONE]" not in rest


@pytest.mark.parametrize("unit", ["margay.service", "margay-gateway.service", "margay-worker@.service"])
def test_units_filter(container, served, unit):
    """The system calls that the units allow are enough for all that serve does, also for a picture that is decoded by a child."""
    if not shutil.which("systemd-analyze"):
        (pytest.fail if CI else pytest.skip)("systemd-analyze is not installed")
    if SANITIZED:
        pytest.skip("sanitizers need more system calls")
    rules = contained.filter_of((DEPLOY / "systemd" / unit).read_text())
    s = served("--threads", 2, "--pin", "on", seccomp=rules)
    assert "Seccomp:\t2" in pathlib.Path(f"/proc/{s.c.pid()}/status").read_text()
    status, body = s.call("POST", "/v1/chat/completions", question(A["question"], picture(A["image"])))
    assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == A["answer"]
    heic = (ROOT / "tests" / "data" / "image")
    for f in sorted(heic.rglob("*.heic"))[:1] + sorted(heic.rglob("*.avif"))[:1]:
        status, body = s.call("POST", "/v1/chat/completions", question("What?", data_url(f.read_bytes())))
        assert status in (200, 400) and b"server_error" not in body, body
    data, kind = form(picture(A["image"]))
    assert s.call("POST", "/v1/files", data, **kind)[0] == 200
    os.kill(s.c.pid(), signal.SIGHUP)
    assert s.call("GET", "/ready")[0] == 200
    assert s.stop() == 0
    no_complaint("".join(s.log))


def test_filter_filters(container):
    """A unit that allows too little is seen to fail."""
    if not shutil.which("systemd-analyze"):
        (pytest.fail if CI else pytest.skip)("systemd-analyze is not installed")
    rules = contained.filter_of("SystemCallFilter=@system-service\nSystemCallFilter=~openat open\n")
    assert contained.run(container, "version", seccomp=rules).returncode != 0
