"""margay doctor: made-up machines with one fault each, in text and JSON; models; and this machine as it is."""
import json
import shutil
import subprocess

import pytest

from machines import AMX, GB, healthy
from program import BIN, DEMO, clean_env

LEVELS = ["ok", "note", "warning", "problem"]


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "root").mkdir()
    return healthy(tmp_path / "root")


def judge(margay, m, *args, env=None):
    """The JSON's object and the text of the same machine; they must agree, and so must the exit status."""
    env = {"MARGAY_CPU": None, **(env or {})}
    j = margay("doctor", "--root", m.root, "--json", *args, env=env)
    t = margay("doctor", "--root", m.root, *args, env=env)
    o = json.loads(j.stdout)
    worst = max(LEVELS.index(f["level"]) for f in o["findings"])
    assert j.returncode == t.returncode == (1 if worst == 3 else 0), (j.returncode, t.returncode, o)
    assert [o["notes"], o["warnings"], o["problems"]] == [
        sum(f["level"] == level for f in o["findings"]) for level in LEVELS[1:]]
    for f in o["findings"]:
        assert f"{f['level']:<8} {f['found']}\n" in t.stdout
        if f["level"] == "ok":
            assert f["why"] is None and f["mend"] is None
        else:
            assert f"why:  {f['why']}\n" in t.stdout and f"mend: {f['mend']}\n" in t.stdout
            assert f["why"].endswith(".") and len(f["mend"]) > 5
    assert not o["expected"] and "expected" not in t.stdout, "another machine's speed can't be measured"
    return o


def bad(o):
    return {f["id"]: f for f in o["findings"] if f["level"] != "ok"}


def only(o, id, level, *words):
    """There is this finding and no other, and it has these words."""
    assert set(bad(o)) == {id}, bad(o)
    f = bad(o)[id]
    assert f["level"] == level, f
    for word in words:
        assert word in f["found"] + " | " + f["mend"], (word, f)
    return f


def test_healthy(margay, machine):
    o = judge(margay, machine)
    assert not bad(o)
    assert {f["id"] for f in o["findings"]} == {"isa", "cores", "model", "memory", "huge-pages", "open-files", "tmp"}
    m = o["machine"]
    assert (m["tier"], m["processors"], m["cores"], m["threads"], m["quota"], m["place"]) == ("amx", 8, 8, 8, None, "host")
    assert m["cpu"] == "Made Up 9000" and m["memory_bytes"] == 64 << 30
    assert 2.0e9 < o["model"]["weight_bytes"] < 2.2e9  # int8 of the 2B shapes: 2,025 MiB measured (docs/speed.md)


def test_nothing_known(margay, tmp_path):
    (tmp_path / "empty").mkdir()
    p = margay("doctor", "--root", tmp_path / "empty", "--json")
    o = json.loads(p.stdout)
    assert p.returncode == 0 and set(bad(o)) == {"cores", "tmp"}


# --- processor
@pytest.mark.parametrize("version", [1, 2])
def test_quota(margay, machine, version):
    if version == 2:
        machine.group("cpu.max", "250000 100000\n").group("cpu.stat", "usage_usec 5\nnr_periods 200\nnr_throttled 50\n")
    else:
        machine.group("cpu.cfs_quota_us", "250000\n", 1).group("cpu.cfs_period_us", "100000\n", 1)
    o = judge(margay, machine)
    f = only(o, "quota", "warning", "2.5 processors", "8 cores", "3 threads", "CPUQuota=800%")
    assert ("25 % of the periods" in f["found"]) == (version == 2)
    assert o["machine"]["threads"] == 3 and o["machine"]["quota"] == 2.5


def test_quota_in_docker(margay, machine):
    machine.group("cpu.max", "150000 100000\n").write("/.dockerenv", "")
    o = judge(margay, machine)
    assert set(bad(o)) == {"quota", "container"}
    assert bad(o)["quota"]["mend"] == "docker update --cpus 8 CONTAINER"


def test_quota_of_all_cores_is_no_finding(margay, machine):
    assert not bad(judge(margay, machine.group("cpu.max", "800000 100000\n")))


def test_siblings_used(margay, machine):
    machine.processors(16, siblings=True, allowed="0-1,8-9")
    f = only(judge(margay, machine), "smt", "warning", "4 processors are siblings on 2 cores", "has 8", "AllowedCPUs=0-15")
    assert "one thread" in f["why"]


def test_siblings_with_all_allowed(margay, machine):
    o = judge(margay, machine.processors(16, siblings=True))
    assert not bad(o) and o["machine"]["threads"] == 8


