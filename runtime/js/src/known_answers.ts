/** The known answers of a bundle: tokens with the trained model's own scores, which this machine must reproduce. */

import type { BundleFiles } from "./bundle.js";
import type { Engine } from "./engine.js";
import { BundleFormatError, OptionError, TooLongError } from "./errors.js";
import { EvaluationSettings, type SettingValue } from "./evaluation.js";
import { either, FieldError, list, map, object, orNull, real, record, truth, whole, type Checked } from "./fields.js";
import { readJson } from "./json.js";
import { sizesOf } from "./memory.js";
import { escaped, firstLine, shown } from "./messages.js";
import { numbersOf } from "./scores.js";

/** The name of the file. */
export const FILE = "known_answers.json";
const LARGEST_FILE = 40_000; // bytes
const AGAIN = "Convert the checkpoint again.";

const ANSWERS = record({
  settings: map(either((value) => typeof value === "boolean", truth, whole(Number.MIN_SAFE_INTEGER))),
  tokens: list(whole(0)),
  log_probs: list(real),
  bounds: list(real),
  memory: map(list(whole(0))),
  margin: orNull(real),
  certain: truth,
});
type Answers = Checked<typeof ANSWERS>;

/** The result of `Model.check`. */
export interface CheckResult {
  /** Null if the bundle has no known answers. */
  passed: boolean | null;
  /** Number of scores that were compared. */
  tokens: number;
  /** The largest difference from an answer, divided by its bound. */
  largest: number;
  /** The first difference: where, found and expected; null: none. */
  problem: string | null;
  /** Whether a failure means wrong numbers; on WebGPU no bound was measured, and rounding may choose another bucket. */
  certain: boolean;
}

/** Compare an open bundle with its known answers; no step begins after some seconds, but the first. */
export async function checkAnswers(
  engine: Engine,
  files: BundleFiles,
  isMeasured: boolean,
  seconds: number,
): Promise<CheckResult> {
  const result: CheckResult = { passed: null, tokens: 0, largest: 0, problem: null, certain: true };
  if (!(FILE in engine.bundle.files)) return result;
  const [answers, evaluation] = await read(engine, files);
  const { tokens, log_probs: expected, bounds } = answers;
  const memory = await engine.newMemory(evaluation);
  try {
    result.problem = otherShape(memory.plan, answers);
    const most = engine.longestStep("score", evaluation.segmentLen);
    const longest = Math.min(evaluation.maxSegment(evaluation.capacity), most);
    let differs = false;
    const end = performance.now() + 1000 * seconds;
    for (let begin = 0; begin < expected.length; begin += longest) {
      if (begin && performance.now() > end) break;
      const part = tokens.slice(begin, Math.min(begin + longest, expected.length));
      const outputs = await engine.step("score", memory, part, tokens.slice(begin + 1, begin + 1 + part.length));
      for (const found of numbersOf(outputs, "log_prob", "float32", part.length)) {
        const at = result.tokens++;
        const [answer, bound] = [expected[at] as number, bounds[at] as number];
        const difference = Math.abs(found - answer) / bound;
        if (difference > result.largest) result.largest = difference;
        if (difference <= 1 || differs) continue;
        differs = true;
        const values = `${found.toPrecision(7)}, expected ${answer.toPrecision(7)} within ${bound}`;
        result.problem = `token ${at + 1} of the known answers has the log-probability ${values}`;
      }
    }
  } finally {
    memory.release();
  }
  return { ...result, passed: result.problem === null, certain: answers.certain && isMeasured };
}

/** Read the answers, and the settings of their walk. */
async function read({ bundle }: Engine, files: BundleFiles): Promise<[Answers, EvaluationSettings]> {
  const raw = await files.read(FILE);
  try {
    if (raw.length > LARGEST_FILE)
      throw new FieldError(`has ${raw.length} bytes, at most ${LARGEST_FILE} are expected`);
    const answers = parsed(raw);
    const { settings, tokens, log_probs: scores, bounds } = answers;
    if (!scores.length || tokens.length !== scores.length + 1 || bounds.length !== scores.length) {
      const counts = `${tokens.length} tokens and ${bounds.length} bounds for ${scores.length} log_probs`;
      throw new FieldError(`${counts}, expected one more token and as many bounds`);
    }
    tokens.forEach((token, at) => whole(0, bundle.model.vocab_size - 1)(token, `tokens[${at}]`));
    const at = bounds.findIndex((bound) => !(bound > 0));
    if (at >= 0) throw new FieldError(`bounds[${at}] is ${bounds[at]}, expected a number above 0`);
    const own = Object.entries(bundle.settings).map(([name, { value }]) => [name, value] as const);
    const { segment_len: chosen = bundle.document.segment_len, ...others } = settings;
    const strange = Object.keys(others).find((name) => !(name in bundle.settings));
    if (strange !== undefined) throw new FieldError(`settings.${escaped(strange)} is unknown`);
    const values: Record<string, SettingValue> = { ...Object.fromEntries(own), ...others };
    const evaluation = new EvaluationSettings(bundle, { segmentLen: chosen as number, restart: false, values });
    const longest = evaluation.longestPart ?? scores.length;
    if (scores.length > longest) {
      throw new FieldError(`has ${scores.length} tokens to read, the model reads ${longest}`);
    }
    return [answers, evaluation];
  } catch (error) {
    if (!(error instanceof FieldError || error instanceof OptionError || error instanceof TooLongError)) throw error;
    throw new BundleFormatError(`${files.place(FILE)}: ${error.message.replace(/\.$/, "")}.`, AGAIN, error);
  }
}

function parsed(raw: Uint8Array): Answers {
  let value: unknown;
  try {
    value = readJson(raw, ["log_probs"], ["bounds"], ["margin"]);
  } catch (error) {
    throw new FieldError(`not JSON (${firstLine(error)})`);
  }
  object(value, "");
  ANSWERS(value, "");
  return value as Answers;
}

/** Return the first memory of another shape than the answers say; null: none. */
function otherShape(
  plan: Parameters<typeof sizesOf>[0] & { entries: Engine["bundle"]["memory"] },
  answers: Answers,
): string | null {
  const shapes = new Map(plan.entries.map((entry) => [entry.input, sizesOf(plan, entry)]));
  for (const name of new Set([...shapes.keys(), ...Object.keys(answers.memory)])) {
    const [found, expected] = [shapes.get(name) ?? null, answers.memory[name] ?? null];
    if (String(found) !== String(expected)) {
      return `memory ${escaped(name)} has the shape ${shown(found)}, expected ${shown(expected)}`;
    }
  }
  return null;
}
