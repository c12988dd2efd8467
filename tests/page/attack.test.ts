/** What was once wrong: stores that are denied or full, races, proxies, input methods, small windows, huge pictures. */
import { readFileSync } from "node:fs";
import { deflateSync } from "node:zlib";
import type { Browser, BrowserContext, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { Margay, Stand, Tab, axe, makeLong, openBrowser, sample, until } from "./harness";

let browser: Browser;
let margay: Margay;
let slow: Margay;
let stand: Stand;
beforeAll(async () => {
  [browser, margay, slow] = await Promise.all([openBrowser(), Margay.start(), Margay.slow()]);
  stand = await Stand.before(margay);
});
afterAll(async () => {
  await browser?.close();
  stand?.close();
  await margay?.kill();
  await slow?.kill();
});
afterEach(() => void (stand.asked.length = stand.left.length = 0));

const pause = (ms: number) => new Promise((r) => setTimeout(r, ms));
const receipt = sample("receipt_total_001.png");

/** All that the browser's database holds of a store. */
const stored = (page: Page, store: "talks" | "pictures"): Promise<{ id: string; title?: string }[]> =>
  page.evaluate(
    (name) =>
      new Promise((resolve, reject) => {
        const open = indexedDB.open("margay", 1);
        open.onerror = () => reject(open.error);
        open.onsuccess = () => {
          const all = open.result.transaction(name).objectStore(name).getAll();
          all.onsuccess = () => (open.result.close(), resolve((all.result as { id: string; title?: string }[]).map(({ id, title }) => ({ id, ...(title && { title }) }))));
        };
      }),
    store,
  );

describe("stores", () => {
  test.each(["localStorage", "sessionStorage", "indexedDB"])("%s denied: it works all the same", async (what) => {
    const context: BrowserContext = await browser.newContext({ locale: "en-GB" });
    await context.addInitScript((w) => Object.defineProperty(window, w, { get: () => { throw new DOMException("denied", "SecurityError"); } }), what);
    const tab = await Tab.open(context, margay.url);
    await tab.page.waitForSelector(".model.is-ok");
    await tab.choose(receipt);
    await tab.ask("What is the total price?");
    if (what === "indexedDB") await tab.page.getByText("This browser keeps nothing here").waitFor();
    expect(await tab.answer()).toBe("45.67");
    await tab.page.getByRole("button", { name: "中文" }).click();
    await tab.page.getByRole("button", { name: "English" }).waitFor();
    await tab.close();
  });

  test("the database gets full in the middle: one conversation stays one, and it is said", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await tab.choose(receipt);
    await tab.ask("What is the total price?");
    await tab.answer();
    await page.evaluate(() => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("full", "QuotaExceededError");
      };
    });
    await tab.ask("What is the total amount?");
    await page.getByText("This browser keeps nothing here").waitFor();
    await page.waitForFunction(() => document.querySelectorAll(".answer.is-done").length === 2);
    await page.getByRole("button", { name: "Conversations" }).click();
    await page.waitForSelector(".talk-list li");
    expect(await page.locator(".talk-list li").count()).toBe(1);
    await tab.close();
  });

  test.each(['{"temperature":"hot","maxTokens":null,"language":"fr","theme":7,"detail":"x"}', "null", "[1]", "{", '{"maxTokens":1e99,"temperature":-4}'])("settings that make no sense: %s", async (text) => {
    const tab = await Tab.open(browser, margay.url);
    await tab.page.evaluate((s) => localStorage.setItem("margay-settings", s), text);
    await tab.page.reload();
    await tab.page.getByText("What would you like to know").waitFor();
    await tab.page.getByRole("button", { name: "Settings" }).click();
    expect(await tab.page.locator("output").innerText()).toBe("0.0");
    const most = Number(await tab.page.getByLabel("Most tokens of an answer").inputValue());
    expect(most).toBeGreaterThanOrEqual(1);
    expect(most).toBeLessThanOrEqual(32768);
    await tab.close();
  });

  test("pictures that are removed before they were asked about are not kept", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await tab.choose(receipt, sample("what_000.png"));
    await page.waitForFunction(() => document.querySelectorAll(".field .thumb:not(.working)").length === 2);
    await page.getByRole("button", { name: "Remove what_000.png" }).click();
    await tab.ask("What is the total price?");
    await tab.answer();
    expect(await stored(page, "pictures")).toHaveLength(1);
    await page.getByRole("button", { name: "Conversations" }).click();
    await page.getByRole("button", { name: /^Delete/ }).click();
    await until(async () => (await stored(page, "pictures")).length === 0);
    await tab.close();
  });
});

