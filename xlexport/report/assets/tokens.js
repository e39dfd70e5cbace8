// The document that the page shows: its text and its tokens' numbers. A page fills these, and may replace them.
const NO_SCORE = 0xffff;
const STEPS = 100; // in a bit

let N = about.tokens ?? 0;
let bits = new Uint16Array(N); // of each token, in hundredths; NO_SCORE: it has no context
let entropy = new Uint16Array(N); // of the prediction of each, the same
let start = new Uint32Array(N + 1); // where each token begins in `text`
let text = "";
let labels = {}; // texts of tokens, by id
let scored = N; // tokens, the first ones, that have their numbers

// The last token that begins at or before a place in the text: the one that covers it.
function tokenAt(place) {
  let low = 0;
  let high = N;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (start[middle] <= place) low = middle;
    else high = middle;
  }
  return low;
}

// At most once in a frame, however often it is asked for.
function soon(action) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}

function percent(probability) {
  if (probability >= 0.995) return `${(probability * 100).toFixed(1)} %`;
  if (probability >= 0.0995) return `${(probability * 100).toFixed(0)} %`;
  if (probability >= 0.00995) return `${(probability * 100).toFixed(1)} %`;
  return probability >= 0.0001 ? `${(probability * 100).toFixed(2)} %` : "< 0.01 %";
}

function odds(surprisal) {
  const one = 2 ** surprisal;
  return one < 1e6 ? `1 in ${grouped(one < 10 ? +one.toFixed(1) : Math.round(one))}` : `1 in 2^${surprisal.toFixed(0)}`;
}
