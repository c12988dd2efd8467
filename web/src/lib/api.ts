/** Requests to the server that the page came from. The key lives in the session's storage alone. */
import { session } from "./store";
import type { Props, Trouble } from "./types";

/** The page may lie under a prefix: all paths are relative to it. */
const base = new URL("./", document.baseURI);
export const url = (path: string): string => new URL(path, base).href;

export const key = {
  get: (): string => session.get("margay-key") ?? "",
  set: (value: string): void => session.set("margay-key", value || null),
  /** A header can carry it: a letter of another script, or an invisible one that was copied along, is a wrong key. */
  isPossible: (value: string): boolean => /^[\x21-\x7e]*$/.test(value),
};

export class Failure extends Error implements Trouble {
  constructor(
    readonly code: string,
    readonly text = "",
    readonly status = 0,
    /** Seconds after which the server wants to be asked again. */
    readonly retry = 0,
  ) {
    super(text || code);
  }
}

/** What an answer without margay's own words means: one of a proxy in between. */
const BY_STATUS: Record<number, string> = {
  401: "invalid_api_key", 403: "forbidden", 413: "body_too_large", 429: "rate_limited", 502: "bad_gateway", 503: "bad_gateway", 504: "bad_gateway",
};

export function failureOf(error: { message?: string; code?: string | null; type?: string } | undefined, status = 0, retry = 0): Failure {
  const code = error?.code || BY_STATUS[status] || "server_error";
  return new Failure(code, error?.message ?? (status && !error ? `HTTP ${status}` : ""), status, retry);
}

/** Retry-After in seconds: a number, or a date, which is by the server's clock. */
export function retryAfter(headers: Headers): number {
  const text = headers.get("retry-after") ?? "";
  if (/^\d+$/.test(text)) return Number(text);
  const now = Date.parse(headers.get("date") ?? "") || Date.now();
  return Math.max(0, Math.ceil((Date.parse(text) - now) / 1000)) || 0;
}

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key.get()) headers.set("Authorization", `Bearer ${key.get()}`);
  let response: Response;
  try {
    response = await fetch(url(path), { ...init, headers, cache: "no-store" });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Failure("unreachable");
  }
  if (response.ok) return response;
  const body = (await response.json().catch(() => null)) as { error?: { message?: string; code?: string } } | null;
  throw failureOf(body?.error, response.status, retryAfter(response.headers));
}

export async function props(): Promise<Props> {
  return (await (await request("props")).json()) as Props;
}

export async function isReady(): Promise<boolean> {
  try {
    return (await fetch(url("health"), { cache: "no-store" })).ok;
  } catch {
    return false;
  }
}

export async function upload(blob: Blob, name: string, signal: AbortSignal): Promise<string> {
  const form = new FormData();
  form.append("purpose", "vision");
  form.append("file", blob, name.replace(/[^\w.-]+/g, "_").slice(-80) || "picture");
  const response = await request("v1/files", { method: "POST", body: form, signal });
  return ((await response.json()) as { id: string }).id;
}
