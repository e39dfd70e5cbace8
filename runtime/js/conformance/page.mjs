// In a page of a browser: ask the server for a case, play it, and post what it gave with the next question.
import * as xlruntime from "xlruntime";

import { runCase } from "./player.mjs";

async function fetched(path) {
  const response = await fetch(path);
  return response.ok ? new Uint8Array(await response.arrayBuffer()) : null;
}

const post = (path, body) => fetch(path, { method: "POST", body });
for (const name of ["log", "warn", "error"]) console[name] = (...words) => post("/said", words.join(" "));

for (let found = { userAgent: navigator.userAgent }; ;) {
  const next = await post("/case", JSON.stringify(found));
  const { name, within, withinBits, device, states, keeps } = await next.json();
  const kit = {
    list: async (folder) => (await fetch(`/list/kit/${folder}`)).json(),
    read: (path) => fetched(`/kit/${path}`),
    state: (name) => (states ? fetched(`/states/${name}.safetensors`) : null),
  };
  const keep = keeps ? (name, raw) => post(`/keep/${name}`, raw) : null;
  const options = { device, threads: 1 };
  found = await runCase(xlruntime, kit, name, { within, withinBits, keep, options });
  found.leftOut = [...found.leftOut];
}
