"""What clients, other hands in Redis and slow networks may do to a fleet, and that it harms nobody else."""
import json, os, re, signal, socket, threading, time

import pytest

from conftest import BASE, ROOT, SLOW, Program, serving
from serve_conftest import RIGHT, data_url, picture, question
from test_fleet import CASE, LONG, SlowPictures, job_state, long, read_all, read_some, streamed

PLAIN = re.compile(rb"^(id: \d+|: ping)\n", re.M)
EVENTS = {"Accept": "text/event-stream"}
ID = "job-" + 32 * "a"


def test_an_id_of_ones_own_serves_one_request(fleet):
    gateway, _ = fleet.gateway("--api-key", "ann", "--api-key", "bob"), fleet.worker()
    ann, bob = {"X-Api-Key": "ann", "X-Margay-Job": ID}, {"X-Api-Key": "bob", "X-Margay-Job": ID}
    large = picture(CASE["image"]) + bytes(4096)
    first = gateway.chat(CASE["question"], large, headers=ann)
    assert first.text == CASE["answer"] and gateway.chat(CASE["question"], large, headers=ann).body == first.body
    for other in (question("hi"), question(CASE["question"], large + b"x"), question(CASE["question"], large, stream=True)):
        reply = gateway.post("/v1/chat/completions", other, **ann)
        assert reply.status == 409 and reply.json["error"]["code"] == "job_id_reused"
    assert gateway.post("/v1/completions", question(CASE["question"], large), **ann).status == 409
    assert gateway.chat(CASE["question"], large, headers=bob).json["error"]["code"] == "job_id_taken"
    assert gateway.get("/v1/jobs/" + ID, X_Api_Key="ann").json["response"] == first.json
    assert not [l for l in gateway.log if "queue:" in l]  # a client's fault is none of ours


def test_who_was_told_to_come_back_is_served_when_it_does(fleet):
    gateway = fleet.gateway("--queue-time", 1)
    refused = gateway.chat("hi", headers={"X-Margay-Job": ID})
    assert refused.status == 503 and refused.json["error"]["code"] == "queue_timeout"
    fleet.worker()
    assert gateway.chat("hi", headers={"X-Margay-Job": ID}).status == 200


def test_an_event_source_that_comes_back_gets_nothing_twice(fleet):
    """It asks for the URL that it was given, with the place where it was in a header."""
    gateway, _ = fleet.gateway(), fleet.worker()
    whole = gateway.post("/v1/chat/completions", long(300, stream=True))
    job = "/v1/jobs/" + whole.headers["x-margay-job"]
    places = [m.end() for m in re.finditer(rb"\n\n", whole.body)]
    some, more = places[3], places[9]
    assert PLAIN.sub(b"", gateway.get(f"{job}?offset={some}", Last_Event_ID=str(more), **EVENTS).body) == whole.body[more:]
    assert PLAIN.sub(b"", gateway.get(f"{job}?offset={more}", Last_Event_ID=str(some), **EVENTS).body) == whole.body[more:]
    for offset in ("-1", "1e3", "0x10", "9" * 16, "%201", "1%0a", "١"):
        reply = gateway.get(f"{job}?offset={offset}" if offset.isascii() else f"{job}?offset=%D9%A1", **EVENTS)
        assert reply.status == 400, offset
    assert gateway.get(job, Last_Event_ID="x", **EVENTS).json["error"]["code"] == "invalid_offset"
    for n in [0, 1, places[0] - 1, places[0], len(whole.body) - 1, len(whole.body)]:
        assert PLAIN.sub(b"", gateway.get(f"{job}?offset={n}", **EVENTS).body) == whole.body[n:], n


def test_what_is_no_stream_has_no_places(fleet):
    gateway, _ = fleet.gateway(), fleet.worker()
    job = "/v1/jobs/" + gateway.chat("hi").headers["x-margay-job"]
    assert gateway.get(job, **EVENTS).body.startswith(b"data: {")
    reply = gateway.get(job + "?offset=5", **EVENTS)
    assert reply.status == 400 and reply.json["error"]["code"] == "invalid_offset", reply.body


