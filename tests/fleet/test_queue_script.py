"""The queue's script against a real redis-server: what it promises, operation by operation. No margay runs here."""
import hashlib, importlib.util, pathlib, random, time

import pytest

from resp import Redis, RedisError

ROOT = pathlib.Path(__file__).resolve().parents[2]
LUA = (ROOT / "src" / "store" / "job_queue.lua").read_text()
BASE = "margay:{q:t}:"
ANN, BOB = "a" * 32, "b" * 32
LEASE = 300  # ms


class Queue:
    def __init__(self, port):
        self.redis = Redis(port)
        self.sha = self.redis("SCRIPT", "LOAD", LUA)
        self.n = 0

    def __call__(self, op, *args):
        return self.redis("EVALSHA", self.sha, 1, BASE + "meta", op, *args)

    def blob(self, data, tenant=ANN):
        digest = hashlib.sha256(data).hexdigest()
        assert self("blob", tenant, digest, 600, data) == "ok"
        return digest

    def ttl(self, digest, tenant=ANN):
        return self.redis("TTL", BASE + "blob:" + tenant + ":" + digest)

    def submit(self, tenant=ANN, priority="normal", id=None, blobs=(), wait=60000, most=100, bytes=10, max_bytes=1 << 30, gw="g1",
               body="{}"):
        self.n += 1
        id = id or f"job-{self.n:032x}"
        flat = [x for b in blobs for x in b]
        self.last = self("submit", id, tenant, priority, 1, gw, wait, 60, 600, most, max_bytes, bytes, "/v1/x", body, len(blobs), *flat)
        return id

    def take(self, worker="w1", n=1, have=(), aged=1000):
        return [j for j in self("take", worker, n, 8, aged, *have)[1:]]

    def ids(self, *args, **more):
        return [j[0] for j in self.take(*args, **more)]

    def emit(self, id, attempt, data="", state="", code="", head="", at=None):
        at = self.redis("HGET", BASE + "job:" + id, "off") or 0 if at is None else at
        return self("emit", id, attempt, head, at, data, state, code)

    def state(self, id, tenant=ANN):
        v = self("state", id, tenant, "")
        return v[0] if v else None

    def events(self, id):
        return [(e[0], dict(zip(e[1][::2], e[1][1::2]))) for e in self.redis("XRANGE", BASE + "ev:" + id, "-", "+")]

    def meta(self, field):
        return int(self.redis("HGET", BASE + "meta", field) or 0)

    def reap(self, lease=LEASE, tries=3):
        return self("reap", lease, tries)

    def late(self):
        """Until leases have run out, somebody being there all the while."""
        end = time.monotonic() + LEASE * 1.4e-3
        while time.monotonic() < end:
            self("look")
            time.sleep(0.05)


@pytest.fixture
def queue(redis):
    q = Queue(redis().port)
    yield q
    q.redis.close()


def test_a_job_is_taken_answered_and_over_exactly_once(queue):
    id = queue.submit(body='{"a":1}')
    assert queue.last == ["ok", 0] and queue.state(id) == "waiting"
    (job,) = queue.take()
    assert job[:8] == [id, "1", ANN, "normal", "1", "/v1/x", '{"a":1}', ""]
    assert queue.take() == [] and queue.state(id) == "running"
    assert queue.emit(id, 1, "hello ", head="200") == "ok"
    assert queue.emit(id, 1, "world", "done") == "ok"
    assert queue.emit(id, 1, "more") == "lost" and queue.emit(id, 1, "", "failed") == "lost"
    assert [e[0] for e in queue.events(id)] == ["0-1", "6-0", "11-0", "11-2"]
    assert queue.events(id)[-1][1] == {"e": "done", "c": ""}
    assert queue.state(id) == "done" and queue.redis("XLEN", BASE + "jobs") == 0
    assert [queue.meta(f) for f in ("waiting", "bytes", "submitted", "ended:done")] == [0, 0, 1, 1]


def test_a_submit_may_be_repeated(queue):
    id = queue.submit()
    queue.submit(id=id)
    assert queue.last == ["known", "waiting"] and len(queue.take(n=5)) == 1
    queue.emit(id, 1, "x", "done")
    queue.submit(id=id)
    assert queue.last == ["known", "done"] and queue.take() == []


