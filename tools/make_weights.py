#!/usr/bin/env python3
"""Writes a checkpoint folder of any Qwen3-VL shape with random weights, in the published layout.

For measuring speed and memory on the full shapes without a download, and for tests with odd
shapes. Needs numpy only. Tensors are written piece by piece, so memory stays below 1 GB whatever
the shape.

    tools/make_weights.py OUT --shape qwen3-vl-2b --tokenizer FOLDER/tokenizer.json
    tools/make_weights.py OUT --shape tiny --tokenizer T --dtype f32 --shards 3 \\
        --spelling newer --untied --set text.hidden_size=192 --set vision.depth=5

Matrices are normal with deviation --std (0.02), biases a tenth of that, norms 1 +- 0.05:
activations stay in the range of a trained model's. The answers are noise. The ids of control
tokens are taken from tokenizer.json; where the vocabulary of the shape is too small for them it is
enlarged.

Large tensors repeat a pool of --pool random numbers from an offset that differs by tensor and
piece, since drawing every number would take minutes. --pool 0 draws them all.
"""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

CONTROL = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
           "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}

SHAPES = {
    "qwen3-vl-2b": {
        "text": dict(vocab_size=151936, hidden_size=2048, intermediate_size=6144,
                     num_hidden_layers=28, num_attention_heads=16,
                     num_key_value_heads=8, head_dim=128,
                     max_position_embeddings=262144, rms_norm_eps=1e-6),
        "rope": dict(rope_theta=5000000, mrope_section=[24, 20, 20]),
        "vision": dict(depth=24, hidden_size=1024, intermediate_size=4096, num_heads=16,
                       in_channels=3, patch_size=16, spatial_merge_size=2, temporal_patch_size=2,
                       out_hidden_size=2048, num_position_embeddings=2304,
                       deepstack_visual_indexes=[5, 11, 17]),
        "pixels": (65536, 16777216),
        "tied": True,
    },
    "tiny": {
        "text": dict(vocab_size=640, hidden_size=96, intermediate_size=208, num_hidden_layers=4,
                     num_attention_heads=6, num_key_value_heads=2, head_dim=32,
                     max_position_embeddings=4096, rms_norm_eps=1e-6),
        "rope": dict(rope_theta=5000000, mrope_section=[6, 5, 5]),
        "vision": dict(depth=4, hidden_size=64, intermediate_size=144, num_heads=4, in_channels=3,
                       patch_size=16, spatial_merge_size=2, temporal_patch_size=2,
                       out_hidden_size=96, num_position_embeddings=64,
                       deepstack_visual_indexes=[0, 1, 3]),
        "pixels": (4096, 65536),
        "tied": True,
    },
}

DTYPES = {"bf16": ("BF16", 2), "f16": ("F16", 2), "f32": ("F32", 4)}


def tensors(text, vision, tied):
    """(name, shape, kind) of every tensor; kind: weight, bias, norm, norm_bias."""
    hidden, ffn, head = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    n_q, n_kv = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    v, v_ffn = vision["hidden_size"], vision["intermediate_size"]
    merge = vision["spatial_merge_size"] ** 2 * v

    def linear(name, rows, columns, bias=True):
        yield name + ".weight", [rows, columns], "weight"
        if bias:
            yield name + ".bias", [rows], "bias"

    def norm(name, n, bias):
        yield name + ".weight", [n], "norm"
        if bias:
            yield name + ".bias", [n], "norm_bias"

    def merger(name, norm_size):
        yield from norm(name + ".norm", norm_size, True)
        yield from linear(name + ".linear_fc1", merge, merge)
        yield from linear(name + ".linear_fc2", vision["out_hidden_size"], merge)

    yield "model.language_model.embed_tokens.weight", [text["vocab_size"], hidden], "weight"
    for i in range(text["num_hidden_layers"]):
        at = f"model.language_model.layers.{i}."
        yield from norm(at + "input_layernorm", hidden, False)
        yield from linear(at + "self_attn.q_proj", n_q, hidden, False)
        yield from linear(at + "self_attn.k_proj", n_kv, hidden, False)
        yield from linear(at + "self_attn.v_proj", n_kv, hidden, False)
        yield from linear(at + "self_attn.o_proj", hidden, n_q, False)
        yield from norm(at + "self_attn.q_norm", head, False)
        yield from norm(at + "self_attn.k_norm", head, False)
        yield from norm(at + "post_attention_layernorm", hidden, False)
        yield from linear(at + "mlp.gate_proj", ffn, hidden, False)
        yield from linear(at + "mlp.up_proj", ffn, hidden, False)
        yield from linear(at + "mlp.down_proj", hidden, ffn, False)
    yield from norm("model.language_model.norm", hidden, False)
    patch = [vision["in_channels"], vision["temporal_patch_size"]] + [vision["patch_size"]] * 2
    yield "model.visual.patch_embed.proj.weight", [v] + patch, "weight"
    yield "model.visual.patch_embed.proj.bias", [v], "bias"
    yield "model.visual.pos_embed.weight", [vision["num_position_embeddings"], v], "weight"
    for i in range(vision["depth"]):
        at = f"model.visual.blocks.{i}."
        yield from norm(at + "norm1", v, True)
        yield from linear(at + "attn.qkv", 3 * v, v)
        yield from linear(at + "attn.proj", v, v)
        yield from norm(at + "norm2", v, True)
        yield from linear(at + "mlp.linear_fc1", v_ffn, v)
        yield from linear(at + "mlp.linear_fc2", v, v_ffn)
    yield from merger("model.visual.merger", v)
    for i in range(len(vision["deepstack_visual_indexes"])):
        yield from merger(f"model.visual.deepstack_merger_list.{i}", merge)
    if not tied:
        yield "lm_head.weight", [text["vocab_size"], hidden], "weight"