@pytest.mark.parametrize("how", ["option", "environment"])
def test_threads_beyond_the_cores(margay, machine, how):
    machine.processors(16, siblings=True)
    args, env = (["--threads", "16"], {}) if how == "option" else ([], {"LLAMA_ARG_THREADS": "16"})
    only(judge(margay, machine, *args, env=env), "threads", "warning", "--threads 16 on 8 cores", "--threads 8")


def test_threads_beyond_the_quota(margay, machine):
    o = judge(margay, machine.group("cpu.max", "200000 100000\n"), "-t", "8")
    assert set(bad(o)) == {"quota", "threads"} and "--threads 2 " in bad(o)["threads"]["mend"]


def test_cpuset_of_one(margay, machine):
    only(judge(margay, machine.processors(16, allowed="5")), "cpuset", "warning", "1 of 16 processors, 1 core")


def test_cpuset_of_some(margay, machine):
    only(judge(margay, machine.processors(16, allowed="0-3")), "cpuset", "note", "4 of 16", "taskset -c 0-15")


def test_one_core(margay, machine):
    shutil.rmtree(machine.root / "sys/devices/system/cpu")
    only(judge(margay, machine.processors(1)), "cores", "warning", "one core")


def test_two_nodes(margay, machine):
    o = judge(margay, machine.processors(16, siblings=True, nodes=2))
    f = only(o, "numa", "warning", "node 0: 4 cores from processor 0, 34.4 GB", "node 1: 4 cores from processor 4",
             "4 threads", "4 of 8 cores", "numactl --cpunodebind=0 --membind=0 margay serve --port 8080",
             "numactl --cpunodebind=1 --membind=1 margay serve --port 8081")
    assert o["machine"]["nodes"] == 2 and "node" in f["why"]


def test_powersave(margay, machine):
    for i in range(4):
        machine.write(f"/sys/devices/system/cpu/cpu{i}/cpufreq/scaling_governor", "powersave\n")
    only(judge(margay, machine), "governor", "warning", "powersave on 4 of 8 cores", "cpupower frequency-set -g performance")


@pytest.mark.parametrize("preference, found", [("balance_performance", False), ("performance", False), ("power", True)])
def test_powersave_of_intel_pstate(margay, machine, preference, found):
    """There powersave is the ordinary governor, and the preference decides."""
    for i in range(8):
        cpu = f"/sys/devices/system/cpu/cpu{i}/cpufreq"
        machine.write(f"{cpu}/scaling_governor", "powersave\n").write(f"{cpu}/scaling_driver", "intel_pstate\n")
        machine.write(f"{cpu}/energy_performance_preference", preference + "\n")
    assert set(bad(judge(margay, machine))) == ({"governor"} if found else set())


def test_clock(margay, machine):
    machine.write("/sys/devices/system/cpu/cpu3/cpufreq/scaling_max_freq", "1400000\n")
    only(judge(margay, machine), "frequency", "warning", "40 % on 1 of 8", "frequency-set -u")
    machine.write("/sys/devices/system/cpu/cpu3/cpufreq/scaling_max_freq", "3500000\n")
    machine.write("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")
    only(judge(margay, machine), "turbo", "warning", "switched off", "echo 0 | sudo tee")
    machine.remove("/sys/devices/system/cpu/intel_pstate/no_turbo").write("/sys/devices/system/cpu/cpufreq/boost", "0\n")
    only(judge(margay, machine), "turbo", "warning", "echo 1 | sudo tee")


def test_neighbours(margay, machine):
    machine.write("/proc/stat", "cpu  100 0 100 700 0 0 0 100 0 0\n")
    only(judge(margay, machine), "steal", "warning", "10 % of the processors' time", "vmstat")
    machine.write("/proc/stat", "cpu  100 0 100 700 0 0 0 1 0 0\n").write("/proc/loadavg", "5.5 1 1 1/1 1\n")
    only(judge(margay, machine), "load", "note", "load 5.5 on 8 processors")


# --- instruction set
@pytest.mark.parametrize("flags, tier, level", [
    ("fpu sse2 avx", "ref", "problem"),
    ("fpu avx2 f16c", "ref", "problem"),
    ("xavx2 avx2x fma f16c", "ref", "problem"),
    ("avx2 fma f16c", "avx2", "note"),
    ("avx2 fma f16c avx_vnni", "avxvnni", None),
    ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl", "avx512", "note"),
    ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni", "vnni", None),
    ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16", "bf16", None),
    (AMX, "amx", None),
])
def test_instruction_sets(margay, machine, flags, tier, level):
    o = judge(margay, machine.flags(flags))
    assert o["machine"]["tier"] == tier
    if level:
        only(o, "isa", level, f"instruction set: {tier}", *(["AVX2"] if tier == "ref" else ["VNNI"]))
    else:
        assert not bad(o)