test("a conversation deleted by mistake comes back, pictures and all; the keyboard's place is not lost", async () => {
  const tab = await Tab.open(browser, margay.url);
  const { page } = tab;
  await tab.choose(receipt);
  await tab.ask("What is the total price?");
  await tab.answer();
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.getByRole("button", { name: /^Delete/ }).press("Enter");
  const undo = page.getByRole("button", { name: "Undo" });
  await undo.waitFor();
  expect(await stored(page, "talks")).toEqual([]);
  expect(await undo.evaluate((el) => document.activeElement === el)).toBe(true);
  expect(await axe(page)).toEqual([]);
  await page.keyboard.press("Enter");
  await page.locator(".talk-list .open").click();
  await page.waitForSelector(".frame img");
  await page.reload();
  expect(await tab.answer()).toBe("45.67");
  await page.waitForSelector(".frame img");
  await tab.close();
});

describe("races", () => {
  test("a conversation deleted during its answer stays deleted", async () => {
    const tab = await Tab.open(browser, slow.url);
    const { page } = tab;
    await makeLong(page);
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    await tab.stage("answer");
    await pause(600);
    await page.getByRole("button", { name: "Conversations" }).click();
    await page.getByRole("button", { name: /^Delete/ }).click();
    await page.getByText("What would you like to know").waitFor();
    await pause(1200);
    expect(await stored(page, "talks")).toEqual([]);
    await tab.close();
  });

  test("deleted in one tab, it is gone from the other, which was answering in it", async () => {
    const one = await Tab.open(browser, slow.url);
    await makeLong(one.page);
    await one.ask("Describe.");
    await one.stage("answer");
    const two = await Tab.open(one.context, slow.url);
    await two.page.getByRole("button", { name: "Conversations" }).click();
    await two.page.getByRole("button", { name: /^Delete/ }).click();
    await one.page.getByText("What would you like to know").waitFor();
    await pause(1200);
    expect(await stored(two.page, "talks")).toEqual([]);
    await two.page.close();
    await one.close();
  });

  test("two tabs can't answer in one conversation at once", async () => {
    const one = await Tab.open(browser, slow.url);
    await makeLong(one.page);
    await one.ask("first");
    await one.stage("answer");
    const two = await Tab.open(one.context, slow.url);
    await two.page.getByRole("button", { name: "Conversations" }).click();
    await two.page.locator(".talk-list .open").first().click();
    await two.page.getByText("Being answered in another tab.").waitFor();
    await two.ask("second");
    await two.page.locator(".notice").getByText("Being answered in another tab.").waitFor();
    expect(await two.page.locator(".question").count()).toBe(1);
    expect(await two.page.inputValue("#question")).toBe("second"); // not lost
    await one.page.getByRole("button", { name: "Stop" }).click();
    await two.page.getByText("Stopped.").waitFor();
    await two.page.keyboard.press("Enter");
    await two.page.waitForFunction(() => document.querySelectorAll(".question").length === 2);
    await two.page.waitForFunction(() => !document.querySelector(".answer.is-running"));
    expect(await two.page.locator(".answer").count()).toBe(2);
    await two.page.close();
    await one.close();
  });

  /** Pictures take as long as `go` is not called. */
  async function holdPictures(page: Page): Promise<() => Promise<void>> {
    await page.addInitScript(() => {
      const Real = Worker;
      const w = window as unknown as { go(): void; held: (() => void)[] };
      w.held = [];
      w.go = () => w.held.splice(0).forEach((fn) => fn());
      window.Worker = class extends Real {
        override postMessage(message: unknown): void {
          w.held.push(() => super.postMessage(message));
        }
      };
    });
    await page.reload();
    return () => page.evaluate(() => (window as unknown as { go(): void }).go());
  }

  test("asked, stopped and asked again while the picture is being made ready: never asked without it", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const go = await holdPictures(page);
    await tab.choose(receipt);
    await tab.ask("What is the total price?");
    await tab.stage("prepare");
    expect(await page.locator(".question .thumb img").count()).toBe(1); // still seen
    expect(await page.locator(".large img").count()).toBe(1);
    await page.keyboard.press("Escape");
    await page.getByText("Stopped.").waitFor();
    await tab.last.getByRole("button", { name: "Try again" }).click();
    await pause(300);
    await go();
    await page.waitForSelector(".answer.is-done");
    expect(await tab.answer()).toBe("45.67");
    expect(await stored(page, "pictures")).toHaveLength(1);
    await page.reload(); // kept, too
    await page.waitForSelector(".frame img");
    await tab.close();
  });

  test("a picture that turns out to be damaged after the question: nothing is asked without it", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const go = await holdPictures(page);
    let asked = 0;
    page.on("request", (r) => (asked += Number(r.url().endsWith("/chat/completions"))));
    await tab.choose({ name: "half.png", mimeType: "image/png", buffer: readFileSync(receipt).subarray(0, 500) });
    await tab.ask("What is the total price?");
    await tab.stage("prepare");
    await go();
    await page.getByText("A picture could not be read, so nothing was asked.").waitFor();
    expect(asked).toBe(0);
    await tab.last.getByRole("button", { name: "Try again" }).waitFor();
    await tab.close();
  });

  test("a picture that the browser has lost: said, not asked without it", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await tab.choose(receipt);
    await tab.ask("What is the total price?");
    await tab.answer();
    await page.evaluate(() => new Promise((r) => {
      const open = indexedDB.open("margay", 1);
      open.onsuccess = () => {
        const t = open.result.transaction("pictures", "readwrite");
        t.objectStore("pictures").clear();
        t.oncomplete = r;
      };
    }));
    await page.reload();
    await page.waitForSelector(".answer.is-done");
    await tab.ask("What is the total amount?");
    await page.getByText("no longer in this browser").waitFor();
    await tab.close();
  });
});

