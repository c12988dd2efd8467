import { readFileSync, readdirSync, statSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { en } from "../../web/src/i18n/en";
import { zh } from "../../web/src/i18n/zh";
import { BoxReader, isOnlyBoxes, readBoxes, toCsv, toJson } from "../../web/src/lib/boxes";
import { readMetrics, total } from "../../web/src/lib/prometheus";
import { fit, steps } from "../../web/src/lib/size";
import { isCut, orientation, sniff } from "../../web/src/lib/sniff";
import { Splitter } from "../../web/src/lib/split";
import { SseParser } from "../../web/src/lib/sse";
import { ROOT, sample } from "./harness";

/** Whatever the pieces are cut into, the result is the same. */
function cuts(text: string): string[][] {
  const at = (n: number) => text.match(new RegExp(`[\\s\\S]{1,${n}}`, "g")) ?? [];
  return [[text], at(1), at(2), at(3), at(7), at(64)];
}

describe("event streams", () => {
  test.each([
    ["data: a\n\ndata: b\n\n", ["a", "b"]],
    ["data: a\r\n\r\ndata:b\r\r", ["a", "b"]],
    [": ping\n\ndata: a\n\n", ["a"]],
    ["data: 1\ndata: 2\n\n", ["1\n2"]],
    ["event: x\nid: 3\ndata: a\n\n", ["a"]],
    ["data: {\"t\":\"é\u{1F600}\"}\n\n", ['{"t":"é\u{1F600}"}']],
    ["data: not ended", []],
  ])("%j", (text, want) => {
    for (const pieces of cuts(text)) {
      const parser = new SseParser();
      const got = pieces.flatMap((p) => parser.push(p));
      // The last CR waits for an LF that might come.
      expect(text.endsWith("\r") ? [...got, ...parser.push("\n")] : got).toEqual(want);
    }
  });
});

describe("sizes", () => {
  test("nothing is enlarged, proportions stay, no side is 0", () => {
    expect(fit({ width: 800, height: 600 }, 1024)).toEqual({ width: 800, height: 600 });
    expect(fit({ width: 6000, height: 4000 }, 1024)).toEqual({ width: 1024, height: 683 });
    expect(fit({ width: 1, height: 40000 }, 1024)).toEqual({ width: 1, height: 1024 });
    for (let w = 1; w < 5000; w += 271)
      for (let h = 1; h < 5000; h += 331) {
        const f = fit({ width: w, height: h }, 1024);
        expect(Math.max(f.width, f.height)).toBe(Math.min(1024, Math.max(w, h)));
        expect(Math.min(f.width, f.height)).toBeGreaterThan(0);
        if (f.width > 20 && f.height > 20) expect(Math.abs(f.width / f.height / (w / h) - 1)).toBeLessThan(0.05);
      }
  });
  test("no step shrinks to less than half, the last is the target", () => {
    for (const [w, h] of [[6000, 4000], [1025, 3], [40000, 1], [1024, 1024], [2100, 2100]] as const) {
      const to = fit({ width: w, height: h }, 1024);
      const list = steps({ width: w, height: h }, to);
      expect(list.at(-1)).toEqual(to);
      let before = { width: w as number, height: h as number };
      for (const s of list.slice(0, -1)) {
        expect(s.width * 2).toBeGreaterThanOrEqual(before.width);
        before = s;
      }
    }
  });
});

describe("bytes of pictures", () => {
  const bytes = (text: string) => Uint8Array.from(Buffer.from(text, "latin1"));
  test("formats by their first bytes", () => {
    expect(sniff(new Uint8Array(readFileSync(sample("what_000.png"))))).toBe("png");
    expect(sniff(bytes("\xff\xd8\xff\xe0abc"))).toBe("jpeg");
    expect(sniff(bytes("RIFF\x10\0\0\0WEBPVP8 "))).toBe("webp");
    expect(sniff(bytes("GIF89a...."))).toBe("gif");
    expect(sniff(bytes("\0\0\0\x18ftypheic\0\0\0\0mif1heic"))).toBe("heic");
    expect(sniff(bytes("\0\0\0\x18ftypmif1\0\0\0\0mif1avif"))).toBe("avif");
    expect(sniff(bytes("\0\0\0\x18ftypisom\0\0\0\0mp41"))).toBe(null);
    expect(sniff(bytes("<svg xmlns='...'>"))).toBe(null);
    expect(sniff(bytes(""))).toBe(null);
  });
  test("orientation of EXIF in both orders of bytes; nonsense is upright", () => {
    const app1 = (tiff: string) => {
      const body = "Exif\0\0" + tiff;
      return bytes("\xff\xd8\xff\xe1" + String.fromCharCode((body.length + 2) >> 8, (body.length + 2) & 255) + body + "\xff\xda\0\x02..\xff\xd9");
    };
    expect(orientation(app1("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"))).toBe(6);
    expect(orientation(app1("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"))).toBe(8);
    expect(orientation(app1("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0\0\0\0\0"))).toBe(1);
    expect(orientation(app1("II*\0\xff\xff\xff\x7f"))).toBe(1);
    expect(orientation(bytes("\xff\xd8\xff\xe1\xff"))).toBe(1);
  });
  test("what is cut off", () => {
    const png = new Uint8Array(readFileSync(sample("receipt_total_001.png")));
    expect(isCut(png)).toBe(false);
    for (const n of [20, 100, png.length >> 1, png.length - 13]) expect(isCut(png.subarray(0, n))).toBe(true);
    const jpeg = bytes("\xff\xd8\xff\xe0\0\x06ab\xff\xd9\xff\xda\0\x04xxdata\xff\0more\xff\xd9trailer");
    expect(isCut(jpeg)).toBe(false);
    expect(isCut(jpeg.subarray(0, 20))).toBe(true); // the end within its first segment does not count
  });
});

describe("boxes and points", () => {
  const two = '[{"bbox_2d": [10, 20, 300, 400], "label": "cat"}, {"bbox_2d": [500, 0, 999, 1000], "label": "dog"}]';
  const read = (text: string) => cuts(text).map((pieces) => {
    const r = new BoxReader();
    for (const p of pieces) r.push(p);
    return r.found.map((f) => `${f.kind} ${f.at.join(" ")} ${f.label}`);
  });
  const same = (text: string, want: string[]) => read(text).forEach((got) => expect(got).toEqual(want));

  test("lists, fences, text around, alone, nested", () => {
    const want = ["box 10 20 300 400 cat", "box 500 0 999 1000 dog"];
    same(two, want);
    same("```json\n" + two + "\n```", want);
    same(`Here "they" are, don't worry: ${two} and that's all.`, want);
    same(`{"objects": ${two}, "count": 2}`, want);
    same('{"point_2d": [5, 6], "label": "eye"}', ["point 5 6 eye"]);
    same('{"bbox_2d": [[1,2,3,4],[5,6,7,8]], "label": "x"}', ["box 1 2 3 4 x", "box 5 6 7 8 x"]);
  });
  test("each is there as soon as its object has ended", () => {
    const reader = new BoxReader();
    reader.push(two.slice(0, two.indexOf("}")));
    expect(reader.found).toHaveLength(0);
    reader.push("}");
    expect(reader.found).toHaveLength(1);
    expect(reader.unfinished).toBe(false);
  });
  test("a list that is cut gives its whole objects", () => {
    for (let n = 0; n <= two.length; n++) {
      const r = readBoxes(two.slice(0, n));
      expect(r.found.length).toBe((two.slice(0, n).match(/\}/g) ?? []).length);
    }
    expect(readBoxes(two.slice(0, 70)).unfinished).toBe(true);
  });
  test("repeats once, corners in order, out of range to the edge, nonsense not at all", () => {
    same(two + two + two, ["box 10 20 300 400 cat", "box 500 0 999 1000 dog"]);
    same('[{"bbox_2d":[300,400,-10,20],"label":"a"},{"bbox_2d":[0,0,5000,9],"label":"b"}]', ["box 0 20 300 400 a", "box 0 0 1000 9 b"]);
    same('[{"bbox_2d":[1,2,3],"label":"a"},{"bbox_2d":["1",2,3,4]},{"bbox_2d":null},{"label":"x"},{}]', []);
    same('{"bbox_2d": [1, 2, 3, 4], "label": "a", "label": "b"}', ["box 1 2 3 4 b"]);
    same("{'bbox_2d': [1, 2, 3, 4], 'label': 'a',}", ["box 1 2 3 4 a"]);
    same('{"bbox_2d": [1, 2, 3, 4], "label": "say \\"}\\" {"}', ['box 1 2 3 4 say "}" {']);
    same('{ { { "broken \n {"bbox_2d": [1, 2, 3, 4], "label": "a"}', ["box 1 2 3 4 a"]);
  });
  test("hostile texts take no time", () => {
    const start = performance.now();
    readBoxes("{".repeat(200000));
    readBoxes('{"bbox_2d":['.repeat(20000));
    readBoxes('{"a":'.repeat(20000) + "}".repeat(20000));
    expect(readBoxes('{"bbox_2d":[1,2,3,4],"label":"x"},'.repeat(30000)).found).toHaveLength(1);
    const r = new BoxReader();
    for (let i = 0; i < 200000; i++) r.push(i % 50 ? "word " : '{"point_2d":[1,' + (i % 1000) + "]}"); // a million characters in pieces
    expect(r.found).toHaveLength(20);
    expect(performance.now() - start).toBeLessThan(6000);
  });
  test("is it all there is?", () => {
    const only = (text: string) => isOnlyBoxes(text, readBoxes(text));
    expect(only(two)).toBe(true);
    expect(only("```json\n" + two + "\n```")).toBe(true);
    expect(only("```json\n" + two.slice(0, 70))).toBe(true);
    expect(only("Two animals: " + two)).toBe(false);
    expect(only("nothing")).toBe(false);
  });
  test("exports", () => {
    const found = readBoxes('[{"bbox_2d":[0,0,500,500],"label":"=1+1, \\"x\\""},{"point_2d":[100,200],"label":"p"}]').found;
    const size = { name: "a.png", width: 200, height: 100 };
    expect(toCsv(found, size)).toBe('label,kind,x1,y1,x2,y2\r\n"\'=1+1, ""x""",box,0,0,100,50\r\np,point,20,20,,\r\n');
    const json = JSON.parse(toJson(found, size)) as { objects: unknown[] };
    expect(json.objects[0]).toEqual({ label: '=1+1, "x"', bbox_2d: [0, 0, 500, 500], pixels: [0, 0, 100, 50] });
  });
});

