/**
 * What the page knows, and what can be done with it. One store; components listen to it as a whole, but for the answer
 * that is coming, which has listeners of its own (Live) so that a token costs the work of one answer's last block.
 */
import { useEffect, useReducer } from "preact/hooks";
import { type Key, type Language, has, languageOf, translate } from "./i18n";
import { Failure, isReady, key, props as fetchProps, upload } from "./lib/api";
import { type Body, askSocket, askStream } from "./lib/ask";
import { BoxReader, clip } from "./lib/boxes";
import * as db from "./lib/db";
import { newId } from "./lib/ids";
import { prepare } from "./lib/prepare";
import { Splitter, keep } from "./lib/split";
import { local, session } from "./lib/store";
import { DEFAULTS, type Message, type Picture, type Progress, type Props, type Report, type Settings, type Stage, type Talk, type Trouble } from "./lib/types";

/** The answer that is coming. */
export class Live {
  text = "";
  progress: Progress = { stage: "connect" };
  pieces = 0;
  cached = 0;
  /** The vision stage was seen: a picture was looked at and not known. */
  looked = false;
  readonly began = performance.now();
  firstAt = 0;
  lastAt = 0;
  readonly splitter = new Splitter();
  readonly boxes = new BoxReader();
  private listeners = new Set<() => void>();
  private frame = 0;
  private cost = 0;
  private notBefore = 0;

  get speed(): number {
    const seconds = (this.lastAt - this.firstAt) / 1000;
    return this.pieces > 2 && seconds > 0.15 ? (this.pieces - 1) / seconds : 0;
  }

  listen(fn: () => void): () => void {
    this.listeners.add(fn);
    return () => this.listeners.delete(fn);
  }

  add(piece: string): void {
    const now = performance.now();
    this.firstAt ||= now;
    this.lastAt = now;
    this.pieces++;
    this.text += piece;
    this.splitter.push(piece);
    this.boxes.push(piece);
    if (this.progress.stage !== "answer") this.progress = { stage: "answer" };
    this.changed();
  }

  at(progress: Progress): void {
    if (progress.stage === "vision") this.looked = true;
    if (progress.cached !== undefined) this.cached = progress.cached;
    if (this.text && progress.stage !== "answer") return;
    this.progress = progress;
    this.changed();
  }

  /** Once a frame, and when drawing is slow as rarely as leaves three quarters of the time to everything else. */
  private changed(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const now = performance.now();
      if (now < this.notBefore) {
        this.frame = 1;
        setTimeout(() => {
          this.frame = 0;
          this.changed();
        }, this.notBefore - now);
        return;
      }
      for (const fn of [...this.listeners]) fn();
      this.cost = performance.now() - now;
      this.notBefore = this.cost > 8 ? now + 4 * this.cost : 0;
    });
    // A tab in the background has no frames.
    if (document.hidden) {
      cancelAnimationFrame(this.frame);
      this.frame = 0;
    }
  }
}

export interface Run {
  talk: Talk;
  message: Message;
  controller: AbortController;
  live: Live;
}

export interface Pending {
  id: string;
  name: string;
  /** Of the file itself until the picture is ready. */
  preview: string;
  picture?: Picture;
  ready: Promise<Picture | null>;
}

export type Panel = "settings" | "status" | "talks" | "camera" | "key";

interface State {
  settings: Settings;
  language: Language;
  props: Props | null;
  link: "starting" | "ok" | "away" | "locked";
  talks: Talk[];
  talk: Talk | null;
  pending: Pending[];
  panel: Panel | null;
  notice: { text: string; bad: boolean; n: number } | null;
  keyWrong: boolean;
  /** The picture on the board. */
  shown: string | null;
  /** What was found by which answer is under the pointer or the focus. */
  hover: { message: string; index: number } | null;
  boxes: boolean;
  draft: string;
}

