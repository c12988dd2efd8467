/** The page in a real browser against a real margay with the demo model. */
import { readFileSync } from "node:fs";
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Margay, Tab, axe, makeLong, openBrowser, photo, sample, until } from "./harness";

let browser: Browser;
let margay: Margay;
let slow: Margay;
beforeAll(async () => {
  [browser, margay, slow] = await Promise.all([openBrowser(), Margay.start(), Margay.slow()]);
});
afterAll(async () => {
  await browser?.close();
  await margay?.kill("SIGTERM");
  await slow?.kill("SIGTERM");
});

const file = (name: string) => ({ name, mimeType: "image/png", buffer: readFileSync(sample(name)) });

describe("ways in", () => {
  test("a picture dropped from outside; the answer is right", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const cdp = await page.context().newCDPSession(page);
    const data = { items: [], files: [sample("receipt_total_001.png")], dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver"] as const) await cdp.send("Input.dispatchDragEvent", { type, x: 640, y: 300, data });
    await page.waitForSelector(".veil");
    await cdp.send("Input.dispatchDragEvent", { type: "drop", x: 640, y: 300, data });
    await page.waitForSelector(".field .thumb");
    expect(await page.locator(".veil").count()).toBe(0);
    await tab.ask("What is the total price?");
    expect(await tab.answer()).toBe("45.67");
    await tab.close();
  });

  test("a link dropped does not take one away, and is explained", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const cdp = await page.context().newCDPSession(page);
    const data = { items: [{ mimeType: "text/uri-list", data: "https://example.org/cat.jpg" }], dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"] as const) await cdp.send("Input.dispatchDragEvent", { type, x: 640, y: 200, data });
    await page.getByText("gives only the address").waitFor();
    expect(page.url()).toBe(margay.url);
    await tab.close();
  });

  test("pasted", async () => {
    const tab = await Tab.open(browser, margay.url);
    await tab.page.evaluate((bytes) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
      document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }, [...readFileSync(sample("what_002.png"))]);
    await tab.page.waitForSelector(".field .thumb");
    await tab.page.click(".preset"); // describe
    expect(await tab.answer()).toBe("a blue triangle and a purple star");
    await tab.close();
  });

  test("chosen: several at once; one removed; the sample pictures", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const chooser = page.waitForEvent("filechooser");
    await page.getByRole("button", { name: "Choose pictures" }).click();
    await (await chooser).setFiles([file("colour_002.png"), file("ocr_line_002.png")]);
    await page.waitForFunction(() => document.querySelectorAll(".field .thumb:not(.working)").length === 2);
    expect(await page.locator(".strip .thumb").count()).toBe(2);
    await page.getByRole("button", { name: "Remove colour_002.png" }).click();
    expect(await page.locator(".field .thumb").count()).toBe(1);
    await tab.ask("Read this.");
    expect(await tab.answer()).toBe("DUTCH");
    await page.getByRole("button", { name: "New conversation" }).click();
    await page.getByRole("button", { name: "A sign" }).click();
    await page.waitForSelector(".field .thumb:not(.working)");
    expect(await page.inputValue("#question")).toBe("Read the text.");
    await page.keyboard.press("Enter");
    expect(await tab.answer()).toBe("TIPS\nVOODOO");
    await tab.close();
  });

  test("from the camera", async () => {
    const tab = await Tab.open(browser, margay.url, { permissions: ["camera"] });
    const { page } = tab;
    await page.getByRole("button", { name: "Use the camera" }).click();
    const take = page.getByRole("button", { name: "Take the picture" });
    await take.click();
    await page.waitForSelector(".field .thumb:not(.working)");
    expect(await page.locator("dialog").count()).toBe(0);
    expect(await page.locator(".large .dim").innerText()).toMatch(/^\d+ × \d+/);
    await page.click(".preset");
    expect((await tab.answer()).length).toBeGreaterThan(0);
    await tab.close();
  });

  test("on a phone that may not use it: the phone's own camera program", async () => {
    const tab = await Tab.open(browser, margay.url);
    await tab.page.evaluate(() => Object.defineProperty(navigator, "mediaDevices", { value: undefined }));
    const chooser = tab.page.waitForEvent("filechooser");
    await tab.page.getByRole("button", { name: "Use the camera" }).click();
    expect(await (await chooser).element().getAttribute("capture")).toBe("environment");
    await tab.close();
  });

  test("a camera that is refused is explained", async () => {
    const tab = await Tab.open(browser, margay.url);
    await tab.page.evaluate(() => (navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("no", "NotAllowedError"))));
    await tab.page.getByRole("button", { name: "Use the camera" }).click();
    await tab.page.getByText("The camera can't be used").waitFor();
    await tab.close();
  });
});

