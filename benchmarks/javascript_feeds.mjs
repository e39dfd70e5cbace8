// What a side does with a piece of token ids, in Node and in a page: it returns their scores.

/** Open a bundle, and return the function that feeds its stream. */
export async function streamOf(xlruntime, { model: place, threads, settings, device = "cpu" }) {
  const model = await xlruntime.load(place, { threads, device });
  const stream = await model.stream(settings);
  return async (ids) => Array.from((await stream.feed(ids)).logProbs);
}
