// The kit's cases in headless Chromium, on WebAssembly or on WebGPU.
import { FOLDERS, openBrowser, page as pageWith } from "./browser.mjs";
import { serve } from "./server.mjs";

export async function openRunner({ kit, states, keep, device }) {
  const server = await serve({ ...FOLDERS, kit, states }, { "/": pageWith() }, keep);
  const browser = await openBrowser(device === "webgpu");
  const page = await browser.newPage();
  page.on("console", (message) => console.log(`    console: ${message.text()}`));
  await page.goto(server.address);
  const run = (name, within, withinBits) =>
    page.evaluate(
      async ({ name, within, withinBits, device, states, keeps }) => {
        const xlruntime = await import("xlruntime");
        const { runCase } = await import("/conformance/player.mjs");
        const fetched = async (path) => {
          const response = await fetch(path);
          return response.ok ? new Uint8Array(await response.arrayBuffer()) : null;
        };
        const kit = {
          list: async (folder) => (await fetch(`/list/kit/${folder}`)).json(),
          read: (path) => fetched(`/kit/${path}`),
          state: (name) => (states ? fetched(`/states/${name}.safetensors`) : null),
        };
        const options = { device, threads: 1 };
        const keep = keeps ? (name, raw) => fetch(`/keep/${name}`, { method: "POST", body: raw }) : null;
        const found = await runCase(xlruntime, kit, name, { within, withinBits, keep, options });
        return { ...found, leftOut: [...found.leftOut] };
      },
      { name, within, withinBits, device, states: Boolean(states), keeps: Boolean(keep) },
    );
  const close = async () => {
    await browser.close();
    await server.close();
  };
  return { within: device === "webgpu" ? 0.02 : 1e-4, run, close };
}
