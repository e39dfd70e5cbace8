/** The state of a stream in a file, which all runtimes read and write. */

import { byBytes, isStepModel, type Bundle } from "./bundle.js";
import { OptionError, StateDamagedError, StateMismatchError } from "./errors.js";
import { EvaluationSettings } from "./evaluation.js";
import { MOST_HELD, type HeldText } from "./held_text.js";
import { sizesOf, type Memory } from "./memory.js";
import { firstLine, listed, shown } from "./messages.js";
import { allFinite, bytes, joined, readSafetensors, safetensorsHeader, type HostTensor } from "./safetensors.js";
import { sha256 } from "./sha256.js";
import { ofHex } from "./tokenizers/trie.js";

const KIND = "xlexport stream";
const VERSION = "4";
const WITHOUT_TEXT = "3"; // a version that held no text
const LARGEST_COUNT = 2 ** 52; // tokens: exact in any runtime, also after more of them
const HINT = "Save the stream again with Stream.save.";

/** A saved stream. */
type State = {
  evaluation: EvaluationSettings;
  counters: Counters;
  tensors: ReadonlyMap<string, HostTensor>;
  held: Uint8Array; // bytes of text that have no tokens yet
  begun: boolean; // whether text came before them
};
/** The counters of a stream; names are those of the file. Those of `Rows` have a number for each batch row. */
type Counters = Record<"capacity" | "offset" | "length", number> & Record<Rows, number[]> & { pending: number | null };
type Rows = "history" | "position";