def test_a_stream_that_waits_for_a_worker_is_kept_alive(fleet):
    """nginx and others give up what says nothing for a minute."""
    gateway = fleet.gateway("--sse-ping-interval", 1, "--queue-time", 30)
    c, r = gateway.open_stream(question("hi"))  # it comes back: the reply has begun
    assert r.status == 200 and r.headers["Content-Type"] == "text/event-stream" and r.headers["x-margay-job"]
    assert read_some(r, 16).startswith(b": ping\n\n")
    job = r.headers["x-margay-job"]
    resumed = gateway.connect()
    resumed.request("GET", "/v1/jobs/" + job, headers=EVENTS)
    again = resumed.getresponse()
    fleet.worker()
    body = read_all(r)
    assert streamed(body)[1][-1] == "[DONE]"
    assert PLAIN.sub(b"", read_all(again).encode()).replace(b"\n\n\n", b"\n\n").strip() == PLAIN.sub(b"", body.encode()).replace(b"\n\n\n", b"\n\n").strip()


def test_an_error_after_a_long_wait_is_an_event(fleet):
    gateway = fleet.gateway("--sse-ping-interval", 1, "--queue-time", 3)
    c, r = gateway.open_stream(question("hi"))
    assert r.status == 200
    assert json.loads(read_all(r).split("data: ")[-1])["error"]["code"] == "queue_timeout"
    c, r = gateway.open_stream({"messages": []})
    fleet.worker()
    body = read_all(r)
    assert json.loads(body.split("data: ")[-1])["error"]["type"] == "invalid_request_error" and "[DONE]" not in body


def test_a_body_too_large_for_one_reply_of_redis_is_refused(fleet):
    gateway, worker = fleet.gateway("--max-body", 200), fleet.worker("--max-body", 200)
    reply = gateway.chat("x" * (80 << 20))
    assert reply.status == 413 and reply.json["error"]["code"] == "body_too_large"
    assert gateway.chat("hi").status == 200 and worker.metric("jobs_taken_total") == 1


class Narrow(SlowPictures):
    """A network of so many bytes a second."""

    def copy(self, a, b, asks):
        try:
            while data := a.recv(65536):
                time.sleep(len(data) / self.seconds)
                b.sendall(data)
        except OSError:
            pass
        b.close()


def test_a_large_body_over_a_slow_network_holds_nobody_up(fleet):
    gateway = fleet.gateway()
    narrow = Narrow(fleet.redis.port, 12e6)
    worker = Program("worker", f"redis://127.0.0.1:{narrow.port}")
    fleet.programs.append(worker)
    reply = gateway.chat("x" * (30 << 20))
    assert 400 <= reply.status < 500, reply.body
    assert gateway.get("/v1/jobs/" + reply.headers["x-margay-job"]).json["attempt"] == 1
    assert gateway.chat(CASE["question"], picture(CASE["image"])).text == CASE["answer"]
    narrow.listening.close()


def alive(fleet, gateway):
    """Others' jobs are answered, and soon."""
    began = time.monotonic()
    reply = gateway.chat(CASE["question"], picture(CASE["image"]))
    assert reply.status == 200 and reply.text == CASE["answer"] and time.monotonic() - began < 10 * SLOW


def test_one_stream_that_nobody_can_read_ends_and_the_others_go_on(fleet, large):
    gateway, worker = fleet.gateway(), fleet.worker(*large[0], env=large[1])
    redis = fleet.redis.client()
    c, r = gateway.open_stream(long(9000))
    got = read_some(r, 1000)
    d, s = gateway.open_stream(long(6000))
    other = read_some(s, 1000)
    redis("DEL", BASE + "ev:" + r.headers["x-margay-job"])
    redis("SET", BASE + "ev:" + r.headers["x-margay-job"], "x")
    assert json.loads(read_all(r, got).split("data: ")[-1])["error"]["code"] == "queue_error"
    assert streamed(read_all(s, other))[1][-1] == "[DONE]"
    worker.wait(worker.idle)
    alive(fleet, gateway)