def test_of_a_lost_workers_attempt_nothing_is_taken_any_more(queue):
    id = queue.submit()
    queue.reap()
    queue.take("w1")
    queue.emit(id, 1, "abc", head="200")
    assert queue.reap() == 0
    queue.late()
    assert queue.reap() == 1 and queue.state(id) == "waiting" and queue.meta("takeovers") == 1
    assert queue.emit(id, 1, "of the dead") == "lost"
    (job,) = queue.take("w2")
    assert job[0] == id and job[1] == "2" and job[9] == "3"  # it goes on behind 3 bytes
    assert queue.emit(id, 1, "of the dead") == "lost" and queue("beat", "w1", 1000, 1, "", id, 1) == [id, "1", "lost"]
    assert queue.emit(id, 2, "def", "done", head="200") == "ok"
    assert "".join(e[1].get("d", "") for e in queue.events(id)) == "abcdef"
    assert len([e for e in queue.events(id) if "h" in e[1]]) == len([e for e in queue.events(id) if "e" in e[1]]) == 1


def test_a_lease_that_is_renewed_lasts(queue):
    id = queue.submit()
    queue.reap()
    queue.take()
    for _ in range(12):
        assert queue("beat", "w1", 5000, 1, "", id, 1) == []
        assert queue.reap() == 0
        time.sleep(LEASE / 5e3)
    assert queue.emit(id, 1, "x", "done") == "ok"


def test_a_poison_job_ends_as_a_dead_letter(queue):
    id = queue.submit()
    queue.reap()
    for attempt in (1, 2, 3):
        assert queue.take()[0][1] == str(attempt)
        queue.late()
        assert queue.reap() == 1
    assert queue.take() == [] and queue.state(id) == "dead"
    assert queue.events(id)[-1][1] == {"e": "dead", "c": "worker_lost"}
    (letter,) = queue.redis("XRANGE", BASE + "dead", "-", "+")
    letter = dict(zip(letter[1][::2], letter[1][1::2]))
    assert letter["j"] == id and letter["tries"] == "3" and letter["worker"] == "w1"


def test_giving_back_keeps_the_place_and_is_not_counted(queue):
    first, second = queue.submit(), queue.submit()
    for i in range(1, 8):
        assert queue.ids() == [first]
        assert queue("release", first, i, 0) == "ok"
    assert queue.ids(n=2) == [first, second] and queue.redis("XLEN", BASE + "dead") == 0
    assert queue("release", first, 1, 0) == "lost"


def test_what_is_emitted_twice_is_written_once(queue):
    id = queue.submit()
    queue.take()
    assert [queue.emit(id, 1, d, at=at) for d, at in (("abc", 0), ("abc", 0), ("abcdef", 0), ("ef", 4), ("g", 6))] == ["ok"] * 5
    assert [(e[0], e[1]["d"]) for e in queue.events(id)] == [("3-0", "abc"), ("6-0", "def"), ("7-0", "g")]
    assert queue.emit(id, 1, "x", at=9) == "gap" and len(queue.events(id)) == 3  # Redis has lost two bytes


def test_a_take_whose_reply_was_lost_is_undone(queue):
    ids = [queue.submit() for _ in range(3)]
    queue.take("w1", n=2)
    queue.take("w2")
    assert queue("mine", "w1", ids[0]) == 1 and [queue.state(i) for i in ids] == ["running", "waiting", "running"]
    assert queue("mine", "w1", ids[0]) == 0 and queue.take("w1")[0][:2] == [ids[1], "2"]
    assert queue.redis("HGET", BASE + "job:" + ids[1], "tries") == "1"


def test_when_all_were_away_leases_get_their_time_anew(queue):
    id = queue.submit()
    queue("reap", 5000, 3)
    queue.take()
    queue.redis("HINCRBY", BASE + "meta", "seen", -60000)  # as after a pause of Redis
    queue.redis("XCLAIM", BASE + "jobs", "workers", "w1", 0, queue.redis("HGET", BASE + "job:" + id, "entry"), "IDLE", 60000, "JUSTID")
    assert queue("reap", 5000, 3) == 0 and queue.state(id) == "running"
    queue.redis("HSET", BASE + "meta", "hold", 0)
    assert queue("reap", 5000, 3) == 1


