import react from "@vitejs/plugin-react";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

const folder = join(import.meta.dirname, "../src/ferrule/web/static");

/** Writes each asset compressed beside it, so that the server need not compress. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    closeBundle() {
      const assets = join(folder, "assets");
      for (const name of readdirSync(assets)) {
        if (/\.(js|css)$/.test(name)) {
          writeFileSync(join(assets, `${name}.gz`), gzipSync(readFileSync(join(assets, name)), { level: 9 }));
        }
      }
    },
  };
}

export default defineConfig({
  plugins: [react(), compressed()],
  build: { outDir: folder, emptyOutDir: true, assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  server: { proxy: { "/v1": "http://127.0.0.1:8321" } },
});