def test_a_beginning_that_is_gone_is_no_endless_loop(fleet):
    gateway, _ = fleet.gateway(), fleet.worker()
    job = gateway.post("/v1/chat/completions", long(300, stream=True)).headers["x-margay-job"]
    redis = fleet.redis.client()
    first = [e[0] for e in redis("XRANGE", BASE + "ev:" + job, "-", "+") if e[0].endswith("-0")][0]
    redis("XDEL", BASE + "ev:" + job, first)
    before = int(re.search(r"cmdstat_xread:calls=(\d+)", redis("INFO", "commandstats"))[1])
    reply = gateway.get("/v1/jobs/" + job, **EVENTS)
    assert b"answer_changed" in reply.body
    assert int(re.search(r"cmdstat_xread:calls=(\d+)", redis("INFO", "commandstats"))[1]) - before < 100


def test_a_job_of_another_version_ends_as_a_dead_letter(fleet):
    gateway, worker = fleet.gateway("--queue-tries", 2), fleet.worker("--queue-tries", 2)
    redis = fleet.redis.client()
    worker.signal(signal.SIGSTOP)
    jobs = [gateway.chat("hi", headers={"X-Margay-Background": "1"}).json["id"] for _ in range(3)]
    redis("HSET", BASE + "job:" + jobs[0], "path", "/v1/chat/completions HTTP/1.1\r\nX-Margay-Tenant: " + 32 * "0" + "\r\nX: ")
    redis("HSET", BASE + "job:" + jobs[1], "blobs", "a=b=c d e")
    worker.signal(signal.SIGCONT)
    gateway.wait(lambda: [job_state(fleet, j) for j in jobs] == ["dead", "dead", "done"], 20)
    alive(fleet, gateway)
    assert worker.idle()


def test_hostile_heads_and_answers_go_no_further(fleet):
    gateway = fleet.gateway()
    redis = fleet.redis.client()
    heads = ["200\nX-A: b\rSet-Cookie: x\nContent-Type: text/event-stream\n", "999\n", "\n\n\n", "200\nContent-Type: a\x01b\n", "x" * 100000, "-1\nTransfer-Encoding: chunked\n"]
    for i, head in enumerate(heads):
        id = f"job-{i:032x}"
        gateway.chat("hi", headers={"X-Margay-Background": "1", "X-Margay-Job": id})
        ev = BASE + "ev:" + id
        redis("XADD", ev, "0-1", "h", head)
        redis("XADD", ev, "3-0", "d", b"\xff\x00z", "a", "1")
        redis("XADD", ev, "3-2", "e", "done", "c", "")
        redis("HSET", BASE + "job:" + id, "state", "done", "off", 3, "ended", 1)
        for headers in ({}, EVENTS):
            try:
                reply = gateway.get("/v1/jobs/" + id, **headers)
            except serving.http.client.HTTPException:
                raise AssertionError(head)
            assert "Set-Cookie" not in reply.headers and 200 <= reply.status <= 599
    for event in (["d", "x" * 100], ["h", ""], ["e", ""], ["e", "x" * 5000, "c", "y" * 5000], ["d", ""], ["zz", "z"]):
        id = "job-" + os.urandom(16).hex()
        gateway.chat("hi", headers={"X-Margay-Background": "1", "X-Margay-Job": id})
        redis("XADD", BASE + "ev:" + id, "18446744073709551615-5", *event)
        redis("HSET", BASE + "job:" + id, "state", "done", "off", "18446744073709551615", "ended", "99999999999999999999", "created", "-5")
        assert gateway.get("/v1/jobs/" + id).status in (200, 500)
    assert gateway.get("/health").status == 200


def test_what_workers_say_of_themselves_is_not_trusted(fleet):
    gateway = fleet.gateway()
    redis = fleet.redis.client()
    for i, about in enumerate(["", "{", "[]", "null", '{"alias":5}', '{"alias":"a\\n\\"b","props":{"x":[1]}}', "[" * 100000, b'{"alias":"\xff"}',
                               '{"alias":"z","created":1e400}', '{"alias":"y","n_vocab":-7,"props":null}']):
        redis("HSET", BASE + f"worker:w{i}", "slots", "9" * 30, "about", about)
        redis("ZADD", BASE + "workers", int(time.time() * 1000), f"w{i}")
    time.sleep(1.5)
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/ready", "/health"):
        reply = gateway.get(path)
        assert reply.status in (200, 503), path
        if path != "/metrics":
            json.loads(reply.body)


