/** A real margay, a Chromium, and a stand-in for the model: what the browser tests share. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import http from "node:http";
import { createServer } from "node:net";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { type Browser, type BrowserContext, type BrowserContextOptions, type Page, chromium } from "playwright-core";
import { expect } from "vitest";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const BIN = process.env["MARGAY_BIN"] ?? path.join(ROOT, "build", "margay");
export const SAMPLES = path.join(ROOT, "models", "demo", "samples");
export const sample = (name: string): string => path.join(SAMPLES, name);

export async function freePort(): Promise<number> {
  const s = createServer();
  await new Promise<void>((r) => s.listen(0, "127.0.0.1", r));
  const { port } = s.address() as { port: number };
  await new Promise((r) => s.close(r));
  return port;
}

export class Margay {
  url = "";
  private process!: ChildProcess;
  private constructor(readonly args: string[], readonly port: number, readonly env: Record<string, string>) {}

  static async start(...args: string[]): Promise<Margay> {
    const m = new Margay(args, await freePort(), {});
    await m.run();
    return m;
  }

  /** One whose answers take their time (see makeLong): the reference kernels, some 200 tokens a second. */
  static async slow(...args: string[]): Promise<Margay> {
    const m = new Margay(["--no-loop-check", ...args], await freePort(), { MARGAY_CPU: "ref" });
    await m.run();
    return m;
  }

  /** Also after kill: on the same port. */
  async run(): Promise<void> {
    this.process = spawn(BIN, ["serve", "--port", String(this.port), ...this.args], { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, ...this.env } });
    let log = "";
    const listening = new Promise<string>((resolve, reject) => {
      this.process.stderr!.on("data", (d: Buffer) => {
        log += d.toString();
        const m = /listening on (\S+)/.exec(log);
        if (m) resolve(m[1]!);
      });
      this.process.on("exit", () => reject(new Error(`margay serve has ended: ${log}`)));
    });
    listening.catch(() => undefined);
    this.url = (await listening) + "/";
    await until(async () => (await fetch(this.url + "health").catch(() => null))?.ok ?? false);
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    if (this.process.exitCode !== null) return;
    const over = new Promise((r) => this.process.once("exit", r));
    this.process.kill(signal);
    await over;
  }

  async metric(name: string): Promise<number> {
    const text = await (await fetch(this.url + "metrics")).text();
    const line = text.split("\n").find((l) => l.startsWith(`margay_${name} `));
    return line ? Number(line.split(" ").at(-1)) : 0;
  }
}

export async function until(what: () => Promise<boolean> | boolean, seconds = 20): Promise<void> {
  for (const end = Date.now() + seconds * 1000; ; ) {
    if (await what()) return;
    if (Date.now() > end) throw new Error(`waited ${seconds} s in vain`);
    await new Promise((r) => setTimeout(r, 25));
  }
}

// --- a stand-in for the model ---
export interface Exchange {
  body: { messages: { role: string; content: unknown }[]; [key: string]: unknown };
  /** Sends one event. */
  event(value: unknown): void;
  progress(p: Record<string, unknown>): void;
  text(piece: string): Promise<void>;
  end(finish?: string): void;
  reply(status: number, error: Record<string, unknown>, headers?: Record<string, string>): void;
  readonly gone: boolean;
  res: http.ServerResponse;
}
export type Script = (x: Exchange) => void | Promise<void>;

/** Passes everything on to a real server, but answers chat requests by a script, in the forms of src/api/chat_reply.c. */
export class Stand {
  url = "";
  script: Script = (x) => x.end();
  readonly asked: Exchange["body"][] = [];
  readonly left: string[] = [];
  private server!: http.Server;

  static async before(real: Margay): Promise<Stand> {
    const s = new Stand();
    s.server = http.createServer((req, res) => {
      if (req.method === "POST" && req.url === "/v1/chat/completions") void s.chat(req, res);
      else {
        const on = http.request(real.url.replace(/\/$/, "") + req.url, { method: req.method, headers: req.headers }, (r) => {
          res.writeHead(r.statusCode!, r.headers);
          r.pipe(res);
        });
        on.on("error", () => res.destroy());
        req.pipe(on);
      }
    });
    s.server.on("upgrade", (_req, socket) => socket.destroy()); // passes no WebSocket on
    await new Promise<void>((r) => s.server.listen(0, "127.0.0.1", r));
    s.url = `http://127.0.0.1:${(s.server.address() as { port: number }).port}/`;
    return s;
  }

