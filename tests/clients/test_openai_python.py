"""OpenAI's Python client, unchanged, against margay serve.

The server refuses when it is full with 503 and Retry-After; over HTTP it has no 429, so RateLimitError can't come up.
"""
import asyncio, base64, io, json, signal, threading, time

import pytest

from conftest import HERE, cancelled
from serve_conftest import RIGHT, Server, data_url, picture, question

A, B = RIGHT[0], RIGHT[4]
LONG = {"max_tokens": 100000, "temperature": 5, "extra_body": {"ignore_eos": True, "top_k": 0}, "top_p": 1}
SLOW = {"MARGAY_CPU": "ref"}


@pytest.fixture
def client(openai, server):
    return of(openai, server)


@pytest.fixture(scope="module")
def slow():
    """Its longest answer takes half a minute: one that is given up is free long before."""
    s = Server("--no-loop-check", env=SLOW)
    yield s
    assert s.stop() == 0


def gives_up(server, leave):
    """What `leave` does gives an answer up: its place is free long before the answer would have ended, and it is counted as such."""
    before = cancelled(server)
    leave()
    server.wait(lambda: cancelled(server) == before + 1 and server.idle(), 15)


def of(openai, server, **more):
    return openai.OpenAI(**{"api_key": "none", "base_url": f"http://127.0.0.1:{server.port}/v1", "max_retries": 0, **more})


def messages(*args):
    return question(*args)["messages"]


def ask(client, *args, **more):
    return client.chat.completions.create(**{"model": "m", "temperature": 0, "messages": messages(*args), **more})


def about(case, **more):
    return {"model": "m", "temperature": 0, "messages": messages(case["question"], picture(case["image"])), **more}


def begun(client, **more):
    """A stream that goes on and on, at its first text."""
    stream = client.chat.completions.create(model="m", stream=True, messages=messages("Go on."), **LONG, **more)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            return stream


def counted(openai, requests):
    """An HTTP client that notes of each request its time, its retry count, and how long the reply says to wait."""
    note = lambda r: requests.append({"at": time.monotonic(), "retry": int(r.headers["x-stainless-retry-count"])})
    told = lambda r: requests[-1].update(pause=int(r.headers.get("retry-after", 0)))
    return openai.DefaultHttpxClient(event_hooks={"request": [note], "response": [told]})


# --- answers
def test_text(client):
    r = ask(client, "Hi", max_tokens=3)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.choices[0].message.role == "assistant"
    assert r.usage.prompt_tokens_details.image_tokens == 0 and r.usage.prompt_tokens > 0


@pytest.mark.parametrize("case", RIGHT[::9], ids=lambda c: c["image"])
def test_picture(client, case):
    r = client.chat.completions.create(**about(case))
    assert r.choices[0].message.content == case["answer"] and r.choices[0].finish_reason == "stop"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.model_extra["images"][0]["tokens"] == r.usage.prompt_tokens_details.image_tokens and r._request_id


def test_several_pictures(client):
    one, other = (ask(client, A["question"], picture(c["image"])).usage.prompt_tokens_details.image_tokens for c in (A, B))
    two = ask(client, A["question"], picture(A["image"]), picture(B["image"]))
    assert [i["tokens"] for i in two.model_extra["images"]] == [one, other]
    assert two.usage.prompt_tokens_details.image_tokens == one + other


def test_several_turns(client):
    said = messages(A["question"], picture(A["image"]))
    first = client.chat.completions.create(model="m", temperature=0, messages=said)
    for text in ("And?", "Is that all?"):
        said += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": text}]
        again = client.chat.completions.create(model="m", temperature=0, messages=said, max_tokens=4)
        cold = client.chat.completions.create(model="m", temperature=0, messages=said, max_tokens=4, extra_body={"cache_prompt": False})
        assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens
        assert again.choices[0].message.content == cold.choices[0].message.content
        first = again


