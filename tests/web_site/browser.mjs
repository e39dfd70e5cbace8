// A site in headless Chromium: runs the named scenario, and prints as JSON what it found.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const request = JSON.parse(readFileSync(0, "utf-8"));
const { openBrowser } = await import(pathToFileURL(request.opener));
const { scenarios } = await import(pathToFileURL(request.scenarios));

const SIZES = { desktop: { width: 1280, height: 860 }, telephone: { width: 390, height: 844 } };
const browser = await openBrowser();
const context = await browser.newContext({
  viewport: SIZES[request.size ?? "desktop"],
  colorScheme: request.theme ?? "light",
  hasTouch: request.size === "telephone",
  acceptDownloads: true,
});
await context.grantPermissions(["clipboard-read", "clipboard-write"]);
const page = await context.newPage();
page.setDefaultTimeout(60_000);
const said = []; // on the console, and errors
const asked = []; // addresses
page.on("console", (message) => said.push(message.text()));
page.on("pageerror", (error) => said.push(error.stack));
page.on("worker", (worker) => worker.on("console", (message) => said.push(message.text())));
context.on("request", (one) => asked.push(one.url()));
let found = null;
try {
  found = (await scenarios[request.scenario](page, request, context)) ?? null;
} finally {
  if (request.picture) await page.screenshot({ path: request.picture });
  await browser.close();
}
const foreign = asked.filter((url) => !url.startsWith(request.address) && !/^(blob|data):/.test(url));
console.log(JSON.stringify({ found, said, foreign }));
