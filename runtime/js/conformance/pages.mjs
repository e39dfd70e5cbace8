// The kit's cases in a browser without a window, on WebAssembly or on WebGPU. The page asks for them, so any browser will do.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { findBrowser, FOLDERS, page, SOFTWARE_GPU } from "./browser.mjs";
import { serve } from "./server.mjs";

const PLAY = `import("/conformance/page.mjs").catch((error) => fetch("/lost", { method: "POST", body: error }))`;
const PREFERENCES = {
  "dom.webgpu.enabled": true,
  "gfx.webgpu.ignore-blocklist": true,
  "datareporting.policy.firstRunURL": "",
  "app.normandy.enabled": false,
};
const ARGUMENTS = {
  chromium: (profile, gpu) => [
    ...["--headless", "--no-sandbox", "--no-first-run", `--user-data-dir=${profile}`],
    ...(gpu ? SOFTWARE_GPU : []),
  ],
  firefox: (profile) => ["--headless", "--no-remote", "--profile", profile],
};

export async function openRunner({ browser, kit, states, keep, device }) {
  const program = findBrowser(browser);
  if (program === null) throw new Error(`no ${browser}; ${browser.toUpperCase()} can name one`);
  let [asks, answers, loses] = [];
  const lost = new Promise((_, reject) => (loses = (reason) => reject(new Error(`${browser} ended: ${reason}`))));
  const answer = () => Promise.race([new Promise((resolve) => (answers = resolve)), lost]);
  const posts = {
    case: (raw) => {
      answers(JSON.parse(raw));
      return new Promise((resolve) => (asks = (question) => resolve(JSON.stringify(question))));
    },
    keep: (raw, name) => keep(name, raw),
    said: (raw) => console.log(`    console: ${raw}`),
    lost: (raw) => loses(raw),
  };
  const script = `<script type="module">${PLAY}</script>`;
  const server = await serve({ ...FOLDERS, kit, states }, { "/": page(script) }, posts);
  const profile = mkdtempSync(join(tmpdir(), "xlruntime-browser-"));
  const lines = Object.entries(PREFERENCES).map(([name, value]) => `user_pref("${name}", ${JSON.stringify(value)});\n`);
  writeFileSync(join(profile, "user.js"), lines.join(""));
  const opened = answer();
  const given = [...ARGUMENTS[browser](profile, device === "webgpu"), server.address];
  const child = spawn(program, given, { env: { ...process.env, HOME: profile }, stdio: "ignore" });
  child.once("exit", (status) => loses(`status ${status}`));
  process.once("exit", () => {
    child.kill("SIGKILL");
    rmSync(profile, { recursive: true, maxRetries: 5 });
  });
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => process.exit(130));
  const { userAgent } = await opened;
  const [, family, version] = /(Firefox|Chrome)\/(\d+)/.exec(userAgent);
  const run = async (name, within, withinBits) => {
    const found = answer();
    asks({ name, within, withinBits, device, states: Boolean(states), keeps: Boolean(keep) });
    const { largest, ...rest } = await found;
    return { ...rest, largest: largest ?? Infinity }; // JSON has no such number
  };
  const close = async () => {
    child.kill();
    await once(child, "exit");
    await server.close();
  };
  return { runtime: `${family} ${version}`, within: device === "webgpu" ? 0.02 : 1e-4, run, close };
}
