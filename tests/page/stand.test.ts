/** What the demo model never says: boxes, hostile and endless answers, slow stages, a full server. A stand-in says it. */
import { readFileSync } from "node:fs";
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type Exchange, Margay, Stand, Tab, axe, openBrowser, sample, until } from "./harness";

let browser: Browser;
let margay: Margay;
let stand: Stand;
beforeAll(async () => {
  [browser, margay] = await Promise.all([openBrowser(), Margay.start()]);
  stand = await Stand.before(margay);
});
afterAll(async () => {
  await browser?.close();
  stand?.close();
  await margay?.kill();
});
afterEach(() => void (stand.asked.length = stand.left.length = 0));

const pause = (ms: number) => new Promise((r) => setTimeout(r, ms));

async function tabWithPicture(name = "what_000.png"): Promise<Tab> {
  const tab = await Tab.open(browser, stand.url);
  await tab.choose(sample(name));
  await tab.page.waitForSelector(".field .thumb:not(.working)");
  return tab;
}

describe("stages", () => {
  const stages: [string, Record<string, unknown>, RegExp][] = [
    ["queue", { stage: "queue", queue_position: 3, estimate_ms: 4000 }, /place 3 in the queue, about 4 s/],
    ["decode", { stage: "decode" }, /Opening the picture/],
    ["vision", { stage: "vision", step: 2, of: 5 }, /Looking\s+40 %/],
    ["prefill", { stage: "prefill", step: 10, of: 20 }, /Reading the question/],
  ];
  test.each(stages)("%s is shown and can be stopped in", async (stage, progress, words) => {
    stand.script = async (x) => {
      x.progress(progress);
      while (!x.gone) await pause(20);
    };
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.stage(stage);
    expect(await tab.page.locator(".stage").innerText()).toMatch(words);
    expect(await axe(tab.page)).toEqual([]);
    await tab.page.getByRole("button", { name: "Stop" }).click();
    await tab.page.getByText("Stopped.").waitFor();
    await until(() => stand.left.length === 1);
    // and it can be asked again
    stand.script = async (x) => {
      await x.text("fine");
      x.end();
    };
    await tab.last.getByRole("button", { name: "Try again" }).click();
    await tab.page.waitForFunction(() => document.querySelector(".answer.is-done"));
    expect(await tab.answer()).toBe("fine");
    await tab.close();
  });

  test("while the picture is being sent, and while nothing has been heard", async () => {
    const tab = await tabWithPicture();
    await tab.page.route("**/v1/files", async (route) => {
      await pause(3000);
      await route.continue().catch(() => undefined);
    });
    await tab.ask("q");
    await tab.stage("send");
    await tab.page.keyboard.press("Escape");
    await tab.page.getByText("Stopped.").waitFor();
    await tab.page.unroute("**/v1/files");
    stand.script = async (x) => {
      while (!x.gone) await pause(20);
    };
    await tab.last.getByRole("button", { name: "Try again" }).click();
    await tab.stage("connect");
    await tab.page.keyboard.press("Escape");
    await tab.page.getByText("Stopped.").waitFor();
    await tab.close();
  });

  test("a picture that is known is said to be so; tokens a second are counted", async () => {
    stand.script = async (x) => {
      x.progress({ stage: "prefill", step: 19, of: 20, cache: 19 });
      await pause(150);
      for (let i = 0; i < 30; i++) {
        await x.text(`w${i} `);
        await pause(40);
      }
      x.end();
    };
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.page.getByText("picture known, not looked at again").waitFor();
    await until(async () => /[\d.]+ tokens\/s/.test(await tab.page.locator(".stage").innerText().catch(() => "")));
    const speed = Number(/([\d.]+) tokens\/s/.exec(await tab.page.locator(".stage").innerText())![1]);
    expect(speed).toBeGreaterThan(10);
    expect(speed).toBeLessThan(30);
    await tab.answer();
    await tab.close();
  });

  test("words come as they are generated", async () => {
    let go: () => void = () => undefined;
    stand.script = async (x) => {
      await x.text("first");
      await new Promise<void>((r) => (go = r));
      await x.text(" second");
      x.end();
    };
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.page.waitForFunction(() => document.querySelector(".answer .prose")?.textContent?.trim() === "first");
    go();
    expect(await tab.answer()).toBe("first second");
    await tab.close();
  });
});

