/** Shrinks pictures in a worker where that can be; the page stays smooth while a photo of 24 megapixels is worked on. */
import type { Shrunk, Wanted } from "./shrink";
import workerUrl from "./shrink.worker?worker&url";

let worker: Worker | null | undefined;
let n = 0;
const waiting = new Map<number, { wanted: Wanted; done: (r: Shrunk) => void }>();

/** Parts of the page that can't be loaded (the server is away, or a newer one is there) are a reason, not a wait. */
async function onPage(wanted: Wanted): Promise<Shrunk> {
  try {
    const { shrink } = await import("./shrink");
    return await shrink(wanted);
  } catch {
    return { code: "picture_unprepared", format: "" };
  }
}

let policy: ReturnType<NonNullable<Window["trustedTypes"]>["createPolicy"]> | undefined;

function start(): Worker | null {
  if (typeof OffscreenCanvas === "undefined" || typeof Worker === "undefined") return null;
  try {
    policy ??= window.trustedTypes?.createPolicy("margay", { createScriptURL: (u: string) => u });
    const w = new Worker((policy ? policy.createScriptURL(workerUrl) : workerUrl) as string, { type: "module" });
    w.onmessage = (event: MessageEvent<{ n: number; result: Shrunk }>) => {
      waiting.get(event.data.n)?.done(event.data.result);
      waiting.delete(event.data.n);
    };
    w.onerror = () => {
      worker = null; // what waits is done here
      for (const { wanted, done } of waiting.values()) void onPage(wanted).then(done);
      waiting.clear();
    };
    return w;
  } catch {
    return null;
  }
}

/** Loads the worker while the server is there. */
export function warm(): void {
  worker ??= start();
}

export function prepare(wanted: Wanted): Promise<Shrunk> {
  worker ??= start();
  if (!worker) return onPage(wanted);
  const id = n++;
  return new Promise((done) => {
    waiting.set(id, { wanted, done });
    worker!.postMessage({ n: id, wanted });
  });
}

declare global {
  interface Window {
    trustedTypes?: {
      createPolicy(name: string, rules: { createScriptURL(u: string): string }): { createScriptURL(u: string): unknown };
    };
  }
}
