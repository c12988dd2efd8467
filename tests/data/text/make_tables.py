#!/usr/bin/env python3
"""Writes src/text/unicode_tables.c: the character classes as the reference tokenizer sees them.

    python3 tests/data/text/make_tables.py > src/text/unicode_tables.c

The classes are measured on the `tokenizers` library itself (its regex engine and its NFC each carry their
own edition of Unicode, and neither is Python's), so that the scanner answers to it and not to a standard.
"""
import unicodedata

from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import Split

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matching(pattern):
    """The code points that `pattern`, a class of one character, matches."""
    split = Split(Regex(pattern), "removed")
    found = set()
    for lo in range(0, len(ALL), 4096):
        part = ALL[lo:lo + 4096]
        kept = {ord(ch) for piece, _ in split.pre_tokenize_str("".join(map(chr, part))) for ch in piece}
        found |= set(part) - kept
    return found


nfc = normalizers.NFC().normalize_str


def reorders(c):
    """Has a combining class: it changes places with a mark of class 240 before or of class 1 behind."""
    ch = chr(c)
    return nf_differs("\u2603\u0345" + ch) or nf_differs("\u2603" + ch + "\u0334")


def nf_differs(s):
    return nfc(s) != s


def active():
    """The code points that NFC may touch: not stable alone, with a combining class, or the second of a
    pair that composes."""
    out = set()
    for c in ALL:
        if nf_differs(chr(c)) or reorders(c):
            out.add(c)
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            pair = "".join(chr(int(p, 16)) for p in parts)
            if len(nfc(pair)) == 1:
                out.add(ord(pair[1]))
    out |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul vowels and finals
    return out


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def emit(name, points):
    r = ranges(points)
    print(f"const struct mg_range mg_range_{name}[] = {{")
    for i in range(0, len(r), 4):
        print("    " + " ".join(f"{{0x{a:x}, 0x{b:x}}}," for a, b in r[i:i + 4]))
    print("};")
    print(f"const size_t mg_n_range_{name} = {len(r)};\n")


print("""/* text/unicode_tables.c - character classes as inclusive ranges of code points.
 *
 * Written by tests/data/text/make_tables.py from the reference's own answers; don't edit. `letter`
 * and `number` are what its regex engine takes for \\\\p{L} and \\\\p{N}, `space` its \\\\s, `nfc` what its
 * NFC may touch (see unicode.h).
 */
#include "text/unicode.h"
""".replace("\\\\", "\\"))
emit("letter", matching(r"\p{L}"))
emit("number", matching(r"\p{N}"))
emit("space", matching(r"\s"))
emit("nfc", active())