const WORDS: { [K in keyof Settings]?: readonly Settings[K][] } = {
  detail: ["auto", "low", "high"],
  prune: ["off", "exact", "near=8"],
  transport: ["auto", "sse", "ws"],
  theme: ["system", "light", "dark"],
  language: ["auto", "en", "zh"],
};

/** Of what is stored, all that makes sense: it may come from another version of the page, or from a hand. */
function loadSettings(): Settings {
  const found = { ...DEFAULTS };
  try {
    const stored = Object(JSON.parse(local.get("margay-settings") ?? "{}")) as Record<string, unknown>;
    for (const key of Object.keys(DEFAULTS) as (keyof Settings)[]) {
      const value = stored[key];
      const words = WORDS[key] as readonly unknown[] | undefined;
      if (typeof value === typeof DEFAULTS[key] && (!words || words.includes(value))) Object.assign(found, { [key]: value });
    }
    found.temperature = Math.min(1.5, Math.max(0, found.temperature));
    found.maxTokens = Math.min(32768, Math.max(1, Math.round(found.maxTokens)));
  } catch {
    // The defaults, then.
  }
  return found;
}

const settings = loadSettings();
export const state: State = {
  settings,
  language: languageOf(settings.language),
  props: null,
  link: "starting",
  talks: [],
  talk: null,
  pending: [],
  panel: null,
  notice: null,
  keyWrong: false,
  shown: null,
  hover: null,
  boxes: true,
  draft: "",
};
export const runs = new Map<string, Run>();
/** Called when an answer begins. */
export const whenRunning: (() => void)[] = [];

const listeners = new Set<() => void>();
let scheduled = false;
export function set(change: Partial<State> = {}): void {
  Object.assign(state, change);
  if (scheduled) return;
  scheduled = true;
  queueMicrotask(() => {
    scheduled = false;
    for (const fn of [...listeners]) fn();
  });
}

export function useStore(): State {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const fn = () => redraw(undefined as never);
    listeners.add(fn);
    return () => void listeners.delete(fn);
  }, []);
  return state;
}

export function useLive(live: Live | undefined): void {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => live?.listen(() => redraw(undefined as never)), [live]);
}

export const t = (k: Key, values?: Record<string, string | number>): string => translate(state.language, k, values);

let noticeN = 0;
export function notice(text: string, bad = false): void {
  const n = ++noticeN;
  set({ notice: { text, bad, n } });
  setTimeout(() => state.notice?.n === n && set({ notice: null }), bad ? 9000 : 3500);
}

