"""deploy/redis: the users that start.sh makes, and what KEDA looks at, with a real redis-server."""
import contextlib, os, re, shutil, signal, socket, subprocess, sys, time

import pytest

from conftest import DEPLOY, ROOT

sys.path.insert(0, str(ROOT / "bench" / "fleet"))
import simulate

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")


@contextlib.contextmanager
def started(folder, file, *args):
    """connect(user, password) to a server started by start.sh with a file as it stands but for place and port."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    conf = folder / file
    text = (DEPLOY / "redis" / file).read_text()
    for old, new in (("bind * -::*", "bind 127.0.0.1"), ("port 6379", f"port {port}"), ("dir /data", f"dir {folder}")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    conf.write_text(text)
    p = subprocess.Popen(["sh", DEPLOY / "redis" / "start.sh", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env={**os.environ, "REDIS_PASSWORD": "secret1", "REDIS_PROBE_PASSWORD": "secret2", "REDIS_CONF": str(conf), "REDIS_MAXMEMORY": "64mb"})
    made = []

    def connect(user=None, password=None):
        end = time.monotonic() + 20
        while True:
            try:
                made.append(simulate.Redis(port))
                break
            except OSError:
                assert p.poll() is None and time.monotonic() < end, p.stdout.read()
                time.sleep(0.02)
        if user:
            assert made[-1]("AUTH", user, password) == "OK"
        return made[-1]
    connect.process = p
    try:
        yield connect
    finally:
        for r in made:
            r.socket.close()
        p.terminate()
        p.wait(20)
        p.stdout.close()


@pytest.fixture
def redis(tmp_path):
    with started(tmp_path / "queue", "redis.conf") as connect:
        yield connect


@pytest.fixture
def cache(tmp_path):
    with started(tmp_path / "cache", "cache.conf") as connect:
        yield connect


def refused(r, *command):
    try:
        r(*command)
    except RuntimeError as e:
        assert str(e).startswith(("NOAUTH", "NOPERM", "WRONGPASS", "ERR The user executing the script can't")), e
        return True
    return False


def test_users(redis):
    r = redis()
    assert refused(r, "GET", "x") and refused(r, "AUTH", "margay", "wrong") and refused(r, "AUTH", "default", "")
    r = redis("margay", "secret1")
    assert r("SET", "margay:x", "1") == "OK" and r("EVAL", "return redis.call('GET', KEYS[1])", 1, "margay:x") == "1"
    assert r("CLIENT", "UNBLOCK", r("CLIENT", "ID")) == 0 and "redis_version" in r("INFO", "server")
    for command in (("GET", "other"), ("EVAL", "return redis.call('GET', 'other')", 0), ("KEYS", "*"), ("FLUSHALL",), ("CONFIG", "GET", "*"),
                    ("SHUTDOWN",), ("ACL", "LIST"), ("SCRIPT", "FLUSH"), ("PUBLISH", "a", "b"), ("MONITOR",), ("REPLICAOF", "a", 1)):
        assert refused(r, *command), command
    r = redis("probe", "secret2")
    assert r("PING") == "PONG" and r("XLEN", "margay:{q:default}:jobs") == 0
    assert isinstance(r("LATENCY", "LATEST"), list) and refused(r, "LATENCY", "RESET")
    assert refused(r, "GET", "margay:x") and refused(r, "XRANGE", "margay:{q:default}:jobs", "-", "+") and refused(r, "SET", "margay:x", "1")


def test_settings(redis):
    r = redis("margay", "secret1")
    memory, persistence = r("INFO", "memory"), r("INFO", "persistence")
    assert "maxmemory:67108864" in memory and "maxmemory_policy:noeviction" in memory and "aof_enabled:1" in persistence


def test_the_cache_is_in_memory_alone(cache, tmp_path):
    r = cache("margay", "secret1")
    memory, persistence = r("INFO", "memory"), r("INFO", "persistence")
    assert "maxmemory:67108864" in memory and "maxmemory_policy:noeviction" in memory and "aof_enabled:0" in persistence
    assert r("SET", "margay:x", "1") == "OK" and refused(r, "BGSAVE")
    cache.process.terminate()
    assert cache.process.wait(20) == 0 and [f.name for f in (tmp_path / "cache").iterdir()] == ["cache.conf"]


def test_the_queue_is_synced_before_it_answers(tmp_path):
    """As the server itself understands redis.conf. What was acknowledged is there after kill -9, also in the midst of many."""
    folder, admin = tmp_path / "queue", ("--user", "admin", "on", ">secret3", "+@all")
    with started(folder, "redis.conf", *admin) as connect:
        r = connect("admin", "secret3")
        for name, value in (("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no"), ("save", "")):
            assert r("CONFIG", "GET", name) == [name, value]
        r = connect("margay", "secret1")
        for i in range(50):
            assert r("XADD", "margay:{q:default}:jobs", "*", "i", i)
        connect.process.send_signal(signal.SIGKILL)
        connect.process.wait(20)
    with started(folder, "redis.conf") as connect:
        assert connect("margay", "secret1")("XLEN", "margay:{q:default}:jobs") == 50


def may(r, user, commands):
    """Those that Redis lets `user` run, by ACL DRYRUN; keys aside."""
    out = set()
    for name, arity in commands.items():
        words = name.split("|")
        reply = r.attempt("ACL", "DRYRUN", user, *words, *["margay:{q:sales}:x"] * (abs(arity) - len(words)))
        if "no permissions to run" not in reply:
            out.add(name)
    return out


def test_margay_may_do_what_the_documents_say(tmp_path):
    """Whatever docs/redis.md and docs/fleet.md give a user, start.sh's has, but for what Redis itself calls dangerous, or ends others' scripts."""
    class Admin(simulate.Redis):
        def attempt(self, *args):
            try:
                return str(self(*args))
            except RuntimeError as e:
                return str(e)
    with started(tmp_path / "queue", "redis.conf", "--user", "admin", "on", ">secret3", "+@all") as connect:
        r = Admin(connect().socket.getpeername()[1])
        assert r("AUTH", "admin", "secret3") == "OK"
        commands = {}
        for c in r("COMMAND"):
            inner = c[9] if len(c) > 9 else []
            commands.update({i[0]: i[1] for i in inner} if inner else {c[0]: c[1]})
        assert len(commands) > 200 and "client|unblock" in commands
        withheld = {*r("ACL", "CAT", "dangerous"), "script|flush", "script|kill"} | {c for c in commands if c.endswith("|help")}
        margay = may(r, "margay", commands)
        assert "evalsha" in margay and not margay & {"flushall", "keys", "config|set", "acl|setuser", "shutdown"}
        for file, pattern in (("redis.md", r"^    user (margay on .*)$"), ("fleet.md", r"ACL SETUSER (margay on .*?)`")):
            rights = re.search(pattern, (ROOT / "docs" / file).read_text(), re.M)[1].replace("PASSWORD", "secret").replace("NAME", "sales").split()
            assert r("ACL", "SETUSER", "told", "reset", *rights[1:]) == "OK"
            told = may(r, "told", commands)
            assert len(told) > 15 and "evalsha" in told
            assert told - withheld <= margay, (file, told - withheld - margay)
            for pattern in (w for w in rights if w.startswith("~")):
                assert pattern.startswith("~margay:"), pattern  # what start.sh gives
        assert r("ACL", "SETUSER", "margay", "-xautoclaim", "-hset") == "OK"  # it would be seen
        assert told - withheld - may(r, "margay", commands) >= {"xautoclaim", "hset"}


@pytest.mark.parametrize("password", ["", "a b", 'a"b'])
def test_passwords_that_would_not_do(password):
    p = subprocess.run(["sh", DEPLOY / "redis" / "start.sh"], capture_output=True, text=True, env={"PATH": os.environ["PATH"], "REDIS_PASSWORD": password})
    assert p.returncode != 0 and "REDIS_PASSWORD" in p.stderr


needs_script = pytest.mark.skipif(not simulate.LUA.exists(), reason="no src/store/job_queue.lua: the queue isn't built in")


@needs_script
def test_length_is_what_keda_may_scale_by(redis):
    """The stream's length is the number of jobs that wait or run, through a job's whole life; the script works with the user's rights."""
    r = redis("margay", "secret1")
    q, probe = simulate.Queue(r, "margay:{q:default}:"), redis("probe", "secret2")

    def length():
        return probe("XLEN", "margay:{q:default}:jobs")
    for i in range(10):
        assert q.submit(1, f"job-{i:032x}", "a" * 32, None, 100)[0] == "ok"
    assert length() == 10
    taken = q.take(2, "w", 4, [])
    assert len(taken) == 4 and length() == 10
    q.end(3, taken[0][0], taken[0][1])
    q.end(3, taken[2][0], taken[2][1])
    assert length() == 8
    q(4, "cancel", f"job-{9:032x}", "a" * 32)
    assert length() == 7
    q(5, "release", taken[1][0], taken[1][1], 0)
    assert length() == 7
    for job in q.take(6, "w", 10, []):
        q.end(7, job[0], job[1])
    q.end(7, taken[3][0], taken[3][1])
    assert length() == 0


