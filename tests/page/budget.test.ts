/** Size and speed of the first load, and that what is committed is what the sources make. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { Margay, ROOT, openBrowser } from "./harness";

const files = (dir: string, at = ""): string[] =>
  readdirSync(path.join(dir, at)).flatMap((f) => (statSync(path.join(dir, at, f)).isDirectory() ? files(dir, path.join(at, f)) : [path.join(at, f)])).sort();

test("all of the page is at most 150 kB as it is sent", () => {
  const dist = path.join(ROOT, "web/dist");
  const bytes = files(dist).reduce((n, f) => n + gzipSync(readFileSync(path.join(dist, f)), { level: 9 }).length, 0);
  expect(bytes).toBeLessThanOrEqual(150000);
});

test("the committed page is what the sources make", () => {
  const out = mkdtempSync(path.join(tmpdir(), "margay-page-"));
  try {
    execFileSync(process.execPath, ["node_modules/vite/bin/vite.js", "build", "--outDir", out, "--logLevel", "error"], { cwd: path.join(ROOT, "web"), env: { ...process.env, NODE_ENV: "production" } });
    const dist = path.join(ROOT, "web/dist");
    expect(files(dist)).toEqual(files(out));
    for (const f of files(out)) expect(readFileSync(path.join(dist, f)).equals(readFileSync(path.join(out, f))), f).toBe(true);
  } finally {
    rmSync(out, { recursive: true, force: true });
  }
}, 120000);

test("no inline script, style or event in the document; the policy allows none", async () => {
  const html = readFileSync(path.join(ROOT, "web/dist/index.html"), "utf8");
  expect(html).not.toMatch(/<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|https?:/);
});

interface Load {
  bytes: number;
  requests: number;
  paint: number;
  shift: number;
  blocked: number;
  again: number;
}

/** A phone on a middling network (1.6 Mbit/s, 75 ms) with half of this processor's speed. */
async function load(url: string): Promise<Load> {
  const browser = await openBrowser();
  try {
    const context = await browser.newContext({ viewport: { width: 390, height: 844 } });
    const page = await context.newPage();
    const cdp = await context.newCDPSession(page);
    await cdp.send("Network.enable");
    await cdp.send("Emulation.setCPUThrottlingRate", { rate: 2 });
    await cdp.send("Network.emulateNetworkConditions", { offline: false, latency: 75, downloadThroughput: 200000, uploadThroughput: 90000 });
    let bytes = 0;
    let requests = 0;
    cdp.on("Network.loadingFinished", (e) => (bytes += e.encodedDataLength));
    cdp.on("Network.requestWillBeSent", () => requests++);
    await page.addInitScript(() => {
      const w = window as unknown as { shift: number; long: number };
      w.shift = w.long = 0;
      new PerformanceObserver((l) => l.getEntries().forEach((e) => (w.shift += (e as unknown as { value: number }).value))).observe({ type: "layout-shift", buffered: true });
      new PerformanceObserver((l) => l.getEntries().forEach((e) => (w.long += Math.max(0, e.duration - 50)))).observe({ type: "longtask", buffered: true });
    });
    const settle = async () => {
      await page.waitForSelector(".model.is-ok");
      await page.waitForLoadState("networkidle");
    };
    await page.goto(url);
    await settle();
    await page.waitForTimeout(500);
    const m = await page.evaluate(() => ({
      paint: performance.getEntriesByName("first-contentful-paint")[0]!.startTime,
      shift: (window as unknown as { shift: number }).shift,
      blocked: (window as unknown as { long: number }).long,
    }));
    const first = { bytes, requests, ...m };
    bytes = 0;
    await page.reload();
    await settle();
    return { ...first, again: bytes };
  } finally {
    await browser.close();
  }
}

test("the first load: few bytes, soon painted, nothing jumps, nothing blocks; the second from the cache", async () => {
  const margay = await Margay.start();
  try {
    // Times of a machine with others on it: the best of three counts.
    const loads: Load[] = [];
    const good = (l: Load) => l.paint < 1800 && l.blocked < 300; // Lighthouse's "good", and twice that
    while (loads.length < 3 && !loads.some(good)) loads.push(await load(margay.url));
    const best = loads.find(good) ?? loads[0]!;
    console.log(`first load: ${best.bytes} bytes in ${best.requests} requests, first paint ${best.paint.toFixed(0)} ms, shift ${best.shift.toFixed(4)}, blocked ${best.blocked.toFixed(0)} ms, again ${best.again} bytes`);
    expect(best.paint).toBeLessThan(4000);
    expect(best.blocked).toBeLessThan(1500);
    for (const l of loads) {
      expect(l.bytes).toBeLessThanOrEqual(150000);
      expect(l.requests).toBeLessThanOrEqual(14);
      expect(l.shift).toBeLessThan(0.05);
      expect(l.again).toBeLessThan(8000);
    }
  } finally {
    await margay.kill();
  }
}, 60000);

test("a browser that is not given the page's files has no page: --no-ui", async () => {
  const margay = await Margay.start("--no-ui");
  expect((await fetch(margay.url)).status).toBe(404);
  expect((await fetch(margay.url + "props")).status).toBe(200);
  await margay.kill();
});