// --- settings ---
export function applySettings(): void {
  const { theme } = state.settings;
  const root = document.documentElement;
  if (theme === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme;
  root.lang = state.language === "zh" ? "zh-CN" : "en";
}

export function change(part: Partial<Settings>): void {
  const next = { ...state.settings, ...part };
  local.set("margay-settings", JSON.stringify(next));
  set({ settings: next, language: languageOf(next.language) });
  applySettings();
}

// --- the server ---
let watching = false;
async function watch(): Promise<void> {
  if (watching) return;
  watching = true;
  for (let wait = 700; state.link === "away"; wait = Math.min(5000, wait * 1.4)) {
    await new Promise((r) => setTimeout(r, wait));
    if (await isReady()) {
      await connect();
      if ((state.link as State["link"]) === "ok") notice(t("link.back"));
    }
  }
  watching = false;
}

export function away(): void {
  set({ link: "away" });
  void watch();
}

export async function connect(): Promise<void> {
  try {
    set({ props: await fetchProps(), link: "ok", keyWrong: false });
  } catch (e) {
    if (e instanceof Failure && e.status === 401) set({ link: "locked", panel: "key", keyWrong: key.get() !== "" });
    else away();
  }
}

export async function useKey(value: string): Promise<void> {
  if (!key.isPossible(value)) return set({ keyWrong: true });
  key.set(value);
  set({ keyWrong: false });
  await connect();
  if (state.link !== "ok") return;
  set({ panel: null });
  const last = state.talk?.messages.at(-1);
  if (state.talk && last?.trouble?.code === "invalid_api_key") void retry(state.talk);
}

// --- pictures ---
const pictures = new Map<string, Picture>();
const urls = new Map<string, string>();
/** Asked about before they were ready. */
const preparing = new Map<string, Pending>();

export const pendingOf = (id: string): Pending | undefined => state.pending.find((p) => p.id === id) ?? preparing.get(id);

export const pictureNow = (id: string): Picture | undefined => pictures.get(id);

export async function picture(id: string): Promise<Picture | null> {
  const known = pictures.get(id) ?? (await db.get("pictures", id));
  if (known) pictures.set(id, known);
  return known;
}

export function pictureUrl(p: Picture): string {
  let found = urls.get(p.id);
  if (!found) urls.set(p.id, (found = URL.createObjectURL(p.blob)));
  return found;
}

async function forgetPictures(ids: Iterable<string>): Promise<void> {
  for (const id of new Set(ids)) {
    URL.revokeObjectURL(urls.get(id) ?? "");
    urls.delete(id);
    pictures.delete(id);
    await db.forget("pictures", id);
  }
}

const FORMATS = ["jpeg", "png", "webp", "gif", "bmp"];

function cap(): number {
  const side = state.props?.images.transfer_side ?? 1024;
  return state.settings.detail === "high" ? Math.max(side, state.props?.images.transfer_side_high ?? 4096) : side;
}

async function ready(id: string, file: Blob, name: string): Promise<Picture | null> {
  const formats = state.props?.images.formats ?? FORMATS;
  const wanted = { file, cap: cap(), formats };
  const r = await prepare(wanted);
  const entry = pendingOf(id);
  if (!entry) return null; // removed meanwhile
  const over = () => {
    if (!preparing.delete(id)) return;
    URL.revokeObjectURL(entry.preview);
  };
  const fail = (code: string, format: string) => {
    notice(t(`trouble.${code}` as Key, { name, format: format.toUpperCase() }), true);
    drop(id);
    over();
    return null;
  };
  if ("code" in r) return fail(r.code, r.format);
  const p: Picture = {
    id, name, blob: r.blob, width: r.width, height: r.height,
    fromWidth: r.fromWidth, fromHeight: r.fromHeight, fromBytes: file.size, format: r.format, cap: wanted.cap,
  };
  pictures.set(id, p);
  entry.picture = p;
  over();
  set();
  return p;
}

export function add(files: Iterable<File | Blob>): void {
  const added: Pending[] = [];
  const most = state.props?.images.max_count ?? 64;
  for (const file of files) {
    if (state.pending.length + added.length >= most) {
      notice(t("trouble.too_many_images"), true);
      break;
    }
    const id = newId();
    const name = (file instanceof File && file.name) || "picture.png";
    const entry: Pending = { id, name, preview: URL.createObjectURL(file), ready: Promise.resolve(null) };
    added.push(entry);
    entry.ready = Promise.resolve().then(() => ready(id, file, name));
  }
  if (!added.length) return;
  set({ pending: [...state.pending, ...added], shown: added.at(-1)!.id, panel: null });
}

export function drop(id: string): void {
  const gone = state.pending.find((p) => p.id === id);
  if (gone) URL.revokeObjectURL(gone.preview);
  const pending = state.pending.filter((p) => p.id !== id);
  pictures.delete(id);
  URL.revokeObjectURL(urls.get(id) ?? "");
  urls.delete(id);
  set({ pending, shown: state.shown === id ? (pending.at(-1)?.id ?? lastPicture(state.talk)) : state.shown });
}

export function lastPicture(talk: Talk | null): string | null {
  return talk?.messages.flatMap((m) => m.pictures).at(-1) ?? null;
}

/** The pictures an answer is about: its question's, or the last ones before it. */
export function picturesOf(talk: Talk, message: Message): string[] {
  const at = talk.messages.findIndex((m) => m.id === message.id);
  for (let i = at; i >= 0; i--) if (talk.messages[i]!.pictures.length) return talk.messages[i]!.pictures;
  return [];
}

// --- conversations ---
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("margay");

/** Deleted while they were being answered, in this tab or another: not to be stored again. */
const deleted = new Set<string>();
let toldUnkept = false;

async function save(talk: Talk): Promise<void> {
  if (deleted.has(talk.id)) return;
  talk.updated = Date.now();
  const kept = await db.put("talks", talk);
  if (!kept && !toldUnkept) {
    toldUnkept = true;
    notice(t("talk.unkept"), true);
  }
  channel?.postMessage(talk.id);
}

export async function refreshTalks(): Promise<void> {
  const stored = await db.talks();
  set({ talks: stored.map((talk) => runs.get(talk.id)?.talk ?? talk) });
}

/** Is somebody, in any tab, at work on it? */
async function isHeld(id: string): Promise<boolean> {
  if (runs.has(id)) return true;
  try {
    const held = (await navigator.locks.query()).held ?? [];
    return held.some((l) => l.name === `margay-run-${id}`);
  } catch {
    return false;
  }
}

function endRunning(talk: Talk): void {
  for (const m of talk.messages)
    if (m.state === "running") {
      m.state = "stopped";
      m.trouble = { code: "reloaded" };
    }
}

/** Another tab answers in it: two at once would overwrite each other. */
async function isElsewhere(talk: Talk): Promise<boolean> {
  if (runs.has(talk.id) || !talk.messages.some((m) => m.state === "running")) return false;
  if (await isHeld(talk.id)) {
    notice(t("talk.elsewhere"), true);
    return true;
  }
  endRunning(talk); // the other tab is gone
  return false;
}

export async function show(id: string | null): Promise<void> {
  if (!id) {
    session.set("margay-talk", null);
    set({ talk: null, shown: state.pending.at(-1)?.id ?? null, panel: null, hover: null });
    return;
  }
  const talk = runs.get(id)?.talk ?? (await db.get("talks", id));
  if (!talk) return show(null);
  if (!(await isHeld(id))) endRunning(talk);
  await Promise.all(talk.messages.flatMap((m) => m.pictures).map(picture));
  session.set("margay-talk", id);
  set({ talk, shown: state.pending.at(-1)?.id ?? lastPicture(talk), panel: null, hover: null });
}

/** Gives what brings it back, as long as the page lasts. */
export async function forget(talk: Talk): Promise<() => Promise<void>> {
  const ids = talk.messages.flatMap((m) => m.pictures);
  const kept = (await Promise.all(ids.map(picture))).filter((p) => p !== null);
  deleted.add(talk.id);
  stop(talk.id);
  await db.forget("talks", talk.id);
  await forgetPictures(ids);
  channel?.postMessage(`-${talk.id}`);
  if (state.talk?.id === talk.id) {
    const { panel } = state;
    await show(null);
    set({ panel });
  }
  await refreshTalks();
  return async () => {
    deleted.delete(talk.id);
    endRunning(talk);
    for (const p of kept) {
      pictures.set(p.id, p);
      await db.put("pictures", p);
    }
    await db.put("talks", talk);
    channel?.postMessage(talk.id);
    await refreshTalks();
  };
}

// --- asking ---
export async function ask(text: string): Promise<void> {
  const question = text.trim();
  const before = state.talk;
  if (!question || (before && ((await isElsewhere(before)) || runs.has(before.id)))) return;
  const now = Date.now();
  const talk = before ?? { id: newId(), title: clip(question, 80), created: now, updated: now, messages: [] };
  const pending = state.pending;
  // Shown at once; pictures that are still being made ready follow.
  const user: Message = { id: newId(), role: "user", text: question, at: now, pictures: pending.map((p) => p.id), state: "done" };
  talk.messages.push(user);
  session.set("margay-talk", talk.id);
  for (const p of pending)
    if (p.picture) setTimeout(() => URL.revokeObjectURL(p.preview), 2000); // still on the screen
    else preparing.set(p.id, p);
  set({ talk, pending: [], draft: "" });
  await answer(talk, pending);
}

export function stop(id: string): void {
  runs.get(id)?.controller.abort();
}

/** The last answer once more; one that was whole and greedy is varied, since it would be the same. */
export async function retry(talk: Talk): Promise<void> {
  if ((await isElsewhere(talk)) || runs.has(talk.id)) return;
  const last = talk.messages.at(-1);
  const vary = last?.role === "assistant" && last.state === "done";
  if (last?.role === "assistant") talk.messages.pop();
  void answer(talk, [], vary);
}

export async function edit(talk: Talk, message: Message, text: string): Promise<void> {
  if (await isElsewhere(talk)) return;
  const at = talk.messages.indexOf(message);
  if (at < 0 || runs.has(talk.id) || !text.trim()) return;
  message.text = text.trim();
  if (at === 0) talk.title = clip(message.text, 80);
  const removed = talk.messages.splice(at + 1);
  void forgetPictures(removed.flatMap((m) => m.pictures));
  void answer(talk, []);
}

const wait = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });

