/** What the bytes of a picture say of themselves. Names and MIME types are not believed. */
export type Format = "jpeg" | "png" | "webp" | "gif" | "bmp" | "heic" | "avif";

const ascii = (b: Uint8Array, at: number, n: number): string => String.fromCharCode(...b.subarray(at, at + n));

export function sniff(b: Uint8Array): Format | null {
  if (b.length > 3 && b[0] === 0xff && b[1] === 0xd8 && b[2] === 0xff) return "jpeg";
  if (ascii(b, 0, 8) === "\x89PNG\r\n\x1a\n") return "png";
  if (ascii(b, 0, 4) === "RIFF" && ascii(b, 8, 4) === "WEBP") return "webp";
  if (/^GIF8[79]a$/.test(ascii(b, 0, 6))) return "gif";
  if (ascii(b, 0, 2) === "BM" && b.length > 26) return "bmp";
  if (ascii(b, 4, 4) === "ftyp") {
    const brand = ascii(b, 8, 4);
    if (brand === "avif" || brand === "avis") return "avif";
    if (/^(hei[cxms]|hev[cxms]|mif1|msf1)$/.test(brand)) return ascii(b, 16, 48).includes("avif") ? "avif" : "heic";
  }
  return null;
}

/** Walks a JPEG's segments: calls `visit` for each, returns the place of its first scan, or -1. */
function segments(b: Uint8Array, visit: (marker: number, at: number, n: number) => void): number {
  let at = 2;
  while (at + 4 <= b.length) {
    if (b[at] !== 0xff) return -1;
    const marker = b[at + 1]!;
    if (marker === 0xff) {
      at++;
      continue;
    }
    const n = (b[at + 2]! << 8) | b[at + 3]!;
    if (n < 2) return -1;
    visit(marker, at + 4, n - 2);
    if (marker === 0xda) return at + 2 + n;
    at += 2 + n;
  }
  return -1;
}

/** Width and height as the header has them, before anything is unpacked; null when it has none. */
export function sizeOf(b: Uint8Array): { width: number; height: number } | null {
  const view = new DataView(b.buffer, b.byteOffset, b.byteLength);
  const le24 = (at: number) => b[at]! | (b[at + 1]! << 8) | (b[at + 2]! << 16);
  try {
    switch (sniff(b)) {
      case "png":
        return { width: view.getUint32(16), height: view.getUint32(20) };
      case "gif":
        return { width: view.getUint16(6, true), height: view.getUint16(8, true) };
      case "bmp":
        return { width: Math.abs(view.getInt32(18, true)), height: Math.abs(view.getInt32(22, true)) };
      case "webp":
        if (ascii(b, 12, 4) === "VP8X") return { width: le24(24) + 1, height: le24(27) + 1 };
        if (ascii(b, 12, 4) === "VP8 ") return { width: view.getUint16(26, true) & 0x3fff, height: view.getUint16(28, true) & 0x3fff };
        return { width: (view.getUint32(21, true) & 0x3fff) + 1, height: ((view.getUint32(21, true) >> 14) & 0x3fff) + 1 };
      case "jpeg": {
        let found = null as { width: number; height: number } | null;
        segments(b, (marker, at) => {
          const frame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
          if (frame && !found) found = { height: view.getUint16(at + 1), width: view.getUint16(at + 3) };
        });
        return found;
      }
      default:
        return null;
    }
  } catch {
    return null; // shorter than a header
  }
}

/** EXIF orientation of a JPEG, 1 to 8; 1 when it says nothing or nonsense. */
export function orientation(b: Uint8Array): number {
  let found = 1;
  if (sniff(b) !== "jpeg") return found;
  segments(b, (marker, at, n) => {
    if (marker !== 0xe1 || n < 14 || at + n > b.length || ascii(b, at, 6) !== "Exif\0\0") return;
    const view = new DataView(b.buffer, b.byteOffset + at + 6, n - 6);
    const little = view.getUint16(0) === 0x4949;
    if (!little && view.getUint16(0) !== 0x4d4d) return;
    const ifd = view.getUint32(4, little);
    if (ifd + 2 > view.byteLength) return;
    const count = view.getUint16(ifd, little);
    for (let i = 0; i < count && ifd + 14 + 12 * i <= view.byteLength; i++) {
      const entry = ifd + 2 + 12 * i;
      if (view.getUint16(entry, little) !== 0x0112) continue;
      const value = view.getUint16(entry + 8, little);
      if (value >= 1 && value <= 8) found = value;
    }
  });
  return found;
}

/** The end is missing: a picture whose download or copy broke off. Browsers would show the half that is there. */
export function isCut(b: Uint8Array): boolean {
  switch (sniff(b)) {
    case "jpeg": {
      let at = segments(b, () => undefined);
      if (at < 0) return true;
      for (; at + 1 < b.length; at++) if (b[at] === 0xff && b[at + 1] === 0xd9) return false;
      return true;
    }
    case "png": {
      const view = new DataView(b.buffer, b.byteOffset, b.byteLength);
      for (let at = 8; at + 12 <= b.length; ) {
        if (ascii(b, at + 4, 4) === "IEND") return false;
        at += 12 + view.getUint32(at);
      }
      return true;
    }
    case "webp":
      return b.length < 12 || new DataView(b.buffer, b.byteOffset).getUint32(4, true) + 8 > b.length;
    default:
      return false;
  }
}
