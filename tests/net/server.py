"""Starts tests/net/http_test_server.c and talks to it by raw sockets; only the standard library is used.

MARGAY_BIN names the built program (default build/margay); the server lies beside it in tests/net.
"""
import os
import pathlib
import queue
import signal
import socket
import ssl
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(__file__).resolve().parent / "data"
BUILD = pathlib.Path(os.environ.get("MARGAY_BIN", ROOT / "build" / "margay")).absolute().parent
BIN = BUILD / "tests" / "net" / "http_test_server"
LIMIT = 30.0  # seconds that anything may take at most, also under the sanitizers
SANITIZED = os.environ.get("MARGAY_BUILD") in ("sanitized", "tsan")


class Server:
    def __init__(self, **settings):
        args = [f"{k}={v}" for k, v in settings.items()]
        self.tls = "cert" in settings
        self.unix = settings.get("unix")
        self.process = subprocess.Popen([str(BIN), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.seen = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()
        try:
            self.port = int(self.wait("port ").split()[1])
        except AssertionError:
            self.process.kill()
            raise AssertionError(self.process.stderr.read())

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def wait(self, start, seconds=LIMIT):
        """The next line that begins so; others are passed over."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {start!r} within {seconds} s; seen: {self.seen[-10:]}") from None
            self.seen.append(line)
            if line.startswith(start):
                return line

    def send(self, sig):
        self.process.send_signal(sig)

    def connect(self, tls=None, **more):
        if self.unix and not self.port:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(LIMIT)
            s.connect(str(self.unix))
            return s
        s = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)
        if self.tls if tls is None else tls:
            context = ssl.create_default_context(cafile=more.get("ca", DATA / "first.pem"))
            s = context.wrap_socket(s, server_hostname="localhost")
        return s

    def ask(self, data, **more):
        """Sends bytes, ends sending, returns all that comes."""
        with self.connect(**more) as s:
            s.sendall(data)
            return read_all(s)

    def get(self, path, method="GET", headers="", body=b"", version="1.1"):
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n{length}{headers}\r\n"
        return Reply(self.ask(head.encode() + body))

    def stop(self, sig=signal.SIGTERM, code=0):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            assert self.process.wait(LIMIT) == code, self.process.stderr.read()
        finally:
            self.process.kill()
        err = self.process.stderr.read()
        assert "ERROR:" not in err and "runtime error" not in err and "WARNING: ThreadSanitizer" not in err, err


def read_all(s):
    parts = []
    while True:
        try:
            part = s.recv(65536)
        except ConnectionResetError:
            parts.append(b"<reset>")
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def read_until(s, mark, data=b""):
    """Reads until the bytes hold the mark; returns all of them."""
    while mark not in data:
        part = s.recv(65536)
        assert part, f"ended before {mark!r}: {data[-200:]!r}"
        data += part
    return data


class Reply:
    """The first reply in these bytes; `rest` is what stands behind it."""

    def __init__(self, data, head_only=False):
        head, found, rest = data.partition(b"\r\n\r\n")
        assert found, f"no head in {data[:300]!r}"
        lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ")
        assert version == "HTTP/1.1"
        self.status, self.fields = int(status), [tuple(line.split(": ", 1)) for line in lines[1:]]
        self.body, self.rest = b"", rest
        if head_only or self.status in (204, 304) or self.status < 200:
            return
        if self.field("transfer-encoding") == "chunked":
            at, parts = 0, []
            while True:
                end = rest.find(b"\r\n", at)
                assert end >= 0, "cut inside the chunks"
                n = int(rest[at:end], 16)
                at = end + 2 + n
                assert rest[at:at + 2] == b"\r\n", "cut inside a chunk"
                parts.append(rest[end + 2:at])
                at += 2
                if n == 0:
                    break
            self.body, self.rest = b"".join(parts), rest[at:]
        elif self.field("content-length"):
            n = int(self.field("content-length"))
            assert len(rest) >= n, "cut inside the body"
            self.body, self.rest = rest[:n], rest[n:]
        else:
            self.body, self.rest = rest, b""

    def field(self, name):
        return next((v for k, v in self.fields if k.lower() == name.lower()), None)

    def fields_of(self, name):
        return [v for k, v in self.fields if k.lower() == name.lower()]


def replies(data):
    out = []
    while data:
        out.append(Reply(data))
        data = out[-1].rest
    return out
