"""docs/openapi.json against the code: every form that src/api writes fits its schema, ranges and routes agree.

The forms come from the program api_forms of the same build (tests/unit/api/forms.c).
"""
import json
import pathlib
import re
import subprocess

import pytest

from program import BIN, ROOT

DOC = json.loads((ROOT / "docs" / "openapi.json").read_text())
SCHEMAS = DOC["components"]["schemas"]
PROGRAM = next((p / "tests" / "unit" / "api" / "api_forms" for p in pathlib.Path(BIN).parents
                if (p / "tests" / "unit" / "api" / "api_forms").exists()), None)
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int if name == "integer" else (int, float))
    return isinstance(value, TYPES[name])


def problems(schema, value, at="$"):
    """What of `value` does not fit `schema`: the part of JSON Schema that our document uses, nothing else."""
    known = {"$ref", "type", "properties", "required", "additionalProperties", "maxProperties", "items", "minItems",
             "maxItems", "enum", "const", "anyOf", "minimum", "maximum", "maxLength", "pattern", "description", "default",
             "example", "contentMediaType", "minLength", "not", "prefixItems", "propertyNames"}
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        return problems(resolve(schema["$ref"]), value, at)
    found = []
    if "anyOf" in schema and all(problems(s, value, at) for s in schema["anyOf"]):
        found.append(f"{at}: fits none of anyOf")
    if "not" in schema and not problems(schema["not"], value, at):
        found.append(f"{at}: {value!r} is what it must not be")
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type(value, t) for t in types):
        return [f"{at}: {value!r} is no {types}"]
    if "enum" in schema and value not in schema["enum"] or "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not allowed")
    if is_type(value, "number"):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{at}: {value} is out of range")
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value.encode()) <= schema.get("maxLength", 1 << 60) or not re.search(schema.get("pattern", ""), value):
            found.append(f"{at}: the string does not fit")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 60):
            found.append(f"{at}: {len(value)} items")
        first = schema.get("prefixItems", [])
        for i, item in enumerate(value):
            found += problems(first[i] if i < len(first) else schema.get("items", {}), item, f"{at}[{i}]")
    if isinstance(value, dict):
        found += [f"{at}: no {key}" for key in schema.get("required", []) if key not in value]
        for key, item in value.items():
            found += problems(schema.get("propertyNames", {}), key, f"{at}: the name {key!r}")
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            if inner is False:
                found.append(f"{at}: {key} is not in the schema")
            else:
                found += problems({} if inner is True else inner, item, f"{at}.{key}")
    return found


def resolve(ref):
    node = DOC
    assert ref.startswith("#/"), ref
    for key in ref[2:].split("/"):
        node = node[key]
    return node


@pytest.fixture(scope="module")
def forms():
    assert PROGRAM, f"api_forms is not built beside {BIN}"
    lines = subprocess.run([PROGRAM], capture_output=True, check=True).stdout.decode().splitlines()
    return {r["name"]: r["body"] for r in map(json.loads, lines)}


def events(text):
    """The JSON of a stream's data lines; every event is one line and an empty one, or a comment."""
    assert text.endswith("\n\n")
    out = []
    for event in text[:-2].split("\n\n"):
        assert "\n" not in event
        if event.startswith(":"):
            continue
        assert event.startswith("data: ")
        if event != "data: [DONE]":
            out.append(json.loads(event[6:]))
    return out


@pytest.mark.parametrize("form, schema", [
    ("chat", "ChatReply"), ("chat_plain", "ChatReply"), ("completion", "CompletionReply"),
    ("completion_plain", "CompletionReply"), ("error", "Error"), ("model", "Model"), ("models", "ModelList"),
    ("file", "File"), ("files", "FileList"), ("file_deleted", "FileDeleted"), ("health", "Health"), ("ready", "Ready"),
    ("props", "Props"), ("slots", "Slots"), ("tokenize", "TokenizeReply"), ("tokenize_pieces", "TokenizeReply"),
    ("detokenize", "DetokenizeReply"), ("template", "TemplateReply"), ("ws_progress", "SocketProgress"),
    ("ws_token", "SocketToken"), ("ws_result", "SocketResult"), ("ws_error", "SocketError")])
