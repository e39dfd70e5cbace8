// What people do on a site, and what they see.
const state = (page) => page.locator("#state");

/** Open the page, wait for the model, and colour by token: pages of bytes begin with words. */
async function open(page, { address }) {
  await page.goto(address);
  await page.waitForFunction(() => document.documentElement.classList.contains("ready"));
  await page.locator("[name=mode][value=token]").evaluate((node) => node.click());
}

/** Wait until the text on the page is `text`, and all of it has its numbers. */
async function settled(page, text) {
  await page.waitForFunction(
    (wanted) =>
      document.querySelector("#text").textContent === wanted &&
      document.querySelector("#text").ariaBusy === "false" &&
      document.querySelector("#state").textContent.startsWith("Ready"),
    text,
  );
  const tokens = new TextEncoder().encode(text).length.toLocaleString("en-US");
  await page.waitForFunction(
    (wanted) => {
      const figures = document.querySelectorAll("#figures dd");
      return figures.length > 0 && [...figures].at(-1).textContent === wanted;
    },
    tokens,
  );
}

/** The colour levels of the text's elements, and the totals. */
function seen(page) {
  return page.evaluate(() => ({
    texts: [...document.querySelectorAll("#text [data-t]")].map((span) => span.textContent),
    levels: [...document.querySelectorAll("#text [data-t]")].map((span) => +span.className.match(/\bl(\d+)/)[1]),
    figures: Object.fromEntries(
      [...document.querySelectorAll("#figures div")].map((one) => [one.querySelector("dt").textContent, one.querySelector("dd").textContent]),
    ),
    state: document.querySelector("#state").textContent,
    problem: document.querySelector("#problem").hidden ? null : document.querySelector("#problem").textContent,
  }));
}

async function drop(page, name, raw) {
  const dataTransfer = await page.evaluateHandle(
    ([name, raw]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([Uint8Array.from(raw)], name));
      return transfer;
    },
    [name, raw],
  );
  await page.dispatchEvent("main", "dragover", { dataTransfer });
  await page.dispatchEvent("main", "drop", { dataTransfer });
}

const ready = (page) => page.waitForFunction(() => document.querySelector("#state").textContent.startsWith("Ready"));
const shown = (page) => page.waitForFunction(() => !document.querySelector("#problem").hidden);
const card = (page) => page.waitForFunction(() => !document.querySelector("#card").hidden && document.querySelector("#card").innerText);

