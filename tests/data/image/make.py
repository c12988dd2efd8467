#!/usr/bin/env python3
"""Makes the test pictures of tests/unit/image and what the reference makes of them.

usage: make.py             writes *.pack and *.txt beside this file, and seeds into tests/fuzz/corpus/image_*
       make.py --extract PACK DIR   takes the pictures out of a pack, to look at them

Needs the reference's Python: Pillow, numpy, torch, torchvision, transformers; libheif for the HEIC picture. The results
are committed; this runs only when a case is added. Everything is made from fixed seeds.

A pack is a run of records: one line "NAME STATUS CODE FORMAT WIDTH HEIGHT ORIENTATION FRAMES ALPHA BACKGROUND TOLERANCE
N_FILE N_RGB\\n", then the file, then the RGB the reference gives, zlib's (nothing when STATUS isn't 0). STATUS and CODE are
margay's; TOLERANCE is the largest difference a byte may have (0: exact), BACKGROUND six hex digits.
"""
import ctypes, io, os, pathlib, random, struct, sys, tempfile, zlib
import numpy as np
from PIL import Image, ImageDraw, ImageOps

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parents[1] / "fuzz" / "corpus"
FORMAT, UNSUPPORTED, LIMIT = 4, 5, 6                       # enum mg_status
JPEG, PNG, WEBP, GIF, BMP, HEIC, AVIF = range(1, 8)        # enum mg_image_format
WHITE, TEAL = (255, 255, 255), (12, 200, 77)
rng = np.random.default_rng(20)


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return h


def reference(data, background=WHITE):
    """transformers' load_image + convert_to_rgb, with a choice of background."""
    im = Image.open(io.BytesIO(data))
    im.load()
    im = ImageOps.exif_transpose(im)
    if "A" in im.getbands() or im.info.get("transparency") is not None:
        im = im.convert("RGBA")
        im = Image.alpha_composite(Image.new("RGBA", im.size, background + (255,)), im)
    return np.array(im.convert("RGB"))


class Pack:
    def __init__(self, name):
        self.path, self.data, self.n, self.names = HERE / f"{name}.pack", b"", 0, set()

    def put(self, name, file, fmt=0, rgb=None, status=0, code="-", orientation=1, frames=1, alpha=0, background=WHITE,
            tolerance=0):
        assert name not in self.names and " " not in name, name
        self.names.add(name)
        h, w = rgb.shape[:2] if rgb is not None else (0, 0)
        raw = rgb.astype(np.uint8).tobytes() if rgb is not None else b""
        line = f"{name} {status} {code} {fmt} {w} {h} {orientation} {frames} {alpha} {bytes(background).hex()} {tolerance}"
        raw = zlib.compress(raw, 9) if raw else b""
        self.data += f"{line} {len(file)} {len(raw)}\n".encode() + file + raw
        self.n += 1

    def good(self, name, file, fmt, background=WHITE, **k):
        self.put(name, file, fmt, reference(file, background), background=background, **k)

    def bad(self, name, file, status, code):
        self.put(name, file, status=status, code=code)

    def close(self):
        self.path.write_bytes(self.data)
        print(self.path.name, self.n, "pictures,", len(self.data), "bytes")


def read_pack(path):
    data, at = pathlib.Path(path).read_bytes(), 0
    while at < len(data):
        end = data.index(b"\n", at)
        f = data[at:end].decode().split()
        n, m = int(f[-2]), int(f[-1])
        yield f, data[end + 1:end + 1 + n]
        at = end + 1 + n + m


def save(im, fmt, **k):
    f = io.BytesIO()
    im.save(f, fmt, **k)
    return f.getvalue()