/** Return the content of a state's file. */
export async function writeState(
  bundle: Bundle,
  memory: Memory,
  pending: number | null,
  position: readonly number[],
  text: Pick<HeldText, "held" | "begun">,
): Promise<Uint8Array<ArrayBuffer>> {
  const { evaluation, capacity } = memory.plan;
  const { offset, length } = memory;
  const { fingerprint } = bundle;
  const metadata: Record<string, string> = { kind: KIND, version: VERSION, fingerprint };
  const rows = { history: memory.positions.join(" "), position: position.join(" ") };
  const counters = { capacity, offset, length, pending: pending ?? "", ...rows };
  const held = Array.from(text.held, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const values = { ...settingsOf(evaluation), ...counters, held, begun: text.begun, tokenizer: tokenizerOf(bundle) };
  for (const [name, value] of Object.entries(values)) metadata[name] = String(value);
  const tensors = new Map([...(await memory.arrays())].sort(([a], [b]) => byBytes(a, b)));
  const data = joined([...tensors.values()].map((tensor) => bytes(tensor.data)));
  metadata["digest"] = await digestOf(metadata, data);
  return joined([safetensorsHeader(metadata, tensors), data]);
}

/**
 * Read a state of this bundle, and check it: digest, settings, counters and tensors.
 *
 * @param name - what the state is called in messages.
 * @throws StateDamagedError - the bytes are not a stream's state, or differ from what was saved.
 * @throws StateMismatchError - it belongs to another bundle, version or choice of settings.
 */
export async function readState(bundle: Bundle, raw: Uint8Array, name: string): Promise<State> {
  const { metadata, tensors } = await readFile(raw, name);
  if (metadata["fingerprint"] !== bundle.fingerprint) {
    throw new StateMismatchError(`${name}: saved from another bundle.`, "Open the bundle that it was saved from.");
  }
  const evaluation = evaluationOf(bundle, metadata, name);
  const isStep = isStepModel(bundle);
  const counters = countersOf(metadata, isStep);
  const older = { held: "", begun: String(counters.position[0] !== 0), tokenizer: "" };
  const { held = "?", begun = "?", tokenizer } = metadata["version"] === WITHOUT_TEXT ? older : metadata;
  const { history, position } = counters;
  const rows = position.map((count, row) => ({ ...counters, position: count, history: history[row] ?? NaN }));
  const vocabSize = bundle.model.vocab_size;
  const problems = [
    ...textProblems(held, begun),
    ...rows.flatMap((row) => [...counterProblems(row, evaluation, vocabSize)]),
  ];
  if (history.length > rows.length || (isStep && (held || begun !== "false" || tokenizer))) {
    problems.push("it counts more rows, or holds text");
  }
  if (!problems.length) problems.push(...tensorProblems(bundle, evaluation, counters, tensors));
  if (problems.length) throw new StateDamagedError(`${name}: impossible for a stream (${listed(problems)}).`, HINT);
  const batch = bundle.graphs["run"]?.fixed["batch"] ?? rows.length;
  if (isStep && rows.length !== batch) {
    const problem = `${name}: a stream of ${rows.length} rows, but the graphs fix ${batch}.`;
    throw new StateMismatchError(problem, "Open the bundle that it was saved from.");
  }
  if (held && tokenizer !== tokenizerOf(bundle)) {
    throw new StateMismatchError(
      `${name}: it holds text for another tokenizer.`,
      "Open the bundle that it was saved from, or save the stream again after Stream.flush.",
    );
  }
  return { evaluation, counters, tensors, held: ofHex(held), begun: begun === "true" };
}

/** Return the SHA-256 of the tokenizer's file; "" if it has none. */
function tokenizerOf({ tokenizer: { file }, files }: Bundle): string {
  return file === null ? "" : (files[file]?.sha256 ?? "");
}

/** Yield what is wrong with the held text. */
function* textProblems(held: string, begun: string): Iterable<string> {
  const most = MOST_HELD + 4;
  if (!/^([0-9a-f]{2})*$/.test(held)) yield `held is ${shown(held)}, expected bytes in hexadecimal`;
  else if (held.length > 2 * most) yield `held has ${held.length / 2} bytes, expected at most ${most}`;
  if (begun !== "true" && begun !== "false") yield `begun is ${shown(begun)}, expected true or false`;
}

/** Return the texts and tensors of a state of this version, whose digest is right. */
async function readFile(
  raw: Uint8Array,
  name: string,
): Promise<{ metadata: Record<string, string>; tensors: Map<string, HostTensor> }> {
  let file: ReturnType<typeof readSafetensors>;
  try {
    file = readSafetensors(raw);
    const { kind } = file.metadata;
    if (kind !== KIND) throw new Error(`its kind is ${shown(kind ?? null)}`);
    const names = [...file.tensors.keys()];
    if (names.some((one, at) => at > 0 && byBytes(names[at - 1] as string, one) > 0)) {
      throw new Error("its tensors are not in the order of their names");
    }
  } catch (error) {
    throw new StateDamagedError(`${name}: not a stream's state (${firstLine(error)}).`, HINT, error);
  }
  const { metadata } = file;
  if (metadata["version"] !== VERSION && metadata["version"] !== WITHOUT_TEXT) {
    throw new StateMismatchError(`${name}: state version ${shown(metadata["version"])}, expected ${VERSION}.`, HINT);
  }
  const { digest, ...others } = metadata;
  if (digest !== (await digestOf(others, file.data))) {
    throw new StateDamagedError(`${name}: damaged since it was saved (its SHA-256 differs).`, HINT);
  }
  return { metadata, tensors: file.tensors };
}

/** Return the SHA-256 of one line for each entry of the metadata, and of the data section. */
async function digestOf(metadata: Readonly<Record<string, string>>, data: Uint8Array): Promise<string> {
  const names = Object.keys(metadata).sort(byBytes);
  const lines = names.map((name) => `${name}=${metadata[name]}\n`).join("");
  return sha256(joined([new TextEncoder().encode(lines), data]));
}

function settingsOf(evaluation: EvaluationSettings): Record<string, number | boolean> {
  const settings = Object.entries(evaluation.values).map(([name, value]) => [`setting.${name}`, value] as const);
  return { segment_len: evaluation.segmentLen, restart: evaluation.restart, ...Object.fromEntries(settings) };
}

/** Return the settings under which a stream was saved. */
function evaluationOf(bundle: Bundle, metadata: Record<string, string>, name: string): EvaluationSettings {
  const valueOf = (text = ""): number | boolean => (/^(true|false)$/.test(text) ? text === "true" : numberOf(text));
  const saved = Object.keys(metadata).filter((one) => one.startsWith("setting."));
  const values = Object.fromEntries(saved.map((one) => [one.slice("setting.".length), valueOf(metadata[one])]));
  const [segmentLen, restart] = [numberOf(metadata["segment_len"]), metadata["restart"] === "true"];
  try {
    const evaluation = new EvaluationSettings(bundle, { segmentLen, restart, values });
    const expected = Object.entries(settingsOf(evaluation));
    const known = new Set(Object.keys(bundle.settings));
    if (expected.every(([one, value]) => metadata[one] === String(value)) && saved.length === known.size) {
      return evaluation;
    }
    throw new OptionError(`settings ${listed(Object.keys(values))}, expected ${listed([...known])}.`);
  } catch (error) {
    if (!(error instanceof OptionError)) throw error;
    const problem = `${name}: saved under settings that this bundle does not have (${error.problem.replace(/\.$/, "")}).`;
    throw new StateMismatchError(problem, "Open the bundle that it was saved from.", error);
  }
}

function countersOf(metadata: Readonly<Record<string, string>>, isStep: boolean): Counters {
  const of = (name: string): number => numberOf(metadata[name]);
  const rows = (name: Rows): number[] => (isStep ? (metadata[name] ?? "").split(" ").map(numberOf) : [of(name)]);
  const pending = metadata["pending"] === "" ? null : of("pending");
  const [capacity, offset, length] = [of("capacity"), of("offset"), of("length")];
  return { capacity, offset, length, pending, history: rows("history"), position: rows("position") };
}

/** Return the number of a decimal text; NaN for any other text. */
function numberOf(text = ""): number {
  const number = Number(text);
  return Number.isSafeInteger(number) && String(number) === text ? number : NaN;
}

/** Yield the reasons why no row of a stream under these settings can have these counters. */
function* counterProblems(
  counters: Omit<Counters, Rows> & Record<Rows, number>,
  evaluation: EvaluationSettings,
  vocabSize: number,
): Iterable<string> {
  const most: Partial<Record<keyof Counters, number>> = {
    length: evaluation.mostRows,
    history: Math.min(counters.position, evaluation.longestPart ?? LARGEST_COUNT),
    pending: vocabSize - 1,
  };
  for (const [name, value] of Object.entries(counters)) {
    const largest = most[name as keyof Counters] ?? LARGEST_COUNT;
    if (value !== null && !(value >= 0 && value <= largest)) yield `${name} is ${value}, expected 0 to ${largest}`;
  }
  const fits = vocabSize ? evaluation.maxSegment(counters.capacity) >= 1 : counters.capacity === evaluation.capacity;
  if (!fits) yield `capacity is ${counters.capacity}`;
  const { offset, history, pending, position } = counters;
  const isPossible = vocabSize ? (pending === null) === (position === 0) : position === history && history <= offset;
  if (!isPossible) yield `position is ${position}, history ${history}, offset ${offset}, pending ${pending}`;
}

function* tensorProblems(
  bundle: Bundle,
  evaluation: EvaluationSettings,
  { capacity, position }: Counters,
  tensors: ReadonlyMap<string, HostTensor>,
): Iterable<string> {
  const plan = { evaluation, capacity, rows: position.length };
  for (const entry of bundle.memory) {
    const expected = `${entry.dtype} (${sizesOf(plan, entry).join(", ")})`;
    const tensor = tensors.get(entry.input);
    const is = tensor && `${tensor.dtype} (${tensor.shape.join(", ")})`;
    if (is !== expected) yield `${entry.input} is ${is ?? "missing"}, expected ${expected}`;
    else if (!allFinite(tensor as HostTensor)) yield `${entry.input} has numbers that are not finite`;
  }
  if (tensors.size > bundle.memory.length) yield "it has tensors without a memory";
}
