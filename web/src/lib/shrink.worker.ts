import { shrink, type Wanted } from "./shrink";

self.onmessage = async (event: MessageEvent<{ n: number; wanted: Wanted }>) => {
  const { n, wanted } = event.data;
  try {
    self.postMessage({ n, result: await shrink(wanted) });
  } catch {
    self.postMessage({ n, result: { code: "picture_damaged", format: "" } });
  }
};