def test_a_password_is_nowhere(fleet):
    redis = fleet.redis.client()
    redis("ACL", "SETUSER", "margay", "on", ">s3cret", "~*", "+@all")
    url = fleet.redis.url.replace("redis://", "redis://margay:s3cret@")
    gateway = Program("serve", url).ready()
    worker = Program("worker", url).ready()
    fleet.programs += [gateway, worker]
    assert gateway.chat("hi").status == 200
    redis("ACL", "SETUSER", "margay", ">other", "<s3cret")
    redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    reply = gateway.chat("hi")
    assert reply.status == 503
    gateway.wait(lambda: gateway.get("/health").status == 503)
    said = "".join(gateway.log + worker.log) + reply.body.decode()
    for path in ("/metrics", "/props", "/ready", "/slots", "/v1/models"):
        said += gateway.get(path).body.decode() + worker.get(path).body.decode()
    assert "s3cret" not in said and "WRONGPASS" in said
    redis("ACL", "SETUSER", "margay", ">s3cret")
    gateway.wait(lambda: gateway.chat("hi").status == 200, 10)


@pytest.mark.parametrize("how", ["readonly", "client pause", "client kill", "flushall", "script flush", "slow script"])
def test_a_redis_that_behaves_badly(fleet, large, how):
    gateway, worker = fleet.gateway("--queue-lease", 2), fleet.worker("--queue-lease", 2, *large[0], env=large[1])
    redis = fleet.redis.client()
    c, r = gateway.open_stream(long(7000))
    got = read_some(r, 2000)
    if how == "readonly":
        redis("CONFIG", "SET", "replica-serve-stale-data", "yes")
        redis("REPLICAOF", "127.0.0.1", "1")
        time.sleep(1.5)
        reply = gateway.chat("hi")
        assert gateway.get("/health").status == 503 and gateway.get("/ready").status == 503 and reply.status == 503, (reply.body, gateway.log)
        redis("REPLICAOF", "NO", "ONE")
    elif how == "client pause":
        redis("CLIENT", "PAUSE", 3000)
    elif how == "client kill":
        for _ in range(40):
            redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.05)
    elif how == "flushall":
        redis("FLUSHALL")
    elif how == "script flush":
        for _ in range(20):
            redis("SCRIPT", "FLUSH")
            time.sleep(0.05)
    else:
        redis("EVAL", "local n = 0 for i = 1, 6e7 do n = n + i % 7 end return n", 0)
    began = time.monotonic()
    body = read_all(r, got)
    if how == "flushall":
        assert json.loads(body.split("data: ")[-1])["error"]["code"] == "job_lost" and time.monotonic() - began < 15 * SLOW
    else:
        assert streamed(body)[1][-1] == "[DONE]"
    worker.wait(worker.idle)
    gateway.wait(lambda: gateway.chat("hi").status == 200, 10)
    alive(fleet, gateway)
    for p in (gateway, worker):
        assert len([l for l in p.log if "away" in l]) <= (6 if how == "client kill" else 1), "".join(p.log)


def test_a_gateway_that_was_stopped_for_long_cancels_nobody(fleet, large):
    gateway, _ = fleet.gateway("--queue-lease", 1), fleet.worker("--queue-lease", 1, *large[0], env=large[1])
    for _ in range(3):
        c, r = gateway.open_stream(long(9000))
        got = read_some(r, 1000)
        gateway.signal(signal.SIGSTOP)
        time.sleep(7)  # more than six leases
        gateway.signal(signal.SIGCONT)
        assert streamed(read_all(r, got))[1][-1] == "[DONE]"


def test_a_full_queue_is_no_secret(fleet):
    gateway, _ = fleet.gateway(), fleet.worker()
    redis = fleet.redis.client()
    redis("CONFIG", "SET", "maxmemory", 1)
    assert gateway.chat("hi").status == 503
    ready = gateway.get("/ready").json
    assert ready["status"] == "degraded" and ready["ready"] and "takes nothing more" in ready["detail"]
    redis("CONFIG", "SET", "maxmemory", 0)
    assert gateway.chat("hi").status == 200 and gateway.get("/ready").json["status"] == "ok"


