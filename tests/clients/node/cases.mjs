// OpenAI's Node client, unchanged, against margay serve: node cases.mjs < SETUP
// SETUP, as JSON: {"main": URL, "slow": URL of one whose longest answer takes half a minute, "keys": URL of a server whose key
// is "right", "full": {"url", "pid"} of a slow one with a single place and a queue of one, which is stopped at the end, "shapes": [...] (../shapes.json), "cases": [{"image": PATH,
// "question", "answer"}, ...]}. Prints a line of JSON for each case: {"name", "error"?}.
// OPENAI_FOLDER: where npm ci has put the client.
import { createRequire } from "node:module";
import { readFileSync, createReadStream } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import assert from "node:assert/strict";

const require = createRequire(process.env.OPENAI_FOLDER + "/");
const OpenAI = require("openai").default ?? require("openai");
const setup = JSON.parse(readFileSync(0));
const of = (baseURL, more) => new OpenAI({ apiKey: "none", baseURL, maxRetries: 0, ...more });
const client = of(setup.main), slow = of(setup.slow);
const create = (body, options) => client.chat.completions.create(body, options);
const [a, b] = setup.cases;
const { answer } = a;

const dataUrl = (c) => "data:image/png;base64," + readFileSync(c.image).toString("base64");
const image = (c) => ({ type: "image_url", image_url: { url: dataUrl(c) } });
const said = (text, ...parts) => [{ role: "user", content: [...parts, { type: "text", text }] }];
const about = (c) => ({ model: "m", temperature: 0, messages: said(c.question, image(c)) });
const long = { model: "m", messages: said("Go on."), max_tokens: 100000, temperature: 5, top_p: 1, top_k: 0, ignore_eos: true };

// `promise` fails with an error of just this class.
const fails = async (kind, promise, code) => {
  const e = await promise.then(() => assert.fail("no error"), (e) => e);
  assert.equal(e.constructor, kind, `${e.constructor.name}: ${e.message}`);
  if (code) assert.equal(e.code, code);
  return e;
};
// A fetch that notes of each request its time, its retry count, and how long the reply says to wait.
const counted = (requests) => async (url, init) => {
  const noted = { at: performance.now(), retry: +new Headers(init.headers).get("x-stainless-retry-count") };
  requests.push(noted);
  const r = await fetch(url, init);
  noted.pause = +r.headers.get("retry-after");
  return r;
};
const gather = async (stream) => {
  const chunks = [];
  for await (const c of stream) chunks.push(c);
  return chunks;
};
const text = (chunks, index = 0) =>
  chunks.flatMap((c) => c.choices).filter((c) => c.index === index).map((c) => c.delta.content ?? "").join("");
const get = async (base, path) => (await fetch(base.replace("/v1", path))).json();
const cancelled = async () => {
  const lines = (await (await fetch(setup.slow.replace("/v1", "/metrics"))).text()).split("\n");
  return lines.filter((l) => l.startsWith("margay_requests_cancelled_total{")).reduce((n, l) => n + +l.split(" ")[1], 0);
};
// What `leave` does gives an answer up: its place is free long before the answer would have ended, and it is counted as such.
const gives_up = async (leave) => {
  const before = await cancelled();
  await leave();
  const end = performance.now() + 15000;
  while ((await get(setup.slow, "/slots")).some((s) => s.is_processing) || (await cancelled()) !== before + 1) {
    assert(performance.now() < end, "the place is not free again");
    await sleep(10);
  }
};
// A stream that goes on and on, at its first text.
const begun = async (from) => {
  const stream = await from.chat.completions.create({ ...long, stream: true });
  const chunks = stream[Symbol.asyncIterator]();
  for (;;) if ((await chunks.next()).value.choices[0]?.delta.content) return { stream, chunks };
};

