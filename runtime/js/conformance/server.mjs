// A file server for tests in a browser: folders under names, with the headers that threads need.
import { createServer } from "node:http";
import { readdir, readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";

const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".json": "application/json",
  ".wasm": "application/wasm",
};

/**
 * Serve folders on a free port of this machine, and pages by their text.
 *
 * @returns its address, the paths that were asked for, and a function that ends it. `/list/NAME/FOLDER` names files.
 *     What a page posts to `/NAME/REST` goes to the function NAME of `posts`, and what that returns goes back.
 */
export async function serve(folders, pages = {}, posts = {}) {
  const asked = [];
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
    asked.push(path);
    const headers = {
      "Cross-Origin-Opener-Policy": "same-origin",
      "Cross-Origin-Embedder-Policy": "require-corp",
      "Content-Type": TYPES[extname(path)] ?? "application/octet-stream",
    };
    try {
      const [, first, ...rest] = path.split("/");
      let content;
      if (request.method === "POST") {
        const parts = [];
        for await (const part of request) parts.push(part);
        content = (await posts[first](Buffer.concat(parts), ...rest)) ?? "";
      } else if (path in pages) [content, headers["Content-Type"]] = [pages[path], "text/html"];
      else if (first === "list") content = JSON.stringify(await readdir(join(folders[rest[0]], ...rest.slice(1))));
      else content = await readFile(join(folders[first], ...rest));
      response.writeHead(200, headers).end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const close = () => new Promise((closed) => server.close(closed) && server.closeAllConnections());
  return { address: `http://127.0.0.1:${server.address().port}`, asked, close };
}
