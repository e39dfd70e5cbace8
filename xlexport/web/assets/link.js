// The link to the worker, in which the model runs.
const link = {
  worker: null,
  version: 0, // of the document
  base: { number: 0, file: null }, // what was read before it: nothing, or the state in a file
  good: null, // the file of the latest base that could be read
  asked: new Map(),
  numbers: 0,
  isReady: false,
};

// Sends a document, which makes all earlier ones outdated.
function sendDocument(message) {
  link.version += 1;
  link.worker?.postMessage({ ...message, version: link.version, base: link.base });
}

// Lets the next document begin with a state, or with nothing.
function setBase(file) {
  link.base = { number: link.base.number + 1, file };
}

// Sends a question, and gives its answer.
function ask(message) {
  const id = ++link.numbers;
  return new Promise((answer, refuse) => {
    link.asked.set(id, { answer, refuse });
    link.worker.postMessage({ ...message, id });
  });
}

function answered(message) {
  const { answer, refuse } = link.asked.get(message.id);
  link.asked.delete(message.id);
  if (message.kind === "failed") refuse(new Error(message.message));
  else answer(message);
}

// `takers` has a function for each kind of message.
function startWorker(takers) {
  const lost = "The files of this page cannot be loaded.";
  try {
    link.worker = new Worker("worker/worker.js", { type: "module" });
  } catch (error) {
    showProblem(`${lost} A browser opens it only from a web server, such as that of xlexport web --serve.`);
    return;
  }
  link.worker.onerror = (event) => {
    event.preventDefault();
    showProblem(`${lost} ${event.message ? `${event.message}. ` : ""}Check the connection, and load the page again.`);
  };
  link.worker.onmessage = ({ data }) => {
    if (link.asked.has(data.id)) answered(data);
    else if (data.version === undefined || data.version === link.version) takers[data.kind]?.(data);
  };
  link.worker.postMessage({ kind: "open", about });
}

function showProblem(words) {
  byId("problem").textContent = words;
  byId("problem").hidden = false;
  byId("bar").hidden = true;
  if (!link.isReady) showState("Not loaded");
}

function hideProblem() {
  byId("problem").hidden = true;
}

const showState = (words) => {
  if (byId("state").textContent !== words) byId("state").textContent = words;
};

// What the card shows of a token: `details` has it once the worker has answered.
const details = new Map();

async function readDetail(token) {
  const { version } = link;
  if (details.has(token)) return;
  const { found, labels: texts } = await ask({ kind: "describe", token });
  if (version !== link.version) return;
  Object.assign(labels, texts);
  details.set(token, found);
}

function describe(token) {
  const surprisal = bits[token] === NO_SCORE ? null : bits[token] / STEPS;
  return { ...details.get(token), entropy: entropy[token] === NO_SCORE ? null : entropy[token] / STEPS, surprisal };
}
