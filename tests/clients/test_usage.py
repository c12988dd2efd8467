"""Row 50, what is counted: the stream's bytes, OpenAI's client and LangChain's sum against the reply that is not streamed."""
import json, os, re

import pytest

from serve_conftest import RIGHT, data_url, picture

A = RIGHT[0]
COLD = {"cache_prompt": False}  # the same cached_tokens each time
KINDS = ("a picture", "text", "several pictures", "cut short")


def asked(kind):
    pictures = {"a picture": 1, "text": 0, "several pictures": 3, "cut short": 1}[kind]
    content = [{"type": "image_url", "image_url": {"url": data_url(picture(c["image"]))}} for c in RIGHT[:pictures]]
    more = {"max_tokens": 1} if kind == "cut short" else {}
    return [{"role": "user", "content": [*content, {"type": "text", "text": A["question"]}]}], more


def whole(server, kind, **more):
    said, limits = asked(kind)
    r = server.post("/v1/chat/completions", {"messages": said, "temperature": 0, **COLD, **limits, **more})
    assert r.status == 200
    usage = r.json["usage"]
    assert bool(usage["prompt_tokens_details"]["image_tokens"]) == (kind != "text")
    return r.json


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [None, False, True], ids=["not asked for", "refused", "asked for"])
def test_bytes(server, kind, wanted):
    said, limits = asked(kind)
    body = {"messages": said, "temperature": 0, "stream": True, **COLD, **limits}
    if wanted is not None:
        body["stream_options"] = {"include_usage": wanted}
    r = server.post("/v1/chat/completions", body)
    assert r.headers["Content-Type"].startswith("text/event-stream")
    assert r.headers["Cache-Control"] == "no-cache" and r.headers["X-Accel-Buffering"] == "no"
    *events, end = r.body.split(b"\n\n")
    assert end == b"" and events[-1] == b"data: [DONE]"
    assert all(re.fullmatch(rb"data: \{[^\n\r]*\}|: [^\n\r]*", e) for e in events[:-1]), events  # a line each; no id:, no event:
    chunks = [json.loads(e[6:]) for e in events[:-1] if e.startswith(b"data: ")]
    assert all("choices" in c and c["object"] == "chat.completion.chunk" for c in chunks)
    counted = [c for c in chunks if c.get("usage") is not None]
    if wanted:
        assert counted == chunks[-1:] and chunks[-1]["choices"] == []
        assert counted[0]["usage"] == whole(server, kind)["usage"]
        assert all("usage" in c for c in chunks)
    else:
        assert counted == [] and all(c["choices"] for c in chunks)


@pytest.mark.parametrize("kind", KINDS)
def test_openai_client(openai, server, kind):
    said, limits = asked(kind)
    client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0)
    ask = {"model": "m", "messages": said, "temperature": 0, "extra_body": COLD, **limits}
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    wanted = whole(server, kind)["usage"]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert sum(getattr(c.usage, field) for c in chunks if c.usage) == wanted[field]
    with client.chat.completions.stream(stream_options={"include_usage": True}, **ask) as s:
        s.until_done()
        try:
            gathered = s.get_final_completion()
        except openai.LengthFinishReasonError as e:  # the helper's way to say so
            assert kind == "cut short"
            gathered = e.completion
    assert gathered.usage.model_dump(exclude_none=True) == {**wanted, "prompt_tokens_details": {**wanted["prompt_tokens_details"]}}


@pytest.fixture
def langchain(python_packages, server, monkeypatch):
    for name in [n for n in os.environ if n.startswith(("LANGSMITH_", "LANGCHAIN_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    from langchain_openai import ChatOpenAI

    def make(**more):
        return ChatOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", model="m", temperature=0, max_retries=0,
                          **{"extra_body": COLD, "stream_usage": True, **more})
    return make


@pytest.mark.parametrize("kind", KINDS)
def test_langchain(langchain, server, kind):
    said, limits = asked(kind)
    model, reply = langchain(**limits), whole(server, kind)
    usage = reply["usage"]
    wanted = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"], "total_tokens": usage["total_tokens"]}
    once = model.invoke(said)
    assert {k: once.usage_metadata[k] for k in wanted} == wanted
    total, n = None, 0
    for chunk in model.stream(said):
        total, n = chunk if total is None else total + chunk, n + bool(chunk.usage_metadata)
    assert {k: total.usage_metadata[k] for k in wanted} == wanted and n == 1
    assert total.content == once.content == (reply["choices"][0]["message"]["content"] or "")
    assert total.response_metadata["finish_reason"] == once.response_metadata["finish_reason"] == ("length" if limits else "stop")


def test_langchain_counts_what_is_cached(langchain, server):
    said, _ = asked("a picture")
    model = langchain(extra_body={})
    model.invoke(said)
    for usage in (model.invoke(said).usage_metadata, sum_of(model.stream(said)).usage_metadata):
        assert 0 < usage["input_token_details"]["cache_read"] < usage["input_tokens"]


def sum_of(chunks):
    chunks = list(chunks)
    total = chunks[0]
    for c in chunks[1:]:
        total = total + c
    return total


def test_langchain_at_once_and_errors(langchain, openai):
    model = langchain()
    said = [asked("a picture")[0] for _ in range(6)]
    assert [m.content for m in model.batch(said)] == [A["answer"]] * 6
    with pytest.raises(openai.BadRequestError):
        langchain(top_p=7).invoke("Hi")
    assert sum_of(langchain(stream_usage=False).stream("Hi")).usage_metadata is None
