/** The state of a stream in a file, which Python's `xlruntime` reads and writes, too. */

import { allFinite, bytes } from "./arrays.js";
import { sha256 } from "./digest.js";
import type { Engine } from "./engine.js";
import { OptionError, StateError } from "./errors.js";
import type { EvaluationSettings, Settings, SettingValue } from "./evaluation.js";
import { either, FieldError, map, nothing, readFields, record, text, truth, whole } from "./fields.js";
import { byCodePoint, dumps, isObject, type Json, type JsonObject } from "./json.js";
import { Budget } from "./limits.js";
import { sizesOf } from "./memory.js";
import { firstLine, plainText } from "./messages.js";
import { readSafetensors, safetensorsHeader, SafetensorsError, type HostTensor } from "./safetensors.js";
import { joined } from "./source.js";
import { parseJson } from "./spec.js";

const KIND = "xlexport stream";
const VERSION = 2;
const LARGEST_COUNT = 2 ** 62; // tokens: far from overflowing
const LIMITS = { bytes: 2 ** 30, operations: 20_000_000 };
const REPAIR = "Save the stream again with Stream.save.";

/** The fields of a state, without the tensors of its memory. Names are those of the file. */
export interface SavedStream {
  readonly fingerprint: string;
  readonly evaluation: Record<string, SettingValue>;
  readonly capacity: number;
  readonly offset: number;
  readonly memory_length: number;
  readonly history: number;
  readonly pending: number | null;
  readonly position: number;
}

const SAVED = record({
  fingerprint: { kind: text },
  evaluation: { kind: map(either(whole, truth)) },
  capacity: { kind: whole },
  offset: { kind: whole },
  memory_length: { kind: whole },
  history: { kind: whole },
  pending: { kind: either(whole, nothing) },
  position: { kind: whole },
});

/** Return the content of a state's file. */
export async function writeStream(
  saved: SavedStream,
  arrays: ReadonlyMap<string, HostTensor>,
): Promise<Uint8Array<ArrayBuffer>> {
  const state: JsonObject = { kind: KIND, version: VERSION, ...(saved as unknown as JsonObject) };
  state["sha256"] = await digestOf(state, arrays);
  const parts = [safetensorsHeader({ xlexport: dumps(state) }, arrays)];
  for (const array of arrays.values()) parts.push(bytes(array.data));
  return joined(
    parts,
    parts.reduce((size, part) => size + part.length, 0),
  );
}

/**
 * Read a state of this bundle, and check it: fields, settings, and tensors.
 *
 * @throws StateError - the bytes are not a stream's state, are damaged, or belong to another bundle.
 */
export async function readStream(
  engine: Engine,
  raw: Uint8Array,
  name: string,
): Promise<{ saved: SavedStream; evaluation: EvaluationSettings; arrays: Record<string, HostTensor> }> {
  const { state, arrays } = await readState(raw, name);
  if (state["fingerprint"] !== engine.fingerprint) {
    throw new StateError(`${name}: saved from another bundle than ${engine.where}.`, "Open the one it was saved from.");
  }
  let saved: SavedStream;
  let evaluation: EvaluationSettings;
  try {
    saved = readFields(SAVED, state);
    evaluation = engine.bundle.evaluation.choose(saved.evaluation as Settings);
    const problems = problemsOf(saved, evaluation, engine.bundle.vocab_size);
    const [found, expected] = [saved.evaluation, evaluation.toObject()];
    const names = Object.keys(expected);
    if (names.length !== Object.keys(found).length || names.some((one) => found[one] !== expected[one])) {
      problems.push(`evaluation is ${plainText(found)}, expected ${plainText(names)}`);
    }
    if (problems.length) throw new OptionError(`${problems.join("; ")}.`);
  } catch (error) {
    if (!(error instanceof FieldError || error instanceof OptionError)) throw error;
    throw new StateError(`${name}: not a stream's state (${error.message}).`, REPAIR, error);
  }
  const problems: string[] = [];
  for (const entry of engine.bundle.memory) {
    const expected = sizesOf({ evaluation, capacity: saved.capacity }, entry).join(", ");
    const array = arrays[entry.input];
    if (array === undefined) {
      problems.push(`${entry.input} is missing`);
    } else if (array.dtype !== entry.dtype || array.shape.join(", ") !== expected) {
      const found = `${array.dtype} (${array.shape.join(", ")})`;
      problems.push(`${entry.input} is ${found}, expected ${entry.dtype} (${expected})`);
    } else if (!allFinite(array.data, array.dtype)) {
      problems.push(`${entry.input} has numbers that are not finite`);
    }
  }
  if (problems.length) throw new StateError(`${name}: ${problems.join("; ")}.`, REPAIR);
  return { saved, evaluation, arrays };
}