describe("what stands in between", () => {
  test.each([
    [413, "larger than the server takes"],
    [403, "doesn't allow this"],
    [502, "a proxy) can't reach it"],
    [504, "a proxy) can't reach it"],
    [418, "had trouble"],
  ])("a proxy's %d in HTML is said in words, with its number", async (status, words) => {
    stand.script = (x) => {
      x.res.writeHead(status, { "Content-Type": "text/html" });
      x.res.end("<html><h1>nginx</h1></html>");
    };
    const tab = await Tab.open(browser, stand.url);
    await tab.ask("q");
    await tab.last.getByRole("alert").getByText(words).waitFor();
    await tab.last.getByText("Details").click();
    expect(await tab.last.getByRole("alert").innerText()).toContain(`HTTP ${status}`);
    await tab.close();
  });

  test("429 without a word, to be asked again at a date of the server's clock, which is wrong", async () => {
    let n = 0;
    const at: number[] = [];
    stand.script = async (x) => {
      at.push(Date.now());
      const clock = Date.now() - 3 * 3600e3;
      if (n++ === 0) {
        x.res.sendDate = false;
        x.res.writeHead(429, { Date: new Date(clock).toUTCString(), "Retry-After": new Date(clock + 3000).toUTCString() });
        return void x.res.end();
      }
      await x.text("later");
      x.end();
    };
    const tab = await Tab.open(browser, stand.url);
    await tab.ask("q");
    await tab.stage("busy");
    expect(await tab.answer()).toBe("later");
    expect(at[1]! - at[0]!).toBeGreaterThan(1900);
    expect(at[1]! - at[0]!).toBeLessThan(8000);
    await tab.close();
  });

  test("something that answers HTML to everything, and no WebSocket either", async () => {
    stand.script = (x) => {
      x.res.writeHead(200, { "Content-Type": "text/html" });
      x.res.end("<html>Sign in</html>");
    };
    const tab = await Tab.open(browser, stand.url);
    await tab.ask("q");
    await tab.last.getByText("a page that wants a sign-in").waitFor();
    expect(await tab.page.locator(".link-banner").count()).toBe(0);
    await tab.close();
  });

  test("a WebSocket that says no JSON is lost, not waited for", async () => {
    const tab = await Tab.open(browser, stand.url);
    await tab.page.evaluate(() => localStorage.setItem("margay-settings", '{"transport":"ws"}'));
    await tab.page.routeWebSocket("**/ws", (ws) => ws.onMessage(() => ws.send("<html>")));
    await tab.page.reload();
    await tab.ask("q");
    await tab.last.getByText("The connection broke off").waitFor();
    await tab.close();
  });

  test("the page's own parts can't be loaded any more: said, nothing hangs", async () => {
    const context = await browser.newContext({ locale: "en-GB" });
    await context.route(/shrink/, (route) => route.abort());
    const tab = await Tab.open(context, margay.url);
    await tab.choose(receipt);
    await tab.page.getByText("a part of this page can't be loaded").waitFor();
    expect(await tab.page.locator(".thumb").count()).toBe(0);
    await context.unroute(/shrink/);
    await context.route(/receipt-.*png/, (route) => route.abort());
    await tab.page.getByRole("button", { name: "A receipt" }).click();
    await tab.page.locator(".notice").getByText("can't be reached").waitFor();
    expect(tab.errors.filter((e) => !/shrink|Fetch API/.test(e))).toEqual([]);
    await context.close();
  });

  test("a server that goes away before the first picture: the worker is there already", async () => {
    const own = await Margay.start();
    const tab = await Tab.open(browser, own.url);
    await tab.page.waitForLoadState("networkidle");
    await pause(300);
    await own.kill();
    await tab.choose(receipt);
    await tab.page.waitForSelector(".field .thumb:not(.working)");
    await tab.close();
  });

  test("a key that no header can carry is a wrong key, not a server that is away", async () => {
    const locked = await Margay.start("--api-key", "sesame");
    const tab = await Tab.open(browser, locked.url);
    const field = tab.page.getByLabel("API key", { exact: true });
    for (const wrong of ["ключ", "sesa\u200bme", "密钥"]) {
      await field.fill(wrong);
      await tab.page.getByRole("button", { name: "Continue" }).click();
      await tab.page.getByText("This key isn't accepted.").waitFor();
      expect(await tab.page.locator(".link-banner").count()).toBe(0);
    }
    await field.fill("sesame");
    await tab.page.keyboard.press("Enter");
    await tab.page.waitForSelector(".model.is-ok");
    await tab.close();
    await locked.kill();
  });
});