const cases = {
  async text() {
    const r = await create({ model: "m", messages: said("Hi"), max_tokens: 3 });
    assert.equal(r.choices[0].message.role, "assistant");
    assert.equal(r.usage.prompt_tokens_details.image_tokens, 0);
  },
  async picture() {
    const r = await create(about(a));
    assert.equal(r.choices[0].message.content, answer);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert(r.images[0].tokens > 0 && r._request_id);
  },
  async "several pictures"() {
    const [one, other] = await Promise.all([a, b].map((c) => create(about(c))));
    const two = await create({ ...about(a), messages: said(a.question, image(a), image(b)), max_tokens: 5 });
    assert.deepEqual(two.images.map((i) => i.tokens), [one, other].map((r) => r.usage.prompt_tokens_details.image_tokens));
  },
  async "several turns"() {
    const first = await create(about(a));
    const messages = [...about(a).messages, first.choices[0].message, { role: "user", content: "And?" }];
    const r = await create({ ...about(a), messages, max_tokens: 4 });
    assert(r.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens);
  },
  async stream() {
    const whole = await create(about(a));
    const seen = await gather(await create({ ...about(a), stream: true, stream_options: { include_usage: true } }));
    assert.equal(text(seen), answer);
    assert.deepEqual(seen[0].choices[0].delta, { role: "assistant", content: "" });
    assert.equal(new Set(seen.map((c) => c.id + c.created + c.model)).size, 1);
    const last = seen.pop();
    assert.equal(last.choices.length, 0);
    assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
    assert(seen.every((c) => c.usage == null && c.choices.length));
    const plain = await gather(await create({ ...about(a), stream: true }));
    assert(plain.every((c) => c.usage == null && c.choices.length));
  },
  async "stream helper"() {
    const s = client.chat.completions.stream(about(a));
    const seen = [];
    s.on("content", (delta) => seen.push(delta));
    assert.equal((await s.finalChatCompletion()).choices[0].message.content, answer);
    assert.equal(seen.join(""), answer);
  },
  async "stream through a web stream"() {
    const seen = [];
    const reader = (await create({ ...about(a), stream: true })).toReadableStream().getReader();
    for (let r; !(r = await reader.read()).done; ) seen.push(Buffer.from(r.value));
    const chunks = Buffer.concat(seen).toString().trim().split("\n").map((l) => JSON.parse(l));
    assert.equal(text(chunks), answer);
  },
  async progress() {
    const seen = await gather(await create({ ...about(a), stream: true, return_progress: true, cache_prompt: false }));
    assert.equal(seen.filter((c) => c.prompt_progress).at(-1).prompt_progress.stage, "prefill");
  },
  async "several at once"() {
    const told = await Promise.all(setup.cases.map(async (c, i) => i % 2
      ? text(await gather(await create({ ...about(c), stream: true })))
      : (await create(about(c))).choices[0].message.content));
    assert.deepEqual(told, setup.cases.map((c) => c.answer));
  },
  async "cancel by break"() {
    await gives_up(async () => {
      for await (const c of await slow.chat.completions.create({ ...long, stream: true })) if (c.choices[0]?.delta.content) break;
    });
  },
  async "cancel by abort"() {
    const { stream } = await begun(slow);
    await gives_up(() => stream.controller.abort());
  },
  async "cancel by signal, not streamed"() {
    const leave = new AbortController();
    const asked = fails(OpenAI.APIUserAbortError, slow.chat.completions.create(long, { signal: leave.signal }));
    while (!(await get(setup.slow, "/slots")).some((s) => s.is_processing)) await sleep(5);
    await gives_up(async () => { leave.abort(); await asked; });
  },
  async "timeout of the client"() {
    await gives_up(() => fails(OpenAI.APIConnectionTimeoutError, slow.chat.completions.create(long, { timeout: 500 })));
  },
  async "bad requests, not sent again"() {
    const requests = [], patient = of(setup.main, { maxRetries: 3, fetch: counted(requests) });
    const none = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
    const bad = [{ top_p: 7 }, { temperature: "hot" }, { messages: [] }, { messages: said("What?", none) },
                 { messages: said("word ".repeat(30000)) }, { response_format: { type: "json_object" } },
                 { tools: [{ type: "function", function: { name: "f", parameters: {} } }] }];
    for (const stream of [false, true])
      for (const more of bad) {
        const e = await fails(OpenAI.BadRequestError, patient.chat.completions.create({ ...about(a), stream, ...more }));
        assert(e.type && e.message && e.requestID);
        if (more.top_p) assert.equal(e.param, "top_p");
      }
    assert.equal(requests.length, 2 * bad.length);
  },
  async "not found"() {
    await fails(OpenAI.NotFoundError, client.models.retrieve("other"), "model_not_found");
    await fails(OpenAI.NotFoundError, client.files.retrieve("file-none"), "file_not_found");
    await fails(OpenAI.NotFoundError, client.embeddings.create({ model: "m", input: "x" }), "not_found");
  },
  async "wrong key"() {
    const wrong = of(setup.keys, { apiKey: "wrong" });
    await fails(OpenAI.AuthenticationError, wrong.models.list(), "invalid_api_key");
    await fails(OpenAI.AuthenticationError, wrong.chat.completions.create({ ...about(a), stream: true }), "invalid_api_key");
    assert.equal((await of(setup.keys, { apiKey: "right" }).models.list()).data.length, 1);
  },
  async forbidden() {
    await fails(OpenAI.PermissionDeniedError, of(setup.main, { defaultHeaders: { Origin: "https://evil.example" } })
      .chat.completions.create(about(a)));
  },
  async files() {
    const f = await client.files.create({ file: createReadStream(a.image), purpose: "vision" });
    assert((await client.files.list()).data.some((x) => x.id === f.id));
    assert.equal((await client.files.retrieve(f.id)).bytes, readFileSync(a.image).length);
    const part = { type: "image_url", image_url: { url: "margay-file:" + f.id } };
    assert.equal((await create({ ...about(a), messages: said(a.question, part) })).choices[0].message.content, answer);
    const bytes = Buffer.from(await (await client.files.content(f.id)).arrayBuffer());
    assert(bytes.equals(readFileSync(a.image)));
    assert((await client.files.delete(f.id)).deleted);
  },
  async models() {
    const { data } = await client.models.list();
    assert.equal(data.length, 1);
    assert.equal((await client.models.retrieve(data[0].id)).id, data[0].id);
  },
  async choices() {
    const r = await create({ ...about(a), n: 3 });
    assert.deepEqual(r.choices.map((c) => c.message.content), [answer, answer, answer]);
    const seen = await gather(await create({ ...about(a), n: 2, stream: true }));
    assert.deepEqual([text(seen, 0), text(seen, 1)], [answer, answer]);
  },
  async "log-probabilities"() {
    const { content } = (await create({ ...about(a), logprobs: true, top_logprobs: 3 })).choices[0].logprobs;
    assert.equal(content.map((t) => t.token).join(""), answer);
    assert(content.every((t) => t.top_logprobs.length === 3 && t.logprob <= 0));
  },
  async "stop and length"() {
    const cut = answer.slice(1, 3);
    for (const stop of [cut, [cut]]) {
      const r = await create({ ...about(a), stop });
      assert.equal(r.choices[0].message.content, answer.split(cut)[0]);
      assert.equal(r.choices[0].finish_reason, "stop");
    }
    const r = await create({ ...about(a), max_completion_tokens: 1 });
    assert.equal(r.choices[0].finish_reason, "length");
  },
  async seed() {
    const wild = async (seed) => (await create({ ...long, max_tokens: 12, seed })).choices[0].message.content;
    assert.equal(await wild(7), await wild(7));
    assert.notEqual(await wild(7), await wild(8));
  },
  async "text completions"() {
    const ask = { model: "m", prompt: "Once", max_tokens: 3, temperature: 0 };
    const r = await client.completions.create(ask);
    const seen = await gather(await client.completions.create({ ...ask, stream: true }));
    assert.equal(seen.map((c) => c.choices[0].text).join(""), r.choices[0].text);
  },
  async "full, and retries"() {
    const { url } = setup.full;
    const { stream } = await begun(of(url));
    const waits = of(url).chat.completions.create({ model: "m", messages: said("Hi"), max_tokens: 2 });
    while ((await get(url, "/ready")).waiting !== 1) await sleep(10);
    const e = await fails(OpenAI.InternalServerError, of(url).chat.completions.create(about(a)), "queue_full");
    assert(e.status === 503 && +e.headers.get("retry-after") >= 1);
    const requests = [];
    const asked = of(url, { maxRetries: 4, fetch: counted(requests) }).chat.completions.create(
      { model: "m", messages: said("Hi"), max_tokens: 2 });
    await sleep(300);
    stream.controller.abort();
    assert((await asked).usage.prompt_tokens > 0);
    assert(requests.length >= 2);
    requests.forEach((r, i) => {
      assert.equal(r.retry, i);
      const { at, pause } = i ? requests[i - 1] : { at: -Infinity, pause: 0 };
      assert(r.at - at >= 1000 * pause - 5, `${r.at - at} ms`);
    });
    assert((await waits).usage.completion_tokens <= 2);
  },
  async "error in a stream"() { // the last: it stops that server
    const { chunks } = await begun(of(setup.full.url));
    process.kill(setup.full.pid, "SIGTERM");
    const e = await (async () => { while (!(await chunks.next()).done); })().then(() => assert.fail("no error"), (e) => e);
    assert(e instanceof OpenAI.APIError, String(e));
    assert.equal(e.code, "shutting_down");
  },
};

