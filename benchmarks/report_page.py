"""Measure the speed of a page of `xlexport report` in a headless Chromium: medians of several openings.

    python -m benchmarks.report_page PAGE WORD

WORD is searched for. Needs chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.browser import Browser, missing_browser, open_browser
from xlexport.bench.measuring import seconds

SCROLLED = (60, 240, 2000)  # pixels per frame
# The median time in ms of 150 frames, each of which scrolls.
FRAMES = """
const [pixels, frames] = arguments;
scrollTo(0, 800);
return new Promise((done) => {
  const times = [];
  let last = 0;
  const tick = (now) => {
    if (last) times.push(now - last);
    last = now;
    if (times.length === frames) return done(times.sort((a, b) => a - b)[frames >> 1]);
    scrollBy(0, pixels);
    requestAnimationFrame(tick);
  };
  setTimeout(() => requestAnimationFrame(tick), 500);
});
"""


def measure(browser: Browser, page: Path, word: str) -> dict[str, float]:
    """Open the page once and return the duration of each action."""

    def jump() -> None:
        browser.point("#strip", click=True)
        browser.wait("Math.abs(document.querySelector('#strip').ariaValueNow - 50) < 2")

    def search() -> None:
        browser.keys("/", *word)
        browser.wait("document.querySelector('#found').textContent !== ''")

    def by_word() -> None:
        browser.point("#modes label:nth-of-type(2)", click=True)
        browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    found = {"open, s": seconds(lambda: browser.open(page))}
    for pixels in SCROLLED:
        found[f"a frame, {pixels} pixels, ms"] = browser.run(FRAMES, pixels, 150)
    found["jump to the middle, s"] = seconds(jump)
    found["search, s"] = seconds(search)
    found["colour by word, s"] = seconds(by_word)
    assert not (log := browser.log()), log
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("word")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if missing := missing_browser():
        parser.exit(1, f"{missing}\n")
    found = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder)) as browser:
            found.append(measure(browser, options.page, options.word))
    for name in found[0]:
        values = sorted(one[name] for one in found)
        print(f"{name:28} {statistics.median(values):8.2f}  ({values[0]:.2f} to {values[-1]:.2f})")


if __name__ == "__main__":
    main()