  close(): void {
    this.server.closeAllConnections();
    this.server.close();
  }

  private async chat(req: http.IncomingMessage, res: http.ServerResponse): Promise<void> {
    const pieces: Buffer[] = [];
    for await (const p of req) pieces.push(p as Buffer);
    const body = JSON.parse(Buffer.concat(pieces).toString()) as Exchange["body"];
    this.asked.push(body);
    const head = { id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: "margay-demo" };
    let begun = false;
    let gone = false;
    res.on("close", () => {
      gone = !res.writableEnded;
      if (gone) this.left.push(String(body.messages.length));
    });
    const begin = () => {
      if (begun) return;
      begun = true;
      res.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache" });
      chunk({ choices: [{ index: 0, delta: { role: "assistant", content: "" }, finish_reason: null }] });
    };
    const chunk = (value: object) => res.write(`data: ${JSON.stringify({ ...head, ...value })}\n\n`);
    await this.script({
      body,
      res,
      get gone() {
        return gone;
      },
      event(value) {
        begin();
        chunk(value as object);
      },
      progress(p) {
        begin();
        chunk({ choices: [{ index: 0, delta: {}, finish_reason: null }], prompt_progress: { total: 100, cache: 0, processed: 0, time_ms: 1, ...p } });
      },
      async text(piece) {
        begin();
        if (!chunk({ choices: [{ index: 0, delta: { content: piece }, finish_reason: null }] })) await new Promise((r) => res.once("drain", r));
      },
      end(finish = "stop") {
        begin();
        chunk({
          choices: [{ index: 0, delta: {}, finish_reason: finish }],
          timings: { cache_n: 0, prompt_n: 20, predicted_n: 7, predicted_per_second: 12.5, predicted_ms: 560, queue_ms: 0, vision_ms: 900, first_token_ms: 1200, total_ms: 2000 },
        });
        res.end("data: [DONE]\n\n");
      },
      reply(status, error, headers = {}) {
        res.writeHead(status, { "Content-Type": "application/json", ...headers });
        res.end(JSON.stringify({ error }));
      },
    });
  }
}

// --- the browser ---
const FLAGS =
  "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync --use-fake-device-for-media-stream --use-fake-ui-for-media-stream";

