#!/usr/bin/env python3
"""Times Hugging Face transformers on one picture and question, the way `margay ask --json` reports it.

usage: transformers_peer.py FOLDER IMAGE QUESTION [--tokens 32] [--threads 2] [--dtype bf16|f32] [--runs 3]

Prints one JSON object: first_token_ms (picture decoded and resized to first token), vision_ms, prefill_ms,
decode_ms_per_token (medians), peak_rss_mb. The same prompt and pixel limits as margay's default (1,024 tokens a
picture). End tokens are ignored so that every run generates the same number of tokens.
"""
import argparse, json, resource, statistics, time

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("folder"); ap.add_argument("image"); ap.add_argument("question")
ap.add_argument("--tokens", type=int, default=32); ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--dtype", default="bf16", choices=["bf16", "f32"]); ap.add_argument("--runs", type=int, default=3)
o = ap.parse_args()

import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl import Qwen2VLImageProcessor

torch.set_num_threads(o.threads)
torch.set_grad_enabled(False)
dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[o.dtype]
t = time.time()
model = Qwen3VLForConditionalGeneration.from_pretrained(o.folder, dtype=dtype).eval()
load_s = time.time() - t
tok = PreTrainedTokenizerFast(tokenizer_file=f"{o.folder}/tokenizer.json")
pre = json.load(open(f"{o.folder}/preprocessor_config.json"))
most = min(pre["size"]["longest_edge"], 1024 * (pre["patch_size"] * pre["merge_size"]) ** 2)
proc = Qwen2VLImageProcessor(patch_size=pre["patch_size"], merge_size=pre["merge_size"], temporal_patch_size=2,
                             size={"shortest_edge": pre["size"]["shortest_edge"], "longest_edge": most},
                             image_mean=pre["image_mean"], image_std=pre["image_std"])
pad = model.config.image_token_id


def once():
    start = time.time()
    img = proc(images=[Image.open(o.image).convert("RGB")], return_tensors="pt")
    n = int(img["image_grid_thw"].prod()) // pre["merge_size"] ** 2
    text = ("<|im_start|>user\n<|vision_start|>" + "<|image_pad|>" * n + f"<|vision_end|>{o.question}<|im_end|>\n"
            "<|im_start|>assistant\n")
    ids = torch.tensor([tok(text)["input_ids"]])
    kind = (ids == pad).int()
    marks = []
    visual, language = model.model.visual.forward, model.model.language_model.forward

    def timed(name, fn):
        def run(*a, **k):
            s = time.time(); r = fn(*a, **k); marks.append((name, time.time() - s)); return r
        return run
    model.model.visual.forward = timed("vision", visual)
    model.model.language_model.forward = timed("language", language)
    stamps = []

    class Stamp:
        def put(self, value): stamps.append(time.time())
        def end(self): pass
    model.generate(input_ids=ids, mm_token_type_ids=kind, attention_mask=torch.ones_like(ids),
                   pixel_values=img["pixel_values"].to(dtype), image_grid_thw=img["image_grid_thw"],
                   max_new_tokens=o.tokens, min_new_tokens=o.tokens, do_sample=False, streamer=Stamp())
    model.model.visual.forward, model.model.language_model.forward = visual, language
    stamps = stamps[1:]                    # the first put is the prompt
    return {"first_token_ms": (stamps[0] - start) * 1e3,
            "vision_ms": sum(d for n_, d in marks if n_ == "vision") * 1e3,
            "prefill_ms": next(d for n_, d in marks if n_ == "language") * 1e3,
            "decode_ms_per_token": (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3, "prompt_tokens": ids.shape[1]}


runs = [once() for _ in range(o.runs + 1)]
first = runs.pop(0)
out = {k: statistics.median(r[k] for r in runs) for k in first}
out.update(cold_first_token_ms=first["first_token_ms"], load_s=load_s, dtype=o.dtype, threads=o.threads,
           peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in out.items()}))
