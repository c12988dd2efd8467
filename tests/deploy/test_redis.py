"""deploy/redis: the users that start.sh makes, and what KEDA looks at, with a real redis-server."""
import os, pathlib, shutil, socket, subprocess, sys, time

import pytest

from conftest import DEPLOY, ROOT

sys.path.insert(0, str(ROOT / "bench" / "fleet"))
import simulate

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")


@pytest.fixture
def redis(tmp_path):
    """connect(user, password) to a server started by start.sh with redis.conf as it stands but for place and port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    conf = tmp_path / "redis.conf"
    text = (DEPLOY / "redis" / "redis.conf").read_text()
    for old, new in (("bind * -::*", "bind 127.0.0.1"), ("port 6379", f"port {port}"), ("dir /data", f"dir {tmp_path}")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    conf.write_text(text)
    p = subprocess.Popen(["sh", DEPLOY / "redis" / "start.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
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
    yield connect
    for r in made:
        r.socket.close()
    p.terminate()
    p.wait(20)
    p.stdout.close()


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
    assert refused(r, "GET", "margay:x") and refused(r, "XRANGE", "margay:{q:default}:jobs", "-", "+") and refused(r, "SET", "margay:x", "1")


def test_settings(redis):
    r = redis("margay", "secret1")
    memory, persistence = r("INFO", "memory"), r("INFO", "persistence")
    assert "maxmemory:67108864" in memory and "maxmemory_policy:noeviction" in memory and "aof_enabled:1" in persistence


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
