"""A run of run.py as text: one Markdown block for docs/speed.md and one SVG plot. Knows nothing of processes.

A run is {"machine", "date", "commit", "question", "image", "tokens", "threads", "rounds", "runs", "others", "steal", "rows"}; a
row is {"name", "label", "group", "bits", "error"?} or also has what peer.py prints, over all rounds. `group` is margay,
llama.cpp, OpenVINO or transformers, `bits` the width of the decoder's weights.
"""
import html

BEGIN, END = "<!-- peers:begin (bench/peers/run.py writes here, newest first) -->", "<!-- peers:end -->"
COLOURS = {"margay": ("#c2410c", "#fb923c"), "llama.cpp": ("#475569", "#94a3b8"),
           "OpenVINO": ("#1d4ed8", "#93c5fd"), "transformers": ("#a16207", "#facc15")}


def rival(rows, row):
    """The margay row that this peer is held against: the one with the same width of weights, or the first."""
    own = [r for r in rows if r["group"] == "margay" and "error" not in r]
    return next((r for r in own if r["bits"] == row["bits"]), own[0] if own else None)


def seconds(v):
    return f"{v['median'] / 1e3:.2f} s ({v['min'] / 1e3:.2f})"


def millis(v):
    return f"{v['median']:.1f} ({v['min']:.1f})" if v["median"] < 100 else f"{v['median']:.0f} ({v['min']:.0f})"


def table(run):
    out = ["| system | vision | prefill | first token | ms per token | peak memory | start to ready | first run's extra "
           "| margay's first token | margay's ms per token |", "|---|---|---|---|---|---|---|---|---|---|"]
    for row in run["rows"]:
        if "error" in row:
            out.append(f"| {row['label']} | failed: {row['error']} " + "| " * 8 + "|")
            continue
        cells = [row["label"], seconds(row["vision_ms"]), seconds(row["prefill_ms"]), seconds(row["first_token_ms"]),
                 millis(row["decode_ms_per_token"]), f"{row['peak_rss_mb']:,.0f} MiB", f"{row['load_ms'] / 1e3:.2f} s"]
        cells.append("" if row["cold_ms"] is None else f"{row['cold_ms'] / 1e3:.2f} s")
        own = rival(run["rows"], row)
        if row["group"] == "margay" or own is None:
            cells += ["", ""]
        else:
            def ratio(k): return row[k]["median"] / own[k]["median"]
            which = "" if own["bits"] == row["bits"] else f" ({own['label']})"
            cells += [f"**{ratio('first_token_ms'):.2f}** times as fast{which}",
                      f"**{ratio('decode_ms_per_token'):.2f}** times as fast{which}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def notes(run):
    """What a reader must know before comparing: differences in shape or length, neighbours, versions."""
    out, good = [], [r for r in run["rows"] if "error" not in r]
    keys = {"prompt_tokens": "prompt tokens", "image_tokens": "tokens of the picture", "layers": "layers",
            "vision_blocks": "vision blocks", "generated": "tokens generated"}
    for key, words in keys.items():
        values = {r[key] for r in good if r.get(key) is not None}
        if len(values) > 1:
            each = ", ".join(f"{r['label']} {r[key]}" for r in good if r.get(key) is not None)
            out.append(f"**Not the same work**: {words}: {each}.")
    if run["others"] > 0.05 or run["steal"] > 0.01:
        out.append(f"**Noisy**: while the systems ran, others used {run['others']:.0%} of the cores and {run['steal']:.1%} "
                   "was stolen; measure again on a quiet machine.")
    answers = {tuple(r["token_ids"][:1]) for r in good}
    if len(answers) == 1 and len(good) > 1:
        out.append("The first token was the same everywhere.")
    elif answers:
        out.append("First tokens: " + ", ".join(f"{r['label']} {r['token_ids'][0]}" for r in good) + ".")
    versions = sorted({r["version"] for r in good if r.get("version")})
    out.append("Versions: " + "; ".join(versions) + ".")
    return "\n".join(out)


def block(run, plot):
    good = next((r for r in run["rows"] if "error" not in r), {})
    each = ["run", "runs"][run["runs"] > 1] + (" each" if run["rounds"] > 1 else "")
    head = (f"### {run['date']}, {run['machine']}\n\n"
            f"{run['model']}, picture {run['image']} ({good.get('image_tokens', '?')} tokens), "
            f"{good.get('prompt_tokens', '?')} prompt tokens, {run['tokens']} generated, {run['threads']} threads, margay at "
            f"{run['commit']}. `bench/peers/run.py`: {run['rounds']} {'rounds' if run['rounds'] > 1 else 'round'} of {run['runs']} "
            f"{each}, the systems taking turns; median (minimum). The first token counts from the picture's file. Peers stay "
            "loaded from run to run; each of margay's runs is a new process. Ratios are against margay with weights of the same "
            "width.\n")
    return f"{head}\n{table(run)}\n\n{notes(run)}\n\n![first token and ms per token of every system]({plot})\n"


def insert(text, new):
    """docs/speed.md with the block put before the older ones; the markers are made where missing."""
    if BEGIN not in text:
        text = text.rstrip("\n") + f"\n\n## Beside its peers, in one run\n\n{BEGIN}\n{END}\n"
    at = text.index(BEGIN) + len(BEGIN)
    return text[:at] + "\n\n" + new.strip("\n") + "\n\n" + text[at:].lstrip("\n")


def bar(x, y, width, colour, title):
    return (f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="18" fill="{colour}">'
            f"<title>{html.escape(title)}</title></rect>")


def words(x, y, s, anchor="start", weight="normal", size=12):
    return (f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}">'
            f"{html.escape(s)}</text>")


def panel(rows, left, top, width, title, parts, unit):
    """Horizontal bars, one a row; parts(row) gives the stacked lengths, the sum is written beside the bar."""
    most = max(sum(parts(r)) for r in rows)
    out = [words(left, top, title, weight="bold", size=13)]
    for i, r in enumerate(rows):
        y, x = top + 14 + i * 26, left
        for length, colour in zip(parts(r), COLOURS[r["group"]]):
            out.append(bar(x, y, length / most * width, colour, f"{r['label']}: {length:.2f} {unit}"))
            x += length / most * width
        out.append(words(x + 5, y + 13, f"{sum(parts(r)):.2f}" if unit == "s" else f"{sum(parts(r)):.0f}"))
    return out


def svg(run):
    rows = [r for r in run["rows"] if "error" not in r]
    labels, height = 190, 100 + 26 * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 {height}" font-family="system-ui, sans-serif" '
           'fill="#1f2937" role="img" aria-label="Time to the first token and per token of every system">',
           f'<rect width="980" height="{height}" fill="#ffffff"/>',
           words(16, 26, f"{run['image']}, {run['threads']} threads, {run['machine']}, {run['date']}", size=13)]
    for i, r in enumerate(rows):
        out.append(words(labels - 8, 58 + 14 + i * 26 + 13, r["label"], "end",
                         "bold" if r["group"] == "margay" else "normal"))
    out += panel(rows, labels, 58, 360, "first token, s (dark: picture and vision, light: prompt)",
                 lambda r: ((r["first_token_ms"]["median"] - r["prefill_ms"]["median"]) / 1e3,
                            r["prefill_ms"]["median"] / 1e3), "s")
    out += panel(rows, labels + 440, 58, 280, "every further token, ms", lambda r: (r["decode_ms_per_token"]["median"],),
                 "ms")
    out.append(words(16, height - 10, "medians; shorter is better", size=11))
    return "\n".join(out + ["</svg>"]) + "\n"
