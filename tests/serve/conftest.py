"""margay serve from outside: fixtures. MARGAY_BIN names the program."""
import base64, http.client, json, os, pathlib, re, signal, subprocess, threading, time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("MARGAY_BIN", str(ROOT / "build" / "margay"))
SAMPLES = ROOT / "models" / "demo" / "samples"
SANITIZED = os.environ.get("MARGAY_BUILD") in ("sanitized", "tsan")


def form(data):
    """An upload's body and its header."""
    head = b'--XyZ\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
    return head + data + b"\r\n--XyZ--\r\n", {"Content-Type": "multipart/form-data; boundary=XyZ"}


def upload(server, data, **headers):
    body, kind = form(data)
    return server.call("POST", "/v1/files", body, **kind, **headers)


def cases():
    for file in sorted(SAMPLES.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            yield json.loads(line)


CASES = [c for c in cases() if (SAMPLES / c["image"]).exists()]
RIGHT = [c for c in CASES if c["answer"] == c["model_says"]]


def picture(name):
    return (SAMPLES / name).read_bytes()


def data_url(data, mime="image/png"):
    return f"data:{mime};base64," + base64.b64encode(data).decode()


def question(text, *pictures, **more):
    """A chat request; pictures are bytes or URLs."""
    content = [{"type": "image_url", "image_url": {"url": p if isinstance(p, str) else data_url(p)}} for p in pictures]
    content.append({"type": "text", "text": text})
    return {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": content}], **more}


class Reply:
    def __init__(self, r):
        self.status, self.headers, self.body = r.status, r.headers, r.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def text(self):
        return self.json["choices"][0]["message"]["content"]

    @property
    def events(self):
        return [e[6:] for e in self.body.decode().split("\n\n") if e.startswith("data: ")]

    @property
    def streamed(self):
        parts = [json.loads(e) for e in self.events if e != "[DONE]"]
        return "".join(c["delta"].get("content") or "" for p in parts for c in p.get("choices", []) if c["index"] == 0)


class Server:
    def __init__(self, *args, env=None, before=None):
        """before() is called in the child, ahead of the program."""
        self.process = subprocess.Popen([BIN, "serve", "--port", "0", *map(str, args)], stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})}, preexec_fn=before)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if "listening on" in line:
                break
        else:
            raise AssertionError("".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        found = re.search(r":(\d+)(/\S*)?$", self.log[-1].strip())
        self.port, prefix = int(found[1]), found[2] or ""
        self.wait(lambda: self.get(prefix + "/health").status == 200)

    def wait(self, what, seconds=30):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "waited in vain"
            assert self.process.poll() is None, "".join(self.log)
            time.sleep(0.01)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def call(self, method, path, body=None, **headers):
        c = self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        c.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        try:
            return Reply(c.getresponse())
        finally:
            c.close()

    def get(self, path, **headers):
        return self.call("GET", path, **headers)

    def post(self, path, body, **headers):
        return self.call("POST", path, body, **headers)

    def chat(self, *args, headers=None, **more):
        return self.post("/v1/chat/completions", question(*args, **more), **(headers or {}))

    def idle(self):
        return not any(s["is_processing"] for s in self.get("/slots").json)

    def memory(self):
        """RssAnon and VmSwap in KB."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return sum(int(l.split()[1]) for l in text.splitlines() if l.startswith(("RssAnon", "VmSwap")))

    def stop(self, sig=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(seconds)
        self.reader.join()
        return code


@pytest.fixture
def serve():
    """serve(*options) starts a server; each must end well after the test."""
    started = []

    def start(*args, **more):
        started.append(Server(*args, **more))
        return started[-1]
    yield start
    for s in started:
        if s.process.poll() is None:
            assert s.stop() == 0, "".join(s.log)


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """Options and environment of a server that takes long for large pictures: the demo model with Qwen3-VL's limits."""
    folder = tmp_path_factory.mktemp("large")
    for f in (ROOT / "models" / "demo").glob("*.*"):
        if f.suffix in (".json", ".safetensors"):
            os.symlink(f, folder / f.name)
    for name, change in (("preprocessor_config.json", lambda c: c["size"].update(longest_edge=1 << 24)),
                         ("config.json", lambda c: c["text_config"].update(max_position_embeddings=32768))):
        config = json.loads((folder / name).read_text())
        change(config)
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(config))
    return ["-m", folder, "--detail", "high", "--ctx-size", 16384, "--no-loop-check"], {"MARGAY_CACHE_DIR": str(folder / "cache")}


@pytest.fixture(scope="module")
def server():
    s = Server()
    yield s
    assert s.stop() == 0, "".join(s.log)
    assert not [l for l in s.log if "Sanitizer" in l or "runtime error" in l], "".join(s.log)