describe("pictures", () => {
  test("24 megapixels, lying on the side: upright and small when sent, and the page never stands still", async () => {
    const big = await photo(browser, 6000, 4000, 6);
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const sent: string[] = [];
    page.on("response", async (r) => r.url().endsWith("/v1/files") && sent.push(((await r.json()) as { id: string }).id));
    await page.waitForTimeout(300);
    await page.evaluate(() => ((window as unknown as { long: number[] }).long.length = 0));
    await tab.choose({ name: "photo.jpg", mimeType: "image/jpeg", buffer: big });
    // Something is there before the picture has been shrunk, whatever the worker is doing.
    await page.waitForSelector(".field .thumb", { timeout: 3000 });
    await page.waitForSelector(".field .thumb:not(.working)");
    expect(await page.locator(".large figcaption").innerText()).toContain("4000 × 6000 → 683 × 1024");
    await page.click(".preset");
    await tab.answer();
    expect(await tab.longest()).toBeLessThan(1500);
    expect(sent).toHaveLength(1);
    const jpeg = new Uint8Array(await (await fetch(`${margay.url}v1/files/${sent[0]}/content`)).arrayBuffer());
    expect(jpeg.length).toBeLessThan(500000);
    // What was the top edge is to the right after the turn by a quarter.
    const top = await page.evaluate(async (bytes) => {
      const bitmap = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
      const c = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d")!;
      c.drawImage(bitmap, 0, 0);
      const at = (x: number, y: number) => [...c.getImageData(x, y, 1, 1).data.slice(0, 3)];
      return [bitmap.width, bitmap.height, at(600, 300), at(600, 900)];
    }, [...jpeg]);
    expect(top.slice(0, 2)).toEqual([683, 1024]);
    const [r, g, b] = top[2] as number[];
    expect(r! > 200 && g! < 60 && b! < 60).toBe(true);
    await tab.close();
  });

  test("thumbnail and stage are there long before the server has said anything", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await page.route("**/v1/**", async (route) => {
      await new Promise((r) => setTimeout(r, 2500));
      await route.continue();
    });
    // 100 ms on a quiet machine (docs/page.md); the bound leaves room for a busy one.
    const thumb = await page.evaluate(async (bytes) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
      const start = performance.now();
      document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
      while (!document.querySelector(".field .thumb img")) await new Promise(requestAnimationFrame);
      return performance.now() - start;
    }, [...readFileSync(sample("what_002.png"))]);
    expect(thumb).toBeLessThan(1500);
    await page.waitForSelector(".field .thumb:not(.working)");
    const stage = await page.evaluate(async () => {
      const start = performance.now();
      (document.querySelector(".preset") as HTMLElement).click();
      while (!document.querySelector(".stage .eyes")) await new Promise(requestAnimationFrame);
      return performance.now() - start;
    });
    expect(stage).toBeLessThan(1500);
    await tab.stage("send");
    await tab.answer();
    await tab.close();
  });

  test("what is broken is refused in words, and nothing else stops working", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    const png = readFileSync(sample("receipt_total_001.png"));
    const damaged = Buffer.from(png);
    damaged.fill(0x55, 60, png.length - 20);
    for (const [name, buffer, words] of [
      ["letter.jpg", Buffer.from("Dear Sir or Madam"), "is no picture"],
      ["half.png", png.subarray(0, png.length / 2), "is cut off"],
      ["damaged.png", damaged, "is damaged"],
      ["empty.png", Buffer.alloc(0), "is no picture"],
    ] as const) {
      await tab.choose({ name, mimeType: "image/png", buffer });
      await page.getByText(words).waitFor();
      expect(await page.locator(".notice").innerText()).toContain(name);
      expect(await page.locator(".thumb").count()).toBe(0);
    }
    await tab.choose(sample("receipt_total_001.png"));
    await tab.ask("What is the total price?");
    expect(await tab.answer()).toBe("45.67");
    await tab.close();
  });

  test("HEIC, which this browser can't read, goes to the server as it is", async () => {
    const tab = await Tab.open(browser, margay.url);
    const heic = Buffer.concat([Buffer.from("\0\0\0\x18ftypheic\0\0\0\0mif1heic", "latin1"), Buffer.alloc(400)]);
    await tab.choose({ name: "IMG_1.HEIC", mimeType: "", buffer: heic });
    await tab.page.getByText("can't show HEIC").waitFor();
    await tab.page.click(".preset");
    await tab.answer();
    await tab.last.getByRole("alert").waitFor(); // it was no real one
    await tab.close();
  });
});

