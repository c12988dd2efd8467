"""A real redis-server for tests, on a free port, with nothing kept; and certificates for TLS."""
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class RedisServer:
    """Running when made; `stop`, `pause`, `resume`. `tls`: the folder of `certificates`; `port`: one it had before."""

    def __init__(self, folder, *args, tls=None, port=None):
        program = shutil.which("redis-server")
        assert program, "redis-server is missing: tools/install.sh test installs it"
        self.folder, self.process = folder, None
        for _ in range(5):  # the port may be taken between finding and using it
            self.port = port or free_port()
            listen = ["--port", str(self.port)]
            if tls:
                listen = ["--port", "0", "--tls-port", str(self.port), "--tls-cert-file", str(tls / "server.pem"),
                          "--tls-key-file", str(tls / "server.key"), "--tls-ca-cert-file", str(tls / "ca.pem")]
            self.process = subprocess.Popen([program, *listen, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                                             "--dir", str(folder), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if self.wait():
                return
            self.stop()
        raise AssertionError("redis-server does not start")

    def wait(self):
        end = time.monotonic() + 10
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            except OSError:
                time.sleep(0.02)
        return False

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def redis(tmp_path):
    """Starts servers: redis("--requirepass", "x"); all are gone after the test."""
    running = []

    def start(*args, **more):
        running.append(RedisServer(tmp_path, *args, **more))
        return running[-1]
    yield start
    for server in running:
        server.stop()


def certificates(folder):
    """ca.pem, and server.pem with server.key for 127.0.0.1 and localhost."""
    def openssl(*args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, cwd=folder)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", 2, "-subj", "/CN=test authority")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2,
            "-extfile", "names", "-out", "server.pem")
    return folder