describe("input", () => {
  test("text that comes with a picture of it is pasted as text into the question", async () => {
    const tab = await Tab.open(browser, margay.url);
    const prevented = await tab.page.evaluate((bytes) => {
      const paste = (target: Element) => {
        const data = new DataTransfer();
        data.setData("text/plain", "A1\tB1");
        data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
        return !target.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
      };
      return [paste(document.querySelector("#question")!), paste(document.body)];
    }, [...readFileSync(receipt)]);
    expect(prevented).toEqual([false, true]);
    await tab.page.waitForSelector(".field .thumb:not(.working)");
    expect(await tab.page.locator(".field .thumb").count()).toBe(1);
    await tab.close();
  });

  test("Enter and Escape that belong to an input method neither ask nor stop", async () => {
    stand.script = async (x) => {
      await x.text("so far");
      while (!x.gone) await pause(20);
    };
    const tab = await Tab.open(browser, stand.url);
    const { page } = tab;
    await page.fill("#question", "什么");
    const press = (init: KeyboardEventInit) => page.evaluate((i) => document.querySelector("#question")!.dispatchEvent(new KeyboardEvent("keydown", { bubbles: true, cancelable: true, ...i })), init);
    await press({ key: "Enter", isComposing: true });
    await press({ key: "Enter", keyCode: 229 } as KeyboardEventInit);
    await pause(100);
    expect(await page.locator(".question").count()).toBe(0);
    await press({ key: "Enter" });
    await tab.stage("answer");
    await press({ key: "Escape", isComposing: true });
    await pause(200);
    expect(await page.locator(".answer.is-running").count()).toBe(1);
    await press({ key: "Escape" });
    await page.waitForSelector(".answer.is-stopped");
    await tab.close();
  });

  test("a window that the browser closes by itself can be opened again; marking text to beside it closes none", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await page.getByRole("button", { name: "Settings" }).click();
    await page.waitForSelector("dialog[open]");
    await page.getByLabel("Most tokens of an answer").hover();
    await page.mouse.down();
    await page.mouse.move(5, 400);
    await page.mouse.up();
    await pause(150);
    expect(await page.locator("dialog[open]").count()).toBe(1);
    await page.evaluate(() => document.querySelector("dialog")!.close());
    await page.waitForSelector("dialog", { state: "detached" });
    await page.getByRole("button", { name: "Settings" }).click();
    await page.waitForSelector("dialog[open]");
    await page.mouse.click(5, 400); // beside it
    await page.waitForSelector("dialog", { state: "detached" });
    await tab.close();
  });

  test("stages and the answer are said to who can't see them", async () => {
    let go: () => void = () => undefined;
    stand.script = async (x) => {
      x.progress({ stage: "vision", step: 1, of: 5 });
      await new Promise<void>((r) => (go = r));
      await x.text("a cat");
      x.end();
    };
    const tab = await Tab.open(browser, stand.url);
    const said = tab.page.locator("#said");
    expect(await said.getAttribute("role")).toBe("status");
    await said.evaluate((el) => ((window as unknown as { region: Element }).region = el));
    await tab.ask("q");
    await tab.stage("vision");
    await until(async () => (await said.textContent()) === "Looking");
    go();
    await until(async () => (await said.textContent()) === "a cat");
    expect(await said.evaluate((el) => (window as unknown as { region: Element }).region === el)).toBe(true); // a new one is not read out
    await tab.close();
  });
});

