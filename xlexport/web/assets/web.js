// The page comes to life: the field at once, the numbers when the model is loaded.
const MEGABYTE = 1e6;

const takers = {
  progress({ loaded, total }) {
    byId("bar").value = total ? loaded / total : 0;
    showState(`Loading the model: ${(loaded / MEGABYTE).toFixed(1)} of ${(total / MEGABYTE).toFixed(1)} MB`);
  },
  ready({ threads, isWhole }) {
    Object.assign(link, { isReady: true, threads });
    byId("save").disabled = isWhole;
    byId("save").closest("p").hidden = isWhole;
    refresh();
    showBranches();
    document.documentElement.classList.add("ready");
  },
  tokens(message) {
    takeTokens(message);
    showBranches();
  },
  scores: takeScores,
  done: takeDone,
  drawn: takeDrawn,
  branch: takeBranch,
  idle: takeIdle,
  warning: ({ text: words }) => showProblem(words),
  failed({ task, message, side }) {
    const isLoading = task === "open";
    showProblem(isLoading ? message : legible(message));
    if (isLoading) return;
    totals.isDone = true;
    showProgress();
    if (side !== undefined) {
      takeIdle({ side, isLast: true });
      return;
    }
    if (link.base.file !== link.good) {
      setBase(link.good); // the state cannot be read, so the text follows what it followed before
      sendDocument({ kind: "text", text });
    } else if (!isWriting() && !N) {
      setWriting(true);
    }
  },
};

function open() {
  const [model, ...notes] = about.notes;
  byId("model").textContent = model;
  byId("notes").replaceChildren(...notes.map((note) => element("p", "", note)));
  if (!about.graphs.includes("detail")) byId("modes").querySelector("[value=entropy]").closest("label").remove();
  SIDES.forEach((side, number) => (branches[side] = makeBranch(side, number)));
  setWriting(true);
  showEmpty();
  listenToKeys();
  listenToPointer(byId("sheet"), "pointermove", spanBelow);
  listenToControls();
  listenToWindow();
  listenToWriting();
  listenToFiles();
  startWorker(takers);
  themeChanged();
  refresh();
  showBranches();
  if (editor.value) onWritten(); // a browser may fill it with what was there before
}

open();
