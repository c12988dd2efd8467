#!/usr/bin/env python3
"""Writes the GGUF files that llama.cpp needs from a Qwen3-VL folder in safetensors.

usage: make_gguf.py FOLDER OUT [--types q8_0,q4_0]

OUT/text-TYPE.gguf    the decoder, quantised by llama.cpp itself (llama_model_quantize) with its own choice of type
                      for every tensor: a tied head becomes Q8_0 or, at Q4_0, Q6_K
OUT/mmproj-f16.gguf   the vision tower, matrices in f16 and the rest in f32, as llama.cpp's converter writes it

Names and metadata are those that llama.cpp's loader asks for (architectures qwen3vl and clip/qwen3vl_merger). One
tensor is in memory at a time; the bf16 file between is removed. Files that exist are kept.
"""
import argparse, json, math, mmap, os, pathlib, struct, sys

import gguf
import numpy as np

FTYPES = {"q8_0": 7, "q4_0": 2, "q4_k_m": 15, "bf16": 32}   # enum llama_ftype


class Checkpoint:
    """Tensors of one or several .safetensors files as raw numpy views (bf16 as uint16)."""
    DTYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}

    def __init__(self, folder):
        self.tensors = {}
        for path in sorted(folder.glob("*.safetensors")):
            with open(path, "rb") as f:
                (n,) = struct.unpack("<Q", f.read(8))
                header = json.loads(f.read(n))
                data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            header.pop("__metadata__", None)
            for name, t in header.items():
                self.tensors[name] = (data, 8 + n + t["data_offsets"][0], t["dtype"], t["shape"])

    def raw(self, name):
        data, offset, dtype, shape = self.tensors[name]
        return np.frombuffer(data, self.DTYPES[dtype], math.prod(shape), offset).reshape(shape), dtype

    def f32(self, name):
        a, dtype = self.raw(name)
        if dtype == "BF16":
            return (a.astype(np.uint32) << 16).view(np.float32)
        return a.astype(np.float32)

    def bf16(self, name):
        a, dtype = self.raw(name)
        if dtype == "BF16":
            return np.ascontiguousarray(a)
        bits = a.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write(writer, path, plan, read):
    """plan: (name in GGUF, shape, ggml type, key for read). Two passes so that no tensor stays in memory."""
    sizes = {gguf.GGMLQuantizationType.F32: (np.float32, 4), gguf.GGMLQuantizationType.F16: (np.float16, 2),
             gguf.GGMLQuantizationType.BF16: (np.uint16, 2)}
    for name, shape, kind, _ in plan:
        dtype, size = sizes[kind]
        writer.add_tensor_info(name, shape, np.dtype(dtype), math.prod(shape) * size, raw_dtype=kind)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape, kind, key in plan:
        a = read(key, kind)
        assert list(a.shape) == list(shape), (name, a.shape, shape)
        writer.write_tensor_data(a)
    writer.close()


def add_tokenizer(writer, folder, vocab_size):
    j = json.load(open(folder / "tokenizer.json", encoding="utf-8"))
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    for text, i in j["model"]["vocab"].items():
        tokens[i], types[i] = text, gguf.TokenType.NORMAL
    for t in j["added_tokens"]:
        tokens[t["id"]] = t["content"]
        types[t["id"]] = gguf.TokenType.CONTROL if t["special"] else gguf.TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    ids = {t["content"]: t["id"] for t in j["added_tokens"]}
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)


