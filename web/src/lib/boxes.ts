/**
 * Boxes and points out of an answer while it streams. Qwen3-VL writes objects such as
 *
 *     {"bbox_2d": [x1, y1, x2, y2], "label": "cat"}        {"point_2d": [x, y], "label": "eye"}
 *
 * in lists, alone, fenced or between sentences; coordinates run from 0 to 1000 over the picture. A list that the token
 * limit cuts gives those of its objects that are whole. What a loop repeats is taken once.
 */
export interface Found {
  kind: "box" | "point";
  label: string;
  /** Box: x1, y1, x2, y2 with x1 <= x2, y1 <= y2. Point: x, y. 0 to 1000. */
  at: number[];
  /** The object's place in the text. */
  start: number;
  end: number;
}

const BOX = ["bbox_2d", "bbox", "box_2d", "box"];
const POINT = ["point_2d", "point"];
const LABEL = ["label", "name", "text_content", "text", "class", "object", "description"];
const MOST = 2000;
const LONGEST_OBJECT = 4096;
const DEEPEST = 32;

/** At most n units, and no half of a letter at the end. */
export const clip = (text: string, n: number): string => text.slice(0, n).replace(/[\ud800-\udbff]$/, "");

const clamp = (x: number): number => Math.min(1000, Math.max(0, x));

/** [1,2,3,4] and [[1,2,3,4],[5,6,7,8]] as a list of lists of n numbers. */
function tuples(value: unknown, n: number): number[][] {
  if (!Array.isArray(value)) return [];
  const lists: unknown[] = value.every((v) => Array.isArray(v)) ? value : [value];
  return lists.filter(
    (l): l is number[] =>
      Array.isArray(l) && l.length === n && l.every((v) => typeof v === "number" && Number.isFinite(v)),
  );
}

/** An object that is not quite JSON: single quotes, a comma too many, bare newlines in it. */
function lenient(text: string): Record<string, unknown> | null {
  const numbers = /["']?(bbox_2d|bbox|box_2d|box|point_2d|point)["']?\s*:\s*\[([\d.,\s-]+)\]/.exec(text);
  if (!numbers) return null;
  const label = /["']?(?:label|name|text_content)["']?\s*:\s*(?:"([^"]*)"|'([^']*)')/.exec(text);
  return {
    [numbers[1]!]: numbers[2]!.split(",").map((v) => Number(v.trim() || NaN)).filter((v) => !Number.isNaN(v)),
    label: label?.[1] ?? label?.[2] ?? "",
  };
}

function read(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : null;
  } catch {
    return lenient(text);
  }
}

export class BoxReader {
  readonly found: Found[] = [];
  /** The end of what came, from the place `from` on: no object that is longer is looked at. */
  private window = "";
  private from = 0;
  private open: { start: number; full: boolean }[] = [];
  private quoted = false;
  private escaped = false;
  private seen = new Set<string>();

  /** An object was begun that has not ended: more will come, or the answer was cut. */
  get unfinished(): boolean {
    return this.open.length > 0;
  }

  push(piece: string): void {
    const offset = this.from + this.window.length;
    this.window += piece;
    for (let i = 0; i < piece.length; i++) {
      const c = piece.charCodeAt(i);
      const top = this.open.at(-1);
      if (this.quoted) {
        if (this.escaped) this.escaped = false;
        else if (c === 92 /* \ */) this.escaped = true;
        else if (c === 34 /* " */ || c === 10) this.quoted = false; // JSON has no bare line ends in strings
      } else if (c === 123 /* { */) {
        if (this.open.length >= DEEPEST) this.open = [];
        this.open.push({ start: offset + i, full: false });
      } else if (c === 125 /* } */ && top) {
        this.open.pop();
        if (top.full || top.start < this.from || offset + i - top.start > LONGEST_OBJECT) {
          const outer = this.open.at(-1);
          if (outer) outer.full = true;
        } else this.take(top.start, offset + i + 1);
      } else if (c === 34 && top) this.quoted = true;
    }
    if (this.window.length > 4 * LONGEST_OBJECT) {
      this.from += this.window.length - LONGEST_OBJECT;
      this.window = this.window.slice(-LONGEST_OBJECT);
    }
  }

  private take(start: number, end: number): void {
    const text = this.window.slice(start - this.from, end - this.from);
    if (!/bo[xu]|bbox|point/.test(text) || this.found.length >= MOST) return;
    const object = read(text);
    if (!object) return;
    const label = LABEL.map((k) => object[k]).find((v) => typeof v === "string");
    const add = (kind: Found["kind"], at: number[]) => {
      const found: Found = { kind, label: clip(String(label ?? "").trim(), 200), at, start, end };
      const key = `${kind} ${at.join(" ")} ${found.label}`;
      if (this.seen.has(key)) return;
      this.seen.add(key);
      this.found.push(found);
      const outer = this.open.at(-1);
      if (outer) outer.full = true;
    };
    for (const key of BOX)
      for (const [x1, y1, x2, y2] of tuples(object[key], 4) as [number, number, number, number][])
        add("box", [Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2)].map(clamp));
    for (const key of POINT) for (const p of tuples(object[key], 2)) add("point", p.map(clamp));
  }
}

export function readBoxes(text: string): BoxReader {
  const reader = new BoxReader();
  reader.push(text);
  return reader;
}

/** Is the answer nothing but found objects (in a fence or not)? Then a list says it better than the text. */
export function isOnlyBoxes(text: string, reader: BoxReader): boolean {
  const first = reader.found[0];
  if (!first) return false;
  let rest = "";
  let at = 0;
  for (const f of reader.found) {
    if (f.start < at) continue;
    rest += text.slice(at, f.start);
    at = f.end;
  }
  rest += text.slice(at);
  rest = rest.replace(/\{[^{}]*(?:bbox|point)[^{}]*(\}|$)/g, ""); // repeats, and one that was cut
  return rest.replace(/```(?:json)?|"objects"\s*:|[[\]{},\s]/g, "") === "";
}

/** A colour's number for each label, in order of first coming. */
export function colours(found: Found[]): number[] {
  const number = new Map<string, number>();
  return found.map((f) => {
    const key = f.label.toLowerCase();
    if (!number.has(key)) number.set(key, number.size);
    return number.get(key)!;
  });
}

const pixels = (f: Found, width: number, height: number): number[] =>
  f.at.map((v, i) => Math.round((v / 1000) * (i % 2 ? height : width)));

/** For other programs: per mille as the model gave them, and pixels of the picture. */
export function toJson(found: Found[], picture: { name: string; width: number; height: number }): string {
  const list = found.map((f) => ({
    label: f.label,
    [f.kind === "box" ? "bbox_2d" : "point_2d"]: f.at,
    pixels: pixels(f, picture.width, picture.height),
  }));
  return JSON.stringify({ picture, scale: 1000, objects: list }, null, 2) + "\n";
}

export function toCsv(found: Found[], picture: { width: number; height: number }): string {
  const quote = (s: string) => {
    const safe = /^[=+\-@\t\r]/.test(s) ? `'${s}` : s; // a spreadsheet would take it for a formula
    return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const rows = found.map((f) => {
    const p = pixels(f, picture.width, picture.height);
    return [quote(f.label), f.kind, p[0], p[1], p[2] ?? "", p[3] ?? ""].join(",");
  });
  return ["label,kind,x1,y1,x2,y2", ...rows].join("\r\n") + "\r\n";
}
