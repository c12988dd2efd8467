#!/usr/bin/env python3
"""A small OpenAI-compatible server before OpenVINO GenAI's ContinuousBatchingPipeline, for measurements only.

usage: openvino_server.py FOLDER [--port 0] [--threads 2] [--batched 256] [--cache-gb 2]

FOLDER is one of bench/peers/make_openvino.py's. Only POST /v1/chat/completions with "stream": one user message, text and at
most one picture as a data: URL, answered greedily with exactly max_tokens tokens, one event a token. As in OpenVINO's
own server each request's thread prepares its picture (add_request runs the vision tower) while one thread steps all answers
together; openvino_steps.cpp, compiled into a temporary folder at the start, says why that needs C++.

--batched is GenAI's max_num_batched_tokens, the tokens of one step; the prefix cache is on: both are GenAI's defaults.
"""
import argparse, base64, ctypes, http.server, io, itertools, json, pathlib, queue, subprocess, sys, tempfile, threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
import peer

MOST = 4096                                    # pairs of one step


def compile_steps(folder):
    import openvino, openvino_genai
    core, genai = (pathlib.Path(m.__file__).parent for m in (openvino, openvino_genai))
    out = pathlib.Path(folder) / "openvino_steps.so"
    subprocess.run(["g++", "-std=c++17", "-O2", "-Wall", "-shared", "-fPIC", HERE / "openvino_steps.cpp", "-o", out,
                    "-I", core / "include", next(genai.glob("libopenvino_genai.so.*")),
                    next((core / "libs").glob("libopenvino.so.*")),
                    f"-Wl,-rpath,{genai}:{core / 'libs'}"], check=True)
    steps = ctypes.CDLL(str(out))
    steps.mg_ov_add.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t,
                                ctypes.c_size_t, ctypes.c_void_p]
    steps.mg_ov_step.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int]
    steps.mg_ov_close.argtypes = [ctypes.c_uint64]
    steps.mg_ov_close.restype = None
    return steps


def native(o):
    """The C++ object inside a pybind11 object of the simple layout: the word after Python's own head."""
    return ctypes.c_void_p.from_address(id(o) + object.__basicsize__).value


def request_of(body):
    """(text, picture as bytes or None, max_tokens) of a request's body; ValueError where it is not what load.py sends"""
    r = json.loads(body)
    content = r["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "".join(p["text"] for p in parts if p["type"] == "text")
    urls = [p["image_url"]["url"] for p in parts if p["type"] == "image_url"]
    if len(r["messages"]) != 1 or len(urls) > 1 or not r.get("stream"):
        raise ValueError("one message with at most one picture, streamed")
    return text, base64.b64decode(urls[0].split(",", 1)[1]) if urls else None, int(r["max_tokens"])


def event(delta, finish=None, **more):
    data = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return f"data: {json.dumps(data)}\n\n".encode()


class Engine:
    def __init__(self, o, steps):
        import openvino_genai as G
        scheduler = G.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = o.cache_gb
        scheduler.max_num_batched_tokens = o.batched
        self.G, self.steps = G, steps
        self.pipe = G.ContinuousBatchingPipeline(o.model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": o.threads}, {},
                                                 {"INFERENCE_NUM_THREADS": o.threads})
        self.tokenizer = self.pipe.get_tokenizer()
        self.ids, self.queues, self.wake = itertools.count(1), {}, threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        pairs = (ctypes.c_int64 * (2 * MOST))()
        while True:
            n = self.steps.mg_ov_step(native(self.pipe), pairs, MOST)
            if n < 0:
                for q in list(self.queues.values()):
                    q.put(-1)
            for i in range(max(n, 0)):
                q = self.queues.get(pairs[2 * i])
                if q:
                    q.put(pairs[2 * i + 1])
            if n <= 0 and not self.steps_waiting():
                self.wake.wait()
                self.wake.clear()

    def steps_waiting(self):
        return self.pipe.has_non_finished_requests()

    def add(self, text, picture, tokens):
        import numpy as np
        from PIL import Image
        config = self.G.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        rgb = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")) if picture else np.zeros((0, 0, 3), np.uint8)
        prompt = peer.prompt(text, "<|vision_start|><|image_pad|><|vision_end|>" if picture else "")
        number, q = next(self.ids), queue.Queue()
        self.queues[number] = q
        if self.steps.mg_ov_add(native(self.pipe), number, prompt.encode(), rgb.tobytes(), *rgb.shape[:2], native(config)):
            del self.queues[number]
            raise RuntimeError("OpenVINO refused the request")
        self.wake.set()
        return number, q


class Handler(http.server.BaseHTTPRequestHandler):
    engine = None
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        try:
            text, picture, tokens = request_of(self.rfile.read(int(self.headers["Content-Length"])))
            number, q = self.engine.add(text, picture, tokens)
        except (ValueError, KeyError, RuntimeError, OSError) as e:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(json.dumps({"error": {"message": str(e)}}).encode())
            return
        count = 0
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            while (token := q.get()) >= 0:
                count += 1
                self.wfile.write(event({"content": self.engine.tokenizer.decode([token]) or " "}))
            self.wfile.write(event({}, "length", usage={"completion_tokens": count}) + b"data: [DONE]\n\n")
        except OSError:
            self.engine.steps.mg_ov_close(number)
        finally:
            del self.engine.queues[number]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--port", type=int, default=0)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--batched", type=int, default=256)
    ap.add_argument("--cache-gb", type=int, default=2)
    o = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        Handler.engine = Engine(o, compile_steps(tmp))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", o.port), Handler)
    server.daemon_threads = True
    print(f"openvino: listening on http://127.0.0.1:{server.server_address[1]}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