/** Return the fields and tensors of a state, whose digest is right. */
async function readState(
  raw: Uint8Array,
  name: string,
): Promise<{ state: JsonObject; arrays: Record<string, HostTensor> }> {
  const budget = new Budget(LIMITS, name, StateError);
  let state: Json;
  let arrays: Record<string, HostTensor>;
  try {
    const read = readSafetensors(raw, (header) => parseJson(header, budget, REPAIR));
    arrays = read.tensors;
    const text = read.metadata["xlexport"] ?? "{}";
    if (typeof text !== "string") throw new SafetensorsError("its metadata are not texts");
    state = parseJson(new TextEncoder().encode(text), budget, REPAIR);
  } catch (error) {
    if (!(error instanceof SafetensorsError || error instanceof StateError || error instanceof RangeError)) throw error;
    const found = error instanceof StateError ? error.problem.replace(`${name}: `, "") : firstLine(error);
    throw new StateError(`${name}: not a stream's state (${found.replace(/\.$/, "")}).`, REPAIR, error);
  }
  if (!isObject(state) || state["kind"] !== KIND) {
    throw new StateError(`${name}: a safetensors file, but not a stream's state.`, REPAIR);
  }
  if (state["version"] !== VERSION) {
    throw new StateError(`${name}: state version ${plainText(state["version"])}, expected ${VERSION}.`, REPAIR);
  }
  const { sha256: stated, ...rest } = state;
  if (stated !== (await digestOf(rest, new Map(Object.entries(arrays))))) {
    throw new StateError(`${name}: damaged since it was saved (its SHA-256 differs).`, REPAIR);
  }
  const { kind: _kind, version: _version, ...fields } = rest;
  return { state: fields, arrays };
}

/** Return the SHA-256 of fields and tensors, as Python computes it. */
async function digestOf(state: JsonObject, arrays: ReadonlyMap<string, HostTensor>): Promise<string> {
  const parts = [new TextEncoder().encode(dumps(state, { sortKeys: true }))];
  for (const [name, array] of [...arrays].sort(([a], [b]) => byCodePoint(a, b))) {
    const shape = array.shape.length === 1 ? `(${array.shape[0]},)` : `(${array.shape.join(", ")})`;
    parts.push(new TextEncoder().encode(`${name} ${array.dtype} ${shape}`), bytes(array.data));
  }
  return sha256(
    joined(
      parts,
      parts.reduce((size, part) => size + part.length, 0),
    ),
  );
}

/** Return the reasons why no walk under these settings can have this state. */
function problemsOf(saved: SavedStream, evaluation: EvaluationSettings, vocabSize: number): string[] {
  const most = {
    offset: LARGEST_COUNT,
    memory_length: evaluation.mostRows,
    position: LARGEST_COUNT,
    history: saved.position,
    pending: vocabSize - 1,
  };
  const problems = Object.entries(most).flatMap(([name, largest]) => {
    const found = saved[name as keyof typeof most];
    const fits = found === null || (found >= 0 && found <= largest);
    return fits ? [] : [`${name} is ${found}, expected 0 to ${largest}`];
  });
  if (evaluation.maxSegment(saved.capacity) < 1) {
    problems.push(`capacity is ${saved.capacity}, but ${evaluation.mostRows} rows are kept`);
  }
  if ((saved.pending === null) !== (saved.position === 0)) {
    problems.push(`${saved.position} tokens were read, and ${plainText(saved.pending)} is held`);
  }
  return problems;
}
