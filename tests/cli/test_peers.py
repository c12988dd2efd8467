"""bench/peers: what its table says, and that older blocks of docs/speed.md stay. No peer is needed."""
import pathlib
import sys
import xml.etree.ElementTree as ET

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))
import peer
import report
import run as runner


def row(name, group, bits, first, token, **more):
    both = {k: {"min": v * 0.9, "median": v} for k, v in {"vision_ms": first / 2, "prefill_ms": first / 2, "first_token_ms":
                                                          first, "decode_ms_per_token": token}.items()}
    return {"name": name, "label": name, "group": group, "bits": bits, **both, "peak_rss_mb": 3000.0, "load_ms": 100.0,
            "cold_ms": None, "prompt_tokens": 185, "image_tokens": 169, "layers": 28, "vision_blocks": 24, "generated": 32,
            "token_ids": [7], "version": "1", **more}


@pytest.fixture
def run():
    rows = [row("m16", "margay", 16, 4000, 150), row("m8", "margay", 8, 1000, 50), row("ov8", "OpenVINO", 8, 2500, 62.5),
            row("ll4", "llama.cpp", 4, 6000, 300), {"name": "x", "label": "tf", "group": "transformers", "bits": 16,
                                                    "error": "no such module"}]
    return {"machine": "a <machine>", "date": "2026-12-01", "commit": "abc", "rows": rows, "model": "Folder `f`", "image":
            "416 x 416", "tokens": 32, "threads": 2, "rounds": 2, "runs": 3, "others": 0.0, "steal": 0.0}


def cells(text, label):
    line = next(x for x in text.splitlines() if x.startswith(f"| {label} |"))
    return [c.strip() for c in line.strip("|").split("|")]


def test_ratio_is_against_the_same_width(run):
    text = report.table(run)
    assert cells(text, "ov8")[-2:] == ["**2.50** times as fast", "**1.25** times as fast"]
    assert cells(text, "m8")[-2:] == ["", ""]


def test_ratio_names_the_variant_where_no_width_fits(run):
    assert cells(report.table(run), "ll4")[-2:] == ["**1.50** times as fast (m16)", "**2.00** times as fast (m16)"]


def test_every_row_has_the_header_s_columns(run):
    assert {line.count("|") for line in report.table(run).splitlines()} == {11}
    assert "no such module" in report.table(run)


@pytest.mark.parametrize("key,words", [("prompt_tokens", "prompt tokens"), ("layers", "layers"), ("generated", "generated"),
                                       ("vision_blocks", "vision blocks"), ("image_tokens", "picture")])
def test_different_work_is_said(run, key, words):
    assert "Not the same work" not in report.notes(run)
    run["rows"][2][key] -= 1
    assert f"Not the same work**: " in report.notes(run) and words in report.notes(run)


def test_noise_is_said(run):
    assert "Noisy" not in report.notes(run)
    run["others"] = 0.3
    assert "others used 30%" in report.notes(run)


def test_blocks_are_added_and_none_lost(run):
    text = report.insert("# Speed\n\nold text\n", "### first\n\nA\n")
    text = report.insert(text, "### second\n\nB\n")
    assert text.startswith("# Speed\n\nold text\n")
    assert text.count(report.BEGIN) == text.count(report.END) == 1
    places = [text.index(x) for x in (report.BEGIN, "### second", "### first", report.END)]
    assert places == sorted(places)


def test_text_after_the_blocks_stays(run):
    text = report.insert(f"# S\n{report.BEGIN}\n{report.END}\n\n## After\n\ntail\n", "### new\n")
    assert text.endswith(f"{report.END}\n\n## After\n\ntail\n")


def test_plot_is_xml_with_every_system(run):
    tree = ET.fromstring(report.svg(run))
    text = " ".join(t.text or "" for t in tree.iter("{http://www.w3.org/2000/svg}text"))
    assert all(name in text for name in ("m16", "m8", "ov8", "ll4")) and "a <machine>" in text
    widths = [float(r.get("width")) for r in tree.iter("{http://www.w3.org/2000/svg}rect")][1:]
    first = [widths[2 * i] + widths[2 * i + 1] for i in range(4)]
    assert first == pytest.approx([360 * x / 6000 for x in (4000, 1000, 2500, 6000)], abs=0.3)


def test_summary_takes_minimum_and_median():
    runs = [{**dict.fromkeys(peer.PHASES, v), "prompt_tokens": 5, "token_ids": [1] * n} for v, n in ((9, 3), (1, 4), (2, 4))]
    s = peer.summary(runs)
    assert s["first_token_ms"] == {"min": 1, "median": 2} and s["generated"] == 3 and s["prompt_tokens"] == 5


def test_process_measures_and_reports(tmp_path):
    load = {"all": 0.0, "others": 0.0, "steal": 0.0}
    out, wall, peak = runner.process([sys.executable, "-c", "b = bytearray(80 << 20); print('hi')"], 60, load)
    assert out == "hi\n" and wall > 1 and peak > 80 and load["all"] > 0
    with pytest.raises(runner.Failed, match="boom"):
        runner.process([sys.executable, "-c", "import sys; sys.exit('boom')"], 60, load)
    with pytest.raises(runner.Failed, match="ended after"):
        runner.process([sys.executable, "-c", "import time; time.sleep(60)"], 0.3, load)