export function openBrowser(): Promise<Browser> {
  const found = [process.env["CHROMIUM"], "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((p) => p && existsSync(p));
  if (!found) throw new Error("no Chromium is installed");
  return chromium.launch({ executablePath: found, args: FLAGS.split(" ") });
}

/** A tab that notes what must never happen: requests elsewhere, errors, breaches of the policy. */
export class Tab {
  readonly foreign: string[] = [];
  readonly errors: string[] = [];
  private constructor(readonly page: Page, readonly context: BrowserContext, readonly url: string) {}

  static async open(browser: Browser | BrowserContext, url: string, options: BrowserContextOptions = {}): Promise<Tab> {
    const context = "newContext" in browser ? await browser.newContext({ locale: "en-GB", viewport: { width: 1280, height: 800 }, ...options }) : browser;
    const tab = new Tab(await context.newPage(), context, url);
    const { page } = tab;
    page.setDefaultTimeout(8000);
    page.on("request", (r) => {
      if (!/^(data|blob):/.test(r.url()) && new URL(r.url()).host !== new URL(url).host) tab.foreign.push(r.url());
    });
    page.on("pageerror", (e) => tab.errors.push(String(e.stack ?? e)));
    page.on("console", (m) => {
      // A failed request is logged by the browser itself; some tests provoke them.
      if (m.type() === "error" && !/Failed to load resource|WebSocket connection/.test(m.text())) tab.errors.push(m.text());
    });
    page.on("dialog", (d) => {
      tab.errors.push(`dialog ${d.message()}`);
      void d.dismiss();
    });
    await page.addInitScript(() => {
      const w = window as unknown as { breaches: string[]; long: number[] };
      w.breaches = [];
      w.long = [];
      addEventListener("securitypolicyviolation", (e) => w.breaches.push(`${e.violatedDirective} ${e.blockedURI}`));
      new PerformanceObserver((list) => w.long.push(...list.getEntries().map((x) => x.duration))).observe({ type: "longtask", buffered: true });
    });
    await page.goto(url);
    return tab;
  }

  async choose(...files: (string | { name: string; mimeType: string; buffer: Buffer })[]): Promise<void> {
    await this.page.setInputFiles("#choose", files as string[]);
  }

  async ask(text: string): Promise<void> {
    await this.page.fill("#question", text);
    await this.page.keyboard.press("Enter");
  }

  /** The text of the n-th answer (the last) once it is over. */
  async answer(n = -1): Promise<string> {
    await this.page.waitForSelector(".answer");
    await this.page.waitForFunction(() => !document.querySelector(".answer.is-running, .prose[data-whole=false]"), undefined, { timeout: 20000 });
    return (await this.page.locator(".answer").nth(n).locator(".prose").innerText({ timeout: 2000 }).catch(() => "")).trim();
  }

  get last() {
    return this.page.locator(".answer").last();
  }

  stage(name: string): Promise<unknown> {
    return this.page.waitForSelector(`.stage[data-stage=${name}]`);
  }

  async breaches(): Promise<string[]> {
    return this.page.evaluate(() => (window as unknown as { breaches: string[] }).breaches);
  }
  async longest(): Promise<number> {
    return this.page.evaluate(() => Math.max(0, ...(window as unknown as { long: number[] }).long));
  }

  /** Nothing happened that must not; closes the tab. */
  async close(): Promise<void> {
    expect(this.foreign).toEqual([]);
    expect(this.errors).toEqual([]);
    expect(await this.breaches()).toEqual([]);
    await this.context.close();
  }
}

/** All of a request's answer is to be long: the demo model's own ones are over in a moment. */
export async function makeLong(page: Page, tokens = 3500): Promise<void> {
  await page.route("**/v1/chat/completions", (route) => {
    const body = route.request().postDataJSON() as Record<string, unknown>;
    return route.continue({ postData: JSON.stringify({ ...body, ignore_eos: true, max_tokens: tokens, temperature: 1, seed: 1 }) });
  });
}

const axeSource = (): string => readFileSync(path.join(ROOT, "web/node_modules/axe-core/axe.min.js"), "utf8");
export async function axe(page: Page): Promise<string[]> {
  await page.waitForTimeout(250); // colours in transition have no contrast yet
  await page.evaluate(axeSource());
  const result = await page.evaluate(async () => {
    const run = (window as unknown as { axe: { run(o: unknown): Promise<{ violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] }> } }).axe;
    return (await run.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })).violations;
  });
  return result.map((v) => `${v.id}: ${v.nodes.map((n) => n.html + " " + n.failureSummary).join("; ")}`);
}

/** A photo of so many pixels, made by the browser. orientation: of EXIF. */
export async function photo(browser: Browser, width: number, height: number, orientation = 1): Promise<Buffer> {
  const page = await browser.newPage();
  const text = await page.evaluate(
    async ([w, h]) => {
      const canvas = new OffscreenCanvas(w!, h!);
      const c = canvas.getContext("2d")!;
      for (let i = 0; i < 400; i++) {
        c.fillStyle = `hsl(${(i * 47) % 360} 60% ${30 + ((i * 13) % 50)}%)`;
        c.fillRect((i * 977) % w!, (i * 577) % h!, w! / 7, h! / 9);
      }
      c.fillStyle = "#f00"; // the top edge
      c.fillRect(0, 0, w!, h! / 6);
      const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
      return new Promise<string>((r) => {
        const reader = new FileReader();
        reader.onload = () => r(String(reader.result).split(",")[1]!);
        reader.readAsDataURL(blob);
      });
    },
    [width, height],
  );
  await page.close();
  const jpeg = Buffer.from(text, "base64");
  if (orientation === 1) return jpeg;
  const exif = Buffer.from("ffe1002245786966000049492a0008000000010012010300010000000" + orientation + "000000000000000", "hex");
  return Buffer.concat([jpeg.subarray(0, 2), exif, jpeg.subarray(2)]);
}