export const scenarios = {
  // Type, go back and change a word, delete to the end, undo: after each, the whole text's numbers.
  async types(page, request, context) {
    await open(page, request);
    await context.setOffline(true); // from here on nothing is loaded
    const found = [];
    await page.click("#editor");
    await page.keyboard.type(request.texts[0]);
    for (const [number, text] of request.texts.entries()) {
      if (number === 1) {
        await page.keyboard.press("Control+Home");
        for (let step = 0; step < 8; step++) await page.keyboard.press("ArrowRight");
        await page.keyboard.press("Control+Delete");
        await page.keyboard.type("new");
      }
      if (number === 2) {
        await page.keyboard.press("Control+Shift+End");
        await page.keyboard.press("Delete");
      }
      await settled(page, text);
      found.push(await seen(page));
    }
    await page.keyboard.press("Control+A");
    await page.keyboard.press("Delete");
    await page.keyboard.press("Control+Z"); // back at once, so that the worker sees only one of both
    await settled(page, request.texts.at(-1));
    found.push(await seen(page));
    return found;
  },

  async pastes(page, request) {
    await open(page, request);
    await page.evaluate((text) => navigator.clipboard.writeText(text), request.texts[0]);
    await page.click("#editor");
    await page.keyboard.press("Control+V");
    await settled(page, request.texts[0]);
    const boxes = await page.evaluate(() => ["#text", "#editor"].map((name) => document.querySelector(name).getBoundingClientRect().height));
    const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    // The lines of the field break where those of the coloured text do: the caret is drawn over its own token.
    const lines = await page.evaluate(() => {
      const tops = [...document.querySelectorAll("#text [data-t]")].map((span) => span.getBoundingClientRect().top);
      return new Set(tops.map(Math.round)).size;
    });
    const heights = await page.evaluate(() => {
      const editor = document.querySelector("#editor");
      const own = editor.style.height;
      editor.style.height = "0";
      const height = editor.scrollHeight;
      editor.style.height = own;
      return [height, document.querySelector("#text").scrollHeight, parseFloat(getComputedStyle(editor).lineHeight)];
    });
    return { ...(await seen(page)), boxes, wide, lines, heights };
  },

  // Drop a book, watch it grow, and read it with the mouse and with the keys of a report.
  async drops(page, request) {
    await open(page, request);
    const states = [];
    await page.exposeFunction("note", (words) => states.push(words));
    await page.evaluate(() => {
      const node = document.querySelector("#state");
      new MutationObserver(() => window.note(node.textContent)).observe(node, { childList: true, characterData: true, subtree: true });
    });
    await drop(page, "a book.txt", request.raw);
    await page.waitForFunction(() => document.querySelectorAll("#text .block").length > 1);
    await ready(page);
    await page.waitForFunction(() => !document.documentElement.classList.contains("short"));
    const whole = await seen(page);
    const title = await page.title();
    await page.keyboard.press("/");
    await page.keyboard.type("needle");
    await page.waitForFunction(() => document.querySelector("#found").textContent === "1 of 1");
    await page.locator(`[data-t='${request.token}']`).click();
    const words = await (await card(page)).jsonValue();
    await page.keyboard.press("Escape");
    await page.keyboard.press("n");
    const surprising = await (await card(page)).jsonValue();
    await page.keyboard.press("c");
    const mode = await page.evaluate(() => document.querySelector("[name=mode]:checked").value);
    const strip = await page.evaluate(() => {
      const bars = [...document.querySelectorAll("#bars i")];
      return new Set(bars.map((bar) => bar.className + bar.style.width)).size;
    });
    await page.click("#new");
    await page.keyboard.type("He");
    await settled(page, "He");
    return { states, whole, title, words, surprising, mode, strip, after: await seen(page) };
  },

  // Two continuations after the same text: drawn with seeds, then written.
  async continues(page, request) {
    await open(page, request);
    await page.fill("#editor", request.texts[0]);
    await settled(page, request.texts[0]);
    await page.fill("#length", String(request.length));
    const branch = (side) => page.locator(".branch").nth(side);
    const figure = async (side) => {
      await page.waitForFunction((number) => document.querySelectorAll(".branch")[number].querySelector(".bits").textContent, side);
      return { text: await branch(side).locator("textarea").inputValue(), bits: await branch(side).locator(".bits").textContent() };
    };
    for (const side of [0, 1]) await branch(side).locator("button", { hasText: "Generate" }).click();
    const drawn = [await figure(0), await figure(1)];
    await branch(0).locator("textarea").fill(request.written[0]);
    await branch(1).locator("textarea").fill(request.written[1]);
    await page.waitForFunction(() => document.querySelector("#verdict").textContent);
    const written = [await figure(0), await figure(1)];
    const verdict = await page.textContent("#verdict");
    const likelier = await page.locator(".likelier h3").textContent();
    await branch(1).locator("button", { hasText: "Add" }).click();
    await settled(page, request.texts[0] + request.written[1]);
    await page.fill("#length", "2000");
    await branch(1).locator("button", { hasText: "Generate" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".branch textarea")[1].value.length > 3);
    await branch(1).locator("button", { hasText: "Stop" }).click();
    const stopped = await figure(1);
    return { drawn, written, verdict, likelier, stopped };
  },

  // A state of this page goes on elsewhere, and a state from elsewhere here; a foreign one is refused.
  async states(page, request) {
    await open(page, request);
    await page.fill("#editor", request.texts[0]);
    await settled(page, request.texts[0]);
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
    await download.saveAs(request.saved);
    await page.setInputFiles("#file", request.foreign);
    await shown(page);
    const refused = (await seen(page)).problem;
    await settled(page, request.texts[0]);
    await page.setInputFiles("#file", request.given);
    await page.waitForFunction(() => document.querySelector("#state").textContent.includes("read before"));
    await page.fill("#editor", request.texts[1]);
    await settled(page, request.texts[1]);
    const after = await seen(page);
    await page.click("#new");
    await page.keyboard.type(request.texts[1]);
    await settled(page, request.texts[1]);
    return { name: download.suggestedFilename(), refused, after, fresh: await seen(page) };
  },

  // What is wrong is said in a sentence, and nothing works by half.
  async fails(page, request) {
    if (request.abort) await page.route(request.abort, (route) => route.abort());
    await page.goto(request.address);
    await shown(page);
    const problem = await page.textContent("#problem");
    await page.fill("#editor", "Is this coloured?");
    await page.waitForTimeout(300);
    const coloured = await page.evaluate(() => [...document.querySelectorAll("#text span")].filter((span) => !/\bl0\b/.test(span.className)).length);
    return { problem, coloured, state: await state(page).textContent(), save: await page.isDisabled("#save") };
  },

  async ids(page, request) {
    await open(page, request);
    await page.fill("#editor", request.texts[0]);
    await ready(page);
    await page.waitForFunction(() => document.querySelector("#figures dd").textContent !== "–");
    const before = await seen(page);
    await page.fill("#editor", request.texts[1]);
    await shown(page);
    return { before, problem: (await seen(page)).problem };
  },

  // Without a mouse: from the field to reading, from token to token, and back; every control has a name.
  async keys(page, request) {
    await open(page, request);
    await page.click("#editor");
    await page.keyboard.type(request.texts[0]);
    await settled(page, request.texts[0]);
    await page.keyboard.press("Escape");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    await page.waitForFunction(() => document.querySelector("#live").textContent.startsWith("h: "));
    const live = await page.textContent("#live");
    await page.keyboard.press("Enter");
    const caret = await page.evaluate(() => [document.activeElement.id, document.activeElement.selectionStart]);
    const unnamed = await page.evaluate(() =>
      [...document.querySelectorAll("button, input, textarea, progress")]
        .filter((node) => !node.hidden && !(node.textContent.trim() || node.getAttribute("aria-label") || node.labels?.length))
        .map((node) => node.outerHTML),
    );
    await page.click("#keys");
    const help = await page.innerText("#help");
    return { live, caret, unnamed, help };
  },

  async opens(page, request) {
    const mode = () => page.evaluate(() => document.querySelector("[name=mode]:checked").value);
    await page.goto(request.address);
    const loading = await state(page).textContent();
    const modes = [await mode()];
    await open(page, request);
    modes.push(await mode());
    const { state: words } = await seen(page);
    return { loading, modes, words, isolated: await page.evaluate(() => crossOriginIsolated) };
  },
};
