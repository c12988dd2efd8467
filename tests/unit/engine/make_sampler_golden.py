#!/opt/ref/bin/python
"""Writes sampler_golden.txt: what transformers' logits processors keep of made-up rows of logits.

The rows come from a generator that sampler.c has too (see `row`), exact in f32, so that only results are stored.
The penalties over the answer, which transformers lacks, are OpenAI's formula in f32; the draws are an independent
xoshiro256** and an f64 running sum. One block per case:

    case NAME VOCAB ROW KIND temperature top_k top_p min_p repetition presence frequency seed
    prompt N ids...
    answer N ids...
    kept COUNT SUM(id) SUM(id * id mod 65521), of the tokens kept
    head N (id score-as-hex-bits probability)...    the first 40 kept by id
    draws N ids...                                  one pick after another, from the same row
"""
import pathlib

import numpy as np
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
    TopPLogitsWarper)

M = 1 << 64


def row(n, seed, kind):
    """smooth: near normal, steps of 1/4096. ties: the same in steps of 1/2. flat: all equal."""
    out = np.empty(n, np.float32)
    x = seed
    for i in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % M
        total = sum(x >> s & 0xFFFF for s in (0, 16, 32, 48)) - 2 * 65535
        out[i] = np.float32(total / 16384) if kind == "smooth" else np.float32(total // 16384 / 2)
        if kind == "flat":
            out[i] = 1
    return out


def xoshiro(seed):
    words = []
    for _ in range(4):
        seed = (seed + 0x9E3779B97F4A7C15) % M
        z = seed
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % M
        z = (z ^ z >> 27) * 0x94D049BB133111EB % M
        words.append(z ^ z >> 31)
    rot = lambda v, k: (v << k | v >> 64 - k) % M
    while True:
        s0, s1, s2, s3 = words
        yield (rot(s1 * 5 % M, 7) * 9 % M >> 11) * 2.0 ** -53
        t = s1 << 17 & M - 1
        s2 ^= s0
        s3 ^= s1
        words = [s0 ^ s3, s1 ^ s2, s2 ^ t, rot(s3, 45)]


def process(logits, o, prompt, answer):
    """Scores with -inf for what is not kept."""
    s = torch.from_numpy(logits.copy())[None]
    ids = torch.tensor([prompt + answer], dtype=torch.long)
    if o["repetition"] != 1:
        s = RepetitionPenaltyLogitsProcessor(o["repetition"])(ids, s)
    for t in set(answer):
        v = s[0, t].numpy().copy()
        v = v - np.float32(o["frequency"]) * np.float32(answer.count(t))
        s[0, t] = float(np.float32(v) - np.float32(o["presence"]))
    if o["temperature"] == 0:
        best = int(torch.argmax(s[0]))
        keep = torch.full_like(s, -torch.inf)
        keep[0, best] = s[0, best]
        return keep[0].numpy()
    if o["temperature"] != 1:
        s = TemperatureLogitsWarper(o["temperature"])(ids, s)
    if o["top_k"]:
        s = TopKLogitsWarper(o["top_k"])(ids, s)
    if o["top_p"] < 1:
        before = s
        s = TopPLogitsWarper(o["top_p"])(ids, s)
        # Which of several equal scores at the border stay is up to its unstable sort; ours: the first.
        least = s[s > -torch.inf].min()
        tied = torch.nonzero(before[0] == least)[:, 0]
        n_tied = int((s == least).sum())
        s[0, tied] = -torch.inf
        s[0, tied[:n_tied]] = least
    if o["min_p"]:
        s = MinPLogitsWarper(o["min_p"])(ids, s)
    return s[0].numpy()


def case(name, n, row_seed, kind="smooth", prompt=(), answer=(), seed=1, **given):
    o = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0)
    o.update(given)
    prompt, answer = list(prompt), list(answer)
    score = process(row(n, row_seed, kind), o, prompt, answer)
    kept = np.flatnonzero(score > -np.inf)
    weight = np.exp(score[kept].astype(np.float64) - np.float64(score[kept].max()))
    prob = torch.softmax(torch.from_numpy(score), -1).numpy()
    head = " ".join(f"{i} {score[i:i + 1].view(np.uint32)[0]:08x} {prob[i]:.9g}" for i in kept[:40])
    # The penalties would change with each pick taken, so these cases have a single draw.
    n_draw = 1 if o["repetition"] != 1 or o["presence"] or o["frequency"] else 12
    draws, sums, u = [], np.cumsum(weight), xoshiro(seed)
    for _ in range(n_draw):
        at = next(u) * sums[-1] if o["temperature"] else 0
        draws.append(int(kept[min(np.searchsorted(sums, at, side="right"), len(kept) - 1)]))
    values = " ".join(str(o[k]) for k in o)
    lists = [f"{w} {len(v)} {' '.join(map(str, v))}".rstrip() for w, v in (("prompt", prompt), ("answer", answer))]
    sum_id, sum_square = int(kept.sum()), int((kept * kept % 65521).sum())
    return "\n".join([f"case {name} {n} {row_seed} {kind} {values} {seed}", *lists,
                      f"kept {len(kept)} {sum_id} {sum_square}", f"head {min(len(kept), 40)} {head}",
                      f"draws {n_draw} {' '.join(map(str, draws))}"]) + "\n"


