"""ask --folder: one line a picture, bad ones too; a second run goes on where the first stopped."""
import json
import os
import resource
import signal
import time

from program import DEMO, LIMIT, SAMPLES

QUESTION = "What does it say?"


def make(tmp_path, n=4):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(n):
        (folder / f"p{i}.png").write_bytes((SAMPLES / f"ocr_line_00{i + 1}.png").read_bytes())
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("not a picture either, and not asked about")
    (folder / "unnamed").write_bytes((SAMPLES / "ocr_line_001.png").read_bytes())
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / "sub.png").mkdir()
    return folder


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_lines(margay, tmp_path):
    folder = make(tmp_path)
    p = margay("ask", "-m", DEMO, "--folder", folder, "--jsonl", QUESTION)
    got = lines(p.stdout)
    assert p.returncode == 1, p.stderr  # one failed
    assert [g["image"] for g in got] == ["broken.jpg", "p0.png", "p1.png", "p2.png", "p3.png", "unnamed"]
    assert got[0]["error"]["code"] and "text" not in got[0]
    assert [g["text"] for g in got[1:]] == ["$83.84", "DUTCH", "35%", "zzyl", "$83.84"]
    assert got[1]["images"][0]["format"] == "png" and got[1]["question"] == QUESTION
    assert p.stderr.count("loading") == 1 and "5 answered, 1 failed, 0 skipped of 6" in p.stderr


def test_resumes(margay, tmp_path):
    folder, out = make(tmp_path), tmp_path / "out.jsonl"
    args = ["ask", "-m", DEMO, "--folder", folder, "-o", out, QUESTION]
    p = margay(*args)
    assert p.stdout == "" and len(lines(out.read_text())) == 6
    whole = out.read_text()
    again = margay(*args)
    assert out.read_text() == whole and "0 answered, 0 failed, 6 skipped" in again.stderr
    assert again.returncode == 0
    torn = "".join(whole.splitlines(True)[:2]) + whole.splitlines(True)[2][:30]
    out.write_text(torn)
    p = margay(*args)
    assert "4 answered" in p.stderr and "2 skipped" in p.stderr
    assert [x["image"] for x in lines(out.read_text())] == [x["image"] for x in lines(whole)]


def test_interrupted_then_resumed(margay, tmp_path):
    out = tmp_path / "out.jsonl"
    args = ["ask", "-m", DEMO, "--folder", SAMPLES, "-o", out, QUESTION]
    p = margay.start(*args)
    begin = time.monotonic()
    while not out.exists() or out.read_bytes().count(b"\n") < 3:
        assert time.monotonic() - begin < LIMIT and p.poll() is None
        time.sleep(0.005)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=LIMIT)
    some = lines(out.read_text())
    assert p.returncode in (0, 130) and len(some) <= 60
    assert margay(*args).returncode == 0
    names = [x["image"] for x in lines(out.read_text())]
    assert len(names) == 60 and names == sorted(set(names))


def test_foreign_file_is_not_touched(margay, tmp_path):
    folder, out = make(tmp_path, 1), tmp_path / "letters.txt"
    out.write_text("Dear Sir,\nnot JSON")
    p = margay("ask", "-m", DEMO, "--folder", folder, "-o", out, QUESTION)
    assert p.returncode == 1 and "line 1" in p.stderr
    assert out.read_text() == "Dear Sir,\nnot JSON"


def test_full_output(margay, tmp_path):
    p = margay("ask", "-m", DEMO, "--folder", make(tmp_path, 1), "-o", "/dev/full", QUESTION)
    assert p.returncode == 1 and "No space left" in p.stderr


def test_limit_on_file_sizes(margay, tmp_path):
    out = tmp_path / "out.jsonl"
    p = margay("ask", "-m", DEMO, "--folder", make(tmp_path), "-o", out, QUESTION,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert p.returncode == 1 and "File too large" in p.stderr, p.stderr


def test_no_pictures(margay, tmp_path):
    p = margay("ask", "-m", DEMO, "--folder", tmp_path, QUESTION)
    assert p.returncode == 1 and "no picture" in p.stderr
    p = margay("ask", "-m", DEMO, "--folder", tmp_path / "none", QUESTION)
    assert p.returncode == 1 and "none" in p.stderr


def test_memory_stays_flat(margay, tmp_path):
    """200 asks in one process: RssAnon after the first 50 and at the end differ by less than 2 MB."""
    if "sanitize" in os.environ.get("MARGAY_BUILD", ""):
        import pytest
        pytest.skip("sanitizers keep freed memory")
    folder = tmp_path / "many"
    folder.mkdir()
    files = sorted(SAMPLES.glob("*.png"))
    for i in range(200):
        (folder / f"{i:03}.png").symlink_to(files[i % len(files)])
    out = tmp_path / "out.jsonl"
    p = margay.start("ask", "-m", DEMO, "--folder", folder, "-o", out, "--no-progress", QUESTION)
    use = {}
    begin = time.monotonic()
    while p.poll() is None:
        assert time.monotonic() - begin < 2 * LIMIT
        try:
            status = dict(line.split(":", 1) for line in open(f"/proc/{p.pid}/status"))
            n = out.read_bytes().count(b"\n") if out.exists() else 0
            use[n] = int(status["RssAnon"].split()[0])
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.01)
    assert p.communicate()[1] is not None and p.returncode == 0
    assert out.read_bytes().count(b"\n") == 200
    early = max(v for k, v in use.items() if 40 <= k <= 80)
    late = max(v for k, v in use.items() if k >= 160)
    assert late - early < 2048, (early, late)