const shapes = Object.fromEntries(setup.shapes.map((s) => [s.name, s]));
const send = (s) => create({ model: "m", temperature: 0, max_tokens: 40, messages: s.messages, ...s.more });
for (const shape of setup.shapes)
  cases[`shape: ${shape.name}`] = async () => {
    if (shape.fails) {
      const e = await fails(OpenAI.BadRequestError, send(shape));
      assert(e.param.startsWith("messages[0]."), e.param);
      return;
    }
    const r = await send(shape);
    assert.equal((r.images ?? []).length, shape.images ?? 0);
    assert.equal(!!r.usage.prompt_tokens_details.image_tokens, !!shape.images);
    assert.equal(!!r.warnings, !!shape.warned);
    if (shape.right) assert.equal(r.choices[0].message.content, answer);
    if (!shape.same) return;
    const other = await send(shapes[shape.same]);
    assert.equal(r.usage.prompt_tokens, other.usage.prompt_tokens);
    assert.equal(r.choices[0].message.content, other.choices[0].message.content);
  };

for (const [name, run] of Object.entries(cases)) {
  const error = await Promise.race([run(), sleep(30000, "more than 30 s", { ref: false })])
    .then((slow) => slow, (e) => String(e.stack ?? e));
  console.log(JSON.stringify({ name, error }));
}
process.exit(0);
