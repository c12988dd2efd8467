import { type Found, colours } from "./boxes";

/** Eight hues that stay apart on photos, also for most colour-blind eyes; boxes have a dark line beside the light one. */
export const PALETTE = ["#f5a524", "#2dd4bf", "#f472b6", "#60a5fa", "#a3e635", "#f87171", "#c084fc", "#fde047"];

export const colour = (n: number): string => PALETTE[n % PALETTE.length]!;

export function download(name: string, data: Blob | string, type = "text/plain"): void {
  const blob = typeof data === "string" ? new Blob([data], { type: `${type};charset=utf-8` }) : data;
  const href = URL.createObjectURL(blob);
  const a = Object.assign(document.createElement("a"), { href, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

/** The picture with what was found drawn into it. */
export async function annotated(picture: Blob, found: Found[]): Promise<Blob> {
  const bitmap = await createImageBitmap(picture);
  const { width, height } = bitmap;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const c = canvas.getContext("2d")!;
  c.drawImage(bitmap, 0, 0);
  bitmap.close();
  const unit = Math.max(1, Math.max(width, height) / 500);
  const number = colours(found);
  c.font = `600 ${Math.round(7 * unit + 6)}px system-ui, sans-serif`;
  c.textBaseline = "top";
  found.forEach((f, i) => {
    const [x1 = 0, y1 = 0, x2 = 0, y2 = 0] = f.at.map((v, k) => (v / 1000) * (k % 2 ? height : width));
    c.lineWidth = 2 * unit;
    c.strokeStyle = c.fillStyle = colour(number[i]!);
    if (f.kind === "box") c.strokeRect(x1, y1, x2 - x1, y2 - y1);
    else {
      c.beginPath();
      c.arc(x1, y1, 3 * unit, 0, 7);
      c.fill();
    }
    if (!f.label) return;
    const w = c.measureText(f.label).width + 6 * unit;
    const h = Math.round(7 * unit + 6) + 4 * unit;
    const y = Math.max(0, f.kind === "box" ? y1 - h : y1 - h - 3 * unit);
    const x = Math.min(Math.max(0, x1), Math.max(0, width - w));
    c.fillRect(x, y, w, h);
    c.fillStyle = "#1a1410";
    c.fillText(f.label, x + 3 * unit, y + 2 * unit);
  });
  return new Promise((resolve, reject) => canvas.toBlob((b) => (b ? resolve(b) : reject(new Error("canvas"))), "image/png"));
}

export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not a secure context: the old way.
    const before = document.activeElement as HTMLElement | null;
    const area = Object.assign(document.createElement("textarea"), { value: text });
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}
