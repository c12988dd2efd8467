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
    assert {"gateway", "worker-1", "worker-2", "redis", "prometheus", "grafana"} == set(services)
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
    assert c["networks"]["inner"]["internal"] is True and services["worker-1"]["networks"] == ["inner"] == services["redis"]["networks"]
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
        assert value["SuccessExitStatus"] == "130" and value["DynamicUser"] == "yes"


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
        names = {v["name"] for v in spec["volumes"]} | ({"data"} if "redis" in where else set())
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
    conf = o["ConfigMap", "margay-redis"]["data"]
    for name in ("redis.conf", "start.sh"):
        assert conf[name].rstrip() == (DEPLOY / "redis" / name).read_text().rstrip(), f"redis.yaml's {name} is not deploy/redis/{name}"


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