describe("cutting Markdown into blocks", () => {
  const split = (pieces: string[]) => {
    const s = new Splitter();
    for (const p of pieces) s.push(p);
    s.end();
    return s.done.map((b) => ({ ...b }));
  };
  const text = "# Head\n\nOne\ntwo\n\n- a\n\n  more of a\n- b\n\nAfter.\n\n```py\nx = 1\n\ny = 2\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\nEnd";
  test("same blocks for any pieces", () => {
    const want = split([text]);
    expect(want.map((b) => b.kind)).toEqual(["text", "text", "text", "text", "code", "table", "text"]);
    expect(want[2]!.text).toContain("more of a");
    expect(want[4]).toEqual({ kind: "code", text: "x = 1\n\ny = 2", info: "py" });
    for (const pieces of cuts(text)) expect(split(pieces)).toEqual(want);
  });
  test("nothing is lost, the tail shows what is not finished", () => {
    const s = new Splitter();
    let sent = "";
    for (const c of text) {
      s.push(c);
      sent += c;
      const shown = [...s.done, s.tail].filter((b) => b !== null).map((b) => b.text).join("");
      const letters = (x: string) => x.replace(/```\w*|~~~/g, "").replace(/[\s`]/g, "");
      if (!/`/.test(sent.slice(-6))) expect(letters(shown)).toBe(letters(sent));
    }
  });
  test("a fence within a longer one, and one that is never closed", () => {
    expect(split(["````\n```\nin\n```\n````\nout"]).map((b) => [b.kind, b.text])).toEqual([["code", "```\nin\n```"], ["text", "out"]]);
    expect(split(["```\nnever"])).toEqual([{ kind: "code", text: "never", info: "" }]);
  });
  test("long ones are cut, so that no block costs much", () => {
    const cases = { words: "word ".repeat(60000), letters: "x".repeat(200000), table: "| a | b |\n|---|---|\n" + "| 1 | 2 |\n".repeat(20000), code: "```\n" + "let x;\n".repeat(40000), list: "- item\n".repeat(30000) };
    for (const [name, long] of Object.entries(cases)) {
      const start = performance.now();
      const s = new Splitter();
      for (let at = 0; at < long.length; at += 5) {
        s.push(long.slice(at, at + 5));
        void (at % 500 === 0 && s.tail);
      }
      s.end();
      expect(Math.max(...s.done.map((b) => b.text.length)), name).toBeLessThan(20000);
      expect(performance.now() - start, name).toBeLessThan(6000);
    }
  });
  test("a table's later part has its head", () => {
    const s = split(["| a | b |\n|---|---|\n" + "| 1 | 2 |\n".repeat(100)]);
    expect(s.length).toBeGreaterThan(1);
    for (const b of s) expect(b.text.startsWith("| a | b |\n|---|---|\n| 1 | 2 |")).toBe(true);
    expect(s.map((b) => b.more ?? false)).toEqual([false, ...s.slice(1).map(() => true)]);
  });
});

describe("metrics", () => {
  test("names, labels, sums", () => {
    const m = readMetrics('# HELP margay_x\nmargay_slots{state="idle"} 7\nmargay_slots{state="busy"} 1\nmargay_x 2.5\nprocess_x 1\nbad line here\n');
    expect(m.get("slots idle")).toBe(7);
    expect(total(m, "slots")).toBe(8);
    expect(m.get("x")).toBe(2.5);
    expect(m.get("process_x")).toBe(1);
  });
});

describe("words", () => {
  const holes = (s: string) => [...s.matchAll(/\{(\w+)\}/g)].map((m) => m[1]).sort();
  test("both languages have all of them, with the same holes", () => {
    expect(Object.keys(zh).sort()).toEqual(Object.keys(en).sort());
    for (const [key, text] of Object.entries(en)) {
      expect(holes(zh[key as keyof typeof en]), key).toEqual(holes(text));
      expect(zh[key as keyof typeof en].trim(), key).not.toBe("");
    }
  });
  test("each is used, and what is Chinese has Chinese in it", () => {
    const files = (dir: string): string[] => readdirSync(dir).flatMap((f) => (statSync(path.join(dir, f)).isDirectory() ? files(path.join(dir, f)) : [path.join(dir, f)]));
    const code = files(path.join(ROOT, "web/src")).filter((f) => /\.tsx?$/.test(f) && !f.includes("/i18n/")).map((f) => readFileSync(f, "utf8")).join("\n");
    const made = /^(trouble|prompt|preset|sample|stage)\./; // keys put together in code
    expect(Object.keys(en).filter((k) => !made.test(k) && !code.includes(`"${k}"`))).toEqual([]);
    const latin = new Set(["app.language", "set.transport_ws", "talk.margay", "board.shrunk", "board.plain"]);
    expect(Object.entries(zh).filter(([k, v]) => !latin.has(k) && !/\p{Script=Han}/u.test(v)).map(([k]) => k)).toEqual([]);
  });
});
