/** Makes the README's pictures: MARGAY_SHOTS=1 npm --prefix web test. Answers with boxes come from the stand-in. */
import { mkdirSync, readdirSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import type { Browser, BrowserContextOptions } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Margay, ROOT, Stand, Tab, openBrowser, sample } from "./harness";

const OUT = path.join(ROOT, "docs", "screenshots");
let browser: Browser;
let margay: Margay;
let stand: Stand;
beforeAll(async () => {
  mkdirSync(OUT, { recursive: true });
  [browser, margay] = await Promise.all([openBrowser(), Margay.start()]);
  stand = await Stand.before(margay);
});
afterAll(async () => {
  await browser.close();
  stand.close();
  await margay.kill();
  const bytes = readdirSync(OUT).reduce((n, f) => n + statSync(path.join(OUT, f)).size, 0);
  expect(bytes).toBeLessThan(400000);
});

const pause = (ms: number) => new Promise((r) => setTimeout(r, ms));
const open = (options: BrowserContextOptions, url = margay.url) => Tab.open(browser, url, { viewport: { width: 1180, height: 740 }, ...options });
const save = async (tab: Tab, name: string) => {
  await pause(600); // transitions
  const png = await tab.page.screenshot({ caret: "initial" });
  await tab.context.close();
  const page = await browser.newPage(); // to WebP, a quarter of the size
  const webp = await page.evaluate(async (text) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${text}`)).blob());
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    canvas.getContext("2d")!.drawImage(bitmap, 0, 0);
    return [...new Uint8Array(await (await canvas.convertToBlob({ type: "image/webp", quality: 0.9 })).arrayBuffer())];
  }, png.toString("base64"));
  await page.close();
  writeFileSync(path.join(OUT, `${name}.webp`), Buffer.from(webp));
  if (process.env["MARGAY_SHOTS_PNG"]) writeFileSync(path.join(process.env["MARGAY_SHOTS_PNG"], `${name}.png`), png);
};

test("hello", async () => {
  const tab = await open({});
  await tab.page.waitForSelector(".model.is-ok");
  await tab.page.mouse.move(900, 600);
  await save(tab, "hello");
});

test("answer, in the dark", async () => {
  const tab = await open({ colorScheme: "dark" });
  await tab.choose(sample("receipt_total_001.png"));
  await tab.ask("What is the total price?");
  await tab.answer();
  await tab.ask("What is the total amount?");
  await tab.page.waitForSelector(".chip.reused");
  await save(tab, "answer-dark");
});

test("looking", async () => {
  stand.script = async (x) => {
    x.progress({ stage: "vision", step: 14, of: 24 });
    while (!x.gone) await pause(20);
  };
  const tab = await open({ colorScheme: "dark" }, stand.url);
  await tab.choose(sample("big_shape_000.png"));
  await tab.page.click(".preset");
  await tab.stage("vision");
  await pause(2100);
  await save(tab, "looking-dark");
});

const FOUND = `[{"bbox_2d": [70, 120, 330, 560], "label": "kettle"}, {"bbox_2d": [425, 330, 590, 600], "label": "cup"},
 {"bbox_2d": [650, 330, 815, 600], "label": "cup"}, {"bbox_2d": [300, 640, 760, 840], "label": "plate"}, {"point_2d": [530, 715], "label": "biscuit"}]`;

/** A still life whose things stand where FOUND says. */
async function still(): Promise<Buffer> {
  const page = await browser.newPage({ viewport: { width: 1000, height: 700 } });
  await page.setContent(`<body style="margin:0"><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 700" width="1000" height="700">
    <rect width="1000" height="700" fill="#dfe8ea"/><rect y="380" width="1000" height="320" fill="#c9a27a"/><rect y="380" width="1000" height="10" fill="#b28a62"/>
    <path d="M110 390c-10-110-6-190 20-220h120c26 30 30 110 20 220z" fill="#31525b"/><path d="M150 170a40 34 0 0 1 80 0z" fill="#26424a"/><circle cx="190" cy="112" r="14" fill="#26424a"/><path d="M262 230c30-6 44-20 50-42l16 6c-2 40-24 74-62 84z" fill="#31525b"/><path d="M112 210c-50 4-48 100-2 112" fill="none" stroke="#26424a" stroke-width="14"/>
    <path d="M430 236h130l-12 160q-4 22-26 22h-54q-22 0-26-22z" fill="#d96f4e"/><path d="M556 270c44-4 40 80-8 82" fill="none" stroke="#d96f4e" stroke-width="13"/><ellipse cx="495" cy="238" rx="65" ry="9" fill="#7d3322"/>
    <path d="M655 236h130l-12 160q-4 22-26 22h-54q-22 0-26-22z" fill="#e7b54a"/><path d="M781 270c44-4 40 80-8 82" fill="none" stroke="#e7b54a" stroke-width="13"/><ellipse cx="720" cy="238" rx="65" ry="9" fill="#8a6416"/>
    <ellipse cx="530" cy="520" rx="228" ry="66" fill="#f7f4ee"/><ellipse cx="530" cy="512" rx="170" ry="44" fill="#e6e0d4"/><circle cx="530" cy="500" r="40" fill="#b9803f"/><circle cx="518" cy="490" r="5" fill="#6e4316"/><circle cx="544" cy="498" r="5" fill="#6e4316"/><circle cx="526" cy="514" r="5" fill="#6e4316"/>
  </svg>`);
  const png = await page.screenshot({ type: "jpeg", quality: 90 });
  await page.close();
  return png;
}

test("boxes", async () => {
  stand.script = async (x) => {
    await x.text(FOUND);
    x.end();
  };
  const tab = await open({}, stand.url);
  await tab.choose({ name: "breakfast.jpg", mimeType: "image/jpeg", buffer: await still() });
  await tab.page.getByRole("button", { name: "Find objects" }).click();
  await tab.page.waitForSelector(".answer.is-done");
  await tab.page.getByRole("button", { name: "cup" }).first().hover();
  await save(tab, "boxes");
});

test("on a phone", async () => {
  stand.script = async (x) => {
    await x.text(FOUND);
    x.end();
  };
  const tab = await open({ colorScheme: "dark", viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true }, stand.url);
  await tab.choose({ name: "breakfast.jpg", mimeType: "image/jpeg", buffer: await still() });
  await tab.page.waitForSelector(".field .thumb:not(.working)");
  await tab.page.getByRole("button", { name: "Find objects" }).click();
  await tab.page.waitForSelector(".answer.is-done");
  await save(tab, "phone-dark");
});

test("in Chinese", async () => {
  const tab = await open({ locale: "zh-CN" });
  await tab.choose(sample("what_002.png"));
  await tab.page.click(".preset");
  await tab.page.waitForSelector(".answer.is-done");
  await save(tab, "zh");
});

test("status", async () => {
  const tab = await open({});
  await tab.choose(sample("receipt_total_001.png"));
  await tab.ask("What is the total price?");
  await tab.answer();
  await tab.page.locator(".model").click();
  for (let i = 0; i < 12; i++) {
    const n = [2, 5, 3, 6, 8, 4][i % 6]!;
    await Promise.all(Array.from({ length: n }, () => fetch(margay.url + "v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ temperature: 1, max_tokens: 60, ignore_eos: true, messages: [{ role: "user", content: "x" }] }) })));
    await pause(2000);
  }
  await save(tab, "status");
}, 60000);