PROMPT, ANSWER = [5, 17, 17, 99, 640, 999, 3], [8, 17, 17, 17, 250, 999, 8]
SEEN = dict(prompt=PROMPT, answer=ANSWER)
CASES = [
    case("plain", 1000, 1),
    case("published", 151936, 2, temperature=0.7, top_k=20, top_p=0.8),
    case("published_small", 1000, 3, temperature=0.7, top_k=20, top_p=0.8, seed=77),
    case("hot", 4096, 4, temperature=1.7),
    case("cold", 4096, 5, temperature=0.05),
    case("top_k_1", 4096, 6, top_k=1),
    case("top_k_50", 4096, 7, top_k=50),
    case("top_k_2000", 4096, 8, top_k=2000, temperature=3.0),
    case("top_k_all", 1000, 9, top_k=1000),
    case("top_k_over", 1000, 9, top_k=100000),
    case("top_k_ties", 4096, 10, kind="ties", top_k=30),
    case("top_k_ties_wide", 151936, 11, kind="ties", top_k=3000),
    case("top_p_half", 4096, 12, top_p=0.5),
    case("top_p_tenth", 4096, 13, top_p=0.1),
    case("top_p_most", 4096, 14, top_p=0.95, temperature=0.8),
    case("top_p_wide", 151936, 15, top_p=0.9),
    case("top_p_tiny", 1000, 16, top_p=0.000001),
    case("min_p", 4096, 17, min_p=0.05),
    case("min_p_one", 4096, 18, min_p=1.0),
    case("all_three", 4096, 19, temperature=1.3, top_k=100, top_p=0.9, min_p=0.02),
    case("flat_top_k", 100, 20, kind="flat", top_k=7),
    case("repetition", 1000, 21, repetition=1.3, **SEEN),
    case("repetition_below_one", 1000, 22, repetition=0.7, temperature=0.9, top_k=40, **SEEN),
    case("presence", 1000, 23, presence=1.5, **SEEN),
    case("frequency", 1000, 24, frequency=0.4, temperature=0.6, **SEEN),
    case("penalties", 1000, 25, repetition=1.1, presence=0.6, frequency=-0.3, temperature=0.7,
         top_k=60, top_p=0.92, min_p=0.01, **SEEN),
    case("greedy", 151936, 26, temperature=0.0),
    case("greedy_ties", 4096, 27, kind="ties", temperature=0.0),
    case("greedy_flat", 100, 28, kind="flat", temperature=0.0),
    *[case(f"greedy_penalties_{i}", 64, 100 + i, temperature=0.0, repetition=1.5, presence=0.5, frequency=0.25,
           prompt=range(0, 40, 2), answer=[3, 5, 5, 60, 61, 62, 62, 62]) for i in range(30)],
]
pathlib.Path(__file__).with_name("sampler_golden.txt").write_text("".join(CASES))