/** A PNG of one colour. */
function png(width: number, height: number, depth: number, type: number, row: Buffer): Buffer {
  const crc = (b: Buffer): number => {
    let n = 0xffffffff;
    for (const x of b) {
      n ^= x;
      for (let k = 0; k < 8; k++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
    }
    return ~n >>> 0;
  };
  const chunk = (name: string, data: Buffer): Buffer => {
    const out = Buffer.concat([Buffer.alloc(4), Buffer.from(name), data, Buffer.alloc(4)]);
    out.writeUInt32BE(data.length);
    out.writeUInt32BE(crc(out.subarray(4, -4)), out.length - 4);
    return out;
  };
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width);
  head.writeUInt32BE(height, 4);
  head[8] = depth;
  head[9] = type;
  const data = deflateSync(Buffer.concat(Array.from({ length: height }, () => Buffer.concat([Buffer.from([0]), row]))));
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", head), chunk("IDAT", data), chunk("IEND", Buffer.alloc(0))]);
}

describe("pictures", () => {
  test("400 million pixels in 49 kB are refused by the header, at once", async () => {
    const tab = await Tab.open(browser, margay.url);
    const bomb = png(20000, 20000, 1, 0, Buffer.alloc(2500));
    expect(bomb.length).toBeLessThan(60000);
    await tab.choose({ name: "bomb.png", mimeType: "image/png", buffer: bomb });
    await tab.page.getByText("“bomb.png” is too large to be opened here.").waitFor();
    expect(await tab.page.locator(".thumb").count()).toBe(0);
    await tab.close();
  });

  test("16 bit, transparent, one pixel, SVG and HTML in disguise", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    for (const [name, buffer, caption] of [
      ["deep.png", png(64, 48, 16, 6, Buffer.alloc(512, 0x80)), "64 × 48"],
      ["clear.png", png(1500, 30, 8, 6, Buffer.alloc(6000)), "1500 × 30 → 1024 × 20"],
      ["one.png", png(1, 1, 8, 2, Buffer.from([255, 0, 0])), "1 × 1"],
    ] as const) {
      await tab.choose({ name, mimeType: "image/png", buffer });
      await page.waitForSelector(".field .thumb:not(.working)");
      await page.locator(".large figcaption").getByText(caption).waitFor();
      await page.click(".preset");
      await tab.answer();
      expect(await page.locator(".answer.is-done").count()).toBe(1);
      await page.getByRole("button", { name: "New conversation" }).click();
    }
    const svg = "<svg xmlns='http://www.w3.org/2000/svg' onload='window.bad=1' width='9' height='9'><script>window.bad=1</script></svg>";
    for (const [name, type] of [["a.png", "image/png"], ["a.svg", "image/svg+xml"]] as const) {
      await tab.choose({ name, mimeType: type, buffer: Buffer.from(svg) });
      await page.getByText(`“${name}” is no picture`).waitFor();
    }
    await tab.choose({ name: "a.jpg", mimeType: "text/html", buffer: Buffer.from("<html><script>window.bad=1</script>") });
    await page.getByText("“a.jpg” is no picture").waitFor();
    expect(await page.evaluate(() => (window as unknown as { bad?: number }).bad)).toBeUndefined();
    await tab.close();
  });

  test("more pictures than a question may have are not taken, and it is said", async () => {
    const few = await Margay.start("--max-images", "3");
    const tab = await Tab.open(browser, few.url);
    await tab.page.waitForSelector(".model.is-ok");
    await tab.choose(...Array.from({ length: 5 }, () => receipt));
    await tab.page.getByText("More pictures than one question can have.").waitFor();
    expect(await tab.page.locator(".field .thumb").count()).toBe(3);
    await tab.close();
    await few.kill();
  });
});