function unlessAborted<T>(p: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    p.then(resolve, reject);
  });
}

/** The conversation as the API takes it; uploads what the server does not have. */
async function bodyOf(run: Run, vary: boolean): Promise<Body> {
  const { talk, live, controller } = run;
  const s = state.settings;
  const messages: unknown[] = s.system.trim() ? [{ role: "system", content: s.system.trim() }] : [];
  for (const m of talk.messages) {
    if (m === run.message) continue;
    if (m.role === "assistant") {
      if (m.text) messages.push({ role: "assistant", content: m.text });
      continue;
    }
    const parts: unknown[] = [];
    for (const id of m.pictures) {
      const p = (await unlessAborted(preparing.get(id)?.ready ?? Promise.resolve(null), controller.signal)) ?? (await picture(id));
      if (!p) {
        // Never asked as if there had been none.
        m.pictures = m.pictures.filter((x) => x !== id);
        throw new Failure("picture_gone");
      }
      if (!p.file) {
        live.at({ stage: "send" });
        p.file = await upload(p.blob, p.name, controller.signal);
        await db.put("pictures", p);
      }
      parts.push({ type: "image_url", image_url: { url: `margay-file:${p.file}`, detail: s.detail, prune: s.prune } });
    }
    messages.push({ role: "user", content: parts.length ? [...parts, { type: "text", text: m.text }] : m.text });
  }
  return {
    messages,
    temperature: vary && s.temperature === 0 ? 0.7 : s.temperature,
    max_tokens: s.maxTokens,
    ...(vary && { seed: Math.floor(Math.random() * 2 ** 31) }),
  };
}