def test_the_key_with_the_fewest_running_is_next_then_the_oldest(queue):
    a = [queue.submit(ANN) for _ in range(6)]
    b = [queue.submit(BOB) for _ in range(2)]
    assert queue.ids(n=4) == [a[0], b[0], a[1], b[1]]
    assert queue.ids(n=2) == [a[2], a[3]]
    b += [queue.submit(BOB)]
    queue.emit(b[0], 1, "", "done"), queue.emit(b[1], 1, "", "done")
    assert queue.ids(n=2) == [b[2], a[4]]


def test_priorities_and_that_the_lowest_is_not_starved(queue):
    low = [queue.submit(priority="low") for _ in range(3)]
    normal = [queue.submit() for _ in range(3)]
    high = [queue.submit(priority="high") for _ in range(20)]
    order = queue.ids(n=26)
    assert order[:7] == high[:7] and order[7] == low[0]
    assert order[15] == low[1] and sorted(order) == sorted(low + normal + high)
    assert [i for i in order if i in normal] == normal


def test_back_pressure_by_number_and_bytes(queue):
    for _ in range(5):
        queue.submit(most=5)
        assert queue.last[0] == "ok"
    refused = queue.submit(most=5)
    assert queue.last[0] == "full" and queue.last[1] >= 1 and queue.state(refused) is None
    queue.submit(bytes=1000, max_bytes=1040)
    assert queue.last[0] == "full"
    queue.submit(bytes=1000, max_bytes=1050)
    assert queue.last[0] == "ok"


def test_a_key_with_less_displaces_the_newest_of_the_key_that_has_most(queue):
    ids = [queue.submit(ANN, most=5) for _ in range(5)]
    mine = queue.submit(BOB, most=5)
    assert queue.last[0] == "ok" and queue.state(mine, BOB) == "waiting"
    assert queue.state(ids[4]) == "failed" and queue.events(ids[4])[-1][1]["c"] == "queue_full"
    for _ in range(1):
        queue.submit(BOB, most=5)
        assert queue.last[0] == "ok"
    queue.submit(BOB, most=5)
    assert queue.last[0] == "full"  # 3 and 2: nobody has more than one more than the other
    assert queue.meta("waiting") == 5


def test_pictures_are_sent_once_and_kept_apart_by_key(queue):
    digest = hashlib.sha256(b"picture").hexdigest()
    id = queue.submit(blobs=[("blob-1", digest)])
    assert queue.last == ["missing", digest] and queue.state(id) is None
    assert queue("blob", ANN, digest, 600, "picture") == "ok"
    queue.submit(id=id, blobs=[("blob-1", digest)])
    assert queue.last == ["ok", 0]
    queue.submit(blobs=[("blob-2", digest)])
    assert queue.last == ["ok", 1]
    queue.submit(BOB, blobs=[("blob-1", digest)])
    assert queue.last == ["missing", digest]
    assert queue.take()[0][7] == "blob-1=" + digest
    assert 0 < queue.redis("TTL", BASE + "blob:" + ANN + ":" + digest) <= 600


def test_a_worker_gets_jobs_on_pictures_it_has_but_nobody_waits_for_ever(queue):
    digests = [hashlib.sha256(bytes([i])).hexdigest() for i in range(5)]
    ids = []
    for d in digests:
        queue("blob", ANN, d, 600, "x")
        ids.append(queue.submit(blobs=[("b", d)]))
    assert queue.ids(have=[digests[3]]) == [ids[3]]
    assert queue.ids(have=[digests[3]]) == [ids[0]]
    assert queue.ids(have=[digests[4]], aged=0) == [ids[1]]