test("2,000 boxes: one that lights up does not draw the others anew", async () => {
  stand.script = async (x) => {
    for (let i = 0; i < 2100; i++) await x.text(`{"bbox_2d": [${(i % 50) * 20}, ${Math.floor(i / 50) * 20}, ${(i % 50) * 20 + 15}, ${Math.floor(i / 50) * 20 + 15}], "label": "n${i}"},\n`);
    x.end();
  };
  const tab = await Tab.open(browser, stand.url);
  const { page } = tab;
  await tab.choose(sample("what_000.png"));
  await tab.ask("q");
  await page.waitForSelector(".answer.is-done", { timeout: 20000 });
  expect(await page.locator(".overlay .line").count()).toBe(2000);
  await pause(1500);
  const cost = await page.evaluate(async () => {
    const times: number[] = [];
    for (const el of [...document.querySelectorAll(".object")].slice(0, 16)) {
      const start = performance.now();
      el.dispatchEvent(new PointerEvent("pointerenter"));
      await Promise.resolve(); // drawn by Preact; what the browser then does is not ours
      await new Promise((r) => setTimeout(r));
      times.push(performance.now() - start);
    }
    return Math.min(...times); // the least: the machine has others on it
  });
  console.log(`a hover among 2,000 boxes: ${cost.toFixed(1)} ms`);
  expect(cost).toBeLessThan(60);
  await tab.close();
}, 60000);

