// SHA-256 is that of SubtleCrypto, and sums lose nothing.
import assert from "node:assert/strict";
import { test } from "node:test";

import { byBytes } from "../dist/bundle.js";
import { bits, Sum } from "../dist/scores.js";
import { plainSha256, sha256 } from "../dist/sha256.js";

test("names are compared by their bytes", () => {
  const names = ["b", "a.b", "é", "a", "\u{1f98a}", "\ue000", "ab"];
  assert.deepEqual(names.sort(byBytes), ["a", "a.b", "ab", "b", "é", "\ue000", "\u{1f98a}"]);
});

test("small numbers are not lost in a large sum", () => {
  const sum = new Sum();
  for (const value of [1, 1e100, 1, -1e100]) sum.add(value);
  assert.equal(sum.value, 2);
  for (const value of [-Infinity, 1]) sum.add(value);
  assert.equal(sum.value, -Infinity);
  assert.equal(bits(new Array(10).fill(-0.1 * Math.LN2)), 1);
});

test("SHA-256 without SubtleCrypto is the same", async () => {
  for (const size of [0, 1, 55, 56, 63, 64, 65, 1000]) {
    const data = Uint8Array.from({ length: size }, (_, at) => (at * 7) & 255);
    assert.equal(Buffer.from(plainSha256(data)).toString("hex"), await sha256(data));
  }
  const found = await sha256(new Uint8Array(3));
  const { subtle } = crypto;
  Object.defineProperty(crypto, "subtle", { value: undefined, configurable: true }); // as on a page of plain HTTP
  try {
    assert.equal(await sha256(new Uint8Array(3)), found);
  } finally {
    Object.defineProperty(crypto, "subtle", { value: subtle, configurable: true });
  }
});
