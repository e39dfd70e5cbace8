// JSON and random numbers are those of Python, and SHA-256 that of SubtleCrypto.
import assert from "node:assert/strict";
import { test } from "node:test";

import { sha256 } from "../dist/digest.js";
import { dumps, parse } from "../dist/json.js";
import { plainSha256 } from "../dist/plain_digest.js";
import { Random } from "../dist/random.js";

test("numbers are written as Python writes them", () => {
  const written =
    "[1e-05, 0.1, 1.0, 1e+16, 1.2345678901234568e+17, 1e+22, 5e-324, -0.0, 1000000000000000.0, 0.0001, 1.5e+300, " +
    "NaN, Infinity, -Infinity, 0, 1, -7, 9007199254740993, 123456789012345678901234567890]";
  assert.equal(dumps(parse(written)), written);
  assert.equal(dumps(parse("[1E5, 100000000000000000.0, 0.00001, -0]")), "[100000.0, 1e+17, 1e-05, 0]");
});

test("texts are written as Python writes them, and names sorted as Python sorts them", () => {
  const parsed = parse(
    '{"b": 1, "é\u2028\u{1f98a}\x7f": "a\\"\\\\\\n/", "\ue000": 2, "\u{1f98a}": 3, "__proto__": null}',
  );
  assert.equal(
    dumps(parsed, { sortKeys: true }),
    '{"__proto__": null, "b": 1, "\\u00e9\\u2028\\ud83e\\udd8a\\u007f": "a\\"\\\\\\n/", "\\ue000": 2, "\\ud83e\\udd8a": 3}',
  );
  assert.equal(dumps(parse('{"b": [1, {}], "a": []}'), { compact: true }), '{"b":[1,{}],"a":[]}');
});

test("what Python refuses is refused", () => {
  const wrong = [
    "",
    "[1,]",
    "{1: 2}",
    "01",
    "1.",
    "+1",
    "nan",
    '"\t"',
    '"\\x"',
    '"\\u12"',
    '"',
    "[",
    "1 2",
    "{'a': 1}",
  ];
  wrong.push("[".repeat(100_000), "1".repeat(5000), '{"a" 1}', "-");
  for (const text of wrong) assert.throws(() => parse(text), SyntaxError, text.slice(0, 20));
});

test("random numbers are those of NumPy", () => {
  const expected = [
    [0n, [0.6369616873214543, 0.2697867137638703, 0.04097352393619469]],
    [1n, [0.5118216247002567, 0.9504636963259353, 0.14415961271963373]],
    [4294967296n, [0.8897387912781343, 0.5571380502062263, 0.8009080868919721]],
    [1180591620717411303427n, [0.4203871190878119, 0.2858736967365757, 0.10627311818295038]],
    [1393796574908163946345982392040522594123781n, [0.0555117360772972, 0.6074036679115504, 0.2525291253957722]],
  ];
  for (const [seed, values] of expected) {
    const random = new Random(seed);
    assert.deepEqual(
      values.map(() => random.next()),
      values,
    );
  }
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
