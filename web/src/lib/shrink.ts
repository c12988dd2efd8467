/** Turns a picture upright and shrinks it; runs in a worker, or on the page where there is no OffscreenCanvas. */
import { fit, steps } from "./size";
import { isCut, orientation, sizeOf, sniff } from "./sniff";

export interface Wanted {
  file: Blob;
  cap: number;
  /** Formats that the server reads. */
  formats: string[];
}
export type Shrunk =
  | { blob: Blob; width: number; height: number; fromWidth: number; fromHeight: number; format: string }
  | { code: "not_a_picture" | "picture_cut" | "picture_damaged" | "picture_huge" | "picture_unprepared"; format: string };

const PLENTY = 3 << 20; // bytes; above that even a small picture is encoded anew

const HUGE = 256 << 20; // bytes
const PIXELS = 220e6; // by the header: a small file can unfold to gigabytes; the largest phone cameras have 200 million

type Canvas = OffscreenCanvas | HTMLCanvasElement;

function makeCanvas(width: number, height: number): Canvas {
  if (typeof OffscreenCanvas !== "undefined") return new OffscreenCanvas(width, height);
  return Object.assign(document.createElement("canvas"), { width, height });
}

function toBlob(canvas: Canvas, type: string, quality?: number): Promise<Blob> {
  if ("convertToBlob" in canvas) return canvas.convertToBlob({ type, ...(quality !== undefined && { quality }) });
  return new Promise((resolve, reject) => canvas.toBlob((b) => (b ? resolve(b) : reject(new Error("canvas"))), type, quality));
}

function draw(source: CanvasImageSource, from: { width: number; height: number }, to: { width: number; height: number }): Canvas {
  let current: CanvasImageSource = source;
  let canvas: Canvas | undefined;
  let { width, height } = from;
  for (const step of steps(from, to)) {
    canvas = makeCanvas(step.width, step.height);
    const c = canvas.getContext("2d") as CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;
    c.imageSmoothingEnabled = true;
    c.imageSmoothingQuality = "high";
    c.fillStyle = "#fff"; // transparency is over white, as the server has it
    c.fillRect(0, 0, step.width, step.height);
    c.drawImage(current, 0, 0, width, height, 0, 0, step.width, step.height);
    current = canvas;
    ({ width, height } = step);
  }
  return canvas!;
}

export async function shrink({ file, cap, formats }: Wanted): Promise<Shrunk> {
  // A film of gigabytes is not read to see that it is none.
  const first = sniff(new Uint8Array(await file.slice(0, 64).arrayBuffer()));
  if (!first) return { code: "not_a_picture", format: "" };
  if (file.size > HUGE) return { code: "picture_huge", format: first };
  const bytes = new Uint8Array(await file.arrayBuffer());
  const format = sniff(bytes);
  if (!format) return { code: "not_a_picture", format: "" };
  if (isCut(bytes)) return { code: "picture_cut", format };
  const said = sizeOf(bytes);
  if (said && said.width * said.height > PIXELS) return { code: "picture_huge", format };
  const readable = formats.includes(format);
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(new Blob([bytes], { type: `image/${format}` }), { imageOrientation: "from-image" });
  } catch {
    // HEIC in most browsers. The server may know it; what no browser should fail at is damaged.
    if (format !== "heic" && format !== "avif") return { code: "picture_damaged", format };
    return { blob: file, width: 0, height: 0, fromWidth: 0, fromHeight: 0, format };
  }
  const from = { width: bitmap.width, height: bitmap.height };
  const to = fit(from, cap);
  const same = to.width === from.width && to.height === from.height;
  try {
    if (same && readable && orientation(bytes) === 1 && bytes.length <= PLENTY)
      return { blob: new Blob([bytes], { type: `image/${format}` }), ...from, fromWidth: from.width, fromHeight: from.height, format };
    const canvas = draw(bitmap, from, to);
    // Drawings and screenshots stay exact while that is cheap; photos don't need to.
    let blob = ["png", "gif", "bmp"].includes(format) ? await toBlob(canvas, "image/png") : null;
    if (!blob || blob.size > 2 * PLENTY) blob = await toBlob(canvas, "image/jpeg", 0.93);
    return { blob, ...to, fromWidth: from.width, fromHeight: from.height, format };
  } finally {
    bitmap.close();
  }
}