def test_choices(client):
    r = client.chat.completions.create(n=3, **about(A))
    assert [c.message.content for c in r.choices] == [A["answer"]] * 3 and [c.index for c in r.choices] == [0, 1, 2]
    seen = {}
    for chunk in client.chat.completions.create(n=3, stream=True, **about(A)):
        for c in chunk.choices:
            seen[c.index] = seen.get(c.index, "") + (c.delta.content or "")
    assert seen == {0: A["answer"], 1: A["answer"], 2: A["answer"]}


def test_logprobs(client):
    r = client.chat.completions.create(logprobs=True, top_logprobs=3, **about(A))
    tokens = r.choices[0].logprobs.content
    assert "".join(t.token for t in tokens) == A["answer"] and all(len(t.top_logprobs) == 3 for t in tokens)
    assert bytes(b for t in tokens for b in t.bytes).decode() == A["answer"]
    assert all(t.logprob == max(o.logprob for o in t.top_logprobs) <= 0 for t in tokens)
    assert client.chat.completions.create(**about(A)).choices[0].logprobs is None


def test_stop_and_length(client):
    cut = A["answer"][1:3]
    for stop in (cut, [cut], ["never there", cut]):
        r = client.chat.completions.create(stop=stop, **about(A))
        assert r.choices[0].message.content == A["answer"].split(cut)[0] and r.choices[0].finish_reason == "stop"
    for name in ("max_tokens", "max_completion_tokens"):
        r = client.chat.completions.create(**about(A, **{name: 1}))
        assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 1


def test_seed_and_bias(client):
    wild = lambda seed, **more: ask(client, "Tell me.", **{"temperature": 5, "seed": seed, "max_tokens": 12, "top_p": 1, **more},
                                    extra_body={"top_k": 0}).choices[0].message.content
    assert wild(7) == wild(7) != wild(8)
    first = client.chat.completions.create(logprobs=True, max_tokens=1, **about(A)).choices[0].logprobs.content[0].token
    token = client.post("../tokenize", body={"content": first}, cast_to=dict)["tokens"][0]
    r = client.chat.completions.create(logit_bias={str(token): -100}, max_tokens=1, **about(A))
    assert not r.choices[0].message.content.startswith(first)


def test_text_completions(client):
    r = client.completions.create(model="m", prompt="Once", max_tokens=3, temperature=0)
    assert r.object == "text_completion" and r.usage.completion_tokens <= 3
    seen = "".join(c.choices[0].text for c in client.completions.create(model="m", prompt="Once", max_tokens=3, temperature=0, stream=True))
    assert seen == r.choices[0].text


def test_models(client):
    listed = client.models.list().data
    assert len(listed) == 1 and client.models.retrieve(listed[0].id).id == listed[0].id
    assert ask(client, "Hi", max_tokens=1).model == listed[0].id


def test_files(client):
    f = client.files.create(file=("a.png", io.BytesIO(picture(A["image"])), "image/png"), purpose="vision")
    assert f.id in [x.id for x in client.files.list()] and client.files.retrieve(f.id).bytes == f.bytes == len(picture(A["image"]))
    part = {"type": "image_url", "image_url": {"url": f"margay-file:{f.id}"}}
    said = [{"role": "user", "content": [part, {"type": "text", "text": A["question"]}]}]
    assert client.chat.completions.create(model="m", temperature=0, messages=said).choices[0].message.content == A["answer"]
    assert client.files.content(f.id).read() == picture(A["image"])
    assert client.files.delete(f.id).deleted and f.id not in [x.id for x in client.files.list()]


def test_raw_and_streamed_responses(client):
    raw = client.chat.completions.with_raw_response.create(**about(A))
    assert raw.headers["content-type"] == "application/json" and raw.headers["x-request-id"] == raw.parse()._request_id
    with client.chat.completions.with_streaming_response.create(stream=True, **about(A)) as r:
        lines = list(r.iter_lines())
    assert r.headers["content-type"].startswith("text/event-stream") and lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"


