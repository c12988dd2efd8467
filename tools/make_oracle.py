#!/usr/bin/env python3
"""Makes small random checkpoints of other shapes and records transformers' stages for them, in the form that
tests/oracle/check_parity.py reads.

usage: make_oracle.py OUT        (needs torch, torchvision, transformers; the tests need none of them)

Pictures, prompts and the tokenizer come from tests/oracle. Then:
    tests/oracle/check_parity.py build/margay --root OUT [--weights bf16] -v
All is computed in f32 with eager attention from the saved weights. The model is loaded again from the folder before
recording: casting it down and up in memory would also round its rotary frequencies.
"""
import json
import pathlib
import shutil
import sys
import tarfile
import tempfile

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl import Qwen2VLImageProcessor

ORACLE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "oracle"
MODEL = ORACLE / "tiny-untied"
CASES = ("two_images", "jpeg", "multi_turn", "gray_tall")
SHAPES = {  # what differs from tiny-untied
    "f16-mqa": dict(dtype=torch.float16, tied=True, section=[12, 10, 10], patch=16,
                    text=dict(hidden_size=160, intermediate_size=328, num_hidden_layers=5, num_attention_heads=8,
                              num_key_value_heads=1, head_dim=64),
                    vision=dict(hidden_size=96, intermediate_size=200, depth=6, num_heads=3, out_hidden_size=160,
                                deepstack_visual_indexes=[1, 3, 5], num_position_embeddings=196)),
    "patch-14": dict(dtype=torch.bfloat16, tied=False, section=[24, 20, 20], patch=14,
                     text=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                               num_key_value_heads=2, head_dim=128),
                     vision=dict(hidden_size=48, intermediate_size=100, depth=3, num_heads=2, out_hidden_size=64,
                                 deepstack_visual_indexes=[2], num_position_embeddings=49, patch_size=14)),
    "odd": dict(dtype=torch.float32, tied=True, section=[4, 4, 4], patch=16,
                text=dict(hidden_size=72, intermediate_size=130, num_hidden_layers=3, num_attention_heads=3,
                          num_key_value_heads=3, head_dim=24),
                vision=dict(hidden_size=40, intermediate_size=66, depth=4, num_heads=5, out_hidden_size=72,
                            deepstack_visual_indexes=[0, 2], num_position_embeddings=2304)),
}


def make_model(folder, shape):
    config = json.loads((MODEL / "config.json").read_text())
    config["text_config"].update(shape["text"], tie_word_embeddings=shape["tied"])
    config["text_config"]["rope_parameters"]["mrope_section"] = shape["section"]
    config["vision_config"].update(shape["vision"])
    config["tie_word_embeddings"] = shape["tied"]
    torch.manual_seed(3)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config))
    for name, p in model.named_parameters():
        if p.dim() > 1:
            p.mul_(4.0)
        else:
            p.normal_(0.0 if "bias" in name else 1.0, 0.1)
    model.to(shape["dtype"]).save_pretrained(folder)
    pre = json.loads((MODEL / "preprocessor_config.json").read_text())
    pre["patch_size"] = shape["patch"]
    (folder / "preprocessor_config.json").write_text(json.dumps(pre))
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(MODEL / name, folder / name)
    return Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32,
                                                           attn_implementation="eager").eval(), pre


def record(model, pre, tokenizer, info, out, steps=8):
    processor = Qwen2VLImageProcessor(patch_size=pre["patch_size"], merge_size=pre["merge_size"],
                                      temporal_patch_size=2, size=pre["size"], image_mean=pre["image_mean"],
                                      image_std=pre["image_std"])
    pictures = [Image.open(ORACLE / "images" / part["image"]).convert("RGB") for m in info["messages"]
                if isinstance(m["content"], list) for part in m["content"] if part["type"] == "image"]
    image = processor(images=pictures, return_tensors="pt")
    pixels, grid = image["pixel_values"], image["image_grid_thw"]
    pieces = info["prompt"].split("<|image_pad|>")
    text = pieces[0] + "".join("<|image_pad|>" * int(g.prod() // pre["merge_size"] ** 2) + piece
                               for g, piece in zip(grid, pieces[1:]))
    pad = model.config.image_token_id
    ids = torch.tensor([tokenizer(text)["input_ids"]])

    def last_logits(ids):
        return model(input_ids=ids, mm_token_type_ids=(ids == pad).int(), pixel_values=pixels, image_grid_thw=grid,
                     attention_mask=torch.ones_like(ids)).logits[0, -1]

    logits = step = last_logits(ids)
    greedy, gap, now = [], float("inf"), ids
    while len(greedy) < steps and int(step.argmax()) != pad:
        best = step.topk(2).values
        gap = min(gap, float(best[0] - best[1]))
        greedy.append(int(step.argmax()))
        now = torch.cat([now, torch.tensor([greedy[-1:]])], 1)
        step = last_logits(now)
    features = model.model.visual(pixels, grid_thw=grid)
    position, _ = model.model.get_rope_index(ids, (ids == pad).int(), image_grid_thw=grid)
    stages = {"input_ids": ids[0].int(), "position_ids": position[:, 0].int(), "image_grid_thw": grid.int(),
              "pixel_values": pixels.float(), "vision": features.pooler_output, "logits": logits,
              "greedy": torch.tensor(greedy, dtype=torch.int32)}
    stages |= {f"deepstack_{i}": rows for i, rows in enumerate(features.deepstack_features)}
    for name, value in stages.items():
        np.save(out / f"{name}.npy", value.numpy())
    (out / "case.json").write_text(json.dumps({"messages": info["messages"], "min_top2_gap": gap}))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    shutil.copytree(ORACLE / "images", root / "images", dirs_exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        with tarfile.open(MODEL / "cases.tar.xz") as packed:
            packed.extractall(tmp)
        infos = {c: json.loads(pathlib.Path(tmp, "cases", c, "case.json").read_text()) for c in CASES}
    for name, shape in SHAPES.items():
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        model, pre = make_model(folder, shape)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        for case, info in infos.items():
            out = folder / "cases" / case
            out.mkdir(parents=True)
            record(model, pre, tokenizer, info, out)
        print(name, flush=True)


if __name__ == "__main__":
    main()