def test_form_fits_its_schema(forms, form, schema):
    assert problems(SCHEMAS[schema], json.loads(forms[form])) == []


@pytest.mark.parametrize("form, schema", [("chat_stream", "ChatChunk"), ("completion_stream", "CompletionChunk")])
def test_stream_fits_its_schema(forms, form, schema):
    chunks = events(forms[form])
    assert len(chunks) == 8 and forms[form].endswith("data: [DONE]\n\n")
    assert [problems(SCHEMAS[schema], c) for c in chunks] == [[]] * 8
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 334


def test_no_form_is_left_out(forms):
    assert {"metrics", "fields", "error_stream"} <= set(forms) and len(forms) == 27
    assert problems(SCHEMAS["Error"], events(forms["error_stream"])[0]) == []


def test_the_checker_finds_what_is_wrong():
    good = {"object": "list", "data": [], "has_more": False}
    assert problems(SCHEMAS["FileList"], good) == []
    for bad in ({**good, "object": "lost"}, {**good, "more": 1}, {"object": "list", "data": []}, {**good, "data": {}},
                {**good, "has_more": 0}, {**good, "data": [{}]}, []):
        assert problems(SCHEMAS["FileList"], bad)
    assert problems({"minimum": 1}, 0) and problems({"maximum": 1}, 2) and problems({"pattern": "^a$"}, "b")
    assert problems({"maxLength": 1}, "ab") and problems({"maxItems": 0}, [1]) and problems({"anyOf": [{"type": "null"}]}, 1)
    assert problems({"not": {"const": 0}}, 0) and not problems({"not": {"const": 0}}, 1) and problems({"minLength": 1}, "")
    assert problems({"prefixItems": [{"type": "null"}]}, [1]) and problems({"propertyNames": {"pattern": "^a$"}}, {"b": 1})


def test_every_reference_leads_somewhere_and_every_schema_is_used():
    text = json.dumps(DOC)
    refs = set(re.findall(r'"\$ref": "([^"]+)"', text))
    for ref in refs:
        resolve(ref)
    spoken = {name for name in SCHEMAS if name.startswith("Socket")}  # named in the text of /ws
    assert all(name in DOC["paths"]["/ws"]["get"]["description"] for name in spoken)
    assert {f"#/components/schemas/{name}" for name in set(SCHEMAS) - spoken} <= refs


def test_ranges_are_the_codes(forms):
    fields = {f["name"]: f for f in json.loads(forms["fields"])}
    assert len(fields) == 13
    for schema in ("ChatRequest", "CompletionRequest", "SocketQuestion"):
        properties = SCHEMAS[schema]["properties"]
        for name, field in fields.items():
            if name == "top_logprobs" and schema == "CompletionRequest":
                continue
            given = properties[name]
            assert "integer" in given["type"] if field["whole"] else "number" in given["type"], name
            assert float(given["minimum"]) == field["min"] and float(given["maximum"]) == field["max"], name
        for name, given in properties.items():  # and no number beside those
            if {"integer", "number"} & set(given.get("type", [])) and name != "logprobs":
                assert name in fields


def test_routes_are_counted():
    paths = sorted(DOC["paths"])
    lines = subprocess.run([PROGRAM, *paths, "/nonsense"], capture_output=True, check=True).stdout.decode().splitlines()
    counted = {r["name"]: r["body"] for r in map(json.loads, lines)}
    assert counted.pop("/nonsense") == "other"
    assert set(counted.values()) == {"counted"}


def test_metrics_are_well_formed(forms):
    kinds, seen = {}, set()
    for line in forms["metrics"].splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            m = re.fullmatch(r'([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? (\S+)', line)
            assert m, line
            assert (m[1], m[2]) not in seen
            seen.add((m[1], m[2]))
            float(m[3])
            base = re.sub(r"_(bucket|sum|count)$", "", m[1])
            assert m[1] in kinds or kinds[base] == "histogram"
    for name, kind in kinds.items():
        assert name.startswith(("margay_", "process_"))
        assert (kind == "counter") == name.endswith("_total"), name