describe("troubles", () => {
  test("a full server is asked again when it says", async () => {
    let n = 0;
    stand.script = async (x) => {
      if (n++ === 0) return x.reply(503, { message: "full", type: "unavailable_error", code: "queue_full" }, { "Retry-After": "1" });
      await x.text("later");
      x.end();
    };
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.stage("busy");
    expect(await tab.answer()).toBe("later");
    expect(n).toBe(2);
    await tab.close();
  });

  test("a file that the server has lost is sent anew, unseen", async () => {
    let n = 0;
    stand.script = async (x) => {
      if (n++ === 0) return x.reply(404, { message: "there is no such uploaded file (any more)", code: "file_not_found" });
      await x.text("seen");
      x.end();
    };
    const tab = await tabWithPicture();
    let uploads = 0;
    tab.page.on("request", (r) => (uploads += Number(r.url().endsWith("/v1/files"))));
    await tab.ask("q");
    expect(await tab.answer()).toBe("seen");
    expect(uploads).toBe(2);
    await tab.close();
  });

  test.each([
    [400, "context_length_exceeded", "longer than the model can hold"],
    [400, "image_truncated", "The server refused this: the picture ends"],
    [500, "server_error", "The server had trouble"],
  ])("%d %s", async (status, code, words) => {
    stand.script = (x) => x.reply(status, { message: "the picture ends", code });
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.page.getByText(words).waitFor();
    await tab.last.getByRole("button", { name: "Try again" }).waitFor();
    await tab.close();
  });

  test("an error in the middle of a stream keeps what came", async () => {
    stand.script = async (x) => {
      await x.text("so far");
      x.res.write('data: {"error":{"message":"the server is being stopped","code":"shutting_down"}}\n\n');
      x.res.end();
    };
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.page.getByText("being stopped or restarted").waitFor();
    expect(await tab.answer()).toBe("so far");
    await tab.close();
  });

  test("where streams don't pass, WebSocket is taken by itself", async () => {
    stand.script = (x) => {
      x.res.writeHead(200, { "Content-Type": "text/plain" });
      x.res.end("buffered by a proxy");
    };
    const tab = await Tab.open(browser, stand.url);
    // The stand passes no upgrades on: the socket goes to the real server.
    await tab.page.routeWebSocket("**/ws", (ws) => {
      ws.onMessage((m) => {
        const q = JSON.parse(String(m)) as { id: string; messages: unknown[] };
        ws.send(JSON.stringify({ type: "progress", id: q.id, stage: "prefill", step: 1, total: 2 }));
        ws.send(JSON.stringify({ type: "token", id: q.id, text: `by socket, ${q.messages.length}` }));
        ws.send(JSON.stringify({ type: "result", id: q.id, text: "by socket, 1", finish_reason: "stop" }));
      });
    });
    await tab.ask("q");
    expect(await tab.answer()).toBe("by socket, 1");
    await tab.close();
  });
});

