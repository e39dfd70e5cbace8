// The page of one document comes to life.
function fillHeader() {
  showFigures(about.figures);
  const [model, ...notes] = about.notes;
  byId("model").textContent = model;
  byId("notes").replaceChildren(...notes.map((note) => element("p", "", note)));
  nameCourse();
}

async function open() {
  await readDocument();
  cutBlocks();
  estimateHeights();
  fillHeader();
  document.documentElement.classList.toggle("short", isShort());
  drawLegend();
  setThreshold(measure().enough);
  themeChanged();
  listenToKeys();
  listenToPointer();
  listenToControls();
  listenToWindow();
  blocks.filter(isNear).forEach(draw);
  document.documentElement.classList.add("ready");
}

open().catch((error) => {
  byId("problem").hidden = false;
  byId("problem").textContent = `This page cannot be shown here: ${error.message}. A browser of 2024 or later is needed.`;
  throw error;
});
