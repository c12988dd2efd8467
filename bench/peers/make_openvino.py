#!/usr/bin/env python3
"""Exports a Qwen3-VL folder to the OpenVINO models that OpenVINO GenAI's VLMPipeline loads.

usage: make_openvino.py FOLDER OUT [--types int8,int4]

OUT/ov-TYPE/   what `optimum-cli export openvino --task image-text-to-text --weight-format TYPE` makes of the folder,
               with its own defaults: int8 per channel; int4 in groups of 128 with head, embedding and vision in int8.

The exporter asks for files that margay has no use for (tokenizer_config.json, a chat template, a video processor): a
folder of links with those files added is made beside the result and removed afterwards; in it a picture has at most
margay's 1,024 tokens. Exports that exist are kept.
"""
import argparse, json, os, pathlib, shutil, subprocess, sys

import peer

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif "
            "c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def stage(folder, out):
    """A folder of links to FOLDER's files plus what only the exporter reads."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in folder.resolve().iterdir():
        if path.is_file():
            (out / path.name).symlink_to(path)

    def add(name, text):
        if not (out / name).exists():
            (out / name).write_text(text)
    added = {t["content"] for t in json.load(open(folder / "tokenizer.json", encoding="utf-8"))["added_tokens"]}
    add("tokenizer_config.json", json.dumps({
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "bos_token": None, "model_max_length": 262144, "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {k: v for k, v in {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
                                                   "vision_bos_token": "<|vision_start|>",
                                                   "vision_eos_token": "<|vision_end|>"}.items() if v in added}}))
    add("chat_template.jinja", TEMPLATE)
    pre = json.load(open(folder / "preprocessor_config.json"))
    cell = (pre["patch_size"] * pre["merge_size"]) ** 2          # GenAI takes its limit from this file alone
    pre["size"]["longest_edge"] = min(pre["size"]["longest_edge"], peer.MOST_IMAGE_TOKENS * cell)
    (out / "preprocessor_config.json").unlink()
    add("preprocessor_config.json", json.dumps(pre))
    pre["video_processor_type"] = "Qwen3VLVideoProcessor"
    pre.pop("image_processor_type", None)
    add("video_preprocessor_config.json", json.dumps(pre))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--types", default="int8,int4")
    o = ap.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    staged = o.out / "staged"
    env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OPENVINO_TELEMETRY_DISABLE="1")
    for kind in o.types.split(","):
        final, work = o.out / f"ov-{kind}", o.out / f"ov-{kind}.tmp"
        if final.exists():
            continue
        stage(o.folder, staged)
        shutil.rmtree(work, ignore_errors=True)
        cli = pathlib.Path(sys.executable).parent / "optimum-cli"
        subprocess.run([cli, "export", "openvino", "-m", staged, "--task", "image-text-to-text", "--weight-format",
                        kind, work], env=env, check=True)
        work.rename(final)
    shutil.rmtree(staged, ignore_errors=True)
    for p in sorted(o.out.glob("ov-*/*.bin")):
        print(f"{p}  {p.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
