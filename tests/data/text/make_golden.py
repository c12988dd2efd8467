#!/usr/bin/env python3
"""Records what the reference makes of texts and conversations, for tests/unit/text.

    python3 tests/data/text/make_golden.py strings tokenizer.json        > random.jsonl (then gzip -9n)
    python3 tests/data/text/make_golden.py pieces tokenizer.json         > pieces.jsonl (then gzip -9n)
    python3 tests/data/text/make_golden.py decodes tokenizer.json        > decodes.jsonl (then gzip -9n)
    python3 tests/data/text/make_golden.py prompts tokenizer.json TEMPLATE > prompts.jsonl (then gzip -9n)

`tokenizer.json` is the published tokenizer (tests/data/text/tokenizer.json.gz), TEMPLATE the chat template that the
published Qwen3-VL-Instruct folder has, as a .jinja file. The recorded ids come from the `tokenizers` library, the
recorded prompts from transformers' own Jinja environment. Needs transformers and tokenizers.
"""
import json
import random
import sys

from tokenizers import Tokenizer

SEED = 20251130


def span(first, last):
    return [chr(c) for c in range(first, last + 1)]


POOLS = {
    "ascii": span(32, 126),
    "blank": list(" \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff"),
    "control": span(0, 31) + ["\x7f", "\x80", "\x9f"],
    "zh": span(0x4E00, 0x9FFF) + list("，。！？：；、“”《》（）\n\n"),
    "rare": ["𠮷", "龘", "𪚥", "㐀", "䶿", "\U0002a6d6", "\U0002ceb0", "\U00030000", "\U0002ebf0"],
    "ja": span(0x3041, 0x30FF) + list("漢字仮名交文日本語、。「」"),
    "ko": span(0xAC00, 0xAC80) + span(0x1100, 0x1112) + span(0x1161, 0x1175) + span(0x11A8, 0x11C2),
    "emoji": list("😀😂🏽🏿❤🌊🏖🦀👩👨💻🇩🇪🇯🇵✈☎") + ["\u200d", "\ufe0f"],
    "mark": span(0x300, 0x345) + list("aeiouAEOU") + ["\u0323", "\u05b0", "\u093c", "\u0915", "\u09c7", "\u09be"],
    "late": ["\u0898", "\u1abf", "\u1ac1", "\u1df6", "\U00010eab", "\U00011935", "\U00011930", "\U000105d2",
             "\U00016d63", "\U00016d67", "\u0307", "\u0301", "\u0323", "a"],
    "short": list("'''’sStTrRevVlLmMdD") + ["\u017f", "\u212a"],
    "word": ["the", " quick", " brown", " fox", "ing", " and", "\n", "\n\n", "  ", ". ", ", ", "don't", "I'LL"],
    "code": ["def ", "return ", "    ", "\t", "(", ")", "{", "}", ";\n", " == ", "->", "0x1F", "_", "//", "#", '"'],
    "digit": list("0123456789٠١٢३४½²Ⅷ") + [".", ","],
    "token": ["<|im_start|>", "<|im_end|>", "<|image_pad|>", "<tool_call>", "</tool_call>", "<think>", "<|", "|>",
              "<|im_end", "im_start|>", "\n"],
    "world": span(0x400, 0x4FF) + span(0x5D0, 0x5EA) + span(0x620, 0x64A) + span(0x900, 0x97F) + span(0xE00, 0xE5B),
}


def any_char(rnd):
    c = rnd.randrange(0x110000)
    while 0xD800 <= c < 0xE000:
        c = rnd.randrange(0x110000)
    return chr(c)


# Where the scanner has to decide: contractions and their case folding, what white space goes with what.
FIXED = [start + quote + end + rest
         for start in ["", "x", " ", "1"] for quote in ["'", "\u2019"]
         for end in ["s", "S", "\u017f", "t", "re", "rE", "r", "VE", "m", "ll", "lL", "l", "d", "\u212a", "\ufb06"]
         for rest in ["", "a", "\u017f", " b", "1"]]
FIXED += [a + b + c + d for a in ["", "a", "."] for b in [" ", "\n", "\t", "\u3000", "\r\n"]
          for c in ["", " ", "\n", "\x85"] for d in ["", "a", "1", "!", "\u0301", "\n"]]


def strings(tok):
    rnd = random.Random(SEED)
    names = list(POOLS) + ["any"]
    seen = set()
    print(json.dumps({"seed": SEED}))
    for text in FIXED:
        ids = tok.encode(text, add_special_tokens=False).ids
        print(json.dumps([text, ids], ensure_ascii=False, separators=(",", ":")))
    while len(seen) < 2400:
        pools = rnd.sample(names, rnd.choice([1, 1, 2, 3]))
        text = ""
        for _ in range(rnd.choice([1, 2, 4, 8, 16, 32, 60])):
            name = rnd.choice(pools)
            text += any_char(rnd) if name == "any" else rnd.choice(POOLS[name])
        if text in seen:
            continue
        seen.add(text)
        ids = tok.encode(text, add_special_tokens=False).ids
        print(json.dumps([text, ids], ensure_ascii=False, separators=(",", ":")))


def pieces(tok):
    """Texts (in NFC) with the bytes of each piece that the pre-tokenizer cuts them into."""
    rnd = random.Random(SEED)
    texts = list(FIXED)
    for _ in range(600):
        names = rnd.sample(list(POOLS) + ["any"], rnd.choice([1, 2, 3]))
        texts.append("".join(any_char(rnd) if (name := rnd.choice(names)) == "any" else rnd.choice(POOLS[name])
                             for _ in range(rnd.choice([2, 8, 30]))))
    for text in texts:
        text = tok.normalizer.normalize_str(text)
        sizes = [len(piece) for piece, _ in tok.pre_tokenizer.pre_tokenize_str(text)]
        assert sum(sizes) == len(text.encode())  # in the byte alphabet, a character is a byte
        print(json.dumps([text, sizes], ensure_ascii=False, separators=(",", ":")))