describe("looks", () => {
  const boxes = '[{"bbox_2d": [100, 100, 400, 500], "label": "square"},{"bbox_2d": [800, 200, 950, 900], "label": "a star with a label that goes on and on"},{"point_2d": [990, 500], "label": "the edge"}]';

  test.each([
    ["a phone on its side", 740, 360],
    ["a small phone", 320, 480],
    ["400 % zoom", 320, 256],
  ])("%s: all of it can be seen", async (_name, width, height) => {
    stand.script = async (x) => {
      await x.text(boxes + "\n\nThat was all.");
      x.end();
    };
    const tab = await Tab.open(browser, stand.url, { viewport: { width, height }, hasTouch: true, isMobile: true, locale: "zh-CN" });
    const { page } = tab;
    await tab.choose(sample("what_000.png"), receipt);
    await page.waitForFunction(() => document.querySelectorAll(".field .thumb:not(.working)").length === 2);
    await tab.ask("q");
    await page.waitForSelector(".answer.is-done");
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width);
    for (const what of [".top", ".frame", ".question", ".answer .prose", ".send"]) {
      await page.locator(what).first().scrollIntoViewIfNeeded();
      const seen = await page.locator(what).first().evaluate((el) => {
        // As much of it as no frame around it cuts off.
        let { top, bottom } = el.getBoundingClientRect();
        for (let up = el.parentElement; up; up = up.parentElement)
          if (getComputedStyle(up).overflowY !== "visible") {
            const r = up === document.body || up === document.documentElement ? { top: 0, bottom: innerHeight } : up.getBoundingClientRect();
            top = Math.max(top, r.top);
            bottom = Math.min(bottom, r.bottom);
          }
        const own = el.getBoundingClientRect().height;
        const at = document.elementFromPoint(el.getBoundingClientRect().left + 20, (Math.max(0, top) + Math.min(innerHeight, bottom)) / 2);
        return { share: (bottom - top) / Math.min(own, 60), mine: at !== null && (el.contains(at) || at.contains(el)) };
      });
      expect(seen.share, what).toBeGreaterThan(0.9);
      expect(seen.mine, what).toBe(true);
    }
    expect(await axe(page)).toEqual([]);
    await tab.close();
  });

  test("labels stay within the picture", async () => {
    stand.script = async (x) => {
      await x.text(boxes);
      x.end();
    };
    const tab = await Tab.open(browser, stand.url, { viewport: { width: 360, height: 740 } });
    await tab.choose(sample("what_000.png"));
    await tab.ask("q");
    await tab.answer();
    const frame = (await tab.page.locator(".frame").boundingBox())!;
    for (const tag of await tab.page.locator(".tag").all()) {
      const b = (await tag.boundingBox())!;
      expect(b.x).toBeGreaterThanOrEqual(frame.x - 7); // a point's dot lies over its middle
      expect(b.x + b.width).toBeLessThanOrEqual(frame.x + frame.width + 7);
      expect(b.width).toBeGreaterThan(10);
    }
    await tab.close();
  });

  test("Arabic and English each in their direction; no half letters", async () => {
    stand.script = async (x) => {
      await x.text("مرحبا بالعالم\n\nHello\n\n" + "好".repeat(3999) + "😀".repeat(300));
      x.end();
    };
    const tab = await Tab.open(browser, stand.url);
    await tab.ask("ما هذا؟ " + "😀".repeat(60));
    await tab.answer();
    await tab.page.locator(".prose p").nth(2).waitFor(); // Markdown's part of the page has come
    const sides = await tab.page.evaluate(() => {
      const side = (el: Element) => {
        const range = document.createRange();
        range.selectNodeContents(el);
        const text = range.getBoundingClientRect();
        const box = el.getBoundingClientRect();
        return text.left - box.left > box.right - text.right + 20 ? "right" : "left";
      };
      return [...document.querySelectorAll(".prose p")].slice(0, 2).map(side);
    });
    expect(sides).toEqual(["right", "left"]);
    expect(await tab.page.locator(".bubble p").getAttribute("dir")).toBe("auto");
    const lone = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
    expect(await tab.page.locator(".prose").textContent()).not.toMatch(lone);
    for (const p of await tab.page.locator(".prose p").allTextContents()) expect(p).not.toMatch(lone);
    expect((await stored(tab.page, "talks"))[0]!.title).not.toMatch(lone);
    await tab.close();
  });
});