def encode(x, dtype):
    """f32 numbers as little-endian elements of dtype; BF16 rounds to nearest, ties to even."""
    if dtype == "f32":
        return x.astype("<f4")
    if dtype == "f16":
        return x.astype("<f2")
    u = x.astype("<f4").view("<u4")
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2")


class Source:
    """Random numbers of one kind. Matrices come out of a pool unless that is 0."""

    PIECE = 1 << 22  # elements written at a time

    def __init__(self, seed, dtype, std, pool):
        self.rng = np.random.default_rng(seed)
        self.dtype, self.std = dtype, std
        self.pool = None
        if pool:
            x = self.rng.standard_normal(pool, dtype=np.float32)
            self.pool = encode(x * np.float32(std), dtype)

    def pieces(self, n, kind):
        scale, mean = {"weight": (self.std, 0), "bias": (self.std / 10, 0), "norm": (0.05, 1),
                       "norm_bias": (self.std / 10, 0)}[kind]
        while n:
            if kind == "weight" and self.pool is not None and n > 65536:
                at = int(self.rng.integers(0, len(self.pool) - 1))
                take = min(n, len(self.pool) - at)
                yield self.pool[at:at + take]
            else:
                take = min(n, self.PIECE)
                x = self.rng.standard_normal(take, dtype=np.float32)
                yield encode(x * np.float32(scale) + np.float32(mean), self.dtype)
            n -= take


def write_shard(path, rows, source, dtype):
    """One safetensors file: rows of (name, shape, kind). Returns the bytes of its data."""
    word, size = DTYPES[dtype]
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in rows:
        end = at + int(np.prod(shape)) * size
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, shape, kind in rows:
            for piece in source.pieces(int(np.prod(shape)), kind):
                f.write(piece)
    return at


def split(rows, n_shard, size):
    """Consecutive groups of about equal size."""
    total = sum(int(np.prod(shape)) for _, shape, _ in rows) * size
    groups, done = [[] for _ in range(n_shard)], 0
    for row in rows:
        groups[min(n_shard - 1, done * n_shard // total)].append(row)
        done += int(np.prod(row[1])) * size
    return [g for g in groups if g]


def control_ids(tokenizer):
    """From tokenizer.json: {text: id} of the added tokens, and the number of ids in all."""
    with open(tokenizer, encoding="utf-8") as f:
        t = json.load(f)
    added = {a["content"]: a["id"] for a in t.get("added_tokens", [])}
    ids = list(added.values()) + list(t["model"]["vocab"].values())
    return added, max(ids) + 1


def config_json(text, vision, rope, tied, spelling, dtype, added, end):
    word = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]
    text = dict(text, model_type="qwen3_vl_text", hidden_act="silu", attention_bias=False,
                attention_dropout=0.0, initializer_range=0.02, use_cache=True,
                tie_word_embeddings=tied, dtype=word, eos_token_id=end[0])
    vision = dict(vision, hidden_act="gelu_pytorch_tanh", initializer_range=0.02, dtype=word)
    section = {"mrope_interleaved": True, "mrope_section": rope["mrope_section"],
               "rope_type": "default"}
    if spelling == "published":
        text.update(rope_theta=rope["rope_theta"], rope_scaling=section)
        vision["model_type"] = "qwen3_vl"
    else:
        text["rope_parameters"] = dict(section, rope_theta=rope["rope_theta"])
        vision.update(model_type="qwen3_vl_vision",
                      rope_parameters={"rope_theta": 10000.0, "rope_type": "axial"})
    ids = {key: added[word] for key, word in CONTROL.items()}
    return dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl",
                dtype=word, **ids, text_config=text, vision_config=vision, tie_word_embeddings=tied,
                transformers_version="4.57.0" if spelling == "published" else "5.24.0")


