// The link to the worker, in which the model runs.
export class Link {
  isReady = false;
  threads = 1;
  base = { number: 0, file: null }; // what was read before the document: nothing, or the state in a file
  good = null; // the file of the latest base that could be read
  #version = 0; // of the document
  #asked = new Map(); // by number, what answers a question and what refuses it
  #number = 0;
  #worker = null;

  // `takers` has a function for each kind of message; `onLost` takes a sentence if the worker does not start.
  start(about, takers, onLost) {
    const lost = "The files of this page cannot be loaded.";
    try {
      this.#worker = new Worker("worker/worker.js", { type: "module" });
    } catch {
      onLost(`${lost} A browser opens it only from a web server, such as that of xlexport web --serve.`);
      return;
    }
    this.#worker.onerror = (event) => {
      event.preventDefault();
      onLost(`${lost} ${event.message ? `${event.message}. ` : ""}Check the connection, and load the page again.`);
    };
    this.#worker.onmessage = ({ data }) => {
      const asked = this.#asked.get(data.id);
      if (asked) {
        this.#asked.delete(data.id);
        if (data.kind === "failed") asked.refuse(new Error(data.message));
        else asked.answer(data);
      } else if (data.version === undefined || data.version === this.#version) {
        takers[data.kind]?.(data);
      }
    };
    this.send({ kind: "open", about });
  }

  send(message) {
    this.#worker?.postMessage(message);
  }

  // Sends a document, which makes all earlier ones outdated.
  sendDocument(message) {
    this.#version += 1;
    this.send({ ...message, version: this.#version, base: this.base });
  }

  // Lets the next document begin with a state, or with nothing.
  setBase(file) {
    this.base = { number: this.base.number + 1, file };
  }

  // Sends a question, and returns its answer.
  ask(message) {
    const id = ++this.#number;
    return new Promise((answer, refuse) => {
      this.#asked.set(id, { answer, refuse });
      this.send({ ...message, id });
    });
  }
}
