"""README's section on the server: what it says to type is typed, word for word but for the port and the model."""
import json, os, pathlib, re, struct, subprocess, zlib

import pytest

from serve_conftest import BIN, RIGHT, ROOT, Server, picture

A = RIGHT[0]
README = (ROOT / "README.md").read_text()
SECTION = README[README.index("\n## Server\n"):]
SECTION = SECTION[:SECTION.index("\n## ", 1)]


def commands():
    """The section's indented blocks as commands: one goes on while its quotes or its here-document are open."""
    out, lines = [], [re.split(r"\s+# ", l[4:])[0] for l in SECTION.splitlines() if l.startswith("    ")]
    while lines:
        command = [lines.pop(0)]
        if end := re.search(r"<<'?(\w+)", command[0]):
            while command[-1] != end[1]:
                command.append(lines.pop(0))
        while "\n".join(command).count("'") % 2 or command[-1].endswith("\\"):
            command.append(lines.pop(0))
        out.append("\n".join(command))
    return out


def photo(name=A["image"], pad=3_000_000):
    """A sample as large as a telephone's photo: with a chunk that holds nothing to see."""
    data, rng = picture(name), os.urandom(pad)
    chunk = struct.pack(">I", pad) + b"raWw" + rng + struct.pack(">I", zlib.crc32(b"raWw" + rng))
    return data[:-12] + chunk + data[-12:]


CURL = [c for c in commands() if c.startswith("curl ")]
SERVE = [c for c in commands() if c.startswith("margay ")]


def test_nothing_is_left_out():
    assert len(CURL) + len(SERVE) == len(commands()) and len(CURL) >= 3 and len(SERVE) >= 3
    browsed = README.count("http://127.0.0.1:8080/ in a browser")  # tests/page
    assert README.count("127.0.0.1:8080/") == sum(c.count("127.0.0.1:8080/") for c in CURL) + SECTION.count('"http://127.0.0.1:8080/v1"') + browsed
    assert any("stream" in c for c in CURL) and any("/v1/files" in c for c in CURL)


def run(command, server, folder, file_id):
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}").replace("file-ID", file_id).replace("What does the sign say?", A["question"])
    p = subprocess.run(["bash", "-euo", "pipefail", "-c", command.replace("curl ", "curl -sS --fail-with-body ", 1)], cwd=folder,
                       capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, (command, p.stdout, p.stderr)
    return p.stdout


def test_curl(server, tmp_path):
    """All of them in their order, since one uses another's id; the photo is larger than an argument may be."""
    (tmp_path / "photo.jpg").write_bytes(photo())
    file_id, answers = "file-ID", 0
    for command in CURL:
        out = run(command, server, tmp_path, file_id)
        if "/v1/files" in command:
            file_id = json.loads(out)["id"]
        elif "/v1/chat/completions" not in command:
            raise AssertionError(f"nothing here says what {command} should give")
        elif '"stream": true' in command:
            parts = [json.loads(l[6:]) for l in out.splitlines() if l.startswith("data: {")]
            assert "".join(c["delta"].get("content") or "" for x in parts for c in x["choices"]) == A["answer"]
            assert out.endswith("data: [DONE]\n\n")
            answers += 1
        else:
            assert json.loads(out)["choices"][0]["message"]["content"] == A["answer"]
            answers += 1
    assert answers >= 2


@pytest.mark.parametrize("command", SERVE)
def test_margay(command, tmp_path):
    """The model's name is a link to the demo's; a free port is taken."""
    (tmp_path / "Qwen3-VL-2B-Instruct").symlink_to(ROOT / "models" / "demo")
    (tmp_path / "keys.txt").write_text("first\nsecond\n")
    words = command.split()
    assert words[0] == "margay"
    if words[1] == "help":
        p = subprocess.run([BIN, *words[1:]], capture_output=True, text=True)
        assert p.returncode == 0 and "[default: 8080; worker: a free one]" in re.sub(r"\s+", " ", p.stdout) and "[default: 127.0.0.1]" in p.stdout
        for named in re.search(r"# all options: (.*)", SECTION)[1].split(", "):
            assert {"TLS": "--ssl-cert-file", "Unix socket": "--unix-socket", "queue": "--max-queue", "caches": "--cache-ram",
                    "logs": "--access-log"}[named] in p.stdout
        return
    here = pathlib.Path.cwd()
    os.chdir(tmp_path)
    try:
        s = Server(*words[2:])
    finally:
        os.chdir(here)
    try:
        keyed = {"Authorization": "Bearer second"} if "--api-key-file" in words else {}
        model = s.get("/v1/models", **keyed).json["data"][0]["id"]
        assert "-m" not in words or model == words[words.index("-m") + 1]
        assert s.chat(A["question"], picture(A["image"]), headers=keyed).text == A["answer"]
        if keyed:
            assert s.get("/v1/models").status == 401
            first = s.chat(A["question"], picture(A["image"]), headers={"Authorization": "Bearer first"}).json
            assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    finally:
        assert s.stop() == 0


def test_what_it_names_is_there(server):
    help_text = subprocess.run([BIN, "help", "serve"], capture_output=True, text=True).stdout
    prose = "\n".join(l for l in SECTION.splitlines() if not l.startswith("    "))
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose + "\n".join(SERVE)))
    assert len(options) >= 5 and not [o for o in options if o not in help_text and o.replace("--no-", "--[no-]") not in help_text]
    paths = re.findall(r"`(/[a-z./_-]+)`", prose)
    assert len(paths) >= 9
    for path in paths:
        assert server.get(path).status != 404, path
    assert server.get("/never").status == 404