def decodes(tok):
    """Ids in no order that a text would give: halves of characters, special tokens between them, ids of nothing."""
    rnd = random.Random(SEED)
    byte_tokens = [i for i in range(256)]
    for _ in range(400):
        ids = []
        for _ in range(rnd.choice([1, 2, 3, 5, 9, 20])):
            kind = rnd.randrange(10)
            if kind < 4:
                ids.append(rnd.choice(byte_tokens))
            elif kind < 7:
                ids += tok.encode(rnd.choice(POOLS[rnd.choice(["emoji", "rare", "zh"])])).ids[:rnd.choice([1, 2, 9])]
            elif kind < 9:
                ids.append(rnd.choice([rnd.randrange(151643), rnd.randrange(151643, 151669)]))
            else:
                ids.append(rnd.choice([151669, 151935, 999999]))
        print(json.dumps([ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids, skip_special_tokens=True)]))


# ---- conversations: role, parts; a part is ["text", T], ["image", placeholders] or ["call", NAME, ARGUMENTS] ----

WEATHER = ('[{"type":"function","function":{"name":"get_weather","description":"Wetter \\u00fcber \\u4e2d \\n'
           'now","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer",'
           '"minimum":1,"maximum":14}},"required":["city"]}}}]')
NUMBERS = ('[{"a":[1,-0,1.0,-0.0,1e3,1E400,-1e999,1.5e-7,0.0001,0.00001,123456789012345680.0,1e15,1e16,12.50,'
           '0.1,100,3.141592653589793,5e-324,1.7976931348623157e308,123456789012345678901234567890]},'
           '{"\\"q\\\\":"tab\\t bell\\u0007 \\/ \\ud83d\\ude00 \\u007f del \\b\\f\\r"},[],{},[[]],null,true,"x"]')

CASES = [
    ([("user", [["text", "hi"]])], None, True),
    ([("user", [["text", "hi"]])], None, False),
    ([("system", [["text", "You are brief."]]), ("user", [["text", "Was ist das?"]])], None, True),
    ([("user", [["text", "Look: "], ["image", 4], ["text", " what is it?"]])], None, True),
    ([("user", [["image", 6], ["image", 1], ["text", "温度计显示多少度？"]]),
      ("assistant", [["text", "二十度。"]]), ("user", [["text", "\nAnd now?\n\n"], ["image", 9]])], None, True),
    ([("user", [["text", ""]]), ("assistant", [["text", ""]]), ("user", [])], None, True),
    ([("user", [["text", "\u0301combining first"]]), ("assistant", [["text", " leading blank"]])], None, False),
    ([("user", [["text", "What's the weather?"]])], WEATHER, True),
    ([("system", [["text", "Be kind."]]), ("user", [["text", "x"]])], WEATHER, True),
    ([("user", [["text", "x"]])], NUMBERS, True),
    ([("user", [["text", "x"]])], "[]", True),
    ([("user", [["text", "Wetter in Ulm und Bonn?"]]),
      ("assistant", [["text", "Let me look."], ["call", "get_weather", '{"city": "Ulm"}'],
                     ["call", "get_weather", '{"city": "Bonn", "days": 3}']]),
      ("tool", [["text", '{"t": 21}']]), ("tool", [["text", "rain\n"]]),
      ("assistant", [["text", "21 degrees, and rain."]]), ("user", [["text", "Thanks"]])], WEATHER, True),
    ([("user", [["text", "go"]]), ("assistant", [["call", "f", "{}"]]), ("tool", [["image", 4], ["text", "shot"]]),
      ("user", [["text", "and?"]]), ("assistant", [["call", "f", '{"a": [1, 2]}'], ["call", "g", "{}"]]),
      ("tool", [["text", ""]])], WEATHER, True),
    ([("tool", [["text", "orphan"]]), ("user", [["text", "x"]])], None, True),
    ([("user", [["text", "a\r\nb\tc  d   \n"], ["text", "e\u0301"], ["text", "\U0001f30a"]])], None, True),
]


def prompts(tok, template):
    from transformers.utils.chat_template_utils import _compile_jinja_template
    jinja = _compile_jinja_template(template)
    for turns, tools, open_answer in CASES:
        messages, pads = [], []
        for role, parts in turns:
            message = {"role": role, "content": []}
            for part in parts:
                if part[0] == "text":
                    message["content"].append({"type": "text", "text": part[1]})
                elif part[0] == "image":
                    message["content"].append({"type": "image"})
                    pads.append(part[1])
                else:
                    call = {"name": part[1], "arguments": part[2]}
                    message.setdefault("tool_calls", []).append({"type": "function", "function": call})
            messages.append(message)
        text = jinja.render(messages=messages, tools=json.loads(tools) if tools else None,
                            add_generation_prompt=open_answer)
        pieces = text.split("<|image_pad|>")
        assert len(pieces) == len(pads) + 1
        full = pieces[0] + "".join("<|image_pad|>" * n + piece for n, piece in zip(pads, pieces[1:]))
        print(json.dumps({"turns": turns, "tools": tools, "open": open_answer, "prompt": full,
                          "ids": tok.encode(full, add_special_tokens=False).ids}))


def main():
    tok = Tokenizer.from_file(sys.argv[2])
    if sys.argv[1] == "strings":
        strings(tok)
    elif sys.argv[1] == "pieces":
        pieces(tok)
    elif sys.argv[1] == "decodes":
        decodes(tok)
    else:
        with open(sys.argv[3], encoding="utf-8") as f:
            prompts(tok, f.read())


main()
