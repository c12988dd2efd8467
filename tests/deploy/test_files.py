"""deploy/ as it stands: everything parses, names options that exist, and the parts agree with each other and with the program."""
import json, os, pathlib, re, shlex, shutil, subprocess, sys

import pytest

import contained
from conftest import BIN, CI, DEPLOY, ROOT

sys.path.insert(0, str(ROOT / "tests" / "cli"))
yaml = pytest.importorskip("yaml")  # tools/install.sh test installs it


def help_of(command):
    return subprocess.run([BIN, "help", command], capture_output=True, text=True).stdout


COMMANDS = set(re.findall(r"^  ([a-z]+) ", subprocess.check_output([BIN, "help"], text=True), re.M))
FLEET = "worker" in COMMANDS  # the queue is built in


def options(command):
    """{spelling}, {environment name} of a command."""
    text = help_of(command)
    names = set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", text.replace("--[no-]", "--")))
    primary = {n[2:] for n in names if n.startswith("--")}
    return names, {"MARGAY_" + p.upper().replace("-", "_") for p in primary}


def every_yaml():
    return sorted(f for f in DEPLOY.rglob("*") if f.suffix in (".yaml", ".yml"))


def documents(f):
    return [d for d in yaml.safe_load_all(f.read_text()) if d]


def compose():
    return documents(DEPLOY / "compose.yaml")[0]


def objects():
    out = {}
    for f in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for d in documents(f):
            out[d["kind"], d.get("metadata", {}).get("name")] = d
    return out


def pods():
    for (kind, name), d in objects().items():
        if kind in ("Deployment", "StatefulSet", "Job"):
            yield f"{kind} {name}", d["spec"]["template"]


def command_lines():
    """(where, [command, arguments...]) of margay in everything in deploy/."""
    for f in sorted((DEPLOY / "systemd").glob("*.service")):
        for line in re.findall(r"^ExecStart=\S*/margay (.*)$", f.read_text(), re.M):
            yield f.name, shlex.split(line)
    for name, s in compose()["services"].items():
        if s.get("image", "").startswith("margay"):
            yield f"compose {name}", list(s["command"])
            yield f"compose {name} healthcheck", s["healthcheck"]["test"][2:]
    text = (DEPLOY / "compose.yaml").read_text()
    for line in re.findall(r"# KEYS  command: (\[.*\])", text):
        yield "compose with keys", yaml.safe_load(line)
    for where, t in pods():
        for c in t["spec"].get("initContainers", []) + t["spec"]["containers"]:
            if c["image"] == "margay":
                yield where, c["args"]
    docker = (DEPLOY / "docker" / "Dockerfile").read_text()
    yield "Dockerfile", json.loads(re.search(r"^CMD (\[.*\])$", docker, re.M)[1])
    yield "Dockerfile HEALTHCHECK", json.loads(re.search(r"HEALTHCHECK .* CMD (\[.*\])$", docker, re.M)[1])[1:]
    assert json.loads(re.search(r"^ENTRYPOINT (\[.*\])$", docker, re.M)[1]) == ["margay"]


def environments():
    """(where, [names of commands], {MARGAY_ names})"""
    for f in sorted((DEPLOY / "systemd").glob("*.service")):
        text = f.read_text()
        command = re.search(r"^ExecStart=\S*/margay (\w+)", text, re.M)[1]
        yield f.name, [command], set(re.findall(r"\bMARGAY_[A-Z_]+", text)) - {"MARGAY_NAME", "MARGAY_PORT"}
    for name, s in compose()["services"].items():
        if s.get("image", "").startswith("margay"):
            yield f"compose {name}", [s["command"][0]], set(s["environment"])
    for where, t in pods():
        for c in t["spec"]["containers"]:
            if c["image"] == "margay":
                yield where, [c["args"][0]], {e["name"] for e in c.get("env", []) if e["name"].startswith("MARGAY_")}
    yield "Dockerfile", ["serve"], set(re.findall(r"\b(MARGAY_[A-Z_]+)=", (DEPLOY / "docker" / "Dockerfile").read_text()))


def wants_the_queue(command, words):
    return command == "worker" or any(w in ("--queue", "MARGAY_QUEUE") for w in words)


def test_options_exist():
    """Of every command line here; those of the queue once the program has it."""
    seen, left = 0, []
    for where, (command, *args) in command_lines():
        if wants_the_queue(command, args) and not FLEET:
            left.append(where)
            continue
        assert command in COMMANDS, (where, command)
        names = options(command)[0]
        for a in args:
            if a.startswith("-"):
                assert a.split("=")[0] in names, (where, a)
                seen += 1
    assert seen >= 10
    print("left out:", left)


