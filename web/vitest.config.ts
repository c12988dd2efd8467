import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

// npm test: all of tests/page. Browser tests want a margay (MARGAY_BIN, build/margay) and a Chromium (CHROMIUM).
export default defineConfig({
  root: fileURLToPath(new URL("../tests/page", import.meta.url)),
  server: { fs: { allow: [".."] } },
  test: {
    // MARGAY_SHOTS=1: the README's pictures are made anew, nothing else.
    include: [process.env["MARGAY_SHOTS"] ? "shots.ts" : "*.test.ts"],
    fileParallelism: false, // times are measured
    testTimeout: 30000,
    hookTimeout: 60000,
    teardownTimeout: 5000,
  },
});
