"""OpenAI's Python client, unchanged, against margay serve."""
import asyncio, io, json, threading

import pytest

from serve_conftest import RIGHT, data_url, picture, question

A, B = RIGHT[0], RIGHT[4]
LONG = {"max_tokens": 100000, "temperature": 5, "extra_body": {"ignore_eos": True, "top_k": 0}, "top_p": 1}


@pytest.fixture(scope="module")
def openai(python_packages):
    import openai
    return openai


@pytest.fixture
def client(openai, server):
    return openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0)


def messages(*args):
    return question(*args)["messages"]


def test_text_and_pictures(client):
    ask = lambda *args, **more: client.chat.completions.create(model="m", temperature=0, messages=messages(*args), **more)
    assert ask("Hi", max_tokens=3).choices[0].message.role == "assistant"
    for case in RIGHT[::9]:
        r = ask(case["question"], picture(case["image"]))
        assert r.choices[0].message.content == case["answer"] and r.choices[0].finish_reason == "stop"
        assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.id.startswith("chatcmpl-")
        assert r.model_extra["images"][0]["tokens"] == r.usage.prompt_tokens_details.image_tokens and r._request_id
    two = ask(A["question"], picture(A["image"]), picture(B["image"]))
    assert len(two.model_extra["images"]) == 2


