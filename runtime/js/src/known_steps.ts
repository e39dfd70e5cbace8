/** The known answers of a step model. */

import type { Graph } from "./bundle.js";
import type { Engine } from "./engine.js";
import { is, list, record, whole, type Check } from "./fields.js";
import { LARGEST_FILE, SHARED, type Answers } from "./known_answers.js";
import { escaped } from "./messages.js";
import { zeros, type Numbers } from "./safetensors.js";
import { concatenated, layoutsOf, StepStream, type Layout } from "./step_stream.js";

/** The fields that only a step model has; numbers are those of all steps, one step after the other. */
interface Steps {
  steps: number;
  inputs: Readonly<Record<string, readonly number[]>>;
  outputs: Readonly<Record<string, readonly number[]>>;
  bounds: Readonly<Record<string, number>>;
}

/** Return the answers of a step model. */
export function answersOfSteps(engine: Engine, value: Record<string, unknown>): Answers {
  const run = engine.bundle.graphs["run"] as Graph;
  const [inputs, outputs] = [layoutsOf(run.inputs), layoutsOf(run.outputs)];
  const numbers = ({ dtype, size }: Layout): Check<unknown> => list(numberOf(dtype), Number(value["steps"]) * size);
  const of = (layouts: Layout[], check: (layout: Layout) => Check<unknown>): Check<unknown> =>
    record(Object.fromEntries(layouts.map((layout) => [layout.name, check(layout)])));
  const series = { inputs: of(inputs, numbers), outputs: of(outputs, numbers), bounds: of(outputs, () => positive) };
  record({ ...SHARED, steps: whole(1, LARGEST_FILE), ...series })(value, "");
  const answers = value as unknown as Answers & Steps;
  return {
    ...answers,
    unit: "step",
    count: answers.steps,
    async *walk(evaluation) {
      const stream = await StepStream.open(engine, evaluation, null);
      try {
        for (let begin = 0; begin < answers.steps; begin += evaluation.segmentLen) {
          const S = Math.min(evaluation.segmentLen, answers.steps - begin);
          const given = inputs.map(({ name, dtype, size }) => {
            const row = asNumbers(dtype, answers.inputs[name]?.slice(begin * size, (begin + S) * size) ?? []);
            return [name, concatenated(dtype, new Array<Numbers>(stream.rows).fill(row))] as const;
          });
          const found = await stream.run(Object.fromEntries(given));
          yield Array.from({ length: S }, (_, step) =>
            outputs.flatMap(({ name, size }) =>
              Array.from({ length: size }, (_, at) => {
                const expected = answers.outputs[name]?.[(begin + step) * size + at] as number;
                const own = Number(found[name]?.[step * size + at]);
                return [`the output ${escaped(name)}`, own, expected, answers.bounds[name] as number] as const;
              }),
            ),
          );
        }
      } finally {
        await stream.close();
      }
    },
  };
}

const positive = is<number>("a number above 0", (value) => typeof value === "number" && value > 0);
const float = is<number>(
  "a number of float32",
  (value) => Number.isFinite(value) && Number.isFinite(Math.fround(value as number)),
);

/** Accept the numbers of a type; of integers, those that every reader of JSON keeps. */
function numberOf(dtype: string): Check<number> {
  if (dtype.startsWith("float")) return float;
  if (dtype === "bool") return whole(0, 1);
  const [isSigned, bits] = [dtype.startsWith("int"), Number(/\d+$/.exec(dtype)?.[0])];
  const most = Math.min(2 ** (isSigned ? bits - 1 : bits) - 1, Number.MAX_SAFE_INTEGER);
  return whole(isSigned ? Math.max(-most - 1, Number.MIN_SAFE_INTEGER) : 0, most);
}

function asNumbers(dtype: string, numbers: readonly number[]): Numbers {
  const data = zeros(dtype, numbers.length);
  data.set((typeof data[0] === "bigint" ? numbers.map(BigInt) : numbers) as never);
  return data;
}