def test_no_avx2_in_a_virtual_machine(margay, machine):
    f = only(judge(margay, machine.flags("fpu sse2 hypervisor")), "isa", "problem", "qemu -cpu host", "no AVX2")
    assert "tens of times" in f["why"]


def test_tier_forced_down_here(margay):
    p = margay("doctor", "--quick", "--json", env={"MARGAY_CPU": "ref"})
    f = bad(json.loads(p.stdout)).get("isa")
    if "avx2" not in open("/proc/cpuinfo").read():
        pytest.skip("this machine has nothing above ref")
    assert p.returncode == 1 and f["level"] == "problem" and f["mend"] == "unset MARGAY_CPU"
    o = json.loads(margay("doctor", "--quick", "--json", env={"MARGAY_CPU": "nonsense"}).stdout)
    assert "nonsense" in bad(o)["isa-override"]["found"]


# --- memory
def test_huge_pages_never(margay, machine):
    machine.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    only(judge(margay, machine), "huge-pages", "note", "never", "echo always | sudo tee /sys/kernel/mm/")


def test_little_memory(margay, machine):
    only(judge(margay, machine.memory(2 * GB, GB)), "memory", "problem", "2.15 GB of memory", "2.14 of weights", "int4")


def test_long_context(margay, machine):
    machine.memory(16 * GB, 15 * GB)
    assert not bad(judge(margay, machine, "-c", "8192"))
    o = judge(margay, machine, "-c", "131072")  # 114,688 bytes a token: 28 layers, 8 heads of 128, twice, bf16
    assert only(o, "memory", "problem", "takes 17.4")
    assert o["model"]["question_bytes"] - o["model"]["weight_bytes"] == (256 << 20) + 131072 * 114688


def test_memory_taken_by_others(margay, machine):
    only(judge(margay, machine.memory(16 * GB, 2 * GB)), "memory", "warning", "2.15 GB of 17.18 GB are available", "ps -eo")


@pytest.mark.parametrize("version", [1, 2])
def test_memory_limit_below_the_weights(margay, machine, version):
    machine.group("memory.max" if version == 2 else "memory.limit_in_bytes", f"{2 << 30}\n", version)
    only(judge(margay, machine), "memory-limit", "problem", "memory limit is 2.15 GB", "/sys/fs/cgroup",
         "systemctl set-property UNIT MemoryMax=4G", "int4")


def test_memory_limit_that_int4_fits(margay, machine):
    machine.group("memory.max", f"{2300 << 20}\n")
    assert set(bad(judge(margay, machine))) == {"memory-limit"}
    assert not bad(judge(margay, machine, "--weights", "int4"))


def test_memory_limit_in_kubernetes(margay, machine):
    machine.group("memory.max", f"{1 << 30}\n").write("/run/secrets/kubernetes.io/x", "")
    o = judge(margay, machine)
    assert set(bad(o)) == {"memory-limit", "container"} and o["machine"]["place"] == "kubernetes"
    assert bad(o)["memory-limit"]["mend"].startswith("kubectl set resources deployment/NAME --limits=memory=")


def test_swap(margay, machine):
    assert not bad(judge(margay, machine.memory(64 * GB, 60 * GB, 8 * GB, 8 * GB - 1000)))
    only(judge(margay, machine.memory(64 * GB, 60 * GB, 8 * GB, 7 * GB)), "swap", "warning", "1.07 GB of 8.59 GB", "swapoff")


def test_overcommit(margay, machine):
    machine.write("/proc/sys/vm/overcommit_memory", "2\n")
    only(judge(margay, machine), "overcommit", "warning", "vm.overcommit_memory=2", "sysctl vm.overcommit_memory=0")


# --- files, container
def test_open_files(margay, machine):
    only(judge(margay, machine.files(1024)), "open-files", "warning", "at most 1024", "1344", "ulimit -n 65536")
    assert not bad(judge(margay, machine.files("unlimited")))
    assert not bad(judge(margay, machine.files(1344)))


def test_address_space(margay, machine):
    only(judge(margay, machine.files(1 << 16, 3 << 30)), "address-space", "problem", "3.22 GB", "ulimit -v unlimited")


def test_tmp_full(margay, machine):
    only(judge(margay, machine.write("/statvfs", f"/ 1 1\n/tmp {1 << 30} 4096\n")), "tmp", "warning", "full: 0 MB free", "TMPDIR")