async function forgetFiles(talk: Talk): Promise<void> {
  for (const m of talk.messages)
    for (const id of m.pictures) {
      const p = await picture(id);
      if (p) delete p.file;
    }
}

async function attempt(run: Run, vary: boolean): Promise<Report> {
  const { live, controller } = run;
  const { signal } = controller;
  const { transport } = state.settings;
  const sink = { progress: (p: Progress) => live.at(p), text: (piece: string) => live.add(piece) };
  for (let full = 0, lostFiles = 0; ; ) {
    try {
      const body = await bodyOf(run, vary);
      live.at({ stage: "connect" });
      if (transport === "ws") return await askSocket(body, sink, signal);
      try {
        return await askStream(body, sink, signal);
      } catch (e) {
        if (transport !== "auto" || !(e instanceof Failure) || e.code !== "no_stream") throw e;
        try {
          return await askSocket(body, sink, signal);
        } catch (other) {
          throw other instanceof Failure && other.code === "no_socket" ? new Failure("no_way") : other;
        }
      }
    } catch (e) {
      if (!(e instanceof Failure) || live.text) throw e;
      if (e.code === "file_not_found" && lostFiles++ < 2) {
        await forgetFiles(run.talk); // restarted, or over its budget: sent once more
        continue;
      }
      const again = e.status === 503 || e.status === 429 || ["queue_full", "loading", "rate_limited"].includes(e.code);
      if (!again || e.code === "shutting_down" || full++ >= 5) throw e;
      for (let left = Math.min(30, Math.max(1, e.retry)); left > 0; left--) {
        live.at({ stage: "busy", step: Math.ceil(left) });
        await wait(1000, signal);
      }
    }
  }
}