describe("boxes", () => {
  const one = '{"bbox_2d": [100, 100, 400, 500], "label": "square"}';
  const two = '{"bbox_2d": [520, 200, 900, 900], "label": "star"}';
  const point = '{"point_2d": [700, 500], "label": "middle"}';

  test("drawn while they come, linked with the list, exported", async () => {
    let go: () => void = () => undefined;
    stand.script = async (x) => {
      await x.text("```json\n[" + one + ", " + two.slice(0, 20));
      await new Promise<void>((r) => (go = r));
      await x.text(two.slice(20) + ", " + point + "]\n```");
      x.end();
    };
    const tab = await tabWithPicture();
    const { page } = tab;
    await page.getByRole("button", { name: "Find objects" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".overlay .line").length === 1);
    go();
    await tab.answer();
    expect(await page.locator(".overlay .line").count()).toBe(2);
    expect(await page.locator(".tag.point").count()).toBe(1);
    expect(await page.locator(".found").innerText()).toContain("3 found");
    // where they belong: within a pixel of the picture's thousandths
    const frame = (await page.locator(".frame").boundingBox())!;
    const box = await page.locator(".overlay .line").first().evaluate((r) => {
      const b = r.getBoundingClientRect();
      return [b.left, b.top, b.right, b.bottom];
    });
    [0.1, 0.1, 0.4, 0.5].forEach((v, i) => expect(Math.abs(box[i]! - (i % 2 ? frame.y + v * frame.height : frame.x + v * frame.width))).toBeLessThan(2));
    // hover, both ways
    await page.getByRole("button", { name: "star" }).hover();
    expect(await page.locator(".overlay g.lit").count()).toBe(1);
    await page.mouse.move(frame.x + 0.11 * frame.width, frame.y + 0.3 * frame.height);
    await page.waitForSelector(".object.lit:has-text('square')");
    await page.getByText("Show the answer's text").click();
    expect(await page.locator(".source-object").count()).toBe(3);
    await page.locator(".source-object").nth(1).hover();
    await page.waitForSelector(".object.lit:has-text('star')");
    await page.mouse.move(3, 3); // nothing is lit, nothing dimmed
    expect(await axe(page)).toEqual([]);
    const save = async (name: string) => {
      const download = page.waitForEvent("download");
      await page.getByRole("button", { name, exact: true }).click();
      const d = await download;
      return { name: d.suggestedFilename(), data: readFileSync(await d.path()) };
    };
    const json = await save("JSON");
    expect(json.name).toBe("what_000.boxes.json");
    expect(JSON.parse(json.data.toString())).toMatchObject({ picture: { width: 96, height: 64 }, objects: [{ label: "square", bbox_2d: [100, 100, 400, 500], pixels: [10, 6, 38, 32] }, {}, { point_2d: [700, 500] }] });
    expect((await save("CSV")).data.toString().split("\r\n")[2]).toBe("star,box,50,13,86,58");
    const png = await save("Picture with boxes");
    expect(png.data.readUInt32BE(16)).toBe(96);
    expect(png.data.equals(readFileSync(sample("what_000.png")))).toBe(false);
    // they can be hidden, and are there after a reload
    await page.getByLabel("Show what was found").uncheck();
    expect(await page.locator(".overlay").count()).toBe(0);
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll(".overlay .line").length === 2);
    await tab.close();
  });

  test("a list cut by the limit shows what is whole and says so", async () => {
    stand.script = async (x) => {
      await x.text("[" + one + ", " + two + ", " + point.slice(0, 22));
      x.end("length");
    };
    const tab = await tabWithPicture();
    await tab.ask("q");
    await tab.answer();
    expect(await tab.page.locator(".overlay .line").count()).toBe(2);
    expect(await tab.page.locator(".found").innerText()).toContain("the list was cut");
    await tab.close();
  });
});

