/** The known answers of a bundle: what the trained model computes of a few inputs, which this machine must reproduce. */

import { isStepModel, type BundleFiles } from "./bundle.js";
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
/** The most bytes of the file. */
export const LARGEST_FILE = 40_000;
const AGAIN = "Convert the checkpoint again.";

/** The fields that both kinds of answers have. */
export const SHARED = {
  settings: map(either((value) => typeof value === "boolean", truth, whole(Number.MIN_SAFE_INTEGER))),
  memory: map(list(whole(0))),
  certain: truth,
};
const ANSWERS = record({
  ...SHARED,
  tokens: list(whole(0)),
  log_probs: list(real),
  bounds: list(real),
  margin: orNull(real),
});

/** A number of this machine, its answer and its bound. */
type Compared = readonly [what: string, found: number, expected: number, bound: number];

/** Answers that were read: `count` tokens or steps, whose numbers `walk` yields in the parts in which it computes them. */
export interface Answers extends Checked<ReturnType<typeof record<typeof SHARED>>> {
  unit: "token" | "step";
  count: number;
  walk(evaluation: EvaluationSettings): AsyncGenerator<Compared[][]>;
}

/** The result of `Model.check`. */
export interface CheckResult {
  /** Null if the bundle has no known answers. */
  passed: boolean | null;
  /** Number of scores that were compared, or of the steps of a step model. */
  tokens: number;
  /** The largest difference from an answer, divided by its bound. */
  largest: number;
  /** The first difference: where, found and expected; null: none. */
  problem: string | null;
  /** Whether a failure means wrong numbers; on WebGPU no bound was measured, and rounding may choose another one. */
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
  const { capacity } = evaluation;
  result.problem = otherShape({ entries: engine.bundle.memory, evaluation, capacity, rows: 1 }, answers);
  let differs = false;
  const end = performance.now() + 1000 * seconds;
  for await (const part of answers.walk(evaluation)) {
    for (const numbers of part) {
      result.tokens++;
      for (const [what, found, expected, bound] of numbers) {
        const difference = Math.abs(found - expected) / bound;
        if (difference > result.largest) result.largest = difference;
        if (difference <= 1 || differs) continue;
        differs = true;
        const values = `${found.toPrecision(7)}, expected ${expected.toPrecision(7)} within ${bound}`;
        result.problem = `${answers.unit} ${result.tokens} of the known answers has ${what} ${values}`;
      }
    }
    if (performance.now() > end) break;
  }
  return { ...result, passed: result.problem === null, certain: answers.certain && isMeasured };
}

/** Return the answers of a language model. */
function answersOfTokens(engine: Engine, value: unknown): Answers {
  ANSWERS(value, "");
  const answers = value as Checked<typeof ANSWERS>;
  const { tokens, log_probs: scores, bounds } = answers;
  if (!scores.length || tokens.length !== scores.length + 1 || bounds.length !== scores.length) {
    const counts = `${tokens.length} tokens and ${bounds.length} bounds for ${scores.length} log_probs`;
    throw new FieldError(`${counts}, expected one more token and as many bounds`);
  }
  tokens.forEach((token, at) => whole(0, engine.bundle.model.vocab_size - 1)(token, `tokens[${at}]`));
  const at = bounds.findIndex((bound) => !(bound > 0));
  if (at >= 0) throw new FieldError(`bounds[${at}] is ${bounds[at]}, expected a number above 0`);
  return {
    ...answers,
    unit: "token",
    count: scores.length,
    async *walk(evaluation) {
      const memory = await engine.newMemory(evaluation);
      try {
        const most = engine.longestStep("score", evaluation.segmentLen);
        const longest = Math.min(evaluation.maxSegment(evaluation.capacity), most);
        for (let begin = 0; begin < scores.length; begin += longest) {
          const part = tokens.slice(begin, Math.min(begin + longest, scores.length));
          const targets = tokens.slice(begin + 1, begin + 1 + part.length);
          const outputs = await engine.step("score", memory, part, targets);
          yield Array.from(numbersOf(outputs, "log_prob", "float32", part.length), (found, at) => {
            const [expected, bound] = [scores[begin + at] as number, bounds[begin + at] as number];
            return [["the log-probability", found, expected, bound]];
          });
        }
      } finally {
        memory.release();
      }
    },
  };
}

/** Read the answers, and the settings of their walk. */
async function read(engine: Engine, files: BundleFiles): Promise<[Answers, EvaluationSettings]> {
  const [raw, { bundle }] = [await files.read(FILE), engine];
  try {
    if (raw.length > LARGEST_FILE)
      throw new FieldError(`has ${raw.length} bytes, at most ${LARGEST_FILE} are expected`);
    const value = parsed(raw);
    const answers = isStepModel(bundle)
      ? (await import("./known_steps.js")).answersOfSteps(engine, value)
      : answersOfTokens(engine, value);
    const own = Object.entries(bundle.settings).map(([name, { value }]) => [name, value] as const);
    const { segment_len: chosen = bundle.document.segment_len, ...others } = answers.settings;
    const strange = Object.keys(others).find((name) => !(name in bundle.settings));
    if (strange !== undefined) throw new FieldError(`settings.${escaped(strange)} is unknown`);
    const values: Record<string, SettingValue> = { ...Object.fromEntries(own), ...others };
    const evaluation = new EvaluationSettings(bundle, { segmentLen: chosen as number, restart: false, values });
    const longest = evaluation.longestPart ?? answers.count;
    if (answers.count > longest) {
      throw new FieldError(`has ${answers.count} ${answers.unit}s to read, the model reads ${longest}`);
    }
    return [answers, evaluation];
  } catch (error) {
    if (!(error instanceof FieldError || error instanceof OptionError || error instanceof TooLongError)) throw error;
    throw new BundleFormatError(`${files.place(FILE)}: ${error.message.replace(/\.$/, "")}.`, AGAIN, error);
  }
}

function parsed(raw: Uint8Array): Record<string, unknown> {
  let value: unknown;
  try {
    value = readJson(raw, ...["log_probs", "bounds", "margin", "inputs", "outputs"].map((name) => [name]));
  } catch (error) {
    throw new FieldError(`not JSON (${firstLine(error)})`);
  }
  object(value, "");
  return value as Record<string, unknown>;
}

/** Return the first memory of another shape than the answers say; null: none. */
function otherShape(
  plan: Parameters<typeof sizesOf>[0] & { entries: Engine["bundle"]["memory"] },
  answers: Pick<Answers, "memory">,
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
