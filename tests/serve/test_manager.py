"""margay serve under a service manager: what it is told (NOTIFY_SOCKET), sockets that it hands over (LISTEN_FDS); margay health."""
import fcntl, http.client, http.server, json, os, signal, socket, subprocess, sys, threading, time

import pytest

from conftest import BIN, ROOT, SAMPLES, SANITIZED, question

LONG = {"max_tokens": 100000, "ignore_eos": True, "temperature": 5, "top_k": 0, "top_p": 1, "stream": True}


class Manager:
    """A made-up service manager: its socket, and a server under it."""

    def __init__(self, address, *args, listening=(), env=None, stderr=subprocess.PIPE):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self.told, self.cond = [], threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        # A shell makes LISTEN_PID right: exec keeps the number.
        script = "".join(f"exec {3 + i}<&{s.fileno()}; " for i, s in enumerate(listening))
        if listening:
            script += f"LISTEN_PID=$$ LISTEN_FDS={len(listening)} "
        self.process = subprocess.Popen(["bash", "-c", script + 'exec "$0" "$@"', BIN, "serve", *map(str, args)], stderr=stderr, text=True,
                                        pass_fds=[s.fileno() for s in listening],
                                        env={**os.environ, "NOTIFY_SOCKET": address, **(env or {})})

    def read(self):
        while True:
            data = self.socket.recv(65536)
            if data == b"end":
                return
            with self.cond:
                self.told.append((time.monotonic(), data.decode()))
                self.cond.notify_all()

    def texts(self):
        with self.cond:
            return [t for _, t in self.told]

    def wait(self, what, seconds=60):
        with self.cond:
            assert self.cond.wait_for(lambda: any(what(t) for _, t in self.told), seconds), self.told
            return next(i for i, (_, t) in enumerate(self.told) if what(t))

    def end(self, sig=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(seconds)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"end", self.socket.getsockname())
        self.thread.join()
        self.socket.close()
        return code


@pytest.fixture
def manager(tmp_path):
    made = []

    def start(*args, address=None, **more):
        made.append(Manager(address or str(tmp_path / "notify"), *args, **more))
        return made[-1]
    yield start
    for m in made:
        if m.process.poll() is None:
            m.process.kill()
            m.end()


def listener(family=socket.AF_INET, address=("127.0.0.1", 0)):
    s = socket.socket(family)
    s.bind(address)
    s.listen(8)
    return s


@pytest.mark.parametrize("abstract", [False, True])
def test_a_life(manager, tmp_path, abstract):
    """Loading, ready once warm, reloading and ready again, stopping; then the end with status 0."""
    address = f"@margay-test-{os.getpid()}" if abstract else None
    s = listener()
    m = manager(listening=[s], address=address)
    ready = m.wait(lambda t: t == "READY=1")
    assert m.texts()[0] == "STATUS=loading the model" and m.texts().count("READY=1") == 1
    r = health(s.getsockname()[1])
    assert r.returncode == 0, r  # ready means that /ready says so
    m.wait(lambda t: t == "STATUS=serving; 0 running, 0 waiting")
    m.process.send_signal(signal.SIGHUP)
    reloading = m.wait(lambda t: t.startswith("RELOADING=1\nMONOTONIC_USEC="))
    at = int(m.texts()[reloading].split("=")[2]) * 1e-6
    assert abs(at - time.clock_gettime(time.CLOCK_MONOTONIC)) < 30
    with m.cond:
        assert m.cond.wait_for(lambda: "READY=1" in [t for _, t in m.told[reloading:]], 30)
    assert ready < reloading
    assert m.end() == 0
    assert m.texts().count("STOPPING=1") == 1 and m.texts().index("STOPPING=1") > reloading