test("a conversation of 400 answers: a key that is pressed does not make them anew", async () => {
  const tab = await Tab.open(browser, stand.url);
  const { page } = tab;
  await page.getByRole("button", { name: "Conversations" }).click();
  await page.getByText("Nothing yet.").waitFor(); // the database is there
  await page.keyboard.press("Escape");
  await page.evaluate(async () => {
    const db = await new Promise<IDBDatabase>((r) => {
      const open = indexedDB.open("margay", 1);
      open.onsuccess = () => r(open.result);
    });
    const messages = Array.from({ length: 400 }, (_, i) => [
      { id: `u${i}`, role: "user", text: `question ${i}`, at: 1, pictures: [], state: "done" },
      { id: `a${i}`, role: "assistant", text: `Answer **${i}**\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n[{"bbox_2d":[1,2,3,4],"label":"x"}]`, at: 1, pictures: [], state: "done" },
    ]).flat();
    const t = db.transaction("talks", "readwrite");
    t.objectStore("talks").put({ id: "long", title: "long", created: 1, updated: 1, messages });
    await new Promise((r) => (t.oncomplete = r));
    db.close();
    sessionStorage.setItem("margay-talk", "long");
  });
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll(".answer .prose[data-whole=true]").length === 400);
  const cost = await page.evaluate(async () => {
    const area = document.querySelector("#question") as HTMLTextAreaElement;
    const times: number[] = [];
    for (let i = 0; i < 15; i++) {
      const start = performance.now();
      area.value += "x";
      area.dispatchEvent(new InputEvent("input", { bubbles: true }));
      await Promise.resolve();
      await new Promise((r) => setTimeout(r));
      times.push(performance.now() - start);
    }
    return Math.min(...times); // the least: the machine has others on it
  });
  console.log(`a key in 400 answers: ${cost.toFixed(1)} ms`);
  expect(cost).toBeLessThan(20);
  await tab.close();
});

test("100 questions with pictures in one tab: memory does not grow with what is over", async () => {
  stand.script = async (x) => {
    await x.text("A word or two. ".repeat(20));
    x.end();
  };
  const tab = await Tab.open(browser, stand.url);
  const { page } = tab;
  const cdp = await tab.context.newCDPSession(page);
  const heap = async () => {
    await cdp.send("HeapProfiler.collectGarbage");
    const { usedSize } = await cdp.send("Runtime.getHeapUsage");
    const { nodes } = await cdp.send("Memory.getDOMCounters");
    return { mb: usedSize / 1e6, nodes };
  };
  await page.evaluate(() => {
    const w = window as unknown as { urls: number };
    w.urls = 0;
    const [make, end] = [URL.createObjectURL, URL.revokeObjectURL];
    const open = new Set<string>();
    URL.createObjectURL = (b: Blob) => {
      const u = make.call(URL, b);
      open.add(u);
      w.urls = open.size;
      return u;
    };
    URL.revokeObjectURL = (u: string) => {
      open.delete(u);
      w.urls = open.size;
      end.call(URL, u);
    };
  });
  const round = async () => {
    // Locators, not waitForSelector: its handles would keep the elements.
    await tab.choose(sample("what_000.png"));
    await page.locator(".field .thumb:not(.working)").waitFor();
    await tab.ask("q");
    await page.locator(".answer.is-done").waitFor();
    await page.keyboard.press("Alt+n");
    await page.locator(".hello").waitFor();
  };
  for (let i = 0; i < 10; i++) await round();
  const before = await heap();
  for (let i = 0; i < 90; i++) await round();
  await pause(2500);
  const after = await heap();
  const urls = await page.evaluate(() => (window as unknown as { urls: number }).urls);
  console.log(`100 questions: heap ${before.mb.toFixed(1)} to ${after.mb.toFixed(1)} MB, nodes ${before.nodes} to ${after.nodes}, ${urls} object URLs`);
  expect(after.mb - before.mb).toBeLessThan(6);
  expect(after.nodes).toBeLessThan(before.nodes * 2 + 2000);
  expect(urls).toBeLessThan(110); // a picture's own, none for its file
  await tab.close();
}, 120000);
