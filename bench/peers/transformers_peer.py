#!/usr/bin/env python3
"""Times Hugging Face transformers on one picture and question. Prints one JSON object, see peer.py.

usage: transformers_peer.py FOLDER QUESTION IMAGE... [--tokens 32] [--threads 2] [--runs 3] [--dtype bf16|f32]

FOLDER is the checkpoint that margay loads. The attention is what transformers chooses (sdpa).
"""
import json, time

import peer

o = peer.parse(__doc__, dtype={"default": "bf16", "choices": ["bf16", "f32"]})

import torch
import transformers
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl import Qwen2VLImageProcessor

torch.set_num_threads(o.threads)
torch.set_grad_enabled(False)
dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[o.dtype]
start = time.perf_counter()
model = Qwen3VLForConditionalGeneration.from_pretrained(o.model, dtype=dtype).eval()
tok = PreTrainedTokenizerFast(tokenizer_file=f"{o.model}/tokenizer.json")
pre = json.load(open(f"{o.model}/preprocessor_config.json"))
most = min(pre["size"]["longest_edge"], peer.MOST_IMAGE_TOKENS * (pre["patch_size"] * pre["merge_size"]) ** 2)
proc = Qwen2VLImageProcessor(patch_size=pre["patch_size"], merge_size=pre["merge_size"], temporal_patch_size=2,
                             size={"shortest_edge": pre["size"]["shortest_edge"], "longest_edge": most},
                             image_mean=pre["image_mean"], image_std=pre["image_std"])
load_ms = (time.perf_counter() - start) * 1e3
facts = {}


def timed(marks, name, fn):
    def run(*a, **k):
        s = time.perf_counter()
        r = fn(*a, **k)
        marks.append((name, (time.perf_counter() - s) * 1e3))
        return r
    return run


class Stamps:
    """A streamer that notes when each token came; the first call brings the prompt."""
    def __init__(self):
        self.at, self.ids = [], []

    def put(self, value):
        self.at.append(time.perf_counter())
        self.ids.append(value.flatten().tolist())

    def end(self):
        pass


def once(picture):
    start = time.perf_counter()
    img = proc(images=[Image.open(picture).convert("RGB")], return_tensors="pt")
    patches = int(img["image_grid_thw"].prod())
    n = patches // pre["merge_size"] ** 2
    text = peer.prompt(o.question, "<|vision_start|>" + "<|image_pad|>" * n + "<|vision_end|>")
    ids = torch.tensor([tok(text)["input_ids"]])
    marks, stamps = [], Stamps()
    visual, language = model.model.visual.forward, model.model.language_model.forward
    model.model.visual.forward = timed(marks, "vision", visual)
    model.model.language_model.forward = timed(marks, "language", language)
    model.generate(input_ids=ids, mm_token_type_ids=(ids == model.config.image_token_id).int(),
                   attention_mask=torch.ones_like(ids), pixel_values=img["pixel_values"].to(dtype),
                   image_grid_thw=img["image_grid_thw"], max_new_tokens=o.tokens, min_new_tokens=o.tokens,
                   do_sample=False, streamer=stamps)
    model.model.visual.forward, model.model.language_model.forward = visual, language
    facts.update(patches=patches, image_tokens=n)
    at = stamps.at[1:]
    return {"first_token_ms": (at[0] - start) * 1e3,
            "vision_ms": sum(ms for name, ms in marks if name == "vision"),
            "prefill_ms": next(ms for name, ms in marks if name == "language"),
            "decode_ms_per_token": (at[-1] - at[0]) / max(len(at) - 1, 1) * 1e3,
            "token_ids": [i for ids in stamps.ids[1:] for i in ids], "prompt_tokens": ids.shape[1]}


peer.measure(o, once, load_ms, version=f"transformers {transformers.__version__}, torch {torch.__version__}",
             layers=len(model.model.language_model.layers), vision_blocks=len(model.model.visual.blocks),
             patches=lambda: facts["patches"], image_tokens=lambda: facts["image_tokens"])
