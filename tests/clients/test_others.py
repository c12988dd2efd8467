"""README's curl examples, Open WebUI's requests, nginx with its defaults in front."""
import http.client, json, os, re, shutil, socket, subprocess, time

import pytest

from serve_conftest import BIN, RIGHT, ROOT, Server, data_url, picture

A = RIGHT[0]


# --- README
def server_section():
    text = (ROOT / "README.md").read_text()
    return text[text.index("\n## Server\n"):text.index("\n## From C\n")]


def examples():
    """Commands of the section's indented blocks that call curl; a command goes on while its quotes are open."""
    out, open_one = [], None
    for line in server_section().splitlines():
        if not line.startswith("    "):
            continue
        line = line[4:]
        if open_one is None and not line.startswith("curl "):
            continue
        open_one = line if open_one is None else open_one + "\n" + line
        if open_one.count("'") % 2 == 0 and not open_one.endswith("\\"):
            out.append(open_one)
            open_one = None
    assert open_one is None
    return out


def test_readme_has_examples():
    assert len(examples()) >= 3 and any("stream" in e for e in examples()) and any("/v1/files" in e for e in examples())


@pytest.mark.parametrize("command", examples(), ids=lambda c: re.search(r"/v1/[\w/]+|/\w+", c.split("8080")[1]).group())
def test_readme_examples(server, tmp_path, command):
    (tmp_path / "photo.jpg").write_bytes(picture(A["image"]))
    f = server.post("/v1/files", b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + picture(A["image"]) + b"\r\n--x--\r\n",
                    Content_Type="multipart/form-data; boundary=x").json["id"]
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}").replace("file-ID", f).replace("What does the sign say?", A["question"])
    p = subprocess.run(["bash", "-euc", command.replace("curl ", "curl -sS --fail-with-body ", 1)], cwd=tmp_path, capture_output=True,
                       text=True, timeout=60)
    assert p.returncode == 0, (command, p.stdout, p.stderr)
    if '"stream": true' in command:
        parts = [json.loads(l[6:]) for l in p.stdout.splitlines() if l.startswith("data: {")]
        assert "".join(x["choices"][0]["delta"].get("content") or "" for x in parts if x["choices"]) == A["answer"]
        assert p.stdout.endswith("data: [DONE]\n\n")
    elif "chat/completions" in command:
        assert json.loads(p.stdout)["choices"][0]["message"]["content"] == A["answer"]
    else:
        assert p.stdout


def test_readme_options_exist():
    """What the section starts margay with, and every option it names, is in the help."""
    known = subprocess.run([BIN, "help", "serve"], capture_output=True, text=True).stdout
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"^    curl.*?(?=^    margay|\Z|^\S)", "", server_section(), flags=re.M | re.S)))
    assert len(named) >= 5 and not [o for o in named if o not in known and o.replace("--no-", "--[no-]") not in known]


# --- Open WebUI
class WebUI:
    """Its OpenAI connection: the base URL with /v1, a Bearer key, the user in headers of its own."""
    headers = {"Authorization": "Bearer sk-webui", "X_OpenWebUI_User_Name": "Ann", "X_OpenWebUI_User_Id": "1", "X_OpenWebUI_User_Role": "user",
               "X_OpenWebUI_Chat_Id": "c1", "Accept": "*/*", "User_Agent": "Python/3.11 aiohttp/3.12"}

    def __init__(self, server):
        self.server = server
        self.model = self.get("/v1/models").json["data"][0]["id"]

    def get(self, path):
        return self.server.get(path, **self.headers)

    def chat(self, messages, **more):
        return self.server.post("/v1/chat/completions", {"model": self.model, "messages": messages, **more}, **self.headers)