# --- streams
def test_stream(client):
    whole = client.chat.completions.create(**about(A))
    seen = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **about(A)))
    assert len({(c.id, c.created, c.model, c.object) for c in seen}) == 1 and seen[0].object == "chat.completion.chunk"
    assert seen[0].choices[0].delta.role == "assistant" and seen[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in seen if c.choices) == A["answer"]
    assert [c.choices[0].finish_reason for c in seen if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert not seen[-1].choices and all(c.usage is None for c in seen[:-1])
    assert (seen[-1].usage.prompt_tokens, seen[-1].usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    plain = list(client.chat.completions.create(stream=True, **about(A)))
    assert all(c.usage is None and c.choices for c in plain)


def test_stream_helper(client):
    """It gathers the chunks by rules of its own."""
    with client.chat.completions.stream(**about(A, logprobs=True, stream_options={"include_usage": True})) as s:
        kinds = {e.type for e in s}
        r = s.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert r.choices[0].message.content == A["answer"] and r.usage.completion_tokens == len(r.choices[0].logprobs.content)


def test_progress(client):
    stages = [c.model_extra["prompt_progress"]["stage"] for c in client.chat.completions.create(
        stream=True, extra_body={"return_progress": True, "cache_prompt": False}, **about(A)) if (c.model_extra or {}).get("prompt_progress")]
    assert stages and stages[-1] == "prefill"


# --- leaving
def test_cancel(openai, slow):
    client = of(openai, slow)
    for leave in (lambda s: s.close(), lambda s: s.response.close()):
        stream = begun(client)
        gives_up(slow, lambda: leave(stream))

    def block():
        with begun(client) as stream:
            next(stream)
    gives_up(slow, block)


def test_cancelled_task(openai, slow):
    async def run():
        async with openai.AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{slow.port}/v1", max_retries=0) as c:
            texts = 0

            async def read():
                nonlocal texts
                async for chunk in await c.chat.completions.create(model="m", stream=True, messages=messages("Go on."), **LONG):
                    texts += bool(chunk.choices and chunk.choices[0].delta.content)
            task = asyncio.create_task(read())
            while texts < 3:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(slow.wait, slow.idle, 15)  # while the client is still there
    gives_up(slow, lambda: asyncio.run(run()))


def test_timeout_of_the_client(openai, slow):
    """Who waits no longer holds no place; the neighbour's stream goes on."""
    stays, before = begun(of(openai, slow)), cancelled(slow)
    with pytest.raises(openai.APITimeoutError):
        of(openai, slow, timeout=0.5).chat.completions.create(model="m", messages=messages("Go on."), **LONG)
    slow.wait(lambda: sum(x["is_processing"] for x in slow.get("/slots").json) == 1 and cancelled(slow) == before + 1, 15)
    assert next(stays)
    stays.close()
    slow.wait(slow.idle, 15)


# --- what is wrong
def fails(kind, call, code=None):
    with pytest.raises(kind) as e:
        call()
    assert type(e.value) is kind and (code is None or e.value.code == code), (e.value, e.value.code)
    return e.value


BAD = {
    "number out of range": (dict(top_p=7), "invalid_value", "top_p"), "wrong type": (dict(temperature="hot"), "invalid_value", "temperature"),
    "no messages": (dict(messages=[]), None, "messages"), "no picture": (dict(messages=messages("What?", b"\xff\xd8\xff nothing")), None, None),
    "cut picture": (dict(messages=messages("What?", picture(A["image"])[:900])), None, None),
    "picture by URL": (dict(messages=messages("What?", "http://127.0.0.1:1/a.png")), None, None),
    "over the context": (dict(messages=messages("word " * 30_000)), "context_length_exceeded", None),
    "JSON mode": (dict(response_format={"type": "json_object"}), None, "response_format"),
    "tools": (dict(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]), None, "tools"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("what", BAD)
def test_bad_request(openai, server, what, stream):
    """BadRequestError at once and once: what can't succeed is not sent again."""
    more, code, param = BAD[what]
    requests = []
    client = of(openai, server, max_retries=3, http_client=counted(openai, requests))
    e = fails(openai.BadRequestError, lambda: client.chat.completions.create(**{"model": "m", "messages": messages("Hi"), "stream": stream, **more}), code)
    assert e.status_code == 400 and e.type and e.message and e.request_id and len(requests) == 1
    assert param is None or e.param.split(".")[0] == param


def test_not_found(openai, client):
    fails(openai.NotFoundError, lambda: client.models.retrieve("other"), "model_not_found")
    fails(openai.NotFoundError, lambda: client.files.retrieve("file-none"), "file_not_found")
    fails(openai.NotFoundError, lambda: ask(client, "What?", "margay-file:file-none"), "file_not_found")
    fails(openai.NotFoundError, lambda: client.embeddings.create(model="m", input="x"), "not_found")


def test_wrong_key(openai, serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    s = serve("--api-key-file", keys)
    assert of(openai, s, api_key="right").models.list().data
    requests = []
    wrong = of(openai, s, api_key="wrong", max_retries=2, http_client=counted(openai, requests))
    fails(openai.AuthenticationError, lambda: wrong.models.list(), "invalid_api_key")
    fails(openai.AuthenticationError, lambda: ask(wrong, "Hi"), "invalid_api_key")
    fails(openai.AuthenticationError, lambda: ask(wrong, "Hi", stream=True), "invalid_api_key")
    fails(openai.AuthenticationError, lambda: wrong.files.create(file=b"x", purpose="vision"), "invalid_api_key")
    assert len(requests) == 4


def test_forbidden(openai, server):
    """A name that this server is not called by: a page that has got its address by DNS."""
    fails(openai.PermissionDeniedError, lambda: of(openai, server, default_headers={"Host": "evil.example"}).models.list())


def test_too_large(openai, serve):
    s = serve("--max-body", 1)
    with pytest.raises(openai.APIStatusError) as e:
        ask(of(openai, s), "x" * 1_100_000)
    assert e.value.status_code == 413 and e.value.code == "body_too_large" and "1048576" in e.value.message


def test_error_in_a_stream(openai, serve):
    """The server is stopped: the stream ends with an error, not as if the answer were whole."""
    s = serve("--drain-time", 0.2, "--no-loop-check", env=SLOW)
    stream = begun(of(openai, s))
    s.process.send_signal(signal.SIGTERM)
    with pytest.raises(openai.APIError) as e:
        for _ in stream:
            pass
    assert e.value.code == "shutting_down" and e.value.type == "unavailable_error"
    assert s.process.wait(20) == 0
    fails(openai.APIConnectionError, lambda: of(openai, s).models.list())


def test_full_and_retries(openai, serve):
    """503 with Retry-After: the client's own retries wait that long, and find a place once there is one."""
    s = serve("--parallel", 1, "--max-queue", 1, "--no-loop-check", env=SLOW)
    busy, waited = begun(of(openai, s)), []
    waits = threading.Thread(target=lambda: waited.append(ask(of(openai, s), "Hi", max_tokens=2)))
    waits.start()
    s.wait(lambda: s.get("/ready").json["waiting"] == 1)
    for stream in (False, True):
        e = fails(openai.InternalServerError, lambda: ask(of(openai, s), "Hi", stream=stream), "queue_full")
        assert e.status_code == 503 and e.type == "unavailable_error" and int(e.response.headers["retry-after"]) >= 1
    requests = []
    threading.Timer(0.3, busy.close).start()
    r = ask(of(openai, s, max_retries=4, http_client=counted(openai, requests)), "Hi", max_tokens=2)
    assert r.usage.prompt_tokens > 0 and len(requests) >= 2 and [x["retry"] for x in requests] == list(range(len(requests)))
    assert all(before["pause"] <= x["at"] - before["at"] for before, x in zip(requests, requests[1:]))
    waits.join()
    assert waited[0].usage.completion_tokens <= 2


# --- several at once
def test_several_at_once(openai, server):
    async def all_of_them():
        async with openai.AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.port}/v1") as c:
            async def whole(x):
                return (await c.chat.completions.create(**about(x))).choices[0].message.content

            async def streamed(x):
                chunks = await c.chat.completions.create(stream=True, **about(x))
                return "".join([k.choices[0].delta.content or "" async for k in chunks])
            return await asyncio.gather(*((streamed if i % 2 else whole)(x) for i, x in enumerate(RIGHT[:16])))
    assert asyncio.run(all_of_them()) == [c["answer"] for c in RIGHT[:16]]


# --- row 41: what content may look like; node/cases.mjs reads the same table
def shapes():
    text = (HERE / "shapes.json").read_text()
    for key, value in (("$URL", data_url(picture(A["image"]))), ("$BASE64", base64.b64encode(picture(A["image"])).decode()), ("$TEXT", A["question"])):
        text = text.replace(key, value)
    return {s["name"]: s for s in json.loads(text)}


SHAPES = shapes()


@pytest.mark.parametrize("name", SHAPES)
def test_content_shape(openai, client, name):
    send = lambda s: client.chat.completions.create(model="m", temperature=0, max_tokens=40, messages=s["messages"], extra_body=s.get("more"))
    shape = SHAPES[name]
    if shape.get("fails"):
        e = fails(openai.BadRequestError, lambda: send(shape))
        assert e.param.startswith("messages[0].")
        return
    r = send(shape)
    assert len(r.model_extra.get("images", [])) == shape.get("images", 0)
    assert bool(r.usage.prompt_tokens_details.image_tokens) == bool(shape.get("images"))
    assert bool(r.model_extra.get("warnings")) == shape.get("warned", False)
    if shape.get("right"):
        assert r.choices[0].message.content == A["answer"]
    if "same" in shape:
        other = send(SHAPES[shape["same"]])
        assert (r.usage.prompt_tokens, r.choices[0].message.content) == (other.usage.prompt_tokens, other.choices[0].message.content)


# --- the client's own models, validated strictly, which the client itself does not do
def test_strict_forms(openai, server):
    from openai.types import Completion, FileDeleted, FileObject, Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    more = {"logprobs": True, "top_logprobs": 2, "n": 2, "return_progress": True, "max_tokens": 5}
    for plain in ({}, more):
        ChatCompletion.model_validate_json(server.chat(A["question"], picture(A["image"]), **plain).body)
        r = server.chat(A["question"], picture(A["image"]), stream=True, stream_options={"include_usage": True}, **plain)
        assert len(r.events) > 3
        for e in r.events[:-1]:
            ChatCompletionChunk.model_validate_json(e)
    for ask in ({"prompt": "Once", "max_tokens": 4}, {"prompt": "Once", "max_tokens": 4, "logprobs": 2}):
        Completion.model_validate_json(server.post("/v1/completions", ask).body)
        for e in server.post("/v1/completions", {**ask, "stream": True}).events[:-1]:
            e = json.loads(e)
            for c in e["choices"]:  # null in all but the last, as OpenAI sends it and its model does not say
                c["finish_reason"] = c["finish_reason"] or "stop"
            Completion.model_validate(e)
    Model.model_validate(server.get("/v1/models").json["data"][0])
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x\r\nContent-Disposition: form-data; name="file"; ' \
           b'filename="a"\r\n\r\n' + picture(A["image"]) + b"\r\n--x--\r\n"
    f = server.post("/v1/files", form, Content_Type="multipart/form-data; boundary=x")
    FileObject.model_validate_json(f.body)
    FileDeleted.model_validate_json(server.call("DELETE", "/v1/files/" + f.json["id"]).body)
