#!/usr/bin/env python3
"""What src/api writes, read by OpenAI's own Python client (pip install openai; not needed by ./test).

usage: check_openai_forms.py BUILD/tests/unit/api/api_forms

The recorded bytes go through the client as if a server had sent them: the whole reply, the stream with its decoder,
models, files and errors. Besides, each object is validated strictly by the client's pydantic models, which the client
itself does not do. Prints "N passed, N failed".
"""
import json
import subprocess
import sys

try:
    import httpx2 as httpx  # openai 3
except ImportError:
    import httpx
import openai
from openai.types import Completion, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

FORMS = {}
for line in subprocess.check_output([sys.argv[1]]).decode().splitlines():
    record = json.loads(line)
    FORMS[record["name"]] = record["body"]
passed, failed = 0, []


def check(name, fn):
    global passed
    try:
        fn()
        passed += 1
    except Exception as e:  # each one is a finding
        failed.append(name)
        print(f"not ok - {name}: {type(e).__name__}: {str(e)[:500]}")


def client(body, status=200, kind="application/json"):
    def answer(request):
        return httpx.Response(status, content=body.encode(), headers={"content-type": kind, "x-request-id": "r1"})
    return openai.OpenAI(api_key="x", base_url="http://test/v1", max_retries=0,
                         http_client=httpx.Client(transport=httpx.MockTransport(answer)))


ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def strict(model, text):
    model.model_validate(json.loads(text))


def chunks(text):
    return [line[6:] for line in text.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]


def whole():
    r = client(FORMS["chat"]).chat.completions.create(**ASK)
    assert r.choices[0].message.content == "A 猫" and r.choices[0].finish_reason == "stop"
    assert r.choices[0].logprobs.content[1].bytes == [32, 231, 140, 171]
    assert r.usage.prompt_tokens_details.cached_tokens == 12
    assert r.model_extra["images"][0]["format"] == "jpeg" and r._request_id == "r1"


def stream():
    seen = list(client(FORMS["chat_stream"], kind="text/event-stream").chat.completions.create(stream=True, **ASK))
    assert len({(c.id, c.created, c.model) for c in seen}) == 1
    assert seen[0].choices[0].delta.role == "assistant" and seen[0].choices[0].delta.content == ""
    text = "".join(c.choices[0].delta.content or "" for c in seen if c.choices)
    assert text == "A 猫A 猫", text
    assert not seen[-1].choices and seen[-1].usage.total_tokens == 334
    assert all(c.usage is None for c in seen[:-1])
    assert seen[1].model_extra["prompt_progress"]["processed"] == 140


def helper():
    """The accumulating helper, which is stricter than the raw iterator. Only for a single answer."""
    lines = [c for c in FORMS["chat_stream"].split("\n\n") if '"cancelled"' not in c]
    http = client("\n\n".join(lines), kind="text/event-stream")
    with http.chat.completions.stream(**ASK) as s:
        for _ in s:
            pass
        r = s.get_final_completion()
    assert r.choices[0].message.content == "A 猫A 猫" and r.usage.total_tokens == 334


def stream_error():
    try:
        list(client(FORMS["error_stream"], kind="text/event-stream").chat.completions.create(stream=True, **ASK))
    except openai.APIError as e:
        assert e.code == "invalid_value" and e.param == "top_p" and e.type == "invalid_request_error"
        return
    raise AssertionError("no error raised")


def error():
    try:
        client(FORMS["error"], 400).chat.completions.create(**ASK)
    except openai.BadRequestError as e:
        assert e.code == "invalid_value" and e.param == "top_p" and "from 0 to 1" in str(e)
        return
    raise AssertionError("no error raised")


def completion():
    r = client(FORMS["completion"]).completions.create(model="m", prompt="x")
    assert r.choices[0].text == "A 猫" and r.choices[0].logprobs.tokens[0] == "A"
    seen = list(client(FORMS["completion_stream"], kind="text/event-stream").completions.create(
        model="m", prompt="x", stream=True))
    assert "".join(c.choices[0].text for c in seen if c.choices) == "A 猫A 猫"


def others():
    assert client(FORMS["models"]).models.list().data[0].id == "qwen3-vl-2b"
    assert client(FORMS["model"]).models.retrieve("qwen3-vl-2b").owned_by == "margay"
    assert client(FORMS["files"]).files.list().data[0].id == "file-abc"
    assert client(FORMS["file"]).files.create(file=b"x", purpose="vision").bytes == 1234
    assert client(FORMS["file_deleted"]).files.delete("file-abc").deleted


check("whole reply through the client", whole)
check("stream through the client", stream)
check("stream through the accumulating helper", helper)
check("error in a stream", stream_error)
check("error reply", error)
check("completions through the client", completion)
check("models and files through the client", others)
for name in ("chat", "chat_plain"):
    check(f"{name}, strictly", lambda: strict(ChatCompletion, FORMS[name]))
for i, chunk in enumerate(chunks(FORMS["chat_stream"])):
    check(f"chunk {i}, strictly", lambda: strict(ChatCompletionChunk, chunk))
for name in ("completion", "completion_plain"):
    check(f"{name}, strictly", lambda: strict(Completion, FORMS[name]))
check("model, strictly", lambda: strict(Model, FORMS["model"]))
check("file, strictly", lambda: strict(FileObject, FORMS["file"]))
check("deleted file, strictly", lambda: strict(FileDeleted, FORMS["file_deleted"]))
print(f"{passed} passed, {len(failed)} failed")
sys.exit(bool(failed))