def test_open_webui(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-webui\n")
    ui = WebUI(serve("--api-key-file", keys))
    image = {"type": "image_url", "image_url": {"url": data_url(picture(A["image"]))}}
    said = [{"role": "system", "content": "User: Ann\n"}, {"role": "user", "content": [{"type": "text", "text": A["question"]}, image]}]
    # The question, streamed, with the token counts its message details show.
    r = ui.chat(said, stream=True, stream_options={"include_usage": True}, temperature=0, frequency_penalty=0, seed=42, user="ann",
                max_tokens=None, logit_bias=None, stop=None)
    assert r.status == 200 and r.events[-1] == "[DONE]" and json.loads(r.events[-2])["usage"]["prompt_tokens"] > 0
    first = r.streamed
    assert first
    # The whole history again, the picture with it, and an image in an older turn only.
    said += [{"role": "assistant", "content": first}, {"role": "user", "content": "And?"}]
    r = ui.chat(said, stream=True, temperature=0, max_tokens=8)
    assert r.status == 200 and r.events[-1] == "[DONE]"
    # Title, tags and follow-ups: whole, from a long text in which the conversation stands.
    for task in ("title", "tags", "follow_ups"):
        prompt = f"### Task:\nSuggest {task} for the chat.\n### Output:\nJSON format: {{ \"{task}\": [\"...\"] }}\n### Chat History:\n<chat_history>\n" \
                 f"USER: {A['question']}\nASSISTANT: {first}\n</chat_history>"
        r = ui.chat([{"role": "user", "content": prompt}], stream=False, max_completion_tokens=20)
        assert r.status == 200 and isinstance(r.json["choices"][0]["message"]["content"], str)
    # What the person stops, and a wrong key in the connection's check.
    assert ui.server.get("/v1/models", Authorization="Bearer other").status == 401
    assert ui.server.get("/models", **ui.headers).status == 200


# --- nginx
NGINX = """daemon off; pid {tmp}/pid; error_log {tmp}/error; worker_processes 1; events {{}}
http {{ access_log off; client_body_temp_path {tmp}/body; proxy_temp_path {tmp}/proxy; fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u;
scgi_temp_path {tmp}/s; gzip on; client_max_body_size 64m;
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{to}; }} }} }}
"""


@pytest.fixture
def proxy(tmp_path):
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if not program:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("nginx is not installed")
    started = []

    def start(to):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        conf = tmp_path / "nginx.conf"
        conf.write_text(NGINX.format(tmp=tmp_path, port=port, to=to))
        started.append(subprocess.Popen([program, "-c", conf, "-p", tmp_path, "-e", tmp_path / "error"], stderr=subprocess.DEVNULL))
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return port
            except OSError:
                assert time.monotonic() < end and started[-1].poll() is None, (tmp_path / "error").read_text()
                time.sleep(0.02)
    yield start
    for p in started:
        p.terminate()
        p.wait(20)


def test_nginx_does_not_hold_back(serve, proxy):
    """Row 49: a stream comes through piece by piece, its heartbeat first, though nginx buffers by default."""
    s = serve("--sse-ping-interval", 1, "--parallel", 1, "--no-loop-check", env={"MARGAY_CPU": "ref"})
    long = {"max_tokens": 100000, "ignore_eos": True, "temperature": 5, "top_k": 0, "top_p": 1}
    port = proxy(s.port)

    def stream(**more):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Go on."}], "stream": True, **more}),
                  {"Content-Type": "application/json", "Accept-Encoding": "gzip"})
        return c, c.getresponse()
    begun = time.monotonic()
    c, r = stream(**long)
    assert r.status == 200 and r.headers["Content-Encoding"] is None
    times = []
    while len(times) < 20:
        line = r.readline()
        assert line
        if line.startswith(b"data: "):
            times.append(time.monotonic() - begun)
    assert times[0] < 2 and len({round(t, 3) for t in times}) > 5, times
    # A second one waits for its place: its heartbeat comes through meanwhile.
    begun = time.monotonic()
    c2, r2 = stream(**{**long, "max_tokens": 2, "return_progress": True})
    assert r2.readline() and time.monotonic() - begun < 2
    c.sock.close(), r.close()
    assert b"[DONE]" in r2.read()
    s.wait(s.idle)
