"""What operators read: docs/server.md, metrics, the Grafana dashboard and alerts agree with the program."""
import json, pathlib, re, resource, statistics, subprocess, time

import pytest

from conftest import BIN, RIGHT, ROOT, SANITIZED, data_url, picture, question, slack

DOC = (ROOT / "docs" / "server.md").read_text()
SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([-+.\dNaInfe]+)$")


def scrape(server):
    """{family or series name: set of label names}, {name+labels: value}"""
    names, values = {}, {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith("#") or not line:
            continue
        name, labels, value = SAMPLE.match(line).groups()
        names.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
        values[f"{name}{{{labels}}}" if labels else name] = float(value)
    return names, values


@pytest.fixture(scope="module")
def asked(server):
    """A server that has seen a bit of everything."""
    case = RIGHT[0]
    server.chat(case["question"], picture(case["image"]))
    server.chat(case["question"], picture(case["image"]), stream=True)
    server.chat("What?", picture(case["image"])[:400])
    server.chat("What?", b"GIF89a nothing")
    server.chat("Hi", top_p=7)
    server.get("/nothing")
    server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
    return server


def queries():
    board = json.loads((ROOT / "deploy/grafana/margay.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    yield from re.findall(r"^\s+expr: (.*)$", (ROOT / "deploy/prometheus/margay.rules.yml").read_text(), re.M)


def test_dashboard_asks_for_what_is_there(asked):
    names, _ = scrape(asked)
    known = {"job", "instance", "le"}
    seen = set()
    for q in queries():
        for name, labels in re.findall(r"\b((?:margay|process)_[a-z_]+)(?:\{([^}]*)\})?", q):
            assert name in names, f"{name} is not exported: {q}"
            seen.add(re.sub("_(bucket|sum|count)$", "", name))
            unknown = set(re.findall(r"(\w+)=~?\"", labels)) - known - names[name]
            assert not unknown, (q, unknown)
        for by in re.findall(r"by \(([\w, ]*)\)", q):
            used = {n for m in re.findall(r"\b((?:margay|process)_[a-z_]+)", q) for n in names[m]} | known
            assert set(by.replace(" ", "").split(",")) <= used, q
    families = {re.sub("_(bucket|sum|count)$", "", n) for n in names}
    assert families - seen <= {"margay_redis_up", "margay_answer_cache_queries_total"}, families - seen


def test_dashboard_is_made_anew():
    made = subprocess.check_output(["python3", ROOT / "tools" / "make_dashboard.py"])
    assert made == (ROOT / "deploy/grafana/margay.json").read_bytes(), "run tools/make_dashboard.py"


def test_metrics_are_documented(asked):
    names, _ = scrape(asked)
    told = set(re.findall(r"`((?:margay|process)_[a-z_]+)`", DOC))
    families = {re.sub("_(bucket|sum|count)$", "", n) for n in names}
    assert told == families, told ^ families
    for name, labels in names.items():
        row = next(l for l in DOC.splitlines() if f"`{re.sub('_(bucket|sum|count)$', '', name)}`" in l)
        assert all(f"`{l}`" in row for l in labels - {"le"}) or "hits: `kind`" in row, (name, labels)


def test_metrics_count(asked):
    _, v = scrape(asked)
    assert v['margay_images_total{format="png",outcome="ok"}'] >= 2
    assert v['margay_images_total{format="png",outcome="truncated"}'] == 1
    assert sum(x for k, x in v.items() if k.startswith('margay_images_total{format="gif"')) == 1
    assert v['margay_request_errors_total{type="invalid_request_error"}'] >= 3
    assert v['margay_requests_total{endpoint="chat_completions",finish_reason="stop"}'] >= 2
    status = pathlib.Path(f"/proc/{asked.process.pid}/status").read_text()
    rss = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024
    assert abs(v["process_resident_memory_bytes"] - rss) < 0.3 * rss
    files = len(list(pathlib.Path(f"/proc/{asked.process.pid}/fd").iterdir()))
    assert abs(v["process_open_fds"] - files) <= 2 and v["process_max_fds"] >= files
    assert v['margay_cache_bytes{cache="image"}'] > 0 and v['margay_cache_bytes{cache="prompt"}'] > 0
    assert all(v[f'margay_cache_limit_bytes{{cache="{c}"}}'] >= v[f'margay_cache_bytes{{cache="{c}"}}'] for c in ("image", "prompt", "answer"))
    for name in ("time_to_first_token", "request_duration", "queue_time", "prefill", "decode", "image_decode", "vision_encode"):
        assert v[f"margay_{name}_seconds_count"] >= 1, name


def test_a_scrape_costs_little(serve):
    """The loop makes it: also where very many files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        s = serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    c, took = s.connect(), []
    for _ in range(30):
        begun = time.monotonic()
        c.request("GET", "/metrics")
        assert c.getresponse().read()
        took.append(time.monotonic() - begun)
    assert SANITIZED or statistics.median(took) < 0.02 * slack(), sorted(took)


def test_options_are_documented():
    """Every option of the server's own group that the page names is one, and those about limits, caches and safety are named."""
    text = subprocess.check_output([BIN, "help", "serve"], text=True)
    known = set(re.findall(r"--(?:\[no-\])?([a-z-]+)", text))
    told = set(re.findall(r"`--([a-z-]+)", DOC))
    assert told <= known, told - known
    own = set(re.findall(r"--(?:\[no-\])?([a-z-]+)", text[text.index("\nServer:"):text.index("\nGeneral:")]))
    left = own - told
    assert left <= {"host", "port", "unix-socket", "alias", "ssl-cert-file", "ssl-key-file", "metrics", "slots", "served-model-name",
                    "max-num-seqs", "ui", "path"}, left


def test_routes_are_documented():
    spec = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    assert not [p for p in spec if f"`{p}" not in DOC and f"{p}`" not in DOC and f" {p}`" not in DOC], "docs/server.md lacks a route"


def test_errors_are_documented():
    source = (ROOT / "src/api/fault.c").read_text()
    table = source[source.index("by_code[] = {"):source.index("enum mg_status mg_fault_set")]
    codes = re.findall(r'^\s+\{"([a-z_*0-9]+)",', table, re.M)
    assert len(codes) > 20 and not [c for c in codes if f"`{c}`" not in DOC]
    for kind in set(re.findall(r'"(\w+_error)"', source)):
        assert f"`{kind}`" in DOC, kind


def test_nothing_asked_is_told(serve, tmp_path):
    """Row 71: what one key asks shows nowhere to another, nor in the log."""
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    log = tmp_path / "log"
    s = serve("--api-key-file", keys, "--access-log", log, "--answer-cache", 16, "--no-loop-check")
    canary = "xylophoneberry"
    long = {"max_tokens": 100000, "ignore_eos": True, "temperature": 5, "top_k": 0, "top_p": 1}
    c = s.connect()
    c.request("POST", "/v1/chat/completions", json.dumps(question(canary, picture(RIGHT[0]["image"]), stream=True, **long)),
              {"X-Api-Key": "one", "Content-Type": "application/json"})
    r = c.getresponse()
    while b'"content":"' not in r.readline():
        pass
    s.post("/v1/chat/completions", question(canary), X_Api_Key="one")
    f = s.post("/v1/files", b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s.png"\r\n\r\n' % canary.encode() +
               picture(RIGHT[0]["image"]) + b"\r\n--x--\r\n", Content_Type="multipart/form-data; boundary=x", X_Api_Key="one").json["id"]
    spec = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    paths = [p.replace("{id}", f) for p, methods in spec.items() if "get" in methods and p != "/ws"]
    assert len(paths) > 8
    for p in paths:
        reply = s.get(p, X_Api_Key="two")
        assert canary.encode() not in reply.body + str(reply.headers).encode(), p
        assert p.split("/")[-1] == f"{f}" or "/files/" in p or reply.status == 200, p
    assert s.get(f"/v1/files/{f}", X_Api_Key="two").status == 404
    again = s.post("/v1/chat/completions", question(canary), X_Api_Key="two")
    assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and again.headers["x-cache"] == "miss"
    c.sock.close(), r.close()
    s.wait(lambda: not any(x["is_processing"] for x in s.get("/slots", X_Api_Key="two").json), 10)
    assert s.stop() == 0
    assert canary not in log.read_text() + "".join(s.log) and log.read_text().count("\n") > len(paths)
