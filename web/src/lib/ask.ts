/**
 * One question to the server, by event stream or WebSocket; both give the same events. Ends by returning a report, or
 * throws a Failure ("lost" when the connection broke off) or, when the signal is aborted, an AbortError.
 */
import { Failure, failureOf, key, request, url } from "./api";
import { SseParser } from "./sse";
import type { ImageReport, Progress, Report, Stage, Timings } from "./types";

export interface Sink {
  progress(p: Progress): void;
  text(piece: string): void;
}

export type Body = Record<string, unknown> & { messages: unknown[] };

interface Chunk {
  error?: { message?: string; code?: string };
  model?: string;
  choices?: { delta?: { content?: string }; finish_reason?: string | null; stop_detail?: string }[];
  prompt_progress?: RawProgress;
  timings?: Timings;
  images?: ImageReport[];
  warnings?: string[];
  x_cache?: string;
}
interface RawProgress {
  stage: string;
  step?: number;
  of?: number;
  total?: number;
  cache?: number;
  queue_position?: number;
  estimate_ms?: number;
}
interface SocketMessage extends RawProgress {
  type: string;
  text?: string;
  error?: { message?: string; code?: string };
  model?: string;
  finish_reason?: string;
  stop_detail?: string;
  timings?: Timings;
  images?: ImageReport[];
  warnings?: string[];
  x_cache?: string;
}

const STAGES: readonly string[] = ["queue", "decode", "vision", "prefill"];

function progressOf(p: RawProgress, of: number | undefined): Progress | null {
  if (!STAGES.includes(p.stage)) return null;
  return {
    stage: p.stage as Stage,
    ...(p.step !== undefined && { step: p.step }),
    ...(of !== undefined && { of }),
    ...(p.queue_position !== undefined && { position: p.queue_position }),
    ...(p.estimate_ms !== undefined && { estimate: p.estimate_ms }),
    ...(p.cache !== undefined && { cached: p.cache, total: p.total ?? 0 }),
  };
}

function reportOf(c: Chunk | SocketMessage): Report {
  return {
    ...(c.timings && { timings: c.timings }),
    ...(c.images && { images: c.images }),
    ...(c.warnings && { warnings: c.warnings }),
    ...(c.x_cache && { cache: c.x_cache }),
    ...(c.model && { model: c.model }),
  };
}

export async function askStream(body: Body, sink: Sink, signal: AbortSignal): Promise<Report> {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, return_progress: true }),
    signal,
  });
  const type = response.headers.get("content-type") ?? "";
  if (!response.body || !type.startsWith("text/event-stream")) throw new Failure("no_stream");
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  const report: Report = {};
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Failure("lost");
      for (const data of parser.push(decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") return report;
        const chunk = JSON.parse(data) as Chunk;
        if (chunk.error) throw failureOf(chunk.error);
        const p = chunk.prompt_progress && progressOf(chunk.prompt_progress, chunk.prompt_progress.of);
        if (p) sink.progress(p);
        const choice = chunk.choices?.[0];
        if (choice?.delta?.content) sink.text(choice.delta.content);
        if (choice?.finish_reason)
          Object.assign(report, reportOf(chunk), { finish: choice.finish_reason, detail: choice.stop_detail });
      }
    }
  } catch (e) {
    void reader.cancel().catch(() => undefined);
    if (e instanceof Failure || signal.aborted) throw e;
    throw new Failure("lost");
  }
}

const OPENING = 15000; // ms that a WebSocket may take

const base64url = (text: string): string =>
  btoa(String.fromCharCode(...new TextEncoder().encode(text))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

export function askSocket(body: Body, sink: Sink, signal: AbortSignal): Promise<Report> {
  return new Promise((resolve, reject) => {
    // A browser's WebSocket has no headers of its own: the key goes as the name of a protocol.
    const protocols = ["margay", ...(key.get() ? [`margay.key.${base64url(key.get())}`] : [])];
    const socket = new WebSocket(url("ws").replace(/^http/, "ws"), protocols);
    let opened = false;
    let over = false;
    // What stands in between may keep it waiting for ever.
    const late = setTimeout(() => end(() => reject(new Failure(opened ? "lost" : "no_socket"))), OPENING);
    const end = (fn: () => void) => {
      if (over) return;
      over = true;
      clearTimeout(late);
      signal.removeEventListener("abort", abort);
      socket.close();
      fn();
    };
    const abort = () => {
      if (socket.readyState === WebSocket.OPEN) socket.send('{"type":"cancel"}');
      end(() => reject(new DOMException("stopped", "AbortError")));
    };
    signal.addEventListener("abort", abort);
    if (signal.aborted) abort();
    socket.onopen = () => {
      opened = true;
      clearTimeout(late);
      socket.send(JSON.stringify({ type: "question", id: "q", ...body }));
    };
    socket.onclose = socket.onerror = () => end(() => reject(new Failure(opened ? "lost" : "no_socket")));
    socket.onmessage = (event) => {
      let m: SocketMessage;
      try {
        m = JSON.parse(String(event.data)) as SocketMessage;
      } catch {
        return end(() => reject(new Failure("lost")));
      }
      if (m.type === "progress") {
        const p = progressOf(m, m.total);
        if (p) sink.progress(p);
      } else if (m.type === "token") sink.text(m.text ?? "");
      else if (m.type === "error") end(() => reject(failureOf(m.error)));
      else if (m.type === "result")
        end(() =>
          resolve({
            ...reportOf(m),
            ...(m.finish_reason && { finish: m.finish_reason }),
            ...(m.stop_detail && { detail: m.stop_detail }),
          }),
        );
    };
  });
}
