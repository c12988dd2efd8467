import { defineConfig } from "vite";

// The output is committed and must be the same wherever it is built: no dates, no absolute paths, fixed targets.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: ["es2022", "chrome105", "firefox110", "safari16.4"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 400,
  },
  worker: { format: "es" },
  server: {
    // npm run dev: the API is that of a margay serve on its usual port.
    proxy: Object.fromEntries(
      ["/v1", "/props", "/slots", "/metrics", "/health", "/ready", "/live", "/ws"].map((path) => [
        path,
        { target: process.env["MARGAY_URL"] ?? "http://127.0.0.1:8080", ws: path === "/ws" },
      ]),
    ),
  },
});