def test_a_request_cut_anywhere_leaves_nothing(fleet):
    gateway, worker = fleet.gateway(), fleet.worker()
    redis = fleet.redis.client()
    body = json.dumps(question("hi", max_tokens=3)).encode()
    whole = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for n in range(0, len(whole) + 1, 3):
        for how in ("close", "shutdown"):
            s = socket.create_connection(("127.0.0.1", gateway.port))
            s.sendall(whole[:n])
            if how == "close":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                s.close()
            else:
                s.shutdown(socket.SHUT_WR)
                s.close()
    gateway.wait(lambda: redis("HGET", BASE + "meta", "waiting") in ("0", None) and worker.idle(), 20)
    alive(fleet, gateway)
    gateway.wait(lambda: redis("XLEN", BASE + "jobs") == 0)


def test_clients_that_leave_at_any_moment(fleet, large):
    gateway, worker = fleet.gateway(), fleet.worker(*large[0], env=large[1])
    redis = fleet.redis.client()
    for i in range(60):
        c = gateway.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(long(3000, stream=i % 2 == 0)))
        time.sleep(i * 0.003)
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        c.close()
    gateway.wait(lambda: redis("HGET", BASE + "meta", "waiting") == "0" and worker.idle(), 20 * SLOW)
    gateway.wait(lambda: redis("XLEN", BASE + "jobs") == 0)
    assert redis("HGET", BASE + "meta", "bytes") == "0" and not redis("EXISTS", BASE + "run", BASE + "wait", BASE + "uses")
    alive(fleet, gateway)


def test_deletes_race_with_ends(fleet):
    gateway, worker = fleet.gateway(), fleet.worker()
    redis = fleet.redis.client()
    for i in range(40):
        id = "job-" + os.urandom(16).hex()
        gateway.chat("hi", headers={"X-Margay-Background": "1", "X-Margay-Job": id}, max_tokens=1 + i % 5)
        time.sleep(i * 0.0007)
        threads = [threading.Thread(target=gateway.call, args=("DELETE", "/v1/jobs/" + id)) for _ in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        gateway.wait(lambda: job_state(fleet, id) in ("done", "cancelled"), 5)
        ends = [e for e in redis("XRANGE", BASE + "ev:" + id, "-", "+") if e[0].endswith("-2")]
        assert len(ends) == 1 and ends[0][1][1] == job_state(fleet, id)
    gateway.wait(lambda: redis("XLEN", BASE + "jobs") == 0)
    assert worker.idle()


@pytest.mark.parametrize("when", [0, 0.02, 0.3])
def test_a_gateway_stopped_while_it_hands_in(fleet, when):
    gateway = fleet.gateway("--drain-time", 1)
    results = []

    def ask():
        try:
            results.append(gateway.chat("hi").status)
        except OSError:
            results.append(None)
        except serving.http.client.HTTPException:
            results.append(None)
    threads = [threading.Thread(target=ask) for _ in range(20)]
    [t.start() for t in threads]
    time.sleep(when)
    began = time.monotonic()
    assert gateway.stop() == 0 and time.monotonic() - began < 6 * SLOW
    [t.join(10) for t in threads]
    assert len(results) == 20 and set(results) <= {503, None}


def test_a_worker_stopped_while_pictures_come_slowly(fleet):
    gateway = fleet.gateway()
    slow = SlowPictures(fleet.redis.port, 1.5)
    worker = Program("worker", f"redis://127.0.0.1:{slow.port}", "--drain-time", 2)
    fleet.programs.append(worker)
    pictures = [data_url(picture(CASE["image"]) + os.urandom(3000)) for _ in range(12)]
    job = gateway.chat("hi", *pictures, headers={"X-Margay-Background": "1"}).json["id"]
    gateway.wait(lambda: job_state(fleet, job) == "running")
    worker.signal(signal.SIGTERM)
    began = time.monotonic()
    assert worker.process.wait(60) == 0 and time.monotonic() - began < 6 * SLOW
    assert job_state(fleet, job) == "waiting" and fleet.redis.client()("HGET", BASE + "job:" + job, "tries") == "0"
    slow.listening.close()