function finish(run: Run, report: Report | null, error: unknown): void {
  const { message, live, controller } = run;
  message.text = live.text;
  if (report) {
    message.state = "done";
    message.report = report;
    return;
  }
  if (controller.signal.aborted) {
    message.state = "stopped";
    return;
  }
  message.state = "failed";
  const failure = error instanceof Failure ? error : new Failure("server_error", String(error));
  message.trouble = { code: failure.code, ...(failure.text && { text: failure.text }) };
  if (failure.status === 401) set({ link: "locked", panel: "key", keyWrong: key.get() !== "" });
  if (["lost", "unreachable", "shutting_down", "bad_gateway"].includes(failure.code)) away();
  else if (failure.code === "no_socket") void isReady().then((ok) => ok || away());
}

async function answer(talk: Talk, pending: Pending[], vary = false): Promise<void> {
  const message: Message = { id: newId(), role: "assistant", text: "", at: Date.now(), pictures: [], state: "running" };
  talk.messages.push(message);
  const run: Run = { talk, message, controller: new AbortController(), live: new Live() };
  runs.set(talk.id, run);
  for (const fn of whenRunning) fn();
  const first: Stage = pending.some((p) => !p.picture) ? "prepare" : "connect";
  run.live.at({ stage: first });
  set({ talk: state.talk });
  let release: () => void = () => undefined;
  const held = new Promise<void>((r) => (release = r));
  void navigator.locks?.request(`margay-run-${talk.id}`, () => held).catch(() => undefined);
  const saver = setInterval(() => {
    message.text = run.live.text;
    void save(talk);
  }, 500);
  let report: Report | null = null;
  let error: unknown;
  try {
    await save(talk);
    if (pending.length) {
      const made = await unlessAborted(Promise.all(pending.map((p) => p.ready)), run.controller.signal);
      const user = talk.messages.at(-2)!;
      user.pictures = user.pictures.filter((id) => made.some((p) => p?.id === id));
      for (const p of made) if (p) await db.put("pictures", p);
      if (made.includes(null)) throw new Failure("picture_unread");
    }
    report = await attempt(run, vary);
    if (vary) report.varied = true;
  } catch (e) {
    error = e;
  } finally {
    clearInterval(saver);
    run.live.splitter.end();
    finish(run, report, error);
    keep(message, run.live.splitter);
    runs.delete(talk.id);
    release();
    await save(talk);
    if (deleted.has(talk.id)) await db.forget("talks", talk.id); // a save may have been on its way
    set({ talk: state.talk });
  }
}

export function trouble(x: Trouble): string {
  const k = `trouble.${x.code}`;
  return t(has(k) ? k : x.text ? "trouble.request" : "trouble.server_error", { text: x.text ?? "" });
}

// --- beginning ---
export async function boot(): Promise<void> {
  applySettings();
  if (channel)
    channel.onmessage = async (event: MessageEvent<string>) => {
      // A list that nobody sees is read when it is opened.
      if (state.panel === "talks") await refreshTalks();
      if (event.data.startsWith("-")) {
        const id = event.data.slice(1);
        deleted.add(id);
        stop(id);
        if (state.talk?.id === id) {
          await show(null);
          notice(t("talk.deleted"));
        }
        return;
      }
      deleted.delete(event.data); // brought back
      if (state.talk?.id === event.data && !runs.has(event.data)) {
        const fresh = await db.get("talks", event.data);
        if (fresh) set({ talk: fresh });
      }
    };
  const last = session.get("margay-talk");
  await Promise.all([connect(), last ? show(last) : undefined]);
}
