"""Open WebUI's requests to an OpenAI connection, as its documentation and its behaviour are: our own words, no code of its.

It asks for {base}/models with a Bearer key and the person's name in headers of its own, sends the whole history with
pictures as data URLs each time, always wants the usage of a stream, and has titles, tags and follow-ups written from one
long prompt without a stream. What the person stops is a connection that is closed.
"""
import json, socket

import pytest

from conftest import cancelled
from serve_conftest import RIGHT, Server, data_url, picture

A, B = RIGHT[0], RIGHT[4]
HEADERS = {"Authorization": "Bearer sk-webui", "X_OpenWebUI_User_Name": "Ann%20Lee", "X_OpenWebUI_User_Id": "1f0c", "X_OpenWebUI_User_Email": "ann@example.org",
           "X_OpenWebUI_User_Role": "user", "X_OpenWebUI_Chat_Id": "c1", "Accept": "*/*", "Accept_Encoding": "gzip, deflate", "User_Agent": "Python/3.11 aiohttp/3.12"}


@pytest.fixture(scope="module", params=["/v1", ""], ids=["base with v1", "base without"])
def ui(request, tmp_path_factory):
    keys = tmp_path_factory.mktemp("webui") / "keys"
    keys.write_text("sk-webui\n")
    server = Server("--api-key-file", keys, "--no-loop-check")
    yield WebUI(server, request.param)
    assert server.stop() == 0


class WebUI:
    def __init__(self, server, base):
        self.server, self.base = server, base
        self.model = self.models().json["data"][0]["id"]

    def models(self, **headers):
        return self.server.get(self.base + "/models", **{**HEADERS, "Accept_Encoding": "identity", **headers})

    def chat(self, messages, **more):
        body = {"model": self.model, "messages": messages, **more}
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return self.server.post(self.base + "/chat/completions", body, **{**HEADERS, "Accept_Encoding": "identity"})


def user(text, *pictures):
    return {"role": "user", "content": [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": data_url(p)}} for p in pictures)]}


def read(reply):
    assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/event-stream") and reply.events[-1] == "[DONE]"
    usage = json.loads(reply.events[-2])["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    return reply.streamed, usage


def test_connection(ui):
    """The connection's check and the list of models, every minute again."""
    r = ui.models()
    assert r.json["object"] == "list" and {"id", "object", "created", "owned_by"} <= set(r.json["data"][0])
    wrong = ui.models(Authorization="Bearer other")
    assert wrong.status == 401 and wrong.json["error"]["message"]


def test_connection_without_a_key(server):
    for headers in ({"Authorization": "Bearer "}, {"Authorization": "Bearer none"}, {}):
        assert server.get("/v1/models", **headers).status == 200


def test_picture(ui):
    text, usage = read(ui.chat([user(A["question"], picture(A["image"]))], stream=True, temperature=0))
    assert text and usage["prompt_tokens_details"]["image_tokens"] > 0
    # The text comes before the picture; the same question put the other way round is answered as it should be.
    said = [{"role": "user", "content": user(A["question"], picture(A["image"]))["content"][::-1]}]
    assert read(ui.chat(said, stream=True, temperature=0))[0] == A["answer"]


def test_settings(ui):
    """All that the sliders send, and what stands in the body for others than us."""
    said = [{"role": "system", "content": "The user's name is Ann."}, {"role": "user", "content": [
        {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}]
    text, usage = read(ui.chat(
        said, stream=True, temperature=0.5, top_p=0.9, seed=42, max_tokens=24, stop=["\n\n", "<|end|>"], frequency_penalty=0.1, presence_penalty=0,
        logit_bias={"0": -100}, reasoning_effort="low", reasoning={"effort": "low"}, user={"name": "Ann", "id": "1f0c", "role": "user"}, top_k=20,
        min_p=0.05, repeat_penalty=1.0, num_ctx=4096, params={}, tool_servers=[], features={"web_search": False}, variables={"{{USER_NAME}}": "Ann"},
        session_id="s", chat_id="c1", id="m2", background_tasks={"title_generation": True}, metadata={"task": None}, tools=[], response_format=None))
    assert usage["completion_tokens"] <= 24 and "\n\n" not in text


def test_history_with_pictures(ui):
    """Each turn brings all pictures again: the earlier ones are neither looked at nor read anew."""
    said = [user(A["question"], picture(A["image"]))]
    for text, pictures in (("And?", ()), (B["question"], (picture(B["image"]),)), ("Which?", ())):
        before = read(ui.chat(said, stream=True, temperature=0, max_tokens=12))
        said += [{"role": "assistant", "content": before[0]}, user(text, *pictures) if pictures else {"role": "user", "content": text}]
        r = ui.chat(said, stream=True, temperature=0, max_tokens=12)
        answer, usage = read(r)
        images = next(json.loads(e)["images"] for e in r.events[:-1] if "images" in json.loads(e))
        assert [i["cache"] for i in images[:len(images) - len(pictures)]] == ["hit"] * (len(images) - len(pictures))
        assert usage["prompt_tokens_details"]["cached_tokens"] >= before[1]["prompt_tokens"]
    assert usage["prompt_tokens_details"]["image_tokens"] == sum(i["tokens"] for i in images) and len(images) == 2


@pytest.mark.parametrize("task", ["title", "tags", "follow_ups"])
def test_tasks(ui, task):
    """The page shows what it can read of them: a string, whatever is in it, whole and with its usage."""
    prompt = (f"### Task:\nWrite {task} for the conversation.\n### Guidelines:\n- Use its language.\n### Output:\nJSON: {{ \"{task}\": \"...\" }}\n"
              f"### Chat History:\n<chat_history>\nUSER: {A['question']}\nASSISTANT: {A['answer']}\n</chat_history>")
    r = ui.chat([{"role": "user", "content": prompt}], stream=False, max_completion_tokens=30, metadata={"task": task, "task_body": {"chat_id": "c1"}})
    assert r.status == 200 and r.headers["Content-Type"] == "application/json"
    choice = r.json["choices"][0]
    assert isinstance(choice["message"]["content"], str) and choice["finish_reason"] in ("stop", "length")
    assert 0 < r.json["usage"]["completion_tokens"] <= 30


def test_stop_button(ui, serve):
    """While it writes, and before it has begun; the answer would have gone on for half a minute."""
    slow = serve("--no-loop-check", env={"MARGAY_CPU": "ref"})
    body = json.dumps({"model": ui.model, "messages": [{"role": "user", "content": "Go on."}], "stream": True, "stream_options": {"include_usage": True},
                       "max_tokens": 100000, "temperature": 5, "top_k": 0, "top_p": 1, "ignore_eos": True}).encode()
    for n, texts in enumerate((0, 5), 1):
        with socket.create_connection(("127.0.0.1", slow.port)) as c:
            c.sendall(f"POST {ui.base}/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            f, seen = c.makefile("rb"), 0
            slow.wait(lambda: not slow.idle())
            while seen < texts:
                seen += b'"content":"' in f.readline()
            f.close()
        slow.wait(lambda: slow.idle() and cancelled(slow) == n, 15)


def test_errors_are_told(ui):
    """The page shows error.message, of a stream's request too."""
    for stream in (True, False):
        r = ui.chat([user("What?", b"nothing to see")], stream=stream)
        assert r.status == 400 and r.headers["Content-Type"] == "application/json" and len(r.json["error"]["message"]) > 10