describe("conversations", () => {
  test("the second question reuses the picture, and says so; it is uploaded once", async () => {
    const tab = await Tab.open(browser, margay.url);
    let uploads = 0;
    tab.page.on("request", (r) => (uploads += Number(r.url().endsWith("/v1/files"))));
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    expect(await tab.answer()).toBe("a green square and a brown star");
    expect(await tab.last.locator(".chip.looked").count()).toBe(1);
    await tab.ask("What can you see in this picture?");
    await tab.answer();
    expect(await tab.last.locator(".chip.reused").innerText()).toBe("picture reused");
    expect(uploads).toBe(1);
    await tab.close();
  });

  test("copy, regenerate, edit", async () => {
    const tab = await Tab.open(browser, margay.url, { permissions: ["clipboard-read", "clipboard-write"] });
    const { page } = tab;
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    await tab.answer();
    await tab.last.getByRole("button", { name: "Copy" }).click();
    expect(await page.evaluate(() => navigator.clipboard.readText())).toBe("a green square and a brown star");
    await tab.last.getByRole("button", { name: "Regenerate" }).click();
    await page.waitForSelector(".chip.varied");
    expect(await page.locator(".answer").count()).toBe(1);
    await page.hover(".bubble");
    await page.getByRole("button", { name: "Edit the question" }).click();
    await page.getByRole("textbox", { name: "Edit the question" }).fill("What is the colour of the square?");
    await page.keyboard.press("Enter");
    await until(async () => (await page.locator(".bubble").innerText()).includes("colour"));
    expect(await tab.answer()).toBe("green");
    expect(await page.locator(".question").count()).toBe(1);
    await tab.close();
  });

  test("two tabs at once, each its own; both are in the list; one is deleted", async () => {
    const one = await Tab.open(browser, margay.url);
    const two = await Tab.open(one.context, margay.url);
    await Promise.all([one.choose(sample("receipt_total_001.png")), two.choose(sample("colour_002.png"))]);
    await Promise.all([one.ask("What is the total price?"), two.ask("What colour is the triangle?")]);
    expect(await Promise.all([one.answer(), two.answer()])).toEqual(["45.67", "gray"]);
    await two.page.getByRole("button", { name: "Conversations" }).click();
    await two.page.waitForFunction(() => document.querySelectorAll(".talk-list li").length === 2);
    await two.page.getByRole("button", { name: "What is the total price?", exact: false }).first().click();
    await two.page.waitForFunction(() => document.querySelector(".answer .prose")?.textContent?.includes("45.67"));
    await two.page.getByRole("button", { name: "Conversations" }).click();
    await two.page.getByRole("button", { name: /^Delete .*colour/ }).click();
    await two.page.waitForFunction(() => document.querySelectorAll(".talk-list li").length === 1);
    await two.page.close();
    await one.close();
  });

  test("a reload keeps the conversation, picture and all, and it goes on", async () => {
    const tab = await Tab.open(browser, margay.url);
    await tab.choose(sample("receipt_total_001.png"));
    await tab.ask("What is the total price?");
    await tab.answer();
    await tab.page.reload();
    expect(await tab.answer()).toBe("45.67");
    await tab.page.waitForSelector(".frame img");
    await tab.ask("What is the total amount?");
    await tab.answer();
    expect(await tab.page.locator(".answer").count()).toBe(2);
    expect(await tab.last.locator(".chip.reused").count()).toBe(1);
    await tab.close();
  });

  test("a reload in the middle of an answer: kept as stopped, with a way to go on", async () => {
    const tab = await Tab.open(browser, slow.url);
    await makeLong(tab.page);
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    await tab.stage("answer");
    await tab.page.waitForTimeout(700);
    await tab.page.reload();
    await tab.page.getByText("closed or reloaded during the answer").waitFor();
    expect((await tab.last.locator(".prose").innerText()).length).toBeGreaterThan(5);
    await tab.page.unroute("**/v1/chat/completions");
    await tab.last.getByRole("button", { name: "Try again" }).click();
    await tab.page.waitForFunction(() => document.querySelector(".answer.is-done"));
    expect(await tab.answer()).toBe("a green square and a brown star");
    await tab.close();
  });

  test("a tab shows that another is answering", async () => {
    const one = await Tab.open(browser, slow.url);
    await makeLong(one.page);
    await one.choose(sample("what_000.png"));
    await one.ask("Describe the picture.");
    await one.stage("answer");
    const two = await Tab.open(one.context, slow.url);
    await two.page.getByRole("button", { name: "Conversations" }).click();
    await two.page.locator(".talk-list .open").first().click();
    await two.page.getByText("Being answered in another tab.").waitFor();
    await one.page.getByRole("button", { name: "Stop" }).click();
    await two.page.getByText("Stopped.").waitFor();
    await two.page.close();
    await one.close();
  });
});