def test_cancel(queue):
    waiting, running = queue.submit(), queue.submit()
    assert queue("cancel", waiting, BOB) == "none" and queue("cancel", "job-x", ANN) == "none"
    assert queue("cancel", waiting, ANN) == "ok" and queue.state(waiting) == "cancelled"
    assert queue.ids(n=3) == [running]
    assert queue("cancel", running, ANN) == "ok" and queue.state(running) == "running"
    assert queue("beat", "w1", 1000, 1, "", running, 1) == [running, "1", "cancel"]
    assert queue.emit(running, 1, "x") == "cancel" and queue.emit(running, 1, "", "cancelled", "cancelled") == "cancel"
    assert queue.state(running) == "cancelled" and queue("cancel", running, ANN) == "ended"


def test_what_is_cancelled_while_its_worker_dies_is_over(queue):
    id = queue.submit()
    queue.reap()
    queue.take()
    queue("cancel", id, ANN)
    queue.late()
    assert queue.reap() == 1 and queue.state(id) == "cancelled"


def test_waiting_too_long_ends_a_job(queue):
    id = queue.submit(wait=50)
    time.sleep(0.1)
    queue.reap()
    assert queue.state(id) == "failed" and queue.events(id)[-1][1]["c"] == "queue_timeout" and queue.take() == []


def test_gateways_are_told_while_they_live(queue):
    place = queue("inbox", "g1")
    id = queue.submit(gw="g1 gone")
    queue.take()
    queue.emit(id, 1, "x")
    notes = queue.redis("XREAD", "STREAMS", BASE + "gw:g1", place)[0][1]
    assert [n[1] for n in notes] == [["j", id]]
    assert queue.redis("EXISTS", BASE + "gw:gone") == 0
    queue("inbox", "g2")
    queue("state", id, ANN, "g2")
    queue.emit(id, 1, "y", "done")
    assert queue.redis("XLEN", BASE + "gw:g2") == 2 and queue.redis("XLEN", BASE + "gw:g1") == 3


def test_workers_that_are_gone_are_forgotten(queue):
    queue("beat", "w1", 100, 4, '{"model":"m"}')
    queue.submit()
    queue.take("w1")
    assert queue("look")[2] == ['{"model":"m"}']
    queue.reap(), queue.late()
    queue.reap()
    assert queue.ids("w2") and queue("look")[2] == []
    for _ in range(4):
        queue.late()
        queue("beat", "w2", 1000, 1, "", "job-" + f"{1:032x}", 2)
        queue.reap()
    groups = queue.redis("XINFO", "CONSUMERS", BASE + "jobs", "workers")
    assert [g[1] for g in groups] == ["w2"] and queue.redis("ZRANGE", BASE + "workers", 0, -1) == ["w2"]


def test_nothing_is_without_an_end(queue):
    digest = hashlib.sha256(b"p").hexdigest()
    queue("inbox", "g1")
    queue("blob", ANN, digest, 600, "p")
    for i in range(4):
        queue.submit(blobs=[("b", digest)])
    queue("beat", "w1", 5000, 1, "about")
    jobs = queue.take(n=2)
    queue.emit(jobs[0][0], 1, "x", head="200")
    queue.emit(jobs[1][0], 1, "x", "done")
    queue.redis("XADD", BASE + "dead", "*", "a", "b")
    queue.reap()
    for key in queue.redis("KEYS", "*"):
        assert queue.redis("TTL", key) > 0 or key.endswith(":dead"), key


def test_every_key_is_in_one_slot(queue):
    queue("inbox", "g1")
    queue.submit()
    queue.take()
    keys = queue.redis("KEYS", "*")
    assert len(keys) >= 5 and all(k.startswith("margay:{q:t}:") for k in keys)