def scene(w, h):
    """A small picture with edges, gradients, text and some noise."""
    y, x = np.mgrid[0:h, 0:w]
    a = np.stack([x * 255 // max(1, w - 1), y * 255 // max(1, h - 1), (x + y) * 3 % 256], 2).astype(np.uint8)
    im = Image.fromarray(a)
    d = ImageDraw.Draw(im)
    d.ellipse([w // 4, h // 4, w * 3 // 4, h * 3 // 4], fill=(220, 30, 40), outline="white")
    d.text((3, 3), "TOTAL 42.50", fill="black")
    a = np.array(im).astype(int) + rng.integers(-6, 7, (h, w, 3))
    return Image.fromarray(a.clip(0, 255).astype(np.uint8))


# ---- PNG ------------------------------------------------------------------------------------------------------------

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ihdr(w, h, depth=8, kind=2, interlace=0):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, interlace))


SIGNATURE, IEND = b"\x89PNG\r\n\x1a\n", chunk(b"IEND", b"")


def png(samples, depth, kind, interlace, before=b"", after=b""):
    """A PNG of an array [h][w][channels], each sample as it stands in the file, every row with another filter."""
    h, w, n = samples.shape

    def pack(v):
        if depth >= 8:
            return v.astype(">u2" if depth == 16 else np.uint8).tobytes()
        bits = "".join(format(int(q), f"0{depth}b") for q in v)
        bits += "0" * (-len(bits) % 8)
        return bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))

    def image(part):
        out, size = b"", max(1, n * depth // 8)
        prior = bytes(len(pack(part[0].ravel())))
        for y, row in enumerate(part):
            raw, f, coded = pack(row.ravel()), y % 5, bytearray()
            for i, v in enumerate(raw):
                a, b, c = (raw[i - size] if i >= size else 0), prior[i], (prior[i - size] if i >= size else 0)
                p = a + b - c
                near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                coded.append((v - [0, a, b, (a + b) // 2, near][f]) & 255)
            out, prior = out + bytes([f]) + bytes(coded), raw
        return out

    if interlace:
        raw = b""
        for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
            part = samples[y0::dy, x0::dx]
            if part.size:
                raw += image(part)
    else:
        raw = image(samples)
    z = zlib.compress(raw, 9)
    cut = len(z) // 2                                       # two IDAT chunks
    return (SIGNATURE + ihdr(w, h, depth, kind, interlace) + before + chunk(b"IDAT", z[:cut]) + chunk(b"IDAT", z[cut:])
            + after + IEND)


def make_png():
    pack = Pack("png")
    for w, h in [(1, 1), (2, 5), (13, 9), (33, 17)]:
        for kind, depths in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}.items():
            for depth in depths:
                for interlace in (0, 1):
                    for trns in (0, 1):
                        if trns and kind >= 4:
                            continue
                        n = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
                        top = 1 << depth
                        colors = min(top, 200)
                        a = rng.integers(0, colors if kind == 3 else top, (h, w, n))
                        if kind == 0 and depth == 16:
                            a[::2] = rng.integers(0, 256, a[::2].shape)
                        extra = b""
                        if kind == 3:
                            extra = chunk(b"PLTE", rng.integers(0, 256, colors * 3, dtype=np.uint8).tobytes())
                            if trns:
                                extra += chunk(b"tRNS", rng.integers(0, 256, (colors + 1) // 2, dtype=np.uint8).tobytes())
                        elif trns:
                            # where Pillow compares as the specification says
                            key = 0 if depth in (2, 4) else int(a[0, 0, 0])
                            if kind == 2:
                                a[0, 0] = 70 if depth == 8 else 0
                                key = int(a[0, 0, 0])
                            if depth == 16:
                                a[a < 256] = 0 if kind == 2 else a[a < 256]
                                key = min(key, 200)
                            extra = chunk(b"tRNS", struct.pack(">H", key) * (1 if kind == 0 else 3))
                        file = png(a, depth, kind, interlace, chunk(b"gAMA", struct.pack(">I", 30000)) + extra)
                        name = f"{w}x{h}-type{kind}-{depth}bit-{'adam7' if interlace else 'plain'}{'-trns' if trns else ''}"
                        back = TEAL if w != 13 else WHITE
                        if kind == 2 and depth == 16 and trns:
                            # Pillow compares high bytes here; by the specification only equal 16-bit values vanish
                            rgb = (a >> 8).astype(np.uint8)
                            rgb[(a == key).all(2)] = back
                            pack.put(name, file, PNG, rgb, alpha=1, background=back)
                            continue
                        pack.good(name, file, PNG, back, alpha=int(kind >= 4 or trns))
    # the transparent colour of few-bit gray, by the specification (Pillow compares it with the widened value)
    for depth in (2, 4):
        a = rng.integers(0, 1 << depth, (9, 13, 1))
        rgb = np.repeat((a * 255 // ((1 << depth) - 1)).astype(np.uint8), 3, 2)
        key = (1 << depth) - 2
        rgb[a[:, :, 0] == key] = TEAL
        pack.put(f"gray-{depth}bit-key", png(a, depth, 0, 0, chunk(b"tRNS", struct.pack(">H", key))), PNG, rgb, alpha=1,
                 background=TEAL)
    # an index behind the palette is black
    a = np.array([[[0], [1], [7], [2]]])
    pack.good("palette-short", png(a, 4, 3, 0, chunk(b"PLTE", bytes(range(9)))), PNG)
    # fault 2: black text on alpha 0 over noise
    noise = rng.integers(0, 256, (40, 96, 4), dtype=np.uint8)
    mask = Image.new("L", (96, 40), 0)
    ImageDraw.Draw(mask).text((8, 12), "Hello 42", fill=255)
    m = np.array(mask)
    noise[:, :, 3] = m
    noise[m > 0, :3] = 0
    pack.good("alpha-noise", save(Image.fromarray(noise), "PNG"), PNG, alpha=1)
    # every alpha over a background, every channel value: Pillow's rounding
    y, x = np.mgrid[0:256, 0:256]
    ramp = np.stack([x, 255 - x, (x * 7) % 256, y], 2).astype(np.uint8)
    for back in (WHITE, (0, 0, 0), (100, 101, 37)):
        pack.good(f"alpha-ramp-{bytes(back).hex()}", save(Image.fromarray(ramp[:, :: 5 if back != WHITE else 3]), "PNG"), PNG,
                  back, alpha=1)
    frames = [Image.new("RGB", (24, 16), c) for c in ("red", "lime", "blue")]
    pack.good("apng", save(frames[0], "PNG", save_all=True, append_images=frames[1:]), PNG, frames=3)
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(8 << 20), 9))
    a = rng.integers(0, 256, (4, 4, 3))
    pack.put("ztxt-8MB", png(a, 8, 2, 0, text), PNG, a)      # Pillow refuses it; its text is no part of the picture
    a = rng.integers(0, 256, (5, 7, 3))
    tiff = b"MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
    pack.good("exif-behind", png(a, 8, 2, 0, after=chunk(b"eXIf", tiff)), PNG, orientation=6)
    pack.close()


# ---- JPEG -----------------------------------------------------------------------------------------------------------

def make_jpeg():
    pack = Pack("jpeg")
    im = scene(77, 50)
    for q in (40, 92):
        for ss, name in ((0, "444"), (1, "422"), (2, "420")):
            for progressive in (False, True):
                pack.good(f"q{q}-{name}-{'progressive' if progressive else 'baseline'}",
                          save(im, "JPEG", quality=q, subsampling=ss, progressive=progressive), JPEG)
    odd = scene(32, 32)
    f = save(odd, "JPEG", quality=85, subsampling=1)
    at = f.index(b"\xff\xc0")
    pack.good("q85-440", f[:at + 11] + b"\x12" + f[at + 12:], JPEG)   # 2x1 read as 1x2: as many blocks
    pack.good("restart", save(im, "JPEG", restart_marker_blocks=2), JPEG)
    pack.good("optimize", save(im, "JPEG", optimize=True, quality=70), JPEG)
    pack.good("gray", save(im.convert("L"), "JPEG"), JPEG)
    pack.good("gray-progressive", save(im.convert("L"), "JPEG", progressive=True), JPEG)
    pack.good("rgb", save(im, "JPEG", keep_rgb=True), JPEG)
    for w, h in ((1, 1), (8, 8), (9, 17), (200, 3)):
        pack.good(f"{w}x{h}", save(scene(w, h), "JPEG"), JPEG)
    cmyk = save(im.convert("CMYK"), "JPEG", quality=90)
    pack.good("cmyk", cmyk, JPEG)
    at = cmyk.index(b"\xff\xee")
    pack.good("cmyk-no-app14", cmyk[:at] + cmyk[at + 2 + struct.unpack(">H", cmyk[at + 2:at + 4])[0]:], JPEG)
    pack.good("cmyk-red", save(Image.new("CMYK", (24, 24), (0, 255, 255, 0)), "JPEG"), JPEG)
    # YCCK: the planes of RGB' = CMY as Pillow reads it, stored inverted by Pillow's writer; then the flag in APP14
    c, m, y, k = [np.array(p) for p in im.convert("CMYK").split()]
    ycc = np.array(Image.merge("RGB", [Image.fromarray(p) for p in (c, m, y)]).convert("YCbCr"))
    k = (np.mgrid[0:50, 0:77][1] * 2).astype(np.uint8)
    stored = np.dstack([255 - ycc, k])
    ycck = save(Image.frombytes("CMYK", (77, 50), stored.tobytes()), "JPEG", quality=92)
    at = ycck.index(b"\xff\xeeAdobe"[:2])
    ycck = ycck[:at + 15] + b"\x02" + ycck[at + 16:]
    assert ycck[at + 4:at + 9] == b"Adobe"
    pack.good("ycck", ycck, JPEG)
    red = np.full((24, 24, 4), 0, np.uint8)
    red[:, :, :3] = 255 - np.array(Image.new("RGB", (1, 1), (0, 255, 255)).convert("YCbCr"))[0, 0]
    red = save(Image.frombytes("CMYK", (24, 24), red.tobytes()), "JPEG")
    at = red.index(b"\xff\xee")
    pack.good("ycck-red", red[:at + 15] + b"\x02" + red[at + 16:], JPEG)
    gap = save(im, "JPEG")
    pack.good("trailing-rubbish", gap + bytes(100), JPEG)
    pack.good("fill-bytes", gap[:2] + b"\xff\xff\xff" + gap[2:], JPEG)
    pack.good("photo", save(scene(320, 200), "JPEG", quality=88), JPEG)
    pack.close()


# ---- EXIF -----------------------------------------------------------------------------------------------------------

def tiff(value, order=">", kind=3, count=1, offset=8, n=1, magic=42, pad=b""):
    head = (b"MM" if order == ">" else b"II") + struct.pack(order + "HI", magic, offset)
    v = struct.pack(order + {1: "Bxxx", 3: "Hxx", 4: "I"}[kind], value)
    return head + pad + struct.pack(order + "HHHI", n, 0x112, kind, count) + v + bytes(4)


def make_exif():
    pack = Pack("exif")
    # red top edge, an arrow that points up
    im = Image.new("RGB", (40, 28), "white")
    d = ImageDraw.Draw(im)
    d.rectangle([0, 0, 39, 4], fill="red")
    d.polygon([(20, 8), (30, 18), (10, 18)], fill="black")
    d.rectangle([17, 18, 23, 26], fill="black")
    undo = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}       # Image.Transpose that makes the stored frame
    for o in range(1, 9):
        stored = im if undo[o] is None else im.transpose(undo[o])
        e = Image.Exif()
        e[0x112] = o
        for fmt, name, k in ((JPEG, "JPEG", dict(quality=90, subsampling=2)), (PNG, "PNG", {}), (WEBP, "WEBP", dict(lossless=True))):
            file = save(stored, name, exif=e, **k)
            assert reference(file).shape == (28, 40, 3)
            pack.good(f"{name.lower()}-{o}", file, fmt, orientation=o)
        pack.good(f"gray-{o}", save(stored.convert("L"), "JPEG", exif=e), JPEG, orientation=o)
        cm = save(stored.convert("CMYK"), "JPEG", exif=e)
        pack.good(f"cmyk-{o}", cm, JPEG, orientation=o)
        al = stored.convert("RGBA")
        al.putalpha(200)
        pack.good(f"webp-alpha-{o}", save(al, "WEBP", quality=80, exif=e), WEBP, TEAL, orientation=o, alpha=1)
        pack.good(f"png-adam7-{o}", png(np.array(stored), 8, 2, 1, after=chunk(b"eXIf", tiff(o))), PNG, orientation=o)
    # blocks that Pillow reads, and malformed ones: always decoded, upright
    base = save(im, "JPEG", quality=90)

    def app1(body):
        return base[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + base[2:]

    plain = reference(base)
    turned = np.rot90(plain, -1)
    for name, block, o in [("little", tiff(6, "<"), 6), ("long", tiff(6, kind=4), 6), ("byte", tiff(6, kind=1), 6),
                           ("far", tiff(6, offset=40, pad=bytes(32)), 6)]:
        pack.put("ok-" + name, app1(b"Exif\0\0" + block), JPEG, turned, orientation=o)
    good = tiff(6)
    for name, block in [("zero", tiff(0)), ("nine", tiff(9)), ("huge", tiff(0xffff)), ("empty", b""), ("short", good[:7]),
                        ("header", good[:8]), ("cut-count", good[:9]), ("cut-entry", good[:20]), ("magic", tiff(6, magic=43)),
                        ("order", b"XX" + good[2:]), ("offset-end", tiff(6, offset=0xffffffff)), ("offset-past", tiff(6, offset=25)),
                        ("offset-0", tiff(6, offset=0)), ("count-0", tiff(6, count=0)), ("many", tiff(1, n=0xffff)),
                        ("noise", bytes(range(255)) * 9), ("type", good[:13] + b"\x63" + good[14:])]:
        pack.put("bad-" + name, app1(b"Exif\0\0" + block), JPEG, plain)
    pack.put("bad-no-prefix", app1(b"http://ns.adobe.com/xap/1.0/\0<x/>"), JPEG, plain)
    pack.close()


# ---- WebP -----------------------------------------------------------------------------------------------------------

def riff(*chunks):
    body = b"WEBP" + b"".join(k + struct.pack("<I", len(d)) + d + b"\0" * (len(d) & 1) for k, d in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def u24(v):
    return struct.pack("<I", v)[:3]


def make_webp():
    pack = Pack("webp")
    im = scene(61, 43)
    al = im.convert("RGBA")
    al.putalpha(Image.fromarray((np.mgrid[0:43, 0:61][1] * 255 // 60).astype(np.uint8)))
    for q in (20, 90):
        pack.good(f"lossy-{q}", save(im, "WEBP", quality=q), WEBP)
        for back in (WHITE, TEAL):
            pack.good(f"lossy-alpha-{q}-{bytes(back).hex()}", save(al, "WEBP", quality=q), WEBP, back, alpha=1)
    pack.good("lossless", save(im, "WEBP", lossless=True), WEBP)
    pack.good("lossless-alpha", save(al, "WEBP", lossless=True, exact=True), WEBP, TEAL, alpha=1)
    pack.good("1x1", save(scene(1, 1), "WEBP"), WEBP)
    frames = [Image.new("RGB", (24, 16), c) for c in ("red", "lime", "blue")]
    pack.good("animated", save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True), WEBP, frames=3)
    # an animation whose first frame is smaller than the canvas; the background colour it names is ignored
    part = save(Image.new("RGB", (10, 8), (200, 30, 30)), "WEBP", lossless=True)
    vp8l = part[part.index(b"VP8L"):]
    anmf = lambda x, y: u24(x // 2) + u24(y // 2) + u24(9) + u24(7) + u24(100) + b"\0" + vp8l
    pack.good("animated-part", riff((b"VP8X", b"\x02\0\0\0" + u24(29) + u24(19)), (b"ANIM", b"\x11\x22\x33\xff\0\0"),
                                    (b"ANMF", anmf(4, 6)), (b"ANMF", anmf(0, 0))), WEBP, TEAL, frames=2)
    pack.good("animated-part-alpha", riff((b"VP8X", b"\x12\0\0\0" + u24(29) + u24(19)), (b"ANIM", b"\x11\x22\x33\xff\0\0"),
                                          (b"ANMF", anmf(4, 6)), (b"ANMF", anmf(0, 0))), WEBP, TEAL, frames=2, alpha=1)
    pack.close()


# ---- GIF ------------------------------------------------------------------------------------------------------------

def lzw(indices, bits):
    """GIF's LZW without a dictionary: a clear code often enough that the codes never widen."""
    size, clear = max(2, bits), 1 << max(2, bits)
    codes = []
    for i, v in enumerate(indices):
        if i % (clear - 2) == 0:
            codes.append(clear)
        codes.append(int(v))
    codes.append(clear + 1)
    acc = n = 0
    out = bytearray()
    for c in codes:
        acc |= c << n
        n += size + 1
        while n >= 8:
            out.append(acc & 255)
            acc >>= 8
            n -= 8
    out.append(acc & 255)
    blocks = b"".join(bytes([len(out[i:i + 255])]) + bytes(out[i:i + 255]) for i in range(0, len(out), 255))
    return bytes([size]) + blocks + b"\0"


def gif(screen, frames, palette=None, version=b"GIF89a", trailer=b";"):
    def flags(p):
        return 0x80 | (len(p) // 3).bit_length() - 2 if p else 0
    out = version + struct.pack("<HHBBB", *screen, flags(palette), 0, 0) + (palette or b"")
    for f in frames:
        if f.get("gce") is not None:
            out += b"!\xf9\x04" + bytes([1 if f["gce"] >= 0 else 0, 5, 0, max(0, f["gce"])]) + b"\0"
        a, p, local = f["index"], f.get("at", (0, 0)), f.get("palette")
        bits = max(2, (len(local or palette or bytes(768)) // 3 - 1).bit_length())
        rows = list(range(a.shape[0]))
        if f.get("interlace"):
            rows = rows[::8] + rows[4::8] + rows[2::4] + rows[1::2]
        out += (b"," + struct.pack("<HHHHB", *p, a.shape[1], a.shape[0], (0x40 if f.get("interlace") else 0) | flags(local))
                + (local or b"") + lzw(a[rows].ravel(), bits))
    return out + trailer


def make_gif():
    pack = Pack("gif")
    colors = rng.integers(0, 256, 48, dtype=np.uint8).tobytes()
    other = rng.integers(0, 256, 24, dtype=np.uint8).tobytes()
    a = rng.integers(0, 16, (21, 30))
    b = rng.integers(0, 8, (9, 11))
    pack.good("plain", gif((30, 21), [dict(index=a)], colors), GIF)
    pack.good("gif87a", gif((30, 21), [dict(index=a)], colors, b"GIF87a"), GIF)
    pack.good("interlaced", gif((30, 21), [dict(index=a, interlace=True)], colors), GIF)
    for h in (1, 2, 3, 5, 8):
        pack.good(f"interlaced-{h}", gif((30, h), [dict(index=a[:h], interlace=True)], colors), GIF)
    pack.good("local", gif((11, 9), [dict(index=b, palette=other)], colors), GIF)
    pack.good("local-only", gif((11, 9), [dict(index=b, palette=other)]), GIF)
    pack.good("no-palette", gif((30, 21), [dict(index=a)]), GIF)
    pack.good("transparent", gif((30, 21), [dict(index=a, gce=5)], colors), GIF, TEAL, alpha=1)
    pack.good("part", gif((30, 21), [dict(index=b, at=(7, 5))], colors), GIF)
    pack.good("part-transparent", gif((30, 21), [dict(index=b, at=(7, 5), gce=3)], colors), GIF, TEAL, alpha=1)
    pack.good("larger-than-screen", gif((12, 10), [dict(index=a, at=(2, 1))], colors), GIF)
    pack.good("no-trailer", gif((30, 21), [dict(index=a)], colors, trailer=b""), GIF)
    red, green, blue = [np.full((16, 24), i) for i in (0, 1, 2)]
    rgb = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0])
    pack.good("animated", gif((24, 16), [dict(index=i, gce=-1) for i in (red, green, blue)], rgb), GIF, frames=3)
    pack.good("pillow", save(scene(50, 40).quantize(200), "GIF"), GIF)
    pack.close()


# ---- BMP ------------------------------------------------------------------------------------------------------------

def bmp(rows, bits, w, h, palette=b"", header=40, compression=0, masks=b"", top_down=False, os2=False):
    n = len(palette) // (3 if os2 else 4)
    if os2:
        info = struct.pack("<IHHHH", 12, w, h, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, w, -h if top_down else h, 1, bits, compression, len(rows), 2835, 2835, n, 0)
        if header > 40:
            info += (masks + bytes(header))[:header - 40]
            masks = b""
    at = 14 + len(info) + len(masks) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(rows), 0, 0, at) + info + masks + palette + rows


def bmp_rows(a, bits):
    out = b""
    for row in a:
        if bits < 8:
            s = "".join(format(int(v), f"0{bits}b") for v in row)
            s += "0" * (-len(s) % 8)
            r = bytes(int(s[i:i + 8], 2) for i in range(0, len(s), 8))
        elif bits == 24:
            r = row.astype(np.uint8).tobytes()
        else:
            r = row.astype({8: "u1", 16: "<u2", 32: "<u4"}[bits]).tobytes()
        out += r + bytes(-len(r) % 4)
    return out


def make_bmp():
    pack = Pack("bmp")
    w, h = 19, 11
    pal = lambda n: np.concatenate([rng.integers(0, 256, (n, 3)), np.zeros((n, 1))], 1).astype(np.uint8).tobytes()
    for bits in (1, 4, 8):
        a = rng.integers(0, 1 << bits, (h, w))
        p = pal(1 << bits)
        pack.good(f"{bits}bit", bmp(bmp_rows(a, bits), bits, w, h, p), BMP)
        pack.good(f"{bits}bit-top-down", bmp(bmp_rows(a, bits), bits, w, h, p, top_down=True), BMP)
        pack.good(f"{bits}bit-os2", bmp(bmp_rows(a, bits), bits, w, h, b"".join(p[i:i + 3] for i in range(0, len(p), 4)), os2=True), BMP)
    pack.good("8bit-few", bmp(bmp_rows(a, 8), 8, w, h, pal(100)), BMP)
    a = rng.integers(0, 256, (h, w * 3))
    for k in ({}, {"top_down": True}, {"header": 108}, {"header": 124}, {"os2": True}):
        pack.good("24bit" + "".join(f"-{n}{v if n == 'header' else ''}" for n, v in k.items()), bmp(bmp_rows(a, 24), 24, w, h, **k), BMP)
    a = rng.integers(0, 1 << 16, (h, w))
    pack.good("16bit-555", bmp(bmp_rows(a, 16), 16, w, h), BMP)
    m = lambda *v: struct.pack(f"<{len(v)}I", *v)
    pack.good("16bit-565", bmp(bmp_rows(a, 16), 16, w, h, compression=3, masks=m(0xf800, 0x7e0, 0x1f)), BMP)
    pack.good("16bit-555-fields", bmp(bmp_rows(a, 16), 16, w, h, compression=3, masks=m(0x7c00, 0x3e0, 0x1f)), BMP)
    a = rng.integers(0, 1 << 32, (h, w))
    pack.good("32bit", bmp(bmp_rows(a, 32), 32, w, h), BMP)
    pack.good("32bit-fields", bmp(bmp_rows(a, 32), 32, w, h, compression=3, masks=m(0xff0000, 0xff00, 0xff)), BMP)
    pack.good("32bit-xbgr", bmp(bmp_rows(a, 32), 32, w, h, compression=3, header=56, masks=m(0xff000000, 0xff0000, 0xff00, 0)), BMP)
    for hd in (56, 108, 124):
        pack.good(f"32bit-alpha-{hd}", bmp(bmp_rows(a, 32), 32, w, h, compression=3, header=hd,
                                           masks=m(0xff0000, 0xff00, 0xff, 0xff000000)), BMP, TEAL, alpha=1)
    # 10 bits a channel: Pillow has none; 255 v / 1023, cut off
    ch = np.stack([(a >> s) & 1023 for s in (20, 10, 0)], 2) * 255 // 1023
    pack.put("32bit-10-10-10", bmp(bmp_rows(a, 32), 32, w, h, compression=3, masks=m(1023 << 20, 1023 << 10, 1023)), BMP, ch[::-1])
    # run lengths: runs, literal stretches (odd: padded), end of line, delta, end
    p = pal(256)
    rle8 = bytes([5, 7, 0, 3, 1, 2, 3, 0, 11, 9, 0, 0] + [19, 4, 0, 0] * 9 + [0, 4, 9, 8, 7, 6, 3, 200, 12, 1, 0, 1])
    pack.good("rle8", bmp(rle8, 8, w, h, p, compression=1), BMP)
    p = pal(16)
    rle4 = bytes([5, 0x71, 0, 5, 0x12, 0x34, 0x50, 0, 9, 0x9a, 0, 0] + [19, 0x4b, 0, 0] * 9
                 + [0, 4, 0x98, 0x76, 3, 0x20, 12, 0x10, 0, 1])
    pack.good("rle4", bmp(rle4, 4, w, h, p, compression=2), BMP)
    a = np.zeros((h, w), int)                                # what a delta skips is index 0
    a[0, :3] = 5
    a[2, 5:9] = 6
    a[5, 1:4] = 7
    delta = bytes([3, 5, 0, 2, 2, 2, 4, 6, 0, 0, 0, 2, 1, 2, 3, 7, 0, 1])
    lut = np.frombuffer(p, np.uint8).reshape(-1, 4)[:, 2::-1]
    a = a * 0
    a[0, :3], a[2, 5:9], a[5, 1:4] = 5, 6, 7
    pack.put("rle8-delta", bmp(delta, 8, w, h, p + pal(240), compression=1), BMP, lut[a][::-1])
    pack.close()


# ---- HEIC, AVIF -----------------------------------------------------------------------------------------------------

def heic(im):
    """An HEIC of a picture by libheif's own encoder; None where it has none."""
    try:
        so = ctypes.CDLL("libheif.so.1")
    except OSError:
        return None

    class Error(ctypes.Structure):
        _fields_ = [("code", ctypes.c_int), ("sub", ctypes.c_int), ("message", ctypes.c_char_p)]
    P = ctypes.c_void_p
    so.heif_context_alloc.restype = P
    so.heif_image_get_plane.restype = P
    for f in ("heif_context_get_encoder_for_format", "heif_image_create", "heif_image_add_plane", "heif_context_encode_image",
              "heif_context_write_to_file", "heif_encoder_set_lossy_quality"):
        getattr(so, f).restype = Error
    ctx, enc, img, stride, w, h = P(so.heif_context_alloc()), P(), P(), ctypes.c_int(), *im.size
    if so.heif_context_get_encoder_for_format(ctx, 1, ctypes.byref(enc)).code:
        return None
    so.heif_encoder_set_lossy_quality(enc, 90)
    so.heif_image_create(w, h, 1, 10, ctypes.byref(img))
    so.heif_image_add_plane(img, 10, w, h, 8)
    to = so.heif_image_get_plane(img, 10, ctypes.byref(stride))
    raw = im.tobytes()
    for y in range(h):
        ctypes.memmove(to + y * stride.value, raw[y * w * 3:(y + 1) * w * 3], w * 3)
    if so.heif_context_encode_image(ctx, img, enc, None, None).code:
        return None
    with tempfile.NamedTemporaryFile() as f:
        so.heif_context_write_to_file(ctx, f.name.encode())
        return pathlib.Path(f.name).read_bytes()


def make_heif():
    pack = Pack("heif")
    y, x = np.mgrid[0:48, 0:64]
    im = Image.fromarray(np.stack([x * 4, y * 5, 128 + 0 * x], 2).astype(np.uint8))
    al = im.convert("RGBA")
    al.putalpha(Image.fromarray((x * 4).astype(np.uint8)))
    pack.good("avif", save(im, "AVIF", quality=95, subsampling="4:4:4"), AVIF, tolerance=6)
    pack.good("avif-420", save(im, "AVIF", quality=95), AVIF, tolerance=16)
    pack.good("avif-alpha", save(al, "AVIF", quality=95, subsampling="4:4:4"), AVIF, TEAL, alpha=1, tolerance=8)
    file = heic(im)
    if file is None and (HERE / "heif.pack").exists():      # keep the committed one
        file = next((d for f, d in read_pack(HERE / "heif.pack") if f[0] == "heic"), None)
    if file:
        pack.put("heic", file, HEIC, np.array(im), tolerance=24)   # the source it was made from
    pack.close()


# ---- files that must fail -------------------------------------------------------------------------------------------

def make_bad():
    pack = Pack("bad")
    T, D, U, L = "image_truncated", "image_damaged", "image_format_unsupported", "image_too_large"
    im = scene(64, 48)
    e = Image.Exif()
    e[0x112] = 6
    files = {"jpeg": save(im, "JPEG", exif=e), "progressive": save(im, "JPEG", progressive=True), "png": save(im, "PNG"),
             "adam7": png(np.array(im)[:20, :20], 8, 2, 1), "webp": save(im, "WEBP"), "webp-lossless": save(im, "WEBP", lossless=True),
             "gif": save(im.quantize(64), "GIF"), "bmp": save(im, "BMP")}
    for name, f in files.items():
        for part in (50, 90):
            pack.bad(f"{name}-{part}%", f[:len(f) * part // 100], FORMAT, T)
        for k in (1, 9):
            if not (name == "gif" and k == 1):
                pack.bad(f"{name}-less-{k}", f[:-k], FORMAT, T)
    pack.bad("empty", b"", FORMAT, "image_empty")
    pack.bad("noise", rng.integers(0, 256, 1024, dtype=np.uint8).tobytes(), FORMAT, "image_format_unknown")
    for name, head in {"text": b"hello, this is not a picture", "tiff": b"II*\0\x08\0\0\0", "pdf": b"%PDF-1.7\n", "svg": b"<svg xmlns=",
                       "mp4": b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "bm": b"BM" + bytes(40)}.items():
        pack.bad(name, head + bytes(32), FORMAT, "image_format_unknown")
    zero = zlib.compress(bytes(100))
    pack.bad("png-bomb-50000", SIGNATURE + ihdr(50000, 50000) + chunk(b"IDAT", zero) + IEND, LIMIT, L)
    pack.bad("png-bomb-pixels", SIGNATURE + ihdr(20000, 20000) + chunk(b"IDAT", zero) + IEND, LIMIT, L)
    pack.bad("png-20000x1-empty", SIGNATURE + ihdr(20000, 1) + chunk(b"IDAT", zero) + IEND, FORMAT, T)
    good = png(rng.integers(0, 256, (8, 8, 3)), 8, 2, 0)
    flip = lambda f, at: f[:at] + bytes([f[at] ^ 0x40]) + f[at + 1:]
    pack.bad("png-ihdr-crc", flip(good, 30), FORMAT, D)
    pack.bad("png-idat-crc", flip(good, good.index(b"IDAT") + 20), FORMAT, D)
    pack.bad("png-text-crc", flip(png(rng.integers(0, 256, (8, 8, 3)), 8, 2, 0, chunk(b"tEXt", b"a\0bcdef")), 45), FORMAT, D)
    for name, args in {"color-1": (8, 1), "color-9": (8, 9), "depth-0": (0, 0), "depth-3": (3, 0), "depth-99": (99, 2), "rgb-4": (4, 2)}.items():
        pack.bad(f"png-{name}", SIGNATURE + ihdr(8, 8, *args) + chunk(b"IDAT", zero) + IEND, FORMAT, D)
    pack.bad("png-no-idat", SIGNATURE + ihdr(8, 8) + IEND, FORMAT, D)
    pack.bad("png-no-palette", SIGNATURE + ihdr(8, 8, 8, 3) + chunk(b"IDAT", zero) + IEND, FORMAT, D)
    pack.bad("png-0x8", SIGNATURE + ihdr(0, 8) + chunk(b"IDAT", zero) + IEND, FORMAT, D)
    pack.bad("png-two-ihdr", SIGNATURE + ihdr(8, 8) + ihdr(9, 9) + chunk(b"IDAT", zero) + IEND, FORMAT, D)
    pack.bad("png-crlf", good.replace(b"\r\n", b"\n", 1), FORMAT, "image_format_unknown")
    pack.bad("png-eof-in-zlib", SIGNATURE + ihdr(64, 64) + chunk(b"IDAT", zlib.compress(bytes(64 * 193))[:20]) + IEND, FORMAT, T)
    j = files["jpeg"]
    at = j.index(b"\xff\xc0")
    size = lambda h, w: j[:at + 5] + struct.pack(">HH", h, w) + j[at + 9:]
    pack.bad("jpeg-bomb", size(65000, 65000), LIMIT, L)
    pack.bad("jpeg-taller", size(4000, 64), FORMAT, T)
    pack.bad("jpeg-0-lines", size(0, 64), FORMAT, D)
    pack.bad("jpeg-12-bit", j[:at + 4] + b"\x0c" + j[at + 5:], UNSUPPORTED, U)
    pack.bad("jpeg-lossless", j[:at + 1] + b"\xc3" + j[at + 2:], UNSUPPORTED, U)
    pack.bad("jpeg-no-tables", j[:j.index(b"\xff\xdb")] + j[at:], FORMAT, D)
    pack.bad("jpeg-cut-scan", j[:-len(j) // 4] + b"\xff\xd9", FORMAT, T)
    p = files["progressive"]
    first = p.index(b"\xff\xda")
    end = p.index(b"\xff\xc4", first)
    pack.bad("jpeg-130-scans", p[:first] + p[first:end] * 120 + p[end:], LIMIT, L)
    w = files["webp"]
    pack.bad("webp-riff-size", w[:4] + struct.pack("<I", len(w) * 2) + w[8:], FORMAT, T)
    pack.bad("webp-canvas", riff((b"VP8X", b"\x02\0\0\0" + u24((1 << 24) - 1) + u24(200)), (b"ANIM", bytes(6))), FORMAT, D)
    pack.bad("gif-bomb", gif((65535, 65535), [dict(index=np.zeros((2, 2), int))], bytes(12)), LIMIT, L)
    pack.bad("gif-no-frame", gif((8, 8), [], bytes(12)), FORMAT, T)
    short = gif((40, 40), [dict(index=np.zeros((3, 40), int))], bytes(12))
    pack.bad("gif-short-frame", short[:13 + 12 + 7] + b"\x28\0" + short[13 + 12 + 9:], FORMAT, T)
    pack.bad("bmp-depth", bmp(bytes(64), 2, 4, 4), UNSUPPORTED, U)
    pack.bad("bmp-png", bmp(bytes(64), 32, 4, 4, compression=5), UNSUPPORTED, U)
    pack.bad("bmp-bomb", bmp(bytes(64), 24, 1 << 30, 1 << 30), LIMIT, L)
    pack.bad("bmp-int-min", bmp(bytes(64), 24, 4, -(1 << 31)), FORMAT, D)
    pack.bad("bmp-masks", bmp(bytes(64), 32, 4, 4, compression=3, masks=struct.pack("<3I", 5, 0xff00, 0xff0000)), FORMAT, D)
    pack.close()


# ---- numbers --------------------------------------------------------------------------------------------------------

def source(kind, seed, w, h):
    """The pictures that test data in C makes again: see source() in tests/unit/image/common.h."""
    n = w * h * 3
    if kind == "photo":
        return reference(next(d for f, d in read_pack(HERE / "jpeg.pack") if f[0] == "photo"))[:h, :w]
    if kind == "wave":
        y, x, c = np.mgrid[0:h, 0:w, 0:3]
        return ((x * 7 + y * 13 + c * 50 + x * y // 64 + seed) & 255).astype(np.uint8)
    x, out = seed, np.empty(n, np.uint8)
    for i in range(n):
        x = (x * 1664525 + 1013904223) & 0xffffffff
        out[i] = x >> 24 if kind == "noise" else 255 * (x >> 31)
    return out.reshape(h, w, 3)


def make_resize():
    import torch
    import torchvision.transforms.v2.functional as F
    r = random.Random(5)
    rows = [("noise", 32, 32, 64, 64), ("noise", 64, 64, 32, 32), ("binary", 97, 61, 32, 32), ("binary", 97, 61, 320, 256),
            ("noise", 1, 1, 32, 32), ("noise", 2, 2, 256, 256), ("noise", 3, 1, 96, 32), ("noise", 1, 31, 32, 992),
            ("noise", 31, 1, 992, 32), ("noise", 27, 257, 32, 256), ("wave", 1000, 5, 3680, 32), ("wave", 1600, 1200, 320, 256),
            ("wave", 640, 480, 640, 480), ("wave", 640, 480, 640, 448), ("wave", 640, 480, 608, 480), ("photo", 320, 200, 96, 64),
            ("photo", 320, 200, 640, 416), ("photo", 320, 200, 320, 192), ("photo", 317, 199, 128, 96), ("binary", 255, 255, 96, 96),
            ("noise", 2048, 16, 32, 32), ("noise", 16, 2048, 32, 32), ("wave", 33, 21, 352, 224), ("binary", 7, 7, 32, 32)]
    while len(rows) < 48:
        rows.append((r.choice(("noise", "binary", "wave")), r.randint(1, 260), r.randint(1, 260), r.randint(1, 12) * 32, r.randint(1, 12) * 32))
    with open(HERE / "resize.txt", "w") as f:
        f.write("# kind seed source-width source-height width height fnv64-of-torchvision's-uint8-bicubic-antialias\n")
        for i, (kind, w, h, to_w, to_h) in enumerate(rows):
            t = torch.from_numpy(source(kind, i, w, h).copy()).permute(2, 0, 1).contiguous()
            t = F.resize(t, [to_h, to_w], interpolation=F.InterpolationMode.BICUBIC, antialias=True).permute(1, 2, 0)
            f.write(f"{kind} {i} {w} {h} {to_w} {to_h} {fnv(t.numpy().tobytes()):016x}\n")


def make_smart_resize():
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
    r = random.Random(6)
    rows = [(h, w, 65536, 16777216) for h, w in [(1, 1), (2, 2), (3, 1), (1, 31), (31, 1), (27, 257), (1, 200), (200, 1), (1, 201), (201, 1),
            (5, 1000), (5, 1093), (1, 20000), (20000, 1), (16, 16), (48, 48), (80, 80), (112, 112), (256, 256), (255, 257), (4096, 4096),
            (4097, 4097), (4112, 4112), (6000, 4000), (32768, 164), (32768, 163), (2592, 1944), (1024, 484), (3000, 15), (3001, 15)]]
    rows += [(16 + 32 * k, 1000, 1, 1 << 40) for k in range(0, 60)]                     # ties
    while len(rows) < 2000:
        lo, hi = r.choice([(65536, 16777216), (4096, 65536), (65536, 1 << 20), (1 << 20, 2 << 20), (3136, 1003520), (1, 1024)])
        top = r.choice([40, 300, 2000, 9000, 32768])
        rows.append((r.randint(1, top), r.randint(1, top), lo, hi))
    with open(HERE / "smart_resize.txt", "w") as f:
        f.write("# height width min-pixels max-pixels -> height width (0 0: refused), factor 32, by transformers' smart_resize\n")
        for h, w, lo, hi in rows:
            try:
                a, b = smart_resize(h, w, 32, lo, hi)
            except ValueError:
                a = b = 0
            f.write(f"{h} {w} {lo} {hi} {a} {b}\n")


def make_patches():
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    r = random.Random(7)
    half, clip = ([.5] * 3, [.5] * 3), ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
    rows = [("wave", w, h, 4096, 65536, half) for w, h in [(1, 1), (2, 2), (3, 1), (1, 31), (31, 1), (27, 257), (200, 1), (160, 128), (203, 97)]]
    rows += [("photo", 320, 200, 4096, 65536, clip), ("noise", 100, 64, 4096, 16384, clip), ("binary", 33, 65, 4096, 65536, half)]
    while len(rows) < 50:
        rows.append(("wave", r.randint(1, 600), r.randint(4, 600), 4096, 65536, r.choice((half, clip))))
    with open(HERE / "patches.txt", "w") as f:
        f.write("# kind seed width height min-pixels max-pixels mean x3 std x3 -> grid-h grid-w fnv64-of-f32-pixel_values\n")
        for i, (kind, w, h, lo, hi, (mean, std)) in enumerate(rows):
            p = Qwen2VLImageProcessor(patch_size=16, merge_size=2, temporal_patch_size=2, image_mean=mean, image_std=std,
                                      size={"shortest_edge": lo, "longest_edge": hi})
            out = p(Image.fromarray(source(kind, i, w, h)), return_tensors="pt")
            t, gh, gw = out["image_grid_thw"][0].tolist()
            assert t == 1
            v = out["pixel_values"].numpy()
            numbers = " ".join(str(x) for x in mean + std)
            f.write(f"{kind} {i} {w} {h} {lo} {hi} {numbers} {gh} {gw} {fnv(v.astype('<f4').tobytes()):016x}\n")


def make_seeds():
    names = {"jpeg": ["jpeg", "exif"], "png": ["png"], "webp": ["webp"], "gif": ["gif"], "bmp": ["bmp"], "heif": ["heif"]}
    for target, packs in names.items():
        folder = CORPUS / f"image_{target}"
        folder.mkdir(parents=True, exist_ok=True)
        for p in packs:
            files = [(f[0], d) for f, d in read_pack(HERE / f"{p}.pack")]
            if p == "png":
                files = [(n, d) for n, d in files if n.startswith("13x9") or not n[0].isdigit()]
            if p == "exif":
                files = [(n, d) for n, d in files if n in ("jpeg-6", "gray-5", "cmyk-8", "bad-many")]
            for n, d in files:
                if len(d) <= 4096:
                    (folder / n).write_bytes(d)
    folder = CORPUS / "image_exif"
    folder.mkdir(parents=True, exist_ok=True)
    for name, d in {"big": tiff(6), "little": tiff(3, "<"), "prefix": b"Exif\0\0" + tiff(8), "long": tiff(6, kind=4), "many": tiff(1, n=0xffff),
                    "far": tiff(6, offset=40, pad=bytes(32))}.items():
        (folder / name).write_bytes(d)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--extract":
        for f, d in read_pack(sys.argv[2]):
            pathlib.Path(sys.argv[3], f[0]).write_bytes(d)
        return
    make_png()
    make_jpeg()
    make_exif()
    make_webp()
    make_gif()
    make_bmp()
    make_heif()
    make_bad()
    make_resize()
    make_smart_resize()
    make_patches()
    make_seeds()


if __name__ == "__main__":
    main()