describe("stopping", () => {
  test("in the middle of the answer: the server has stopped too", async () => {
    const tab = await Tab.open(browser, slow.url);
    await makeLong(tab.page);
    const before = await slow.metric('requests_cancelled_total{phase="decode"}');
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    await tab.stage("answer");
    await tab.page.keyboard.press("Escape");
    await tab.page.getByText("Stopped.").waitFor();
    expect((await tab.last.locator(".prose").innerText()).length).toBeGreaterThan(0);
    await until(async () => (await slow.metric('requests_cancelled_total{phase="decode"}')) === before + 1);
    await tab.close();
  });

  test("in the queue, whose place is shown", async () => {
    const small = await Margay.slow("--parallel", "1");
    const away = new AbortController();
    const busy = Array.from({ length: 2 }, () =>
      fetch(small.url + "v1/chat/completions", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ stream: true, ignore_eos: true, temperature: 1, max_tokens: 4000, messages: [{ role: "user", content: "x" }] }),
        signal: away.signal,
      }).then((r) => r.text()).catch(() => ""),
    );
    await until(async () => (await small.metric("requests_running")) === 1);
    const tab = await Tab.open(browser, small.url);
    await makeLong(tab.page);
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    await tab.stage("queue");
    expect(await tab.page.locator(".stage").innerText()).toMatch(/place \d/);
    await tab.page.getByRole("button", { name: "Stop" }).click();
    await tab.page.getByText("Stopped.").waitFor();
    await until(async () => (await small.metric('requests_cancelled_total{phase="queue"}')) === 1);
    away.abort();
    await Promise.all(busy);
    await tab.close();
    await small.kill();
  });
});

test("the server restarts in the middle: said clearly, found again, picture sent anew, right answer", async () => {
  const own = await Margay.slow();
  const tab = await Tab.open(browser, own.url);
  const { page } = tab;
  await makeLong(page);
  await tab.choose(sample("receipt_total_001.png"));
  await tab.ask("What is the total price?");
  await tab.stage("answer");
  await own.kill();
  await page.getByText("The connection broke off in the middle of the answer").waitFor();
  await page.getByText("margay can't be reached. Trying again").waitFor();
  await page.unroute("**/v1/chat/completions");
  await own.run();
  await page.getByText("margay is back.").waitFor();
  expect(await page.locator(".link-banner").count()).toBe(0);
  await tab.last.getByRole("button", { name: "Try again" }).click();
  await page.waitForFunction(() => document.querySelector(".answer.is-done"));
  expect(await tab.answer()).toBe("45.67");
  // Asked while it is away.
  await own.kill();
  await tab.ask("What is the total amount?");
  await page.getByText("margay can't be reached. Is it still running?").waitFor();
  // Stopped as an operator would: the stream ends with a reason.
  await own.run();
  await page.getByText("margay is back.").first().waitFor();
  await makeLong(page);
  await tab.last.getByRole("button", { name: "Try again" }).click();
  await tab.stage("answer");
  void own.kill("SIGTERM");
  await own.kill("SIGTERM");
  await tab.last.getByRole("alert").waitFor();
  expect(await tab.last.getByRole("alert").innerText()).toMatch(/stopped or restarted|broke off/);
  await tab.close();
});

