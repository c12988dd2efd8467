"""A server for the tests of margay load that does what it is asked to: a question's text is a JSON object that says how.

    first       seconds before the first piece of text          tokens  pieces of text (default 3)
    gap         seconds between pieces                          status  that status, with an error of code "code"
    retry_after header of that reply                            cut     the connection ends after so many pieces
    raw         these bytes in place of a reply                 body    this text in place of the stream's events
    stall       nothing comes any more after the first piece    error   an error in the stream after the first piece
    no_usage, no_done                                           plain   one JSON object although a stream was asked for
    close       the connection is closed after the reply, untold

Every request is kept in `requests`: time, connection, headers, body, script, and whether its client left early.
"""
import asyncio
import json
import threading
import time


def event(o):
    return b"data: " + json.dumps(o).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class LoadServer:
    def __init__(self, models=("scripted",)):
        self.requests, self.n_connections, self.models, self.frozen_until = [], 0, models, 0
        self.open, self.most_open = 0, 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.ready = threading.Event()
        self.thread.start()
        assert self.ready.wait(10)
        self.url = f"http://127.0.0.1:{self.port}"

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=4096))
        self.port = self.server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    def call(self, fn, *args):
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (fn(*args), done.set()))
        assert done.wait(10)

    def stop(self):
        def end():
            self.server.close()
            for t in asyncio.all_tasks(self.loop):
                t.cancel()
            self.loop.call_later(0.05, self.loop.stop)
        self.loop.call_soon_threadsafe(end)
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.loop.close()

    def stop_listening(self):
        self.call(self.server.close)

    def freeze(self, seconds):
        """Everything stands still, as a server does that collects garbage or swaps."""
        self.loop.call_soon_threadsafe(time.sleep, seconds)

    @property
    def asked(self):
        return [r for r in self.requests if r["path"].endswith("/chat/completions")]

    async def serve(self, reader, writer):
        number, self.n_connections = self.n_connections, self.n_connections + 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while await self.one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def one(self, reader, writer, number):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = head[0].split(" ")
        r = {"time": time.monotonic(), "connection": number, "method": method, "path": path, "headers": headers,
             "left": False}
        self.requests.append(r)
        if path.endswith("/models"):
            self.reply(writer, 200, {"object": "list", "data": [{"id": m} for m in self.models]})
            return True
        r["body"] = json.loads(body)
        text = [p for p in r["body"]["messages"][0]["content"] if p["type"] == "text"][0]["text"]
        r["script"] = json.loads(text) if text.startswith("{") else {}
        try:
            return await self.answer(r, r["script"], writer) and headers.get("connection") != "close"
        except ConnectionError:
            r["left"] = True
            raise

    def reply(self, writer, status, o, more=""):
        data = json.dumps(o).encode()
        writer.write(f"HTTP/1.1 {status} Some\r\nContent-Type: application/json\r\n{more}Content-Length: {len(data)}\r\n"
                     "\r\n".encode() + data)

    async def send(self, r, writer, data):
        if writer.is_closing() or writer.transport.is_closing():
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()

    async def answer(self, r, s, writer):
        await asyncio.sleep(s.get("first", 0))
        if "raw" in s:
            await self.send(r, writer, s["raw"].encode())
            return False
        if "status" in s:
            more = f"Retry-After: {s['retry_after']}\r\n" if "retry_after" in s else ""
            self.reply(writer, s["status"], {"error": {"message": "no", "type": "kind", "code": s.get("code")}}, more)
            return True
        n = s.get("tokens", 3)
        usage = {"prompt_tokens": 10, "completion_tokens": n,
                 "prompt_tokens_details": {"cached_tokens": 4, "image_tokens": 5}}
        if not r["body"]["stream"] or s.get("plain"):
            self.reply(writer, 200, {"choices": [{"message": {"content": "x " * n}, "finish_reason": "stop"}],
                                     "usage": usage})
            return True
        await self.send(r, writer, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                   b"Transfer-Encoding: chunked\r\n\r\n")
        if "body" in s:
            await self.send(r, writer, chunk(s["body"].encode()) + b"0\r\n\r\n")
            return True

        def delta(text, end=None):
            return chunk(event({"choices": [{"index": 0, "delta": text, "finish_reason": end}]}))
        await self.send(r, writer, delta({"role": "assistant", "content": ""}))
        for i in range(n):
            if s.get("cut") == i:
                writer.transport.abort()
                return False
            if i:
                await asyncio.sleep(s.get("gap", 0))
            await self.send(r, writer, delta({"content": f"w{i} "}, "stop" if i == n - 1 and not s.get("no_end") else None))
            if s.get("stall"):
                while True:
                    await asyncio.sleep(0.05)
                    await self.send(r, writer, chunk(b": still here\n\n") if s["stall"] == "ping" else b"")
            if s.get("error"):
                await self.send(r, writer, chunk(event({"error": {"code": s["error"]}})) + b"0\r\n\r\n")
                return True
        if not s.get("no_usage"):
            await self.send(r, writer, chunk(event({"choices": [], "usage": usage})))
        await self.send(r, writer, (b"" if s.get("no_done") else chunk(b"data: [DONE]\n\n")) + b"0\r\n\r\n")
        if s.get("close"):
            writer.close()
            return False
        return True