def test_books_balance_whatever_happens(queue):
    """Random operations of three workers; at the end every job is over once and nothing is left."""
    rng, held, ended = random.Random(7), {}, {}
    ids = []
    for step in range(1500):
        r = rng.random()
        if r < 0.3 and len(ids) < 200:
            ids.append(queue.submit(rng.choice([ANN, BOB]), rng.choice(["high", "normal", "low"]), bytes=rng.randrange(100), most=20))
            if queue.last[0] == "full":
                ids.pop()
        elif r < 0.55:
            for j in queue.take(rng.choice("xyz"), rng.randrange(1, 4)):
                held[j[0]] = int(j[1])
        elif held:
            id = rng.choice(list(held))
            if r < 0.7:
                queue.emit(id, held[id], "data")
            elif r < 0.85:
                queue.emit(id, held.pop(id), "end", "done")
            elif r < 0.92:
                queue("release", id, held.pop(id), rng.choice("01"))
            elif r < 0.96:
                queue("cancel", id, rng.choice([ANN, BOB]))
            else:
                queue.emit(id, held[id] - 1, "late")
    for _ in range(300):
        for j in queue.take("x", 3):
            held[j[0]] = int(j[1])
        for id in list(held):
            queue.emit(id, held.pop(id), "", "done")
    for id in ids:
        events = queue.events(id)
        assert [1 for e in events if "e" in e[1]] == [1] and "e" in events[-1][1]
    assert [queue.meta(f) for f in ("waiting", "bytes")] == [0, 0]
    assert queue.redis("XLEN", BASE + "jobs") == 0 and queue.redis("XPENDING", BASE + "jobs", "workers")[0] == 0
    left = [k for k in queue.redis("KEYS", "*") if not k.startswith((BASE + "job:", BASE + "ev:"))]
    assert sorted(left) == [BASE + "jobs", BASE + "meta"]


def test_a_take_stops_at_so_many_bytes_of_bodies(queue):
    ids = [queue.submit(body="x" * (6 << 20)) for _ in range(5)]
    assert queue.ids(n=5) == ids[:3] and queue.ids(n=5) == ids[3:]
    large = [queue.submit(body="x" * (20 << 20)) for _ in range(2)]
    assert queue.ids(n=2) == large[:1]


def test_pictures_stay_a_minute_after_the_last_open_job_that_names_them(queue):
    shared, alone = queue.blob(b"shared"), queue.blob(b"alone")
    first = queue.submit(blobs=[("a", shared), ("b", alone)])
    second = queue.submit(blobs=[("a", shared)], wait=300_000)
    queue.take()
    queue.emit(first, 1, "", "done")
    assert 0 < queue.ttl(alone) <= 60 and queue.ttl(shared) > 300
    queue("cancel", second, ANN)
    assert 0 < queue.ttl(shared) <= 60
    third = queue.submit(blobs=[("a", shared)])
    assert queue.last[0] == "ok" and queue.ttl(shared) > 300  # renewed
    queue.take()
    assert queue.ttl(shared) > 60
    queue.redis("EXPIRE", BASE + "blob:" + ANN + ":" + shared, 10)
    queue("release", third, 1, 0)
    assert queue.ttl(shared) > 300 and queue.redis("HGETALL", BASE + "uses") == [ANN + ":" + shared, "1"]


@pytest.fixture
def full(queue):
    """Redis refuses whatever takes memory, from `full()` on."""
    queue("inbox", "g1")
    return lambda: (queue.redis("CONFIG", "SET", "maxmemory-policy", "noeviction"), queue.redis("CONFIG", "SET", "maxmemory", 1))


def test_a_full_redis_refuses_new_jobs_and_what_is_open_goes_on(queue, full):
    ids = [queue.submit() for _ in range(7)]
    digest = queue.blob(b"picture")
    queue.reap()
    queue.take(n=3)
    full()
    for refused in (lambda: queue.submit(), lambda: queue.submit(blobs=[("a", digest)]), lambda: queue.blob(b"more")):
        with pytest.raises(RedisError, match="OOM"):
            refused()
    queue.submit(id=ids[0])
    assert queue.last == ["known", "running"]
    assert queue.emit(ids[0], 1, "abc", head="200") == "ok" and queue.emit(ids[0], 1, "d", "done") == "ok"
    assert queue("release", ids[1], 1, 0) == "ok" and queue("cancel", ids[3], ANN) == "ok" and queue.state(ids[3]) == "cancelled"
    assert queue("beat", "w1", 5000, 1, "about", ids[2], 1) == [] and queue("look")[2] == ["about"]
    assert queue("inbox", "g2") and queue.state(ids[4]) == "waiting" and queue("state", ids[4], ANN, "g2")
    assert queue.ids(n=1) == [ids[1]] and queue("mine", "w1", ids[2]) == 1
    assert queue("bye", "w9") == "ok" and queue("note", "g1", ids[4]) == "ok"
    queue.late()
    assert queue.reap() == 1 and queue.state(ids[2]) == "waiting"
    queue.redis("CONFIG", "SET", "maxmemory", 0)
    queue.submit()
    assert queue.last[0] == "ok"