test("with an API key: asked for, refused when wrong, kept for the tab only, also over WebSocket", async () => {
  const locked = await Margay.start("--api-key", "sesame-1234/+");
  const tab = await Tab.open(browser, locked.url);
  const { page } = tab;
  const field = page.getByLabel("API key", { exact: true });
  await field.fill("wrong");
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByText("This key isn't accepted.").waitFor();
  expect(await axe(page)).toEqual([]);
  await field.fill("sesame-1234/+");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog", { state: "detached" });
  await tab.choose(sample("receipt_total_001.png"));
  await tab.ask("What is the total price?");
  expect(await tab.answer()).toBe("45.67");
  await page.reload();
  expect(await tab.answer()).toBe("45.67"); // same tab: no new question
  expect(await page.locator("dialog").count()).toBe(0);
  expect(await page.evaluate(() => JSON.stringify(localStorage) + location.href)).not.toContain("sesame");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByRole("radio", { name: "WebSocket" }).check({ force: true });
  await page.keyboard.press("Escape");
  let sockets = 0;
  page.on("websocket", () => sockets++);
  await tab.ask("Read the total.");
  await page.waitForFunction(() => document.querySelectorAll(".answer.is-done").length === 2);
  expect(sockets).toBe(1);
  const other = await Tab.open(tab.context, locked.url);
  await other.page.getByLabel("API key", { exact: true }).waitFor();
  await other.page.close();
  await tab.close();
  await locked.kill();
});

test("WebSocket as the way: right answer, stages, stopping", async () => {
  const tab = await Tab.open(browser, margay.url);
  const { page } = tab;
  await page.evaluate(() => localStorage.setItem("margay-settings", '{"transport":"ws"}'));
  await page.reload();
  let streams = 0;
  page.on("request", (r) => (streams += Number(r.url().includes("chat/completions"))));
  await tab.choose(sample("receipt_total_001.png"));
  await tab.ask("What is the total price?");
  expect(await tab.answer()).toBe("45.67");
  expect(await tab.last.locator(".chip.first").count()).toBe(1);
  expect(streams).toBe(0);
  await tab.close();
});

test("under a prefix", async () => {
  const own = await Margay.start("--api-prefix", "/eyes");
  const tab = await Tab.open(browser, own.url.replace(/\/$/, "")); // without the slash: sent on
  expect(tab.page.url()).toBe(own.url);
  await tab.choose(sample("receipt_total_001.png"));
  await tab.ask("What is the total price?");
  expect(await tab.answer()).toBe("45.67");
  await tab.close();
  await own.kill();
});

