// What a side does with a piece of token ids, in Node and in a page: it returns their scores, or nothing.

const [SEGMENT, CONTEXT] = [128, 1024]; // tokens of a step and of the window of GPT-2

/** Open a bundle, and return the function that feeds its stream. */
export async function streamOf(xlruntime, { model: place, threads, settings, device = "cpu" }) {
  const model = await xlruntime.load(place, { threads, device });
  const stream = await model.stream(settings);
  return async (ids) => Array.from((await stream.feed(ids)).logProbs);
}

/** Open a decoder of transformers.js, and return the function that runs it over ids, restarting after each window. */
export async function decoderOf({ AutoModelForCausalLM, DynamicCache, Tensor, env }, { model: place, threads }) {
  const inNode = typeof process === "object";
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/" });
  env.useBrowserCache = false;
  const { wasm } = env.backends.onnx;
  if (!inNode)
    Object.assign(wasm, { numThreads: threads, wasmPaths: `${location.origin}/library/onnxruntime-web/dist/` });
  const model = await AutoModelForCausalLM.from_pretrained(place, {
    dtype: "fp32",
    device: inNode ? "cpu" : "wasm",
    session_options: { intraOpNumThreads: threads },
  });
  const int64 = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  let [past, read] = [null, 0];
  return async (ids) => {
    for (let start = 0; start < ids.length; start += SEGMENT) {
      const part = ids.slice(start, start + SEGMENT);
      if (read + part.length > CONTEXT) [past, read] = [null, 0];
      read += part.length;
      const attention = int64(new Array(read).fill(1));
      const outputs = await model.forward({ input_ids: int64(part), attention_mask: attention, past_key_values: past });
      const present = Object.entries(outputs).filter(([name]) => name.startsWith("present"));
      const next = Object.fromEntries(present.map(([name, one]) => [name.replace("present", "past_key_values"), one]));
      if (past) past.update(next);
      else past = new DynamicCache(next);
    }
    return [];
  };
}
