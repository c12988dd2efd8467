"""What the peer scripts share: arguments, prompt, and the one JSON object that each prints.

Every peer loads its model once, answers once unmeasured (`cold`: buffers, compiled kernels and pages come into being)
and then `--runs` times. Run number i takes picture number i, so that no cache of pictures or prompts can help: run.py
gives each run a picture that differs in one value. A run is a dict with
  first_token_ms        from the picture's file to the first token: decoding, resizing, vision, prompt
  vision_ms             the vision tower with its mergers
  prefill_ms            the prompt through the decoder to the first token
  decode_ms_per_token   mean over the tokens after the first
  token_ids, prompt_tokens
All peers answer greedily and ignore end tokens, so each run has the same number of tokens.
"""
import argparse, json, resource, statistics

PHASES = ["vision_ms", "prefill_ms", "first_token_ms", "decode_ms_per_token"]
MOST_IMAGE_TOKENS = 1024                      # margay's default


def parse(doc, **more):
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", help="what this peer loads: a folder or a file")
    ap.add_argument("question")
    ap.add_argument("image", nargs="+", help="run i takes picture i, beginning again after the last")
    ap.add_argument("--tokens", type=int, default=32)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--runs", type=int, default=3)
    for name, options in more.items():
        ap.add_argument("--" + name, **options)
    return ap.parse_args()


def prompt(question, picture):
    """margay's prompt for one picture and one question; `picture` stands for the vision tokens."""
    return f"<|im_start|>user\n{picture}{question}<|im_end|>\n<|im_start|>assistant\n"


def summary(runs):
    out = {k: {"min": round(min(r[k] for r in runs), 2), "median": round(statistics.median(r[k] for r in runs), 2)}
           for k in PHASES}
    out["prompt_tokens"] = runs[-1]["prompt_tokens"]
    out["generated"] = min(len(r["token_ids"]) for r in runs)
    return out


def measure(o, once, load_ms, **facts):
    """Runs `once(picture)` and prints the object. facts: version, layers, vision_blocks, image_tokens, ..."""
    pictures = [o.image[i % len(o.image)] for i in range(o.runs + 1)]
    runs = [once(p) for p in pictures]
    cold = runs.pop(0)
    short = [len(r["token_ids"]) for r in runs if len(r["token_ids"]) != o.tokens]
    if short:
        raise SystemExit(f"{short[0]} tokens generated instead of {o.tokens}")
    facts = {k: v() if callable(v) else v for k, v in facts.items()}
    print(json.dumps({**summary(runs), **facts, "threads": o.threads, "load_ms": round(load_ms, 1),
                      "cold_first_token_ms": round(cold["first_token_ms"], 1),
                      "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
                      "runs": [{k: round(v, 2) if isinstance(v, float) else v for k, v in r.items()} for r in runs]}))