describe("looks", () => {
  test("Chinese from the browser's language; switched and kept", async () => {
    const tab = await Tab.open(browser, margay.url, { locale: "zh-CN" });
    const { page } = tab;
    await page.getByText("想了解图片里的什么").waitFor();
    expect(await page.getAttribute("html", "lang")).toBe("zh-CN");
    const words = (await page.innerText("body")).replace(/margay(-demo)?|English|127\.0\.0\.1:\d+|Shift/g, "");
    expect(words).not.toMatch(/[A-Za-z]{3,}/); // complete
    expect(await axe(page)).toEqual([]);
    await page.getByRole("button", { name: "English" }).click();
    await page.getByText("What would you like to know").waitFor();
    await page.reload();
    await page.getByText("What would you like to know").waitFor();
    await tab.close();
  });

  test("dark by the system, light by the switch, kept", async () => {
    const tab = await Tab.open(browser, margay.url, { colorScheme: "dark" });
    const { page } = tab;
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    expect(await ground()).toBe("rgb(21, 18, 14)");
    await page.getByRole("button", { name: "Change between light and dark" }).click();
    expect(await ground()).toBe("rgb(247, 242, 233)");
    await page.reload();
    expect(await ground()).toBe("rgb(247, 242, 233)");
    await tab.close();
  });

  test.each(["light", "dark"] as const)("axe finds nothing: %s", async (colorScheme) => {
    const tab = await Tab.open(browser, margay.url, { colorScheme });
    const { page } = tab;
    await page.waitForSelector(".model.is-ok");
    expect(await axe(page)).toEqual([]);
    await tab.choose(sample("receipt_total_001.png"));
    await page.waitForSelector(".field .thumb:not(.working)");
    expect(await axe(page)).toEqual([]);
    await tab.ask("What is the total price?");
    await tab.answer();
    expect(await axe(page)).toEqual([]);
    for (const name of ["Settings", "Status", "Conversations"]) {
      await page.getByRole("button", { name, exact: true }).click();
      await page.waitForSelector("dialog[open]");
      if (name === "Status") await page.waitForSelector(".plot");
      expect(await axe(page), name).toEqual([]);
      await page.keyboard.press("Escape");
      await page.waitForSelector("dialog", { state: "detached" });
    }
    await tab.close();
  });

  test("all of it by keyboard", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await page.evaluate(() => (document.activeElement as HTMLElement).blur());
    await page.keyboard.press("/");
    expect(await page.evaluate(() => document.activeElement?.id)).toBe("question");
    await tab.choose(sample("receipt_total_001.png"));
    await page.waitForSelector(".preset");
    const seen: string[] = [];
    for (let i = 0; i < 40; i++) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => {
        const el = document.activeElement as HTMLElement;
        const style = getComputedStyle(el);
        return { name: el === document.body ? "" : (el.getAttribute("aria-label") ?? el.innerText.trim()), ring: style.outlineStyle !== "none" || el.id === "question" };
      });
      if (at.name) {
        seen.push(at.name);
        expect(at.ring, at.name).toBe(true);
      }
    }
    for (const want of ["Skip to the question", "Conversations", "Settings", "New conversation", "Describe", "Find objects", "Add pictures", "Camera", "Remove receipt_total_001.png"]) expect(seen).toContain(want);
    await page.getByRole("button", { name: "Settings" }).focus();
    await page.keyboard.press("Enter");
    await page.waitForSelector("dialog[open]");
    await page.keyboard.press("Escape");
    await page.waitForSelector("dialog", { state: "detached" });
    expect(await page.evaluate(() => document.activeElement?.getAttribute("aria-label"))).toBe("Settings"); // focus is back
    await page.keyboard.press("Alt+n");
    await tab.close();
  });

  test("on a phone: nothing sticks out, buttons are large enough, axe finds nothing", async () => {
    const tab = await Tab.open(browser, margay.url, { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
    const { page } = tab;
    const fits = async () => {
      const wide = await page.evaluate(() => [document.documentElement.scrollWidth, document.body.scrollWidth]);
      expect(Math.max(...wide)).toBeLessThanOrEqual(360);
      expect(await axe(page)).toEqual([]);
    };
    await fits();
    await tab.choose(sample("receipt_total_001.png"));
    await page.fill("#question", "What is the total price?");
    const send = (await page.locator(".send").boundingBox())!;
    expect(send.width).toBeGreaterThanOrEqual(40);
    expect(send.y + send.height).toBeLessThanOrEqual(740);
    await page.tap(".send");
    expect(await tab.answer()).toBe("45.67");
    await fits();
    const picture = (await page.locator(".frame").boundingBox())!;
    expect(picture.height).toBeLessThan(740 * 0.4);
    await tab.close();
  });

  test("reduced motion: nothing moves", async () => {
    const tab = await Tab.open(browser, slow.url, { reducedMotion: "reduce" });
    await makeLong(tab.page);
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    await tab.stage("answer");
    const moving = await tab.page.evaluate(() => document.getAnimations().filter((a) => a.playState === "running").length);
    expect(moving).toBe(0);
    await tab.page.keyboard.press("Escape");
    await tab.page.getByText("Stopped.").waitFor();
    await tab.close();
  });

  test("settings reach the server, and the status shows what it did", async () => {
    const tab = await Tab.open(browser, margay.url);
    const { page } = tab;
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Most tokens of an answer").fill("3");
    await page.getByLabel("Instructions for every conversation").fill("Be brief.");
    await page.getByRole("radio", { name: "Low, fast" }).check({ force: true });
    await page.getByLabel("Leave out what repeats").selectOption("exact");
    await page.keyboard.press("Escape");
    const request = page.waitForRequest("**/v1/chat/completions");
    await tab.choose(sample("what_000.png"));
    await tab.ask("Describe the picture.");
    const body = (await request).postDataJSON() as { max_tokens: number; temperature: number; messages: { role: string; content: unknown }[] };
    expect(body.max_tokens).toBe(3);
    expect(body.temperature).toBe(0);
    expect(body.messages[0]).toEqual({ role: "system", content: "Be brief." });
    const url = (body.messages[1]!.content as { image_url: { url: string; detail: string; prune: string } }[])[0]!.image_url;
    expect(url).toEqual({ url: expect.stringMatching(/^margay-file:file-\w+$/) as string, detail: "low", prune: "exact" });
    await tab.answer();
    await page.getByText("reached its limit of tokens").waitFor();
    await page.getByRole("button", { name: "Status" }).click();
    await page.waitForSelector(".plot .curve", { state: "attached" });
    expect(await page.locator(".facts").innerText()).toContain("margay-demo");
    expect(await page.locator(".share").count()).toBe(2);
    await tab.close();
  });
});
