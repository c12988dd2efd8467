"""margay chat over pipes and on a terminal."""
import os
import pty
import select
import signal
import subprocess
import time

from program import BIN, DEMO, LIMIT, SAMPLES, clean_env, open_terminal

PICTURE = SAMPLES / "ocr_line_001.png"


def test_session(margay):
    script = f"/image {PICTURE}\nWhat does it say?\n/nonsense\n/help\nWhat does it\\\n say?\n/clear\nHello\n/quit\nnever\n"
    p = margay("chat", "-m", DEMO, "-n", "8", stdin=script.encode())
    assert p.returncode == 0, p.stderr
    assert p.stdout.startswith("$83.84\n")
    assert "picture 1: png" in p.stderr and "no command /nonsense" in p.stderr and "/image PATH" in p.stderr
    assert p.stderr.count("looking") <= 1 + p.stderr.count("reading")


def test_remembers_and_forgets(margay):
    """The second question sees the first picture only until /clear."""
    p = margay("chat", "-m", DEMO, "-v", PICTURE, stdin=b"What does it say?\nWhat does it say?\n")
    assert p.stdout.splitlines()[0] == "$83.84" and p.returncode == 0
    q = margay("chat", "-m", DEMO, "-n", "8", PICTURE, stdin=b"/clear\nWhat does it say?\n")
    assert "$83.84" not in q.stdout


def test_bad_picture_does_not_end_it(margay, tmp_path):
    p = margay("chat", "-m", DEMO, stdin=f"/image {tmp_path}/none\n/image {PICTURE}\nWhat does it say?\n".encode())
    assert p.stdout == "$83.84\n" and p.returncode == 1 and "none" in p.stderr


def test_unanswered_question_is_a_line_of_its_own(margay):
    """A question that got no answer stays in the turn, apart from the next one."""
    one, two = ("one " * 25).strip(), "What?"
    p = margay("chat", "-m", DEMO, "-c", "24", stdin=f"{one}\n{two}\n".encode())
    q = margay("chat", "-m", DEMO, "-c", "24", stdin=f"{one}\\\n{two}\n".encode())
    last = [line for line in p.stderr.splitlines() if "the prompt has" in line][1]
    assert p.returncode == 1 and last in q.stderr


def test_picture_arguments(margay, tmp_path):
    p = margay("chat", "-m", DEMO, tmp_path / "none.png", stdin=b"hello\n")
    assert p.returncode == 1 and "none.png" in p.stderr and p.stdout == ""


def test_last_line_without_end(margay):
    assert margay("chat", "-m", DEMO, PICTURE, stdin=b"What does it say?").stdout == "$83.84\n"


def test_full_disk():
    with open("/dev/full", "wb") as full:
        p = subprocess.run([str(BIN), "chat", "-m", str(DEMO)], input=b"Hello\n", stdout=full,
                           stderr=subprocess.PIPE, timeout=LIMIT)
    assert p.returncode == 1 and b"No space left" in p.stderr


class Terminal:
    """The other end of a pseudo-terminal: wait() takes what came up to and including a word."""

    def __init__(self, fd):
        self.fd, self.seen = fd, b""

    def wait(self, word):
        end = time.monotonic() + LIMIT
        while word not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self.fd, 4096)
        self.seen = self.seen[self.seen.index(word) + len(word):]

    def type(self, text):
        os.write(self.fd, text)


def test_interrupt_stops_the_answer_only(tmp_path):
    """On a terminal: ctrl-C during an answer, ctrl-C at the prompt, then a normal question, then ctrl-D."""
    for fd in open_terminal():
        os.close(fd)
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(str(BIN), [str(BIN), "chat", "-m", str(DEMO), "--ignore-eos", "--no-loop-check", "-n", "20000",
                             "-c", "32000", str(PICTURE)], clean_env(tmp_path))
    terminal = Terminal(fd)
    terminal.wait(b"> ")
    terminal.type(b"What does it say?\n")
    terminal.wait(b"say?\r\n")
    terminal.wait(b"83")
    terminal.type(b"\x03")
    terminal.wait(b"stopped")
    terminal.wait(b"> ")
    terminal.type(b"half a li\x03")
    terminal.wait(b"\n")
    terminal.wait(b"> ")
    terminal.type(b"/quit\n")
    status = None
    end = time.monotonic() + LIMIT
    while status is None and time.monotonic() < end:
        done, raw = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(raw)
        else:
            try:
                os.read(fd, 4096)
            except OSError:
                pass
    if status is None:
        os.kill(pid, signal.SIGKILL)
    os.close(fd)
    assert status == 0
