import { shrink, type Wanted } from "./shrink";

/** One after another: a hundred photos at once would not fit into memory. */
let last: Promise<void> = Promise.resolve();
self.onmessage = (event: MessageEvent<{ n: number; wanted: Wanted }>) => {
  last = last.then(() => work(event.data.n, event.data.wanted));
};

async function work(n: number, wanted: Wanted): Promise<void> {
  try {
    self.postMessage({ n, result: await shrink(wanted) });
  } catch {
    self.postMessage({ n, result: { code: "picture_damaged", format: "" } });
  }
}