def put_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("out", help="folder to write (made if it isn't there)")
    p.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-vl-2b")
    p.add_argument("--tokenizer", required=True,
                   help="a tokenizer.json; copied, and its control ids are used")
    p.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    p.add_argument("--layers", type=int, help="decoder layers instead of the shape's")
    p.add_argument("--vision-layers", type=int, help="vision blocks instead of the shape's")
    p.add_argument("--set", action="append", default=[], metavar="PART.KEY=VALUE",
                   help="any number or list of text, vision or rope, e.g. text.head_dim=64")
    p.add_argument("--shards", type=int, default=1, help="files; more than 1 gives an index")
    p.add_argument("--spelling", choices=["published", "newer"], default="published",
                   help="of config.json")
    tied = p.add_mutually_exclusive_group()
    tied.add_argument("--tied", action="store_true", default=None, help="no lm_head.weight")
    tied.add_argument("--untied", action="store_true")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--std", type=float, default=0.02)
    p.add_argument("--pool", type=int, default=(1 << 25) - 39,
                   help="random numbers that large matrices share")
    a = p.parse_args()
    if a.shards < 1 or a.pool < 0 or a.pool == 1:
        p.error("--shards wants at least 1, --pool 0 or at least 2")

    shape = SHAPES[a.shape]
    part = {name: dict(shape[name]) for name in ("text", "vision", "rope")}
    if a.layers is not None:
        part["text"]["num_hidden_layers"] = a.layers
    if a.vision_layers is not None:
        part["vision"]["depth"] = a.vision_layers
    for change in a.set:
        key, _, value = change.partition("=")
        section, _, name = key.partition(".")
        if section not in part or name not in part[section]:
            p.error(f"--set {change}: wanted text., vision. or rope. and one of "
                    f"{', '.join(sorted(part.get(section, part)))}")
        part[section][name] = json.loads(value)
    text, vision, rope = part["text"], part["vision"], part["rope"]
    vision["deepstack_visual_indexes"] = [i for i in vision["deepstack_visual_indexes"]
                                          if i < vision["depth"]]
    if "out_hidden_size" not in " ".join(a.set):
        vision["out_hidden_size"] = text["hidden_size"]
    is_tied = shape["tied"] if not (a.tied or a.untied) else bool(a.tied)

    added, n_id = control_ids(a.tokenizer)
    needed = list(CONTROL.values()) + ["<|im_end|>", "<|endoftext|>"]
    missing = [w for w in needed if w not in added]
    if missing:
        p.error(f"{a.tokenizer} lacks {', '.join(missing)}")
    end = [added["<|im_end|>"], added["<|endoftext|>"]]
    text["vocab_size"] = max(text["vocab_size"], n_id)

    os.makedirs(a.out, exist_ok=True)
    rows = list(tensors(text, vision, is_tied))
    groups = split(rows, a.shards, DTYPES[a.dtype][1])
    n_element = sum(int(np.prod(shape)) for _, shape, _ in rows)
    pool = min(a.pool, max(2, n_element))
    source = Source(a.seed, a.dtype, a.std, pool if a.pool else 0)
    for name in os.listdir(a.out):  # of an earlier run with another number of shards
        if name.startswith("model") and name.endswith((".safetensors", ".safetensors.index.json")):
            os.remove(os.path.join(a.out, name))
    total, where = 0, {}
    for i, group in enumerate(groups):
        name = "model.safetensors"
        if len(groups) > 1:
            name = f"model-{i + 1:05}-of-{len(groups):05}.safetensors"
        total += write_shard(os.path.join(a.out, name), group, source, a.dtype)
        where.update({row[0]: name for row in group})
    if len(groups) > 1:
        put_json(a.out, "model.safetensors.index.json",
                 {"metadata": {"total_size": total}, "weight_map": where})

    least, most = shape["pixels"]
    put_json(a.out, "config.json",
             config_json(text, vision, rope, is_tied, a.spelling, a.dtype, added, end))
    put_json(a.out, "preprocessor_config.json", {
        "size": {"shortest_edge": least, "longest_edge": most}, "patch_size": vision["patch_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"})
    put_json(a.out, "generation_config.json", {
        "bos_token_id": end[1], "eos_token_id": end, "pad_token_id": end[1], "do_sample": True,
        "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.0})
    target = os.path.join(a.out, "tokenizer.json")
    if not (os.path.exists(target) and os.path.samefile(a.tokenizer, target)):
        shutil.copyfile(a.tokenizer, target)
    print(f"{a.out}: {len(rows)} tensors, {n_element:,} parameters, {total:,} bytes in "
          f"{len(groups)} file(s)", file=sys.stderr)


if __name__ == "__main__":
    main()
