"""What schemathesis is told of margay beyond its OpenAPI file (tests/clients/test_schema.py; SCHEMATHESIS_HOOKS).

Requests that the file allows are made to be about something: pictures that are pictures, tokens of the vocabulary,
answers that end soon. Then one that is refused all the same is a fault, but for the few reasons that a schema can't say.
"""
import json, os, struct

import schemathesis

# A picture of 4 x 4 pixels whose bytes are ASCII, so that it can stand for a string of the schema's.
BMP = (b"BM" + struct.pack("<IIIIiiHHIIiiII", 102, 0, 54, 40, 4, 4, 1, 24, 0, 48, 0, 0, 0, 0) + b"\x20\x40\x70" * 16).decode("ascii")
URL = os.environ["SCHEMA_URL"]
VOCABULARY = int(os.environ["SCHEMA_VOCABULARY"])
MOST_TOKENS = 8


def pictures(node):
    """The same body with each picture's text made a real one."""
    if isinstance(node, list):
        return [pictures(x) for x in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key in ("image_url", "image", "url") and isinstance(value, str):
            value = URL
        elif key == "image_url" and isinstance(value, dict):
            value = {**value, "url": URL}
        out[key] = pictures(value)
    return out


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    body = case.body
    if case.path == "/v1/files" and isinstance(body, dict) and "file" in body:
        case.body = {**body, "file": BMP}
    elif case.path == "/detokenize" and isinstance(body, dict):
        case.body = {**body, "tokens": [t % VOCABULARY for t in body["tokens"]]}
    elif isinstance(body, dict) and case.path in ("/v1/chat/completions", "/v1/completions", "/apply-template"):
        if "messages" in body:
            body = {**body, "messages": pictures(body["messages"])}
        for key in ("max_tokens", "max_completion_tokens"):
            if isinstance(body.get(key), int) and not 0 < body[key] <= MOST_TOKENS:
                body = {**body, key: MOST_TOKENS}
        bias = body.get("logit_bias")
        if isinstance(bias, dict):
            body = {**body, "logit_bias": {str(int(t) % VOCABULARY): x for t, x in bias.items()}}
        elif isinstance(bias, list):
            body = {**body, "logit_bias": [[int(t) % VOCABULARY, x] for t, x in bias]}
        if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
            body = {**body, "max_tokens": MOST_TOKENS}
        case.body = body


# What a schema can't say: code and words of the refusals. Length is in bytes here, in characters there.
UNSAID = [("context_length_exceeded", ""), ("too_many_images", "more than 64"), ("invalid_json", "a zero byte in a string"), ("invalid_multipart", "a part without a name"),
          ("invalid_value", "longer than"), ("invalid_value", "too long"), ("invalid_value", "only an assistant's message can call tools"), ("invalid_value", "min_pixels is larger"),
          ("invalid_value", 'needs "logprobs"'), ("unsupported_value", "tools can't be called yet")]


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """False drops it."""
    kind = type(failure).__name__
    if kind == "RejectedPositiveData" and response.status_code == 400:
        error = json.loads(response.content)["error"]
        return not any(error["code"] == code and words in error["message"] for code, words in UNSAID)
    if kind == "AcceptedNegativeData" and case.path == "/v1/files":
        return "type" not in failure.message  # a form's fields have none: null is the text "null"
    return True
