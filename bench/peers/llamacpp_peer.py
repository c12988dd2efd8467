#!/usr/bin/env python3
"""Times llama.cpp (the library inside llama-cpp-python) on one picture and question. One JSON object, see peer.py.

usage: llamacpp_peer.py TEXT.gguf QUESTION IMAGE... --mmproj FILE [--tokens 32] [--threads 2] [--runs 3]

The same calls as llama-mtmd-cli makes: tokenize, encode the picture, decode text, picture and text as three batches,
then one token at a time with the greedy sampler; defaults everywhere else (f16 keys and values, repacked weights,
flash attention left to llama.cpp). Pictures are read by its own decoder.
"""
import ctypes, pathlib, time

import peer

o = peer.parse(__doc__, mmproj={"required": True}, verbose={"action": "store_true"})

import llama_cpp as L
import llama_cpp.mtmd_cpp as M
import gguf

silent = L.llama_log_callback(lambda level, text, data: None)
if not o.verbose:
    L.llama_log_set(silent, None)
    M.mtmd_helper_log_set(silent, None)
start = time.perf_counter()
L.llama_backend_init()
model = L.llama_model_load_from_file(o.model.encode(), L.llama_model_default_params())
params = L.llama_context_default_params()
params.n_ctx, params.n_threads, params.n_threads_batch = 4096, o.threads, o.threads
ctx = L.llama_init_from_model(model, params)
mparams = M.mtmd_context_params_default()
mparams.use_gpu, mparams.print_timings, mparams.n_threads, mparams.warmup = False, False, o.threads, False
mparams.image_max_tokens = peer.MOST_IMAGE_TOKENS
mtmd = M.mtmd_init_from_file(o.mmproj.encode(), model, mparams)
if not (model and ctx and mtmd):
    raise SystemExit("llama.cpp refused the model; --verbose says why")
sampler = L.llama_sampler_init_greedy()
load_ms = (time.perf_counter() - start) * 1e3
facts = {}


def check(status, what):
    if status:
        raise SystemExit(f"llama.cpp: {what} returned {status}")


def once(picture):
    L.llama_memory_clear(L.llama_get_memory(ctx), True)
    start = time.perf_counter()
    bitmap = M.mtmd_helper_bitmap_init_from_file(mtmd, str(pathlib.Path(picture)).encode(), False)
    text = peer.prompt(o.question, M.mtmd_default_marker().decode()).encode()
    chunks = M.mtmd_input_chunks_init()
    # llama.cpp puts <|vision_start|> and <|vision_end|> around the picture itself
    check(M.mtmd_tokenize(mtmd, chunks, ctypes.byref(M.mtmd_input_text(text, len(text), False, True)),
                          (ctypes.c_void_p * 1)(bitmap), 1), "mtmd_tokenize")
    past, vision, prefill = L.llama_pos(0), 0.0, 0.0
    count = M.mtmd_input_chunks_size(chunks)
    for i in range(count):
        chunk = M.mtmd_input_chunks_get(chunks, i)
        s = time.perf_counter()
        if M.mtmd_input_chunk_get_type(chunk) == M.MTMD_INPUT_CHUNK_TYPE_TEXT:
            check(M.mtmd_helper_eval_chunk_single(mtmd, ctx, chunk, past, 0, params.n_batch, i == count - 1,
                                                  ctypes.byref(past)), "decoding text")
        else:
            check(M.mtmd_encode_chunk(mtmd, chunk), "mtmd_encode_chunk")
            vision += time.perf_counter() - s
            s = time.perf_counter()
            tokens = M.mtmd_input_chunk_get_tokens_image(chunk)
            facts.update(image_tokens=M.mtmd_image_tokens_get_n_tokens(tokens))
            check(M.mtmd_helper_decode_image_chunk(
                mtmd, ctx, chunk, M.mtmd_get_output_embd(mtmd), past, 0, params.n_batch, ctypes.byref(past),
                ctypes.cast(None, M.mtmd_helper_post_decode_callback), None), "decoding the picture")
        prefill += time.perf_counter() - s
    s = time.perf_counter()
    ids, at = [L.llama_sampler_sample(sampler, ctx, -1)], []      # the wait for the logits is in here
    at.append(time.perf_counter())
    prefill += at[0] - s
    batch = L.llama_batch_init(1, 0, 1)
    while len(ids) < o.tokens:
        batch.n_tokens, batch.token[0], batch.pos[0] = 1, ids[-1], past.value
        batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, True
        check(L.llama_decode(ctx, batch), "llama_decode")
        past.value += 1
        ids.append(L.llama_sampler_sample(sampler, ctx, -1))
        at.append(time.perf_counter())
    L.llama_batch_free(batch)
    n_prompt = M.mtmd_helper_get_n_tokens(chunks)
    M.mtmd_input_chunks_free(chunks)
    M.mtmd_bitmap_free(bitmap)
    return {"first_token_ms": (at[0] - start) * 1e3, "vision_ms": vision * 1e3, "prefill_ms": prefill * 1e3,
            "decode_ms_per_token": (at[-1] - at[0]) / max(len(at) - 1, 1) * 1e3, "token_ids": ids,
            "prompt_tokens": n_prompt}


def vision_blocks():
    return int(gguf.GGUFReader(o.mmproj).fields["clip.vision.block_count"].contents())


peer.measure(o, once, load_ms, version=f"llama-cpp-python {L.__version__}", layers=L.llama_model_n_layer(model),
             vision_blocks=vision_blocks, image_tokens=lambda: facts["image_tokens"],
             patches=lambda: 4 * facts["image_tokens"], cpu=L.llama_print_system_info().decode())
