"""bench/server/versus.py and openvino_server.py: how figures come from the clock, and what the table says of them."""
import base64
import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "server"))
import openvino_server
import versus


def test_rate_counts_only_while_all_run():
    # the first begins at 0 with a token each second, the second from 5 with two a second; both run from 5 to 9
    first, second = [float(i) for i in range(10)], [5 + i / 2 for i in range(16)]
    assert versus.together_rate([first, second[:10]], 10) == pytest.approx((4 + 8) / 4)


def test_rate_needs_a_time_in_common():
    with pytest.raises(SystemExit):
        versus.together_rate([[0.0, 1.0], [2.0, 3.0]], 2)


def test_tokens_without_text_count():
    assert versus.weight([0.0] * 60, 64) == 64 / 60
    for events in (40, 65):
        with pytest.raises(SystemExit):
            versus.weight([0.0] * events, 64)


def test_gaps_that_touch_the_time():
    times = [0, 1, 2, 7, 8, 9]
    assert versus.touching(times, 3, 6) == [5]                    # one long gap over the whole of it
    assert versus.touching(times, 1.5, 7.5) == [1, 5, 1]          # and those that are open at its ends
    assert versus.touching(times, 9.5, 10) == []


def test_p95_is_a_gap_that_was():
    assert versus.p95([1] * 19 + [9]) == 1
    assert versus.p95([1] * 18 + [8, 9]) == 8
    assert versus.p95([7]) == 7


def result():
    figures = {"margay": {"one": [{"ms_per_token": 50.0}, {"ms_per_token": 40.0}, {"ms_per_token": 60.0}],
                          "eight": [{"tokens_per_s": 100.0}] * 3},
               "llama": {"one": [{"ms_per_token": 100.0}] * 3, "eight": [{"tokens_per_s": 40.0}] * 3}}
    turns = {row: {name: [{**f, "others": 0.01, "stolen": 0.0} for f in figures[name][row]] for name in figures}
             for row in ("one", "eight")}
    return {"labels": {"margay": "margay", "llama": "llama-server"}, "turns": turns,
            "servers": {n: {"ready": 1.0, "peak_mib": 2000.0} for n in figures}}


def test_table():
    lines = versus.table(result()).splitlines()
    assert lines[0] == "| | margay | llama-server |"
    assert lines[2] == "| 1 stream, ms a token | 50.0 (40.0-60.0) | 100.0 (100.0-100.0), **2.00** |"
    assert lines[3] == "| 8 streams, tokens/s together | 100.0 (100.0-100.0) | 40.0 (40.0-40.0), **2.50** |"
    assert lines[4] == "| 8 streams against 1, times as many | 5.00 (4.00-6.00) | 4.00 (4.00-4.00) |"
    assert len(lines) == 5                                        # rows that were not measured are left out
    assert "at most 1.0% in one measurement" in versus.notes(result())


def test_request():
    body = {"stream": True, "max_tokens": 7, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"abc").decode()}},
        {"type": "text", "text": "What?"}]}]}
    assert openvino_server.request_of(json.dumps(body)) == ("What?", b"abc", 7)
    assert openvino_server.request_of(json.dumps({**body, "messages": [{"role": "user", "content": "a"}]})) == ("a", None, 7)
    for wrong in ({"stream": False}, {"messages": body["messages"] * 2}):
        with pytest.raises(ValueError):
            openvino_server.request_of(json.dumps({**body, **wrong}))


def test_event_is_what_the_client_reads():
    text = openvino_server.event({"content": "é\n"}).decode()
    assert text.startswith("data: {") and text.endswith("\n\n") and text.count("\n") == 2
    assert json.loads(text[6:])["choices"][0]["delta"]["content"] == "é\n"
