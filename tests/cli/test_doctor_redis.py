"""margay doctor --redis against a real redis-server: up, wrong password, users, TLS, not there, paused."""
import json
import time

import pytest

from redis_server import certificates, free_port, redis  # noqa: F401 (a fixture)


def ping(margay, url, *args, env=None):
    p = margay("doctor", "--quick", "--json", *(["--redis", url] if url else []), *args, env=env)
    o = json.loads(p.stdout)
    found = [f for f in o["findings"] if f["id"] == "redis"]
    assert len(found) == 1 and p.returncode == (1 if o["problems"] else 0)
    for secret in ("s3cret", "wr0ng"):
        assert secret not in p.stdout + p.stderr
    return found[0]


def down(f, *words):
    assert f["level"] == "problem" and f["why"] and f["mend"], f
    for word in words:
        assert word in f["found"] + " | " + f["mend"], (word, f)


def up(f, shown):
    assert f["level"] == "ok" and shown in f["found"] and " ms" in f["found"], f


def test_up(margay, redis):
    r = redis()
    up(ping(margay, f"redis://127.0.0.1:{r.port}"), f"redis://127.0.0.1:{r.port}/0")
    up(ping(margay, f"redis://localhost:{r.port}/7"), f"localhost:{r.port}/7")
    down(ping(margay, f"redis://127.0.0.1:{r.port}/999"), "index is out of range")
    up(ping(margay, None, env={"MARGAY_REDIS": f"redis://127.0.0.1:{r.port}"}), str(r.port))


def test_none_named(margay):
    o = json.loads(margay("doctor", "--quick", "--json").stdout)
    assert not [f for f in o["findings"] if f["id"] == "redis"]


def test_passwords(margay, redis):
    r = redis("--requirepass", "s3cret/@")
    at = f"@127.0.0.1:{r.port}"
    up(ping(margay, f"redis://:s3cret%2f%40{at}"), f"redis://127.0.0.1:{r.port}/0")
    up(ping(margay, f"redis://default:s3cret%2f%40{at}"), "redis://default@")
    down(ping(margay, f"redis://:wr0ng{at}"), "WRONGPASS", "MARGAY_REDIS=redis://USER:PASSWORD@")
    down(ping(margay, f"redis://127.0.0.1:{r.port}"), "NOAUTH", "requirepass")


def test_users(margay, redis):
    r = redis(*"--user ada on >s3cret ~* +@all --user bob on >s3cret ~* -@all +auth".split())
    up(ping(margay, f"redis://ada:s3cret@127.0.0.1:{r.port}"), "redis://ada@")
    down(ping(margay, f"redis://ada:wr0ng@127.0.0.1:{r.port}"), "WRONGPASS", "ACL LIST")
    down(ping(margay, f"redis://bob:s3cret@127.0.0.1:{r.port}"), "NOPERM")


def test_not_listening(margay):
    port = free_port()
    down(ping(margay, f"redis://127.0.0.1:{port}"), "refused", f"127.0.0.1:{port}", "systemctl start redis-server")
    down(ping(margay, "redis://no-such-name.invalid"), "no-such-name.invalid")


def test_paused(margay, redis):
    """Stopped like `docker pause`: the kernel still takes connections, nothing answers. 200 ms, then it says so."""
    r = redis()
    url = f"redis://127.0.0.1:{r.port}"
    took = []
    for _ in range(3):
        begin = time.monotonic()
        margay("doctor", "--quick")
        took.append(time.monotonic() - begin)
    r.pause()
    late = []
    for _ in range(3):
        begin = time.monotonic()
        down(ping(margay, url), "takes too long", f"redis-cli -h 127.0.0.1 -p {r.port} --latency")
        late.append(time.monotonic() - begin)
    assert min(late) - min(took) < 0.2 + 0.3, (took, late)
    assert min(late) >= 0.2
    r.resume()
    up(ping(margay, url), str(r.port))


def test_tls(margay, redis, tmp_path):
    files = certificates(tmp_path)
    r = redis("--requirepass", "s3cret", "--tls-auth-clients", "no", tls=files)
    at = f":s3cret@127.0.0.1:{r.port}"
    up(ping(margay, f"rediss://{at}", "--redis-ca-file", files / "ca.pem"), f"rediss://127.0.0.1:{r.port}/0")
    up(ping(margay, f"rediss://:s3cret@localhost:{r.port}", "--redis-ca-file", files / "ca.pem"), "rediss://localhost")
    down(ping(margay, f"rediss://{at}"), "certificate is not accepted", "--redis-ca-file FILE")
    down(ping(margay, f"rediss://:s3cret@127.0.0.2:{r.port}", "--redis-ca-file", files / "ca.pem"), "127.0.0.2")
    down(ping(margay, f"redis://{at}"), "redis://127.0.0.1")
    down(ping(margay, f"rediss://{at}", "--redis-ca-file", files / "none"), "authorities' file")


def test_tls_name(margay, redis, tmp_path):
    """A certificate of the right authority for other names is refused."""
    files = certificates(tmp_path)
    r = redis("--tls-auth-clients", "no", "--bind", "0.0.0.0", tls=files)
    down(ping(margay, f"rediss://127.0.0.2:{r.port}", "--redis-ca-file", files / "ca.pem"), "IP address mismatch")


@pytest.mark.parametrize("shown", [True, False])
def test_tls_client_certificate(margay, redis, tmp_path, shown):
    """Redis' default for TLS: clients show a certificate too."""
    files = certificates(tmp_path)
    r = redis(tls=files)
    mine = ["--redis-cert-file", files / "server.pem", "--redis-key-file", files / "server.key"] if shown else []
    f = ping(margay, f"rediss://127.0.0.1:{r.port}", "--redis-ca-file", files / "ca.pem", *mine)
    up(f, "rediss://") if shown else down(f, "rediss://")