def text_file(ckpt, cfg, folder, out):
    t = cfg["text_config"]
    rope = t.get("rope_scaling") or t.get("rope_parameters")
    w = gguf.GGUFWriter(None, "qwen3vl")
    w.add_name("qwen3-vl")
    w.add_file_type(FTYPES["bf16"])
    w.add_block_count(t["num_hidden_layers"])
    w.add_context_length(t["max_position_embeddings"])
    w.add_embedding_length(t["hidden_size"])
    w.add_feed_forward_length(t["intermediate_size"])
    w.add_head_count(t["num_attention_heads"])
    w.add_head_count_kv(t["num_key_value_heads"])
    w.add_key_length(t["head_dim"])
    w.add_value_length(t["head_dim"])
    w.add_layer_norm_rms_eps(t["rms_norm_eps"])
    w.add_rope_freq_base(float(t.get("rope_theta") or rope["rope_theta"]))
    w.add_rope_dimension_sections(list(rope["mrope_section"]) + [0] * (4 - len(rope["mrope_section"])))
    w.add_num_deepstack_layers(len(cfg["vision_config"]["deepstack_visual_indexes"]))
    w.add_vocab_size(t["vocab_size"])
    add_tokenizer(w, folder, t["vocab_size"])
    names = {"model.language_model.embed_tokens.weight": "token_embd.weight",
             "model.language_model.norm.weight": "output_norm.weight"}
    if not (cfg.get("tie_word_embeddings") or t.get("tie_word_embeddings")):
        names["lm_head.weight"] = "output.weight"
    for i in range(t["num_hidden_layers"]):
        for hf, g in {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
                      "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm":
                      "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
                      "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}.items():
            names[f"model.language_model.layers.{i}.{hf}.weight"] = f"blk.{i}.{g}.weight"
    kinds = gguf.GGMLQuantizationType
    plan = []
    for hf, g in names.items():
        shape = ckpt.tensors[hf][3]
        plan.append((g, shape, kinds.F32 if len(shape) == 1 else kinds.BF16, hf))
    write(w, out, plan, lambda key, kind: ckpt.f32(key) if kind == kinds.F32 else ckpt.bf16(key))


def vision_file(ckpt, cfg, pre, out):
    v, t = cfg["vision_config"], cfg["text_config"]
    w = gguf.GGUFWriter(None, "clip")
    w.add_type(gguf.GGUFType.MMPROJ)
    w.add_file_type(1)                                                              # mostly f16
    w.add_clip_has_vision_encoder(True)
    w.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
    w.add_vision_projection_dim(t["hidden_size"])
    w.add_vision_image_size(math.isqrt(v["num_position_embeddings"]) * v["patch_size"])
    w.add_vision_patch_size(v["patch_size"])
    w.add_vision_embedding_length(v["hidden_size"])
    w.add_vision_feed_forward_length(v["intermediate_size"])
    w.add_vision_block_count(v["depth"])
    w.add_vision_head_count(v["num_heads"])
    w.add_vision_image_mean(pre["image_mean"])
    w.add_vision_image_std(pre["image_std"])
    w.add_vision_use_gelu(True)
    w.add_vision_spatial_merge_size(v["spatial_merge_size"])
    w.add_vision_attention_layernorm_eps(1e-6)
    w.add_vision_is_deepstack_layers([i in v["deepstack_visual_indexes"] for i in range(v["depth"])])
    names = {"pos_embed.weight": "v.position_embd.weight", "patch_embed.proj.bias": "v.patch_embd.bias",
             "merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}
    for i in range(v["depth"]):
        for hf, g in {"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
                      "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"}.items():
            names[f"blocks.{i}.{hf}"] = f"v.blk.{i}.{g}"
    for i, layer in enumerate(v["deepstack_visual_indexes"]):
        for hf, g in {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}.items():
            names[f"deepstack_merger_list.{i}.{hf}"] = f"v.deepstack.{layer}.{g}"
    kinds = gguf.GGMLQuantizationType
    plan = []
    for hf, g in names.items():
        for suffix in [""] if hf.endswith((".weight", ".bias")) else [".weight", ".bias"]:
            key = f"model.visual.{hf}{suffix}"
            shape = ckpt.tensors[key][3]
            f16 = len(shape) > 1 and "position" not in g
            plan.append((g + suffix, shape, kinds.F16 if f16 else kinds.F32, (key, None)))
    key = "model.visual.patch_embed.proj.weight"          # one 2-D convolution for each of the two frames
    shape = ckpt.tensors[key][3]
    for frame, suffix in enumerate(["", ".1"]):
        plan.append(("v.patch_embd.weight" + suffix, shape[:2] + shape[3:], kinds.F16, (key, frame)))

    def read(key, kind):
        a = ckpt.f32(key[0])
        if key[1] is not None:
            a = np.ascontiguousarray(a[:, :, key[1]])
        return a.astype(np.float16) if kind == kinds.F16 else a
    write(w, out, plan, read)


def quantise(src, dst, ftype, threads):
    import ctypes
    import llama_cpp
    p = llama_cpp.llama_model_quantize_default_params()
    p.nthread, p.ftype = threads, FTYPES[ftype]
    if llama_cpp.llama_model_quantize(str(src).encode(), str(dst).encode(), ctypes.byref(p)):
        sys.exit(f"llama.cpp could not quantise {src} to {ftype}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--types", default="q8_0,q4_0")
    ap.add_argument("--threads", type=int, default=2)
    o = ap.parse_args()
    cfg = json.load(open(o.folder / "config.json"))
    pre = json.load(open(o.folder / "preprocessor_config.json"))
    o.out.mkdir(parents=True, exist_ok=True)
    ckpt = Checkpoint(o.folder)
    mmproj = o.out / "mmproj-f16.gguf"
    if not mmproj.exists():
        vision_file(ckpt, cfg, pre, o.out / "mmproj.tmp")
        os.replace(o.out / "mmproj.tmp", mmproj)
    missing = [t for t in o.types.split(",") if not (o.out / f"text-{t}.gguf").exists()]
    if missing:
        plain = o.out / "text-bf16.tmp"
        text_file(ckpt, cfg, o.folder, plain)
        for t in missing:
            quantise(plain, o.out / f"text-{t}.tmp", t, o.threads)
            os.replace(o.out / f"text-{t}.tmp", o.out / f"text-{t}.gguf")
        plain.unlink()
    for p in sorted(o.out.glob("*.gguf")):
        print(f"{p}  {p.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