def test_tmp_not_writable(margay, machine):
    machine.mounts("/tmpx rw - ext4 x rw", "/tmp rw - tmpfs x rw", "/tmp ro,nosuid - tmpfs x rw")
    only(judge(margay, machine), "tmp", "warning", "read-only", "remount,rw /tmp")


def test_tmp_missing(margay, machine):
    (machine.root / "tmp").rmdir()
    only(judge(margay, machine), "tmp", "warning", "is not there", "install -d -m 1777 /tmp")


def test_tmp_noexec(margay, machine):
    machine.mounts("/tmp rw,noexec - tmpfs x rw")
    only(judge(margay, machine), "tmp-noexec", "note", "noexec", "remount,exec /tmp")


@pytest.mark.parametrize("path, text, place, words", [
    ("/.dockerenv", "", "docker", "docker inspect"),
    ("/run/.containerenv", "", "container", "podman inspect"),
    ("/run/systemd/container", "lxc\n", "container", "(lxc)"),
    ("/run/secrets/kubernetes.io/serviceaccount/token", "x", "kubernetes", "kubectl describe pod"),
    ("/proc/self/cgroup", "0::/kubepods/pod1/x\n", "kubernetes", "Kubernetes"),
    ("/proc/self/cgroup", "0::/system.slice/docker-0123.scope\n", "docker", "Docker"),
])
def test_containers(margay, machine, path, text, place, words):
    o = judge(margay, machine.write(path, text))
    only(o, "container", "note", words)
    assert o["machine"]["place"] == place


def test_several_at_once(margay, machine):
    machine.flags("sse2").files(256).memory(GB, GB)
    o = judge(margay, machine)
    assert {k: f["level"] for k, f in bad(o).items()} == {"isa": "problem", "memory": "problem", "open-files": "warning"}
    assert o["problems"] == 2


# --- model
def test_model_folder(margay, machine, tmp_path):
    cache = tmp_path / "cache"
    o = judge(margay, machine, "-m", DEMO, "--cache-dir", cache)
    only(o, "model", "note", "is not converted yet (int8)", f"margay convert {DEMO} --weights int8 -o FILE")
    assert not cache.exists(), "doctor changes nothing"
    p = margay("ask", "-m", DEMO, "--cache-dir", cache, "-n", "1", "Hello")
    assert p.returncode == 0, p.stderr
    o = judge(margay, machine, "-m", DEMO, "--cache-dir", cache, "--verify")
    assert not bad(o)
    file = next(cache.glob("*.safetensors"))
    found = next(f for f in o["findings"] if f["id"] == "model")["found"]
    assert str(file) in found and "checksum as written" in found
    data = bytearray(file.read_bytes())
    data[-5000] ^= 1
    file.write_bytes(data)
    assert not bad(judge(margay, machine, "-m", DEMO, "--cache-dir", cache)), "only --verify reads it all"
    only(judge(margay, machine, "-m", DEMO, "--cache-dir", cache, "--verify"), "model", "problem", f"rm {file}")
    file.write_bytes(data[:5000])
    only(judge(margay, machine, "-m", DEMO, "--cache-dir", cache), "model", "note", "can't be used")


def test_model_file(margay, machine, tmp_path):
    file = tmp_path / "demo.safetensors"
    assert margay("convert", DEMO, "-o", file, "--weights", "int4").returncode == 0
    o = judge(margay, machine, "-m", file, "--verify")
    assert not bad(o) and "int4 weights" in next(f for f in o["findings"] if f["id"] == "model")["found"]
    assert 0 < o["model"]["weight_bytes"] <= file.stat().st_size
    file.write_bytes(file.read_bytes()[:-4096])
    only(judge(margay, machine, "-m", file), "model", "problem", "margay pull")


def test_model_used_as_it_is(margay, machine):
    o = judge(margay, machine, "-m", DEMO, "--weights", "bf16")
    assert not bad(o) and o["model"]["name"] == str(DEMO)


def test_no_model(margay, machine, tmp_path):
    only(judge(margay, machine, "-m", tmp_path / "none"), "model", "problem", "margay pull Qwen/Qwen3-VL-2B-Instruct")


def test_cache_folder(margay, machine, tmp_path):
    (tmp_path / "file").write_text("")
    o = judge(margay, machine, "-m", DEMO, "--cache-dir", tmp_path / "file" / "cache")
    assert set(bad(o)) == {"model", "cache"} and "can't be written" in bad(o)["cache"]["found"]
    o = judge(margay, machine, "-m", DEMO, env={"HOME": None, "XDG_CACHE_HOME": None})
    assert bad(o)["cache"]["level"] == "warning" and "HOME" in bad(o)["cache"]["found"]