describe("hostile answers", () => {
  const hostile = `<script>window.bad=1</script><img src=x onerror="window.bad=2"><iframe src="javascript:window.bad=3"></iframe>
<svg onload="window.bad=4"><style>*{display:none}</style>

[click](javascript:window.bad=5) [data](data:text/html,<script>window.bad=6</script>) [vb](vbscript:x) [ok](https://example.org/a?b=c)

![track](https://evil.example/pixel.png) ![x](javascript:window.bad=7) ![d](data:image/svg+xml;base64,PHN2Zy8+)

<https://evil.example/auto> <a href="javascript:window.bad=8" onclick="window.bad=9">x</a>

| a | b <img src=x onerror=window.bad=10> |
|:--|--:|
| <script>window.bad=11</script> | [t](java&#115;cript:window.bad=12) |

\`\`\`html"><img src=x onerror=window.bad=13>
</code></pre><script>window.bad=14</script>
\`\`\`

<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.bad=15&gt;">

[ref]: javascript:window.bad=16
[ref] {{constructor.constructor('window.bad=17')()}} \u202eevil\u202c ***__~~unclosed [ ( \`code`;

  test("nothing of it runs or loads", async () => {
    stand.script = async (x) => {
      for (const piece of hostile.match(/[\s\S]{1,9}/g)!) await x.text(piece);
      x.end();
    };
    const tab = await tabWithPicture();
    const { page } = tab;
    await tab.ask("q");
    await tab.answer();
    await pause(300);
    expect(await page.evaluate(() => (window as unknown as { bad?: number }).bad)).toBeUndefined();
    expect(await page.locator(".prose :is(script, img, iframe, svg, style, object, embed, form, input, math, video, link, meta):not(.icon)").count()).toBe(0);
    const attributes = await page.evaluate(() => [...document.querySelectorAll(".prose .block *")].flatMap((e) => [...e.attributes].map((a) => a.name)));
    expect(await page.locator(".prose td[align=right]").count()).toBe(1);
    expect(attributes.filter((a) => /^on|style|srcdoc|src$/.test(a))).toEqual([]);
    const links = await page.locator(".prose a").evaluateAll((list) => list.map((a) => [a.getAttribute("href"), a.getAttribute("rel"), a.getAttribute("target")]) as [string, string, string][]);
    expect(links.length).toBeGreaterThanOrEqual(2);
    for (const [href, rel, target] of links) {
      expect(href).toMatch(/^https:\/\//);
      expect(rel).toContain("noreferrer");
      expect(target).toBe("_blank");
    }
    expect(await page.locator(".prose").innerText()).toContain("<script>window.bad=1</script>"); // shown as what it is
    expect(await page.locator(".composer").isVisible()).toBe(true);
    await page.reload();
    await tab.answer();
    expect(await page.evaluate(() => (window as unknown as { bad?: number }).bad)).toBeUndefined();
    await tab.close();
  });

  test("a hostile name of a file and a hostile label are only text", async () => {
    stand.script = async (x) => {
      await x.text('[{"bbox_2d":[1,2,300,400],"label":"<img src=x onerror=window.bad=1>"}]');
      x.end();
    };
    const tab = await Tab.open(browser, stand.url);
    await tab.choose({ name: "<img src=x onerror=window.bad=2>.png", mimeType: "image/png", buffer: readFileSync(sample("what_000.png")) });
    await tab.ask("<img src=x onerror=window.bad=3>");
    await tab.answer();
    expect(await tab.page.locator(".tag").innerText()).toContain("<img");
    expect(await tab.page.evaluate(() => (window as unknown as { bad?: number }).bad)).toBeUndefined();
    await tab.close();
  });

  /** Streams it, and looks how long the page was ever deaf. */
  async function endure(script: (x: Exchange) => Promise<void>): Promise<{ tab: Tab; deaf: number }> {
    stand.script = async (x) => {
      await script(x);
      x.end();
    };
    const tab = await tabWithPicture();
    await tab.page.evaluate(() => ((window as unknown as { long: number[] }).long.length = 0));
    await tab.ask("q");
    let deaf = 0;
    for (let over = false; !over; ) {
      const start = Date.now();
      over = await tab.page.evaluate(() => document.querySelector(".answer.is-done") !== null);
      deaf = Math.max(deaf, Date.now() - start);
      await pause(50);
    }
    // What came is made into blocks a few at a time; all of them are there in the end.
    await tab.answer();
    return { tab, deaf };
  }

  test("50,000 tokens", async () => {
    const { tab, deaf } = await endure(async (x) => {
      for (let i = 0; i < 50000; i += 10) {
        let piece = "";
        for (let k = i; k < i + 10; k++) piece += k % 90 === 89 ? ".\n\n## Part\n\n- " : k % 25 === 24 ? " **bold** `x`\n- " : ` word${k}`;
        await x.text(piece);
      }
    });
    expect(deaf).toBeLessThan(2000);
    expect(await tab.longest()).toBeLessThan(2000);
    const text = await tab.page.evaluate(() => document.querySelector(".prose")!.textContent!);
    expect(text).toContain("word49995");
    expect(text.length).toBeGreaterThan(350000);
    await tab.page.fill("#question", "still alive");
    expect(await tab.page.inputValue("#question")).toBe("still alive");
    await tab.close();
  });

  test("one endless line, and one endless fence", async () => {
    const { tab, deaf } = await endure(async (x) => {
      for (let i = 0; i < 3000; i++) await x.text("[(*_`".repeat(10) + "x".repeat(50));
      await x.text("\n\n```json\n");
      for (let i = 0; i < 3000; i++) await x.text('{"a": [1, 2, 3], "b": "' + "y".repeat(60) + '"},\n');
    });
    expect(deaf).toBeLessThan(2500);
    await tab.close();
  });

  test("a table of 3,000 rows, and one of 400 columns", async () => {
    const { tab, deaf } = await endure(async (x) => {
      await x.text("| n | name | value |\n|---|:--:|---:|\n");
      for (let i = 0; i < 3000; i += 5) await x.text(Array.from({ length: 5 }, (_, k) => `| ${i + k} | **n${i + k}** | ${(i + k) * 7} |\n`).join(""));
      await x.text("\n" + "| a ".repeat(400) + "|\n" + "|---".repeat(400) + "|\n");
      for (let i = 0; i < 20; i++) await x.text("| b ".repeat(400) + "|\n");
    });
    expect(deaf).toBeLessThan(2500);
    expect(await tab.page.locator(".prose tbody tr").count()).toBeGreaterThanOrEqual(3020);
    expect(await tab.page.evaluate(() => document.documentElement.scrollWidth <= innerWidth)).toBe(true);
    await tab.close();
  });
});
