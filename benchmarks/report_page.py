"""Measure the speed of a page of `xlexport report` in a headless Chromium: medians of several openings.

    python -m benchmarks.report_page PAGE WORD

WORD is searched for. Needs chromium and chromedriver.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import click

from benchmarks.browser import Browser, missing_browser, open_browser
from benchmarks.sides import PATH
from xlexport.bench.measuring import seconds

__all__ = ["main"]

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

    def by_token() -> None:
        browser.point("#modes label:nth-of-type(1)", click=True)  # a page of bytes begins with words
        browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    times = {"open, s": seconds(lambda: browser.open(page))}
    for pixels in SCROLLED:
        times[f"a frame, {pixels} pixels, ms"] = browser.run(FRAMES, pixels, 150)
    times["jump to the middle, s"] = seconds(jump)
    times["search, s"] = seconds(search)
    times["colour by token, s"] = seconds(by_token)
    assert not (log := browser.log()), log
    return times


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("page", type=PATH)
@click.argument("word")
@click.option("--repeats", default=5, show_default=True)
def main(page: Path, word: str, repeats: int) -> None:
    """Open the page several times, and print medians."""
    if missing := missing_browser():
        raise click.ClickException(missing)
    openings = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder)) as browser:
            openings.append(measure(browser, page, word))
    for name in openings[0]:
        values = [times[name] for times in openings]
        click.echo(f"{name:28} {statistics.median(values):8.2f}  ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