def test_environment_names_exist():
    seen = 0
    for where, (command,), names in environments():
        if wants_the_queue(command, names) and not FLEET:
            continue
        known = options(command)[1]
        assert names <= known, (where, names - known)
        seen += len(names)
    assert seen >= 3


@pytest.mark.skipif(not FLEET, reason="margay has no queue yet")
def test_the_queue_is_built():
    for command, option in (("serve", "--queue"), ("worker", "--queue"), ("worker", "--drain-time"), ("worker", "--port"), ("worker", "--parallel")):
        assert option in options(command)[0], (command, option)


def test_it_would_be_seen():
    assert "--drain-tme" not in options("serve")[0] and "MARGAY_MODELS" not in options("serve")[1]


@pytest.mark.parametrize("file", every_yaml(), ids=lambda f: str(f.relative_to(DEPLOY)))
def test_yaml_parses(file):
    """Also that no key stands twice, which YAML's readers pass over in silence."""
    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader, node, deep=False):
        keys = [loader.construct_object(k, True) for k, _ in node.value if k.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(map(str, keys))), (file, keys)
        return yaml.SafeLoader.construct_mapping(loader, node, deep)
    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert [d for d in yaml.load_all(file.read_text(), Loader) if d]


# --- compose ---
def test_compose():
    c = compose()
    services = c["services"]
    assert {"gateway", "worker-1", "worker-2", "redis", "cache", "prometheus", "grafana"} == set(services)
    for name, s in services.items():
        assert s["read_only"] is True and s["cap_drop"] == ["ALL"] and s["security_opt"] == ["no-new-privileges:true"], name
        limits = s["deploy"]["resources"]["limits"]
        assert limits["memory"] and limits["cpus"] and limits["pids"] and s["healthcheck"]["test"][0] == "CMD", name
        for p in s.get("ports", []):
            assert p.startswith("127.0.0.1:"), (name, p)
        for v in s.get("volumes", []):
            source = v["source"] if isinstance(v, dict) else v.split(":")[0]
            source = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", source)
            assert source in c["volumes"] or (DEPLOY / source).exists(), (name, source)
        for n in s["networks"]:
            assert n in c["networks"]
        for d in s.get("depends_on", {}):
            assert "healthcheck" in services[d]
    assert c["networks"]["inner"]["internal"] is True and services["worker-1"]["networks"] == ["inner"] == services["redis"]["networks"] == services["cache"]["networks"]
    build = services["gateway"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == (DEPLOY / "docker" / "Dockerfile").resolve()
    scraped = documents(DEPLOY / "prometheus" / "compose.yml")[0]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scraped == ["gateway:8080", "worker-1:8080", "worker-2:8080"]
    assert documents(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")[0]["datasources"][0]["url"] == "http://prometheus:9090"
    assert documents(DEPLOY / "grafana/provisioning/dashboards/margay.yml")[0]["providers"][0]["options"]["path"] == \
        next(v.split(":")[1] for v in services["grafana"]["volumes"] if "margay.json" in v).rsplit("/", 1)[0]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize("file", ["prometheus.yml", "compose.yml"])
def test_prometheus_takes_its_file(file):
    p = subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus" / file], capture_output=True, text=True)
    assert p.returncode == 0, p.stdout + p.stderr


# --- Dockerfile ---
def test_dockerfile():
    """The libraries of the image are those that the program links, and the build's files are in the build's context."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    last = text.rindex("\nFROM")
    assert re.search(r"^USER 10001:10001$", text[last:], re.M) and f"{contained.USER}:{contained.USER}" in text
    kept = [l[1:] for l in (ROOT / ".dockerignore").read_text().splitlines() if l.startswith("!")]
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert any(source == k or source.startswith(k + "/") for k in kept), f"{source} is not in .dockerignore's list"
    if (ROOT / ".dockerignore").read_text().splitlines()[1] != "*":
        raise AssertionError("everything else is left out")


@pytest.mark.skipif(not os.path.exists("/etc/debian_version") or not shutil.which("dpkg-query"), reason="not Debian")
def test_dockerfile_has_the_libraries():
    release = pathlib.Path("/etc/os-release").read_text()
    if "VERSION_ID=\"12\"" not in release:
        pytest.skip("packages have other names than in Debian 12")
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    named = set(re.search(r"--no-install-recommends (.*?)&&", text[text.rindex("\nFROM"):], re.S)[1].replace("\\", " ").split())
    needed = re.findall(r"NEEDED\s+(\S+)", subprocess.check_output(["objdump", "-p", BIN], text=True))
    found = dict(re.findall(r"(\S+) => (/\S+)", subprocess.check_output(["ldd", BIN], text=True)))
    given = {"libc6", "libgcc-s1"}
    checked = 0
    for lib in needed:
        if lib not in found or re.match(r"lib(asan|ubsan|tsan)", lib):
            continue
        for path in (found[lib], os.path.realpath(found[lib]), os.path.realpath(found[lib]).replace("/lib/", "/usr/lib/", 1)):
            p = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True)
            if p.returncode == 0:
                package = p.stdout.split(":")[0]
                assert package in named | given, f"{lib} is of {package}"
                checked += 1
                break
    assert checked >= 10


# --- systemd ---
def units():
    return sorted(f for f in (DEPLOY / "systemd").iterdir())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_units_are_understood(tmp_path):
    for f in units():
        text = f.read_text().replace("/usr/local/bin/margay", "/bin/true").replace("Documentation=man:margay(1)\n", "")
        (tmp_path / f.name.replace("@", "@0")).write_text(text)
    p = subprocess.run(["systemd-analyze", "verify", "--man=no", *sorted(str(f) for f in tmp_path.iterdir())], capture_output=True, text=True)
    lines = [l for l in (p.stdout + p.stderr).splitlines() if "margay" in l]
    assert p.returncode == 0 and not lines, lines


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", [f.name for f in units() if f.suffix == ".service"])
def test_units_are_hardened(unit):
    p = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", DEPLOY / "systemd" / unit], capture_output=True, text=True)
    if "unrecognized option" in p.stderr or "Unknown option" in p.stderr:
        pytest.skip("systemd-analyze is too old")
    assert p.returncode == 0, p.stdout[-300:] + p.stderr


def test_units_fit_the_program():
    """Told when ready, stopped with patience, watched with more patience than the engine has between two layers."""
    drain = float(re.search(r"^  --drain-time.*?\[default: (\d+)", help_of("serve"), re.S | re.M)[1])
    for f in units():
        if f.suffix != ".service":
            continue
        text = f.read_text()
        value = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
        assert value["Type"] == "notify" and value["NotifyAccess"] == "main" and value["ExecReload"] == "/bin/kill -HUP $MAINPID"
        assert float(value["TimeoutStopSec"].rstrip("s")) >= 2 * drain and float(value["WatchdogSec"].rstrip("s")) >= 30
        assert "SuccessExitStatus" not in value and value["DynamicUser"] == "yes"  # stopped while it loads it ends with 0 too


# --- Kubernetes ---
@pytest.mark.parametrize("where", [w for w, _ in pods()])
def test_pods_are_contained(where):
    """The restricted level of Pod Security Standards, and more: read-only root, no token, limits, probes of the program's own paths."""
    spec = dict(pods())[where]["spec"]
    s = spec["securityContext"]
    assert s["runAsNonRoot"] is True and s["runAsUser"] > 0 and s["seccompProfile"]["type"] == "RuntimeDefault"
    assert spec["automountServiceAccountToken"] is False
    for c in spec.get("initContainers", []) + spec["containers"]:
        x = c["securityContext"]
        assert x["allowPrivilegeEscalation"] is False and x["readOnlyRootFilesystem"] is True and x["capabilities"] == {"drop": ["ALL"]}
        assert c["resources"]["requests"] and c["resources"]["limits"]["memory"]
        names = {v["name"] for v in spec["volumes"]} | ({"data"} if where == "StatefulSet margay-redis" else set())
        assert {m["name"] for m in c["volumeMounts"]} <= names
        if c["name"] in ("gateway", "worker"):
            assert s["runAsUser"] == contained.USER
            spec_of = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert c[probe]["httpGet"]["path"] in spec_of and c[probe]["httpGet"]["port"] == c["ports"][0]["name"]
            drain = float(c["args"][c["args"].index("--drain-time") + 1])
            assert spec["terminationGracePeriodSeconds"] > drain + 10


def test_kubernetes_parts_agree():
    o = objects()
    kept = o["Kustomization", None]["resources"]
    files = {f.name for f in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert set(kept) == files
    secrets = {n: set(d["stringData"]) for (k, n), d in o.items() if k == "Secret"}
    labels = {n: d["spec"]["template"]["metadata"]["labels"] for (k, n), d in o.items() if k in ("Deployment", "StatefulSet", "Job")}
    for where, t in pods():
        for c in t["spec"]["containers"]:
            for e in c.get("env", []):
                if ref := e.get("valueFrom", {}).get("secretKeyRef"):
                    assert ref["key"] in secrets[ref["name"]], where
        for v in t["spec"]["volumes"]:
            if "persistentVolumeClaim" in v:
                assert ("PersistentVolumeClaim", v["persistentVolumeClaim"]["claimName"]) in o
            if "secret" in v:
                assert v["secret"]["secretName"] in secrets
    for (kind, name), d in o.items():
        if kind in ("Deployment", "StatefulSet"):
            assert d["spec"]["selector"]["matchLabels"].items() <= labels[name].items()
        if kind in ("Service", "PodDisruptionBudget"):
            selector = d["spec"]["selector"]
            selector = selector.get("matchLabels", selector)
            assert any(selector.items() <= l.items() for l in labels.values()), (kind, name)
        if kind == "NetworkPolicy" and (wanted := d["spec"]["podSelector"].get("matchLabels")):
            assert any(wanted.items() <= l.items() for l in labels.values()), name
    scaled = o["ScaledObject", "margay-worker"]["spec"]
    assert ("Deployment", scaled["scaleTargetRef"]["name"]) in o and "replicas" not in o["Deployment", "margay-worker"]["spec"]
    worker = o["Deployment", "margay-worker"]["spec"]["template"]["spec"]["containers"][0]["args"]
    trigger = scaled["triggers"][0]["metadata"]
    assert trigger["streamLength"] == worker[worker.index("--parallel") + 1] and "consumerGroup" not in trigger
    for where, file in (("redis", "redis.conf"), ("cache", "cache.conf")):
        conf = o["ConfigMap", f"margay-{where}"]["data"]
        assert set(conf) == {file, "start.sh"}
        for name in conf:
            assert conf[name].rstrip() == (DEPLOY / "redis" / name).read_text().rstrip(), f"{where}.yaml's {name} is not deploy/redis/{name}"


# --- both Redis ---
def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text).groups()
    return int(number) << {"": 0, "m": 20, "mb": 20, "mi": 20, "g": 30, "gb": 30, "gi": 30}[unit.lower()]


def settings(name):
    return dict(re.findall(r"^([a-z-]+) +(.+)$", (DEPLOY / "redis" / name).read_text(), re.M))


def redis_servers():
    """{"compose" or "kubernetes": {host: (environment, memory limit)}}"""
    services, o = compose()["services"], objects()
    out = {"compose": {n: (s["environment"], s["deploy"]["resources"]["limits"]["memory"]) for n, s in services.items() if s["image"].startswith("redis:")},
           "kubernetes": {}}
    for (kind, name), d in o.items():
        if kind == "Service":
            for where, t in pods():
                c = t["spec"]["containers"][0]
                if d["spec"]["selector"].items() <= t["metadata"]["labels"].items() and c["image"].startswith("redis:"):
                    out["kubernetes"][name] = ({e["name"]: e.get("value") for e in c["env"]}, c["resources"]["limits"]["memory"])
    return out


def margays():
    """("compose" or "kubernetes", name, command, environment) of each that has a queue."""
    for name, s in compose()["services"].items():
        if s["image"].startswith("margay"):
            yield "compose", name, s["command"][0], s["environment"]
    for where, t in pods():
        for c in t["spec"]["containers"]:
            if c["name"] in ("gateway", "worker"):
                yield "kubernetes", where, c["args"][0], {e["name"]: e.get("value") for e in c["env"]}


def host(url):
    return re.fullmatch(r"redis://margay:[^@]+@([\w-]+):6379/0", url)[1]


def budget_fits(budget, maxmemory):
    """In MB, and as redis.conf has it. Pieces of 512 KB take 640 KB of Redis' memory, so that more than four fifths would fill it."""
    return int(budget) << 20 <= bytes_of(maxmemory) * 3 / 4


def test_queue_and_cache_are_apart():
    """Workers have both, each in a Redis of its own kind; what may go into the cache fits, and each Redis fits its container."""
    servers, seen = redis_servers(), []
    assert {p: len(s) for p, s in servers.items()} == {"compose": 2, "kubernetes": 2}
    for place, name, command, env in margays():
        queue, where = servers[place][host(env["MARGAY_QUEUE"])], (place, name)
        conf = settings(queue[0].get("REDIS_CONF", "redis.conf").rsplit("/", 1)[-1])
        assert (conf["appendonly"], conf["appendfsync"], conf["no-appendfsync-on-rewrite"]) == ("yes", "always", "no"), where
        assert conf["maxmemory-policy"] == "noeviction", where
        assert ("MARGAY_REDIS" in env) == (command == "worker") == ("MARGAY_REDIS_BUDGET" in env), where
        if command == "worker":
            assert host(env["MARGAY_REDIS"]) != host(env["MARGAY_QUEUE"]), where
            cache = servers[place][host(env["MARGAY_REDIS"])]
            conf = settings(cache[0]["REDIS_CONF"].rsplit("/", 1)[-1])
            assert (conf["appendonly"], conf["save"], conf["maxmemory-policy"]) == ("no", '""', "noeviction"), where
            assert budget_fits(env["MARGAY_REDIS_BUDGET"], cache[0]["REDIS_MAXMEMORY"]), where
            seen.append(where)
    assert len(seen) == 3
    for place, some in servers.items():
        for name, (env, limit) in some.items():
            assert bytes_of(env["REDIS_MAXMEMORY"]) * 7 / 6 <= bytes_of(limit), (place, name)


def test_every_budget_that_is_told_of_fits():
    """Of units and documents as well, for the maxmemory of cache.conf."""
    most = settings("cache.conf")["maxmemory"]
    texts = [*(DEPLOY / "systemd").iterdir(), ROOT / "docs" / "operations.md", ROOT / "docs" / "redis.md"]
    found = [b for f in texts for b in re.findall(r"MARGAY_REDIS_BUDGET=(\d+)", f.read_text())]
    assert found and all(budget_fits(b, most) for b in found), found
    doc = (ROOT / "docs" / "operations.md").read_text()
    fleet = {p: (env["MARGAY_REDIS_BUDGET"], redis_servers()[p][host(env["MARGAY_REDIS"])][0]["REDIS_MAXMEMORY"])
             for p, _, command, env in margays() if command == "worker"}
    for budget, memory in fleet.values():
        assert f"{int(budget):,} MB of {memory.rstrip('gb')} GB" in doc
    assert not budget_fits("2048", "2gb") and not budget_fits("1537", "2gb") and budget_fits("1536", "2gb")


def test_network_policies_let_through_what_is_needed():
    """Gateways reach the queue, workers both, and nobody else the cache."""
    o = objects()

    def names(peers):
        out = set()
        for p in peers:
            s = p.get("podSelector", {})
            out |= {s.get("matchLabels", {}).get("app.kubernetes.io/component")} | {v for e in s.get("matchExpressions", []) for v in e["values"]}
        return out - {None}
    reach = {n: names(p for rule in o["NetworkPolicy", n]["spec"]["egress"] for p in rule["to"]) for n in ("gateway", "worker")}
    let_in = {n: names(p for rule in o["NetworkPolicy", n]["spec"]["ingress"] for p in rule["from"]) for n in ("redis", "cache")}
    assert reach == {"gateway": {"redis"}, "worker": {"redis", "cache"}} and let_in == {"redis": {"gateway", "worker"}, "cache": {"worker"}}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_builds():
    p = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    made = [d for d in yaml.safe_load_all(p.stdout) if d]
    assert len(made) >= 15 and all(d["metadata"].get("namespace") == "margay" for d in made if d["kind"] != "Namespace")
    assert not [c for d in made if d["kind"] == "Deployment" for c in d["spec"]["template"]["spec"]["containers"] if c["image"] == "margay"]


# --- documents ---
def test_documents_name_what_is_there():
    """Files of deploy/ that documents name are there, and all of them are told of somewhere."""
    text = "".join((ROOT / f).read_text() for f in ("README.md", "docs/operations.md", "docs/server.md"))
    for name in set(re.findall(r"(?<!tests/)deploy/[\w./@-]+\w", text)):
        assert (ROOT / name).exists() or name in ("deploy/keys", "deploy/.env"), name
    for f in DEPLOY.iterdir():
        assert f"deploy/{f.name}" in text, f
    doc = (ROOT / "docs" / "operations.md").read_text()
    for command, names in re.findall(r"margay (serve|worker|health|ask|load|doctor)((?: +--?[\w-]+(?: [^-\s`]\S*)?)+)", doc):
        if command == "worker" and not FLEET or "--queue" in names and not FLEET:
            continue
        for n in re.findall(r"(?<!\S)--[\w-]+", names):
            assert n in options(command)[0], (command, n)
