// OpenAI's Node client, unchanged, against margay serve: node cases.mjs BASE_URL PICTURE ANSWER QUESTION
// Prints a line of JSON for each case: {"name", "error"?}. OPENAI_FOLDER: where npm ci has put the client.
import { createRequire } from "node:module";
import { readFileSync, createReadStream } from "node:fs";
import assert from "node:assert/strict";

const require = createRequire(process.env.OPENAI_FOLDER + "/");
const OpenAI = require("openai").default ?? require("openai");
const [baseURL, path, answer, text] = process.argv.slice(2);
const client = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0 });
const url = "data:image/png;base64," + readFileSync(path).toString("base64");
const image = { type: "image_url", image_url: { url } };
const said = (...parts) => [{ role: "user", content: [...parts, { type: "text", text }] }];
const ask = { model: "m", temperature: 0, messages: said(image) };
const long = { model: "m", messages: [{ role: "user", content: "Go on." }], max_tokens: 100000, temperature: 5, top_p: 1, top_k: 0,
               ignore_eos: true };
const fails = async (kind, promise, code) => {
  const e = await promise.then(() => assert.fail("no error"), (e) => e);
  assert(e instanceof kind, `${e.constructor.name}: ${e.message}`);
  if (code) assert.equal(e.code, code);
  return e;
};

const cases = {
  async text() {
    const r = await client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "Hi" }], max_tokens: 3 });
    assert.equal(r.choices[0].message.role, "assistant");
  },
  async picture() {
    const r = await client.chat.completions.create(ask);
    assert.equal(r.choices[0].message.content, answer);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert(r.images[0].tokens > 0 && r._request_id);
  },
  async "several pictures"() {
    const r = await client.chat.completions.create({ ...ask, messages: said(image, image), max_tokens: 5 });
    assert.equal(r.images.length, 2);
  },
  async "several turns"() {
    const first = await client.chat.completions.create(ask);
    const messages = [...ask.messages, first.choices[0].message, { role: "user", content: "And?" }];
    const r = await client.chat.completions.create({ ...ask, messages, max_tokens: 4 });
    assert(r.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens);
  },
  async stream() {
    let out = "", last;
    for await (const c of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
      out += c.choices[0]?.delta.content ?? "";
      last = c;
    }
    assert.equal(out, answer);
    assert(last.choices.length === 0 && last.usage.completion_tokens > 0);
  },
  async "stream helper"() {
    const s = client.chat.completions.stream(ask);
    const seen = [];
    s.on("content", (delta) => seen.push(delta));
    assert.equal((await s.finalChatCompletion()).choices[0].message.content, answer);
    assert.equal(seen.join(""), answer);
  },
  async cancel() {
    const s = await client.chat.completions.create({ ...long, stream: true });
    for await (const c of s) if (c.choices[0]?.delta.content) break;
    s.controller.abort();
    const idle = async () => (await (await fetch(baseURL.replace("/v1", "/slots"))).json()).every((x) => !x.is_processing);
    for (let i = 0; !(await idle()); i++) {
      assert(i < 100, "the place is not free again");
      await new Promise((f) => setTimeout(f, 50));
    }
  },
  async "errors"() {
    const e = await fails(OpenAI.BadRequestError, client.chat.completions.create({ ...ask, top_p: 7 }));
    assert.equal(e.param, "top_p");
    await fails(OpenAI.BadRequestError, client.chat.completions.create({ ...ask, top_p: 7, stream: true }));
    await fails(OpenAI.BadRequestError, client.chat.completions.create({ ...ask, messages: said({ type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } }) }));
    await fails(OpenAI.NotFoundError, client.models.retrieve("other"));
  },
  async files() {
    const f = await client.files.create({ file: createReadStream(path), purpose: "vision" });
    const part = { type: "image_url", image_url: { url: "margay-file:" + f.id } };
    const r = await client.chat.completions.create({ ...ask, messages: said(part) });
    assert.equal(r.choices[0].message.content, answer);
    assert((await client.files.delete(f.id)).deleted);
  },
  async "choices, log-probabilities, stop"() {
    const r = await client.chat.completions.create({ ...ask, n: 2, logprobs: true, top_logprobs: 2 });
    assert.deepEqual(r.choices.map((c) => c.message.content), [answer, answer]);
    assert.equal(r.choices[0].logprobs.content[0].top_logprobs.length, 2);
    const cut = await client.chat.completions.create({ ...ask, stop: answer.slice(1, 3) });
    assert.equal(cut.choices[0].message.content, answer.split(answer.slice(1, 3))[0]);
  },
  async "content shapes"() {
    const t = { type: "text", text };
    for (const content of ["Hi", [t], [image, t], [t, image], [{ type: "image_url", image_url: url }, t],
                           [{ ...image, image_url: { url, detail: "low" } }, t], [{ ...image, image_url: { url, detail: "auto" } }, t],
                           [{ ...image, extra: 1 }, t]]) {
      const r = await client.chat.completions.create({ model: "m", messages: [{ role: "user", content }], max_tokens: 4 });
      assert.equal(!!r.usage.prompt_tokens_details.image_tokens, JSON.stringify(content).includes("image_url"));
    }
    for (const content of [null, "", []])
      await client.chat.completions.create({ model: "m", max_tokens: 4, messages: [
        { role: "user", content: "Hi" }, { role: "assistant", content }, { role: "user", content: "Go on." }] });
  },
  async models() {
    const list = (await client.models.list()).data;
    assert.equal((await client.models.retrieve(list[0].id)).id, list[0].id);
  },
};

for (const [name, run] of Object.entries(cases)) {
  const error = await run().then(() => undefined, (e) => String(e.stack ?? e));
  console.log(JSON.stringify({ name, error }));
}
