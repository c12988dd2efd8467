"""margay chat over pipes and on a terminal."""
import os
import signal
import subprocess
import time

from program import BIN, DEMO, LIMIT, SAMPLES, clean_env

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


def read_until(fd, word, seconds=LIMIT):
    seen, end = b"", time.monotonic() + seconds
    while word not in seen:
        assert time.monotonic() < end, seen
        seen += os.read(fd, 4096)
    return seen


def test_interrupt_stops_the_answer_only(tmp_path):
    """On a terminal: ctrl-C during an answer, ctrl-C at the prompt, then a normal question, then ctrl-D."""
    import pty
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(str(BIN), [str(BIN), "chat", "-m", str(DEMO), "--ignore-eos", "--no-loop-check", "-n", "20000",
                             "-c", "32000", str(PICTURE)], clean_env(tmp_path))
    read_until(fd, b"> ")
    os.write(fd, b"What does it say?\n")
    read_until(fd, b"83")
    os.write(fd, b"\x03")
    read_until(fd, b"stopped")
    read_until(fd, b"> ")
    os.write(fd, b"\x03")
    read_until(fd, b"> ")
    os.write(fd, b"/quit\n")
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