def test_signs_of_life(manager):
    """Each within the time, also while it computes and while it drains; none without WATCHDOG_USEC or for another process."""
    every = 2.0 if SANITIZED else 0.6
    s = listener()
    m = manager("--no-loop-check", "--drain-time", 3, listening=[s], env={"WATCHDOG_USEC": str(int(every * 1e6)), "MARGAY_CPU": "ref"})  # slowly
    m.wait(lambda t: t == "READY=1")
    c = http.client.HTTPConnection("127.0.0.1", s.getsockname()[1])
    c.request("POST", "/v1/chat/completions", json.dumps(question("Go on.", **LONG)), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert b"data" in r.readline()
    m.wait(lambda t: t == "STATUS=serving; 1 running, 0 waiting")
    time.sleep(3 * every)
    begun = time.monotonic()
    m.process.send_signal(signal.SIGTERM)
    stopping = m.wait(lambda t: t == "STOPPING=1")
    assert m.process.wait(60) == 0
    took = time.monotonic() - begun
    times = [at for at, t in m.told if t == "WATCHDOG=1"]
    first = next(at for at, t in m.told if t == "READY=1")
    gaps = [b - a for a, b in zip([first, *times], times)]
    assert len(times) >= 3 and max(gaps) < every, gaps
    assert took > 2.5 and times[-1] > m.told[stopping][0] + 1, "none while draining"


@pytest.mark.skipif(os.environ.get("MARGAY_BUILD") == "tsan", reason="ThreadSanitizer holds signals back while flock waits")
@pytest.mark.parametrize("sig, status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize("command", [["serve"], ["worker", "--queue", "redis://127.0.0.1:1"]])
def test_stopped_while_it_loads(tmp_path, command, sig, status):
    """Another process converts the weights (its lock is held here), for which this one waits."""
    model = ["-m", ROOT / "models/demo", "--weights", "int8", "--cache-dir", tmp_path]
    assert subprocess.run([BIN, "ask", *model, next(SAMPLES.glob("*.png")), "Total?"], capture_output=True).returncode == 0
    (lock,) = tmp_path.rglob("*.lock")
    lock.with_suffix("").unlink()
    with open(lock) as f, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        fcntl.flock(f, fcntl.LOCK_EX)
        told.bind(str(tmp_path / "notify"))
        told.settimeout(60)
        p = subprocess.Popen([BIN, *command, "--port", "0", *model], stderr=subprocess.PIPE, env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert told.recv(100) == b"STATUS=loading the model"
        inode, end = str(lock.stat().st_ino), time.monotonic() + 60
        while not any("->" in l and inode in l for l in open("/proc/locks")) and time.monotonic() < end:
            time.sleep(0.01)
        assert p.poll() is None
        p.send_signal(sig)
        assert p.wait(60) == status, p.stderr.read()


@pytest.mark.parametrize("env", [{}, {"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_no_watchdog(manager, env):
    m = manager("--port", 0, env=env)
    m.wait(lambda t: t == "READY=1")
    time.sleep(0.5)
    assert "WATCHDOG=1" not in m.texts()
    assert m.end() == 0


def test_a_manager_that_does_not_read(tmp_path):
    """A full socket holds nothing up; ready is told when there is room."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        s.bind(address)
        filler.setblocking(False)
        while True:
            try:
                filler.sendto(b"x", address)
            except BlockingIOError:
                break
        listening = listener()
        p = subprocess.Popen([BIN, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True, env={**os.environ, "NOTIFY_SOCKET": address})
        while "listening on" not in (line := p.stderr.readline()):
            assert line
        port = int(line.rsplit(":", 1)[1])
        end = time.monotonic() + 60
        while health(port).returncode:
            assert time.monotonic() < end
        s.settimeout(30)
        told = []
        while "READY=1" not in told:
            told.append(s.recv(4096).decode())
        p.terminate()
        assert p.wait(60) == 0
        p.stderr.close()
        listening.close()


@pytest.mark.parametrize("address", ["vsock:2:1", "notify", "@", "/" + 120 * "x"])
def test_an_address_that_is_none(address):
    p = subprocess.Popen([BIN, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True, env={**os.environ, "NOTIFY_SOCKET": address})
    lines = []
    while "listening on" not in (lines or [""])[-1]:
        lines.append(p.stderr.readline())
        assert lines[-1], lines
    assert any("NOTIFY_SOCKET" in l for l in lines)
    p.terminate()
    assert p.wait(60) == 0
    p.stderr.close()


def test_handed_over_sockets(manager, tmp_path):
    """TCP and Unix at once, in place of --port; the Unix socket's file stays the manager's, and a restart loses no connection."""
    path = str(tmp_path / "http")
    tcp, local = listener(), listener(socket.AF_UNIX, path)
    port = tcp.getsockname()[1]
    m = manager("--port", 1, listening=[tcp, local])
    m.wait(lambda t: t == "READY=1")
    assert health(port).returncode == 0 and health(f"unix:{path}").returncode == 0
    r = subprocess.run(["curl", "-s", "-H", "Host: evil.example", f"http://127.0.0.1:{port}/props"], capture_output=True, text=True)
    assert "name_not_allowed" in r.stdout  # a loopback address is guarded as with --host
    assert m.end() == 0
    assert os.path.exists(path)
    early = socket.create_connection(("127.0.0.1", port))  # nobody is there to accept
    early.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    again = manager(listening=[tcp, local], address=str(tmp_path / "again"))
    again.wait(lambda t: t == "READY=1")
    early.settimeout(60)
    assert early.recv(4096).startswith(b"HTTP/1.1 200")
    early.close()
    assert again.end() == 0


def test_sockets_that_do_not_listen(tmp_path):
    for kind in ("datagram", "not listening", "file"):
        s = {"datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "not listening": socket.socket,
             "file": lambda: open(tmp_path / "f", "w")}[kind]()
        with s:
            p = subprocess.run(["bash", "-c", f'exec 3<&{s.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" serve', BIN], pass_fds=[s.fileno()],
                               capture_output=True, text=True, timeout=60)
            assert p.returncode == 2 or p.returncode == 1, p
            assert "does not listen" in p.stderr, kind


def test_sockets_of_another_process(serve):
    s = serve(env={"LISTEN_FDS": "1", "LISTEN_PID": "1"})
    assert s.get("/live").status == 200


# --- margay health ---
def health(*args):
    args = [f"http://127.0.0.1:{a}" if isinstance(a, int) else a for a in args]
    return subprocess.run([BIN, "health", *args], capture_output=True, text=True, timeout=60)


def test_health(server, tmp_path):
    r = health(server.port)
    assert (r.returncode, r.stdout) == (0, f"http://127.0.0.1:{server.port}: 200, ok\n")
    assert health(f"127.0.0.1:{server.port}/").returncode == 0
    assert health(f"http://localhost:{server.port}/live").returncode == 0
    r = health(f"http://127.0.0.1:{server.port}/nothing")
    assert r.returncode == 1 and ": 404, " in r.stdout
    r = health("--timeout", "1", "http://127.0.0.1:1")
    assert r.returncode == 1 and "127.0.0.1:1" in r.stderr and not r.stdout
    assert health("unix:relative").returncode == 2 and health("ftp://127.0.0.1").returncode == 2
    r = health(f"unix:{tmp_path}/none")
    assert r.returncode == 1


def test_health_heeds_no_proxy(server):
    r = subprocess.run([BIN, "health", f"http://127.0.0.1:{server.port}"], capture_output=True, text=True,
                       env={**os.environ, "http_proxy": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"})
    assert r.returncode == 0, r


def test_health_of_a_server_that_hangs_or_drains():
    with listener() as s:
        begun = time.monotonic()
        r = health("--timeout", "0.5", s.getsockname()[1])
        assert r.returncode == 1 and time.monotonic() - begun < 10

    class Draining(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"status":"draining"}' + 100000 * b" ")

        def log_message(self, *a):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Draining) as h:
        threading.Thread(target=h.serve_forever, daemon=True).start()
        r = health(h.server_port)
        assert r.returncode == 1 and r.stdout.endswith(": 503\n") or r.stdout.endswith(": 503, draining\n")
        h.shutdown()


def test_health_over_tls(serve, tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out", tmp_path / "cert"], check=True, capture_output=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([BIN, "serve", "--port", str(port), "--ssl-cert-file", tmp_path / "cert", "--ssl-key-file", tmp_path / "key"],
                         stderr=subprocess.PIPE, text=True)
    while "listening on" not in (line := p.stderr.readline()):
        assert line
    url, end = f"https://localhost:{port}", time.monotonic() + 60
    while health("--ca-file", str(tmp_path / "cert"), url).returncode:
        assert time.monotonic() < end
    assert health("--insecure", url).returncode == 0
    r = health(url)
    assert r.returncode == 1 and "certificate" in r.stderr
    p.terminate()
    assert p.wait(60) == 0
    p.stderr.close()