# --- the simulation ---
COSTS = ["--costs", str(ROOT / "bench" / "fleet" / "costs.json")]


def fleet(workers, *args, script=None):
    o = simulate.options([*COSTS, *map(str, args)])
    return simulate.simulate(o, workers, simulate.costs_for(o, workers), script)


@needs_script
def test_fleet_serves_everybody():
    r = fleet(4, "--load", 0.7, "--seconds", 30)
    assert r["done"] == r["jobs"] > 50 and r["refused"] == r["left_waiting"] == r["left_entries"] == 0
    assert r["wait_p95"] < 10 and r["script_calls"] > 3 * r["jobs"]
    again = fleet(4, "--load", 0.7, "--seconds", 30)
    assert {k: v for k, v in again.items()} == r  # same seed, same fleet


@needs_script
def test_a_heap_of_jobs_holds_up_nobody_else():
    """One tenant's thousand jobs: the others wait as if they weren't there. By the order of coming alone they would wait behind them."""
    args = ("--load", 0.5, "--seconds", 60, "--burst", 400)
    fair = fleet(4, *args)
    assert fair["done"] == fair["jobs"] and fair["left_entries"] == 0
    text = simulate.LUA.read_text()
    assert text.count("running * TURN + number(head[2])") == 1
    unfair = fleet(4, *args, script=text.replace("running * TURN + number(head[2])", "number(head[2])"))
    assert fair["small_wait_p95"] < 8 and unfair["small_wait_p95"] > 5 * fair["small_wait_p95"], (fair, unfair)


@needs_script
def test_redis_has_its_limits():
    """Load grows with the workers; beyond one Redis' power waits grow without end, which is what the sizing guide says."""
    few, more = fleet(4, "--seconds", 20), fleet(16, "--seconds", 20)
    assert 2 < more["redis_load"] / few["redis_load"] < 8 and more["redis_ops_per_s"] > 3 * few["redis_ops_per_s"]