def test_giving_back_as_a_failed_start_ends_as_a_dead_letter(queue):
    id = queue.submit()
    for attempt in (1, 2, 3):
        assert queue.ids() == [id]
        assert queue("release", id, attempt, 1, 3) == "ok" and queue.state(id) == ("waiting" if attempt < 3 else "dead")
    assert queue.events(id)[-1][1] == {"e": "dead", "c": "worker_lost"} and queue.redis("XLEN", BASE + "dead") == 1


def test_a_key_with_fewer_bytes_displaces_the_newest_of_the_key_that_has_most(queue):
    big = [queue.submit(ANN, bytes=300, max_bytes=1000) for _ in range(3)]
    mine = queue.submit(BOB, bytes=250, max_bytes=1000)
    assert queue.last[0] == "ok" and queue.state(mine, BOB) == "waiting" and queue.state(big[2]) == "failed"
    assert queue.events(big[2])[-1][1]["c"] == "queue_full" and queue.meta("bytes") == 850
    queue.submit(ANN, bytes=200, max_bytes=1000)
    assert queue.last[0] == "full"  # it has most itself
    queue.submit(BOB, bytes=300, max_bytes=1000)
    assert queue.last[0] == "full" and queue.state(big[1]) == "waiting"  # 550 would be more than the 300 left to the other
    small = [queue.submit(BOB, bytes=10, max_bytes=1000) for _ in range(2)]
    queue.submit(BOB, bytes=40, max_bytes=1000)
    assert queue.last[0] == "ok" and all(queue.state(j, BOB) == "waiting" for j in small)
    assert queue.redis("ZSCORE", BASE + "heavy", ANN) == "600"


def test_for_one_large_job_several_small_ones_make_room(queue):
    small = [queue.submit(ANN, bytes=100, max_bytes=1000) for _ in range(10)]
    queue.submit(BOB, bytes=350, max_bytes=1000)
    assert queue.last[0] == "ok" and [queue.state(j) for j in small] == ["waiting"] * 6 + ["failed"] * 4
    queue.submit(BOB, bytes=900, max_bytes=1000)  # not so much
    assert queue.last[0] == "full" and queue.state(small[5]) == "waiting"


def test_counts_of_jobs_that_have_vanished_do_not_last(queue):
    ids = [queue.submit(bytes=500, max_bytes=1000) for _ in range(2)]
    queue.take()
    for id in ids:  # evicted, or expired with all workers away
        queue.redis("DEL", BASE + "job:" + id)
    queue.submit(bytes=500, max_bytes=1000)
    assert queue.last[0] == "full"
    queue.reap()
    assert [queue.meta(f) for f in ("waiting", "bytes")] == [0, 0] and queue.redis("EXISTS", BASE + "run", BASE + "wait") == 0
    id = queue.submit(bytes=500, max_bytes=1000)
    assert queue.last == ["ok", 0]
    assert id in queue.ids(n=3) and queue.emit(id, 1, "", "done") == "ok"
    queue.reap()
    assert [queue.meta(f) for f in ("waiting", "bytes")] == [0, 0]


def test_of_all_that_reap_one_a_second_does(queue):
    id = queue.submit()
    queue.reap()
    queue.take()
    queue.late()
    assert queue("reap", LEASE, 3, 60000) == 0 and queue.state(id) == "running"
    assert queue("reap", LEASE, 3, 200) == 1 and queue.state(id) == "waiting"


def test_who_hands_in_again_is_told_at_once(queue):
    queue("inbox", "g1")
    id = queue.submit()
    queue.take()
    queue.emit(id, 1, "x", "done")
    place = queue("inbox", "g2")
    queue.submit(id=id, gw="g2")
    assert queue.last == ["known", "done"]
    assert [n[1] for n in queue.redis("XREAD", "STREAMS", BASE + "gw:g2", place)[0][1]] == [["j", id]]
