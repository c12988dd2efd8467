#!/usr/bin/env python3
"""Times OpenVINO GenAI's VLMPipeline on one picture and question. Prints one JSON object, see peer.py.

usage: openvino_peer.py FOLDER QUESTION IMAGE... [--tokens 32] [--threads 2] [--runs 3] [--backend PA|SDPA]

FOLDER is one of make_openvino.py's. --backend is GenAI's ATTENTION_BACKEND: PA, its default on x86, or SDPA. vision_ms is
GenAI's time to prepare embeddings: resizing, the vision tower, and looking up the text's.
"""
import importlib.metadata, json, pathlib, re, time

import peer

o = peer.parse(__doc__, backend={"default": "PA", "choices": ["PA", "SDPA"]})

import numpy as np
import openvino as ov
import openvino_genai as G
from PIL import Image

start = time.perf_counter()
options = {"INFERENCE_NUM_THREADS": o.threads, "ATTENTION_BACKEND": o.backend}
if o.backend == "PA":                 # one request at a time, and nothing remembered from one run to the next
    scheduler = G.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 1
    scheduler.max_num_batched_tokens = 4096
    options["scheduler_config"] = scheduler
pipe = G.VLMPipeline(o.model, "CPU", **options)
load_ms = (time.perf_counter() - start) * 1e3
config = G.GenerationConfig()
config.max_new_tokens = config.min_new_tokens = o.tokens
config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
facts = {}


def once(picture):
    at, ids = [], []

    class Stamps(G.StreamerBase):
        def write(self, token):
            at.append(time.perf_counter())
            ids.extend([token] if isinstance(token, int) else token)
            return G.StreamingStatus.RUNNING

        def end(self):
            pass
    start = time.perf_counter()
    pixels = ov.Tensor(np.asarray(Image.open(picture).convert("RGB"))[None])
    text = peer.prompt(o.question, "<|vision_start|><|image_pad|><|vision_end|>")
    result = pipe.generate(text, images=[pixels], generation_config=config, streamer=Stamps())
    m = result.perf_metrics
    vision = m.get_prepare_embeddings_duration().mean
    facts["prompt"] = m.get_num_input_tokens()
    return {"first_token_ms": (at[0] - start) * 1e3, "vision_ms": vision,
            "prefill_ms": (at[0] - start) * 1e3 - vision,
            "decode_ms_per_token": (at[-1] - at[0]) / max(len(at) - 1, 1) * 1e3, "token_ids": ids,
            "prompt_tokens": facts["prompt"]}


def layers(file):
    return len(re.findall(r'type="ScaledDotProductAttention"', (pathlib.Path(o.model) / file).read_text()))


def image_tokens():
    text = peer.prompt(o.question, "<|vision_start|><|vision_end|>")
    return facts["prompt"] - pipe.get_tokenizer().encode(text).input_ids.shape[1]


versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("openvino", "openvino-genai"))
peer.measure(o, once, load_ms, version=versions, backend=o.backend, layers=layers("openvino_language_model.xml"),
             vision_blocks=lambda: layers("openvino_vision_embeddings_merger_model.xml"), image_tokens=image_tokens,
             patches=lambda: 4 * image_tokens())
