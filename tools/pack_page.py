#!/usr/bin/env python3
"""Puts the built page (web/dist) into one file that the program embeds; the C build calls it.

    pack_page.py FOLDER OUT DEPFILE

    margay-page 1\n
    NAME TYPE CODING KEPT SIZE BYTES HASH\n      a line for each file: CODING gzip or identity, KEPT 1 for names
    ...                                         that carry a hash of what is in them, SIZE as served, BYTES here
    \n
    the files, one after another

Read by src/server/page.c.
"""
import gzip
import hashlib
import pathlib
import re
import sys

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png",
         ".webp": "image/webp", ".json": "application/json", ".webmanifest": "application/manifest+json",
         ".txt": "text/plain", ".woff2": "font/woff2"}


def pack(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    lines, bodies = ["margay-page 1"], []
    for path in files:
        name = path.relative_to(folder).as_posix()
        if re.search(r"\s", name) or path.suffix not in TYPES:
            sys.exit(f"pack_page.py: {name}: no type is known for it")
        data = path.read_bytes()
        small = gzip.compress(data, 9, mtime=0)
        coding, body = ("gzip", small) if len(small) < 0.95 * len(data) else ("identity", data)
        kept = int(bool(re.fullmatch(r"assets/.+-[\w-]{8}\.\w+", name)))
        digest = hashlib.sha256(data).hexdigest()[:20]
        lines.append(f"{name} {TYPES[path.suffix]} {coding} {kept} {len(data)} {len(body)} {digest}")
        bodies.append(body)
    return files, "\n".join(lines).encode() + b"\n\n" + b"".join(bodies)


if __name__ == "__main__":
    folder, out, depfile = (pathlib.Path(p) for p in sys.argv[1:])
    files, data = pack(folder)
    out.write_bytes(data)
    escaped = (str(f).replace(" ", "\\ ") for f in files)
    depfile.write_text(f"{out}: " + " ".join(escaped) + "\n")