def test_several_turns(client):
    said = messages(A["question"], picture(A["image"]))
    first = client.chat.completions.create(model="m", temperature=0, messages=said)
    said += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "And?"}]
    again = client.chat.completions.create(model="m", temperature=0, messages=said, max_tokens=4)
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_stream(client):
    ask = {"model": "m", "temperature": 0, "messages": messages(A["question"], picture(A["image"]))}
    whole = client.chat.completions.create(**ask)
    seen = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    assert len({(c.id, c.created, c.model) for c in seen}) == 1
    assert seen[0].choices[0].delta.role == "assistant" and seen[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in seen if c.choices) == A["answer"]
    assert not seen[-1].choices and all(c.usage is None for c in seen[:-1])
    assert (seen[-1].usage.prompt_tokens, seen[-1].usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    plain = list(client.chat.completions.create(stream=True, **ask))
    assert all(c.usage is None and c.choices for c in plain)
    with client.chat.completions.stream(**ask) as s:
        for _ in s:
            pass
        assert s.get_final_completion().choices[0].message.content == A["answer"]
    progress = list(client.chat.completions.create(stream=True, extra_body={"return_progress": True}, **ask))
    assert any((c.model_extra or {}).get("prompt_progress") for c in progress)


def test_cancel(client, server):
    s = client.chat.completions.create(model="m", stream=True, messages=messages("Go on."), **LONG)
    next(iter(s)), s.close()
    server.wait(server.idle, 5)


def test_errors(openai, client, server):
    good = messages("Hi")
    def fails(kind, call, code=None):
        with pytest.raises(kind) as e:
            call()
        assert type(e.value) is kind and (code is None or e.value.code == code), (e.value, e.value.code)
        return e.value
    create = client.chat.completions.create
    e = fails(openai.BadRequestError, lambda: create(model="m", messages=good, top_p=7))
    assert e.param == "top_p" and e.request_id
    fails(openai.BadRequestError, lambda: create(model="m", messages=messages("What?", b"\xff\xd8\xff nothing")))
    fails(openai.BadRequestError, lambda: create(model="m", messages=messages("word " * 300_000)), "context_length_exceeded")
    fails(openai.BadRequestError, lambda: list(create(model="m", messages=good, top_p=7, stream=True)))
    fails(openai.NotFoundError, lambda: client.models.retrieve("other"))
    fails(openai.NotFoundError, lambda: client.files.retrieve("file-none"))
    for body in ({"response_format": {"type": "json_object"}}, {"tools": [{"type": "function", "function": {"name": "f"}}]}):
        fails(openai.BadRequestError, lambda: create(model="m", messages=good, **body))


def test_keys(openai, serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("right\n")
    s = serve("--api-key-file", keys)
    of = lambda key: openai.OpenAI(api_key=key, base_url=f"http://127.0.0.1:{s.port}/v1", max_retries=2)
    assert of("right").models.list().data
    with pytest.raises(openai.AuthenticationError):
        of("wrong").models.list()


def test_retries_when_full(openai, serve):
    """503 with Retry-After: the client's own retries find a place once there is one."""
    s = serve("--parallel", 1, "--max-queue", 1, "--no-loop-check")
    of = lambda n: openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{s.port}/v1", max_retries=n)
    busy = [of(0).chat.completions.create(model="m", stream=True, messages=messages("Go on."), **LONG)]
    next(iter(busy[0]))
    waits = threading.Thread(target=lambda: busy.append(list(of(0).chat.completions.create(model="m", stream=True, messages=messages("Hi"), max_tokens=2))))
    waits.start()
    s.wait(lambda: s.get("/ready").json["waiting"] == 1)
    with pytest.raises(openai.InternalServerError) as e:
        of(0).chat.completions.create(model="m", messages=messages("Hi"))
    assert e.value.status_code == 503 and e.value.code == "queue_full" and int(e.value.response.headers["retry-after"]) >= 1
    threading.Timer(0.5, busy[0].close).start()
    r = of(5).chat.completions.create(model="m", messages=messages("Hi"), max_tokens=2)
    assert r.usage.prompt_tokens > 0
    waits.join()


def test_files(client):
    f = client.files.create(file=("a.png", io.BytesIO(picture(A["image"])), "image/png"), purpose="vision")
    assert f.id in [x.id for x in client.files.list()] and client.files.retrieve(f.id).bytes == f.bytes
    part = {"type": "image_url", "image_url": {"url": f"margay-file:{f.id}"}}
    ask = [{"role": "user", "content": [part, {"type": "text", "text": A["question"]}]}]
    assert client.chat.completions.create(model="m", temperature=0, messages=ask).choices[0].message.content == A["answer"]
    assert client.files.content(f.id).read() == picture(A["image"])
    assert client.files.delete(f.id).deleted


def test_choices_stop_logprobs(client):
    ask = {"model": "m", "temperature": 0, "messages": messages(A["question"], picture(A["image"]))}
    r = client.chat.completions.create(n=3, **ask)
    assert [c.message.content for c in r.choices] == [A["answer"]] * 3 and [c.index for c in r.choices] == [0, 1, 2]
    r = client.chat.completions.create(logprobs=True, top_logprobs=3, **ask)
    tokens = r.choices[0].logprobs.content
    assert "".join(t.token for t in tokens).startswith(A["answer"]) and all(len(t.top_logprobs) == 3 for t in tokens)
    cut = A["answer"][1:3]
    r = client.chat.completions.create(stop=[cut], **ask)
    assert r.choices[0].message.content == A["answer"].split(cut)[0] and r.choices[0].finish_reason == "stop"
    r = client.chat.completions.create(max_tokens=1, **ask)
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 1
    assert client.completions.create(model="m", prompt="Once", max_tokens=3).object == "text_completion"
    assert client.models.list().data[0].id == client.models.retrieve(client.models.list().data[0].id).id


IMAGE = {"type": "image_url", "image_url": {"url": data_url(picture(A["image"]))}}
TEXT = {"type": "text", "text": A["question"]}
SHAPES = {
    "string": ("Hi", False), "text parts": ([{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}], False),
    "null": (None, False), "no parts": ([], False), "empty": ("", False), "picture first": ([IMAGE, TEXT], True),
    "picture last": ([TEXT, IMAGE], True), "URL as text": ([{"type": "image_url", "image_url": IMAGE["image_url"]["url"]}, TEXT], True),
    "detail": ([{**IMAGE, "image_url": {**IMAGE["image_url"], "detail": "low"}}, TEXT], True),
    "unknown detail": ([{**IMAGE, "image_url": {**IMAGE["image_url"], "detail": "ultra"}}, TEXT], True),
    "unknown fields": ([{**IMAGE, "uuid": "x", "cache_control": {"type": "ephemeral"}}, TEXT], True),
    "wrong MIME type": ([{"type": "image_url", "image_url": {"url": data_url(picture(A["image"]), "image/webp")}}, TEXT], True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_content_shapes(client, shape):
    content, seen = SHAPES[shape]
    said = [{"role": "user", "content": content}] if content not in (None, [], "") else \
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
    r = client.chat.completions.create(model="m", temperature=0, messages=said, max_tokens=40)
    assert bool(r.usage.prompt_tokens_details.image_tokens) == seen
    if seen and "detail" not in shape and "last" not in shape:
        assert r.choices[0].message.content == A["answer"]


def test_many_at_once(openai, server):
    async def all_of_them():
        c = openai.AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.port}/v1")
        asked = [c.chat.completions.create(model="m", temperature=0, messages=messages(x["question"], picture(x["image"]))) for x in RIGHT[:12]]
        return [r.choices[0].message.content for r in await asyncio.gather(*asked)]
    assert asyncio.run(all_of_them()) == [c["answer"] for c in RIGHT[:12]]


def test_strict_forms(openai, server):
    """The client's own models, validated strictly, which the client itself does not do."""
    from openai.types import Completion, FileDeleted, FileObject, Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    more = {"logprobs": True, "top_logprobs": 2, "n": 2, "return_progress": True, "max_tokens": 5}
    ChatCompletion.model_validate_json(server.chat(A["question"], picture(A["image"]), **more).body)
    r = server.chat(A["question"], picture(A["image"]), stream=True, stream_options={"include_usage": True}, **more)
    assert len(r.events) > 6
    for e in r.events[:-1]:
        ChatCompletionChunk.model_validate_json(e)
    ask = {"prompt": "Once", "max_tokens": 4, "logprobs": 2}
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