# --- usage
@pytest.mark.parametrize("args, words", [
    (["word"], ["no arguments"]),
    (["--root", "/no/such"], ["--root", "/no/such"]),
    (["--redis", "http://h"], ["redis://"]),
    (["--redis", "redis://u:canary@h:x"], ["port"]),
    (["--cpu-range", "x"], ["processors"]),
    (["--threads", "many"], ["--threads"]),
])
def test_wrong_usage(margay, args, words):
    p = margay("doctor", "--quick", *args)
    assert p.returncode == 2 and p.stdout == "", (p.stdout, p.stderr)
    assert all(word in p.stderr for word in words) and "canary" not in p.stderr


def test_root_and_cpu_range(margay, machine):
    p = margay("doctor", "--root", machine.root, "--cpu-range", "0")
    assert p.returncode == 2 and "--cpu-range" in p.stderr


def test_help(margay):
    p = margay("help", "doctor")
    for word in ("--redis", "--quick", "--root", "--verify", "--json", "MARGAY_REDIS", "problem"):
        assert word in p.stdout
    assert "MARGAY_ROOT" not in p.stdout


# --- this machine
def test_here(margay):
    """As it is: measured, and the same arithmetic as src/cli/doctor_speed.c has in words."""
    p = margay("doctor", "--json")
    o = json.loads(p.stdout)
    assert p.returncode == (1 if o["problems"] else 0) and p.stderr.count("\n") <= 2
    m = o["machine"]
    assert m["cores"] >= 1 and m["threads"] >= 1 and m["memory_bytes"] > 1 << 28
    assert o["limits"]["read_gb_s"] > 0.5 and o["limits"]["f32_gflop_s"] > 0.1
    small, large = o["expected"]
    assert small["image_tokens"] == 169 and large["image_tokens"] == 1014
    assert 0 < small["first_token_s"] < large["first_token_s"] and 0 < small["ms_per_token"] < large["ms_per_token"]
    for e in (small, large):
        assert e["answer_s"] == pytest.approx(e["first_token_s"] + 63e-3 * e["ms_per_token"], rel=0.01)
    # 1.75 GB are read for a token at int8, and never faster than the bandwidth allows.
    assert small["ms_per_token"] >= 1.7e3 / o["limits"]["read_gb_s"] * 0.99
    text = margay("doctor").stdout
    assert "expected with qwen3-vl-2b at int8" in text and "memory bandwidth:" in text


def test_the_same_tier_by_cpuid_and_by_flags(margay, machine):
    """Of this machine: what CPUID says, and what /proc/cpuinfo says to doctor --root."""
    shutil.copy("/proc/cpuinfo", machine.root / "proc/cpuinfo")
    here = json.loads(margay("doctor", "--quick", "--json", env={"MARGAY_CPU": None}).stdout)["machine"]
    there = judge(margay, machine)["machine"]
    assert (here["tier"], here["cpu"]) == (there["tier"], there["cpu"])


def test_quick_is_quick_and_limits_are_seen(tmp_path):
    """A real limit of open files and a real affinity of one processor."""
    cmd = f"ulimit -n 1000; exec taskset -c 0 {BIN} doctor --quick --json"
    p = subprocess.run(["bash", "-c", cmd], capture_output=True, text=True, env=clean_env(tmp_path), timeout=60)
    o = json.loads(p.stdout)
    assert "at most 1000" in bad(o)["open-files"]["found"] and o["machine"]["threads"] == 1
    assert not o["expected"] and not o["limits"]


def test_tmp_of_this_machine(margay, tmp_path):
    o = json.loads(margay("doctor", "--quick", "--json", env={"TMPDIR": str(tmp_path / "none")}).stdout)
    assert "is not there" in bad(o)["tmp"]["found"] and str(tmp_path / "none") in bad(o)["tmp"]["mend"]


def test_tmp_really_full_and_noexec(tmp_path):
    """On a file system of 1 MB, where this user may mount one in a namespace of its own."""
    script = f"mount -t tmpfs -o size=1m,noexec x {tmp_path} && TMPDIR={tmp_path} exec {BIN} doctor --quick --json " \
             f"-m {DEMO} --cache-dir {tmp_path}/cache"
    p = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, env=clean_env(tmp_path))
    if not p.stdout:
        pytest.skip(f"no namespaces here: {p.stderr[:80]}")
    found = bad(json.loads(p.stdout))
    assert "is full: 1 MB free" in found["tmp"]["found"] and "noexec" in found["tmp-noexec"]["found"]
    assert "has 0.00 GB of room" in found["cache"]["found"]
