"""Try the platforms, and print one table."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn

from filelock import FileLock

from . import rows
from .runners import Attempt, Broken, Missing, Outcome, Runner, play
from .workshop import Workshop

Rows = Callable[[Workshop], "list[Runner] | list[Attempt]"]
# Name: what it is, and what makes its rows.
PLATFORMS: dict[str, tuple[str, Rows]] = {
    "host": ("this machine: Python, C, Node, Chromium, Firefox", rows.host),
    "haswell": ("x86-64 with AVX2, by qemu: Python, C", partial(rows.x86, "Haswell", "AVX2", "avx2")),
    "westmere": ("x86-64 with SSE4.2, by qemu: Python, C", partial(rows.x86, "Westmere", "SSE4.2", "base")),
    "aarch64": ("64-bit ARM, by qemu: Python, C", rows.aarch64),
    "windows": ("Windows on x86-64, by wine: C, Node", rows.windows),
    "macos": ("macOS on both processors: compiled with zig, never run", rows.macos),
    "onnxruntime": ("the oldest and the newest ONNX Runtime: Python, Node", rows.onnxruntime_versions),
    "numpy": ("the oldest and the newest NumPy: Python", rows.numpy_versions),
    "node": ("Node 20, 22 and 24", rows.node_versions),
    "python": ("newer Pythons", rows.python_versions),
    "states": ("states saved on one platform, and continued on another", rows.crossings),
}
DOWNLOADS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xlexport" / "platforms"
HEAD = ("platform", "runtime", "kernels", "cases passed", "largest difference", "low precision", "seconds")


def attempts(name: str, workshop: Workshop, quick: bool) -> list[Attempt]:
    """Return the rows of a platform; a runner plays the kit."""
    chosen = [row for row in PLATFORMS[name][1](workshop) if row.quick or not quick]
    return [row if isinstance(row, Attempt) else _playing(row, workshop) for row in chosen]


def _playing(runner: Runner, workshop: Workshop) -> Attempt:
    return Attempt(runner.platform, runner.runtime, runner.kernels, lambda: play(runner, workshop.kit))


def lines_of(attempt: Attempt) -> tuple[bool | None, list[str]]:
    """Try a row, and return whether it passed, or None if it was not tried, and the lines to print."""
    start = time.monotonic()
    try:
        outcome = attempt.run()
    except Missing as missing:
        return None, [f"not tried: {attempt.platform}, {attempt.runtime}: {missing}"]
    except Broken as broken:
        outcome = Outcome(False, "not built", problems=(str(broken),))
    except Exception as error:
        outcome = Outcome(False, "not prepared", problems=(f"{type(error).__name__}: {error}",))
    kernels, runtime = outcome.kernels or attempt.kernels or "–", outcome.runtime or attempt.runtime
    seconds = time.monotonic() - start if outcome.seconds is None else outcome.seconds
    cells = (attempt.platform, runtime, kernels, outcome.cases, outcome.largest, outcome.low, f"{seconds:.0f}")
    return outcome.passed, [f"| {' | '.join(cells)} |", *(f"    {line}" for line in outcome.problems)]


def main(arguments: list[str] | None = None) -> None:
    """Try platforms from the command line; the exit code is 1 if one falls short."""
    parser = argparse.ArgumentParser(
        prog="scripts/platforms", description="Try the conformance kit on other processors, systems and versions."
    )
    parser.add_argument("--only", action="append", choices=PLATFORMS, metavar="NAME", help="try this one; repeatable")
    parser.add_argument("--list", action="store_true", help="list the names, and try nothing")
    parser.add_argument("--offline", action="store_true", help="try what was prepared earlier; download nothing")
    quick = "compile nothing, and leave out this Python and cases that all processors play alike"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--jobs", type=int, default=1, help="how many rows to try at once (default: 1)")
    parser.add_argument("--kit", type=Path, help="a kit of these sources without samples (default: it is written)")
    parser.add_argument("--downloads", type=Path, default=DOWNLOADS, help="folder of downloads (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.list:
        for name, (description, _) in PLATFORMS.items():
            print(f"{name:<12} {description}")
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        parser.error("it needs Linux on x86-64")
    workshop = Workshop(options.downloads, options.offline, options.kit, options.quick)
    workshop.built.mkdir(parents=True, exist_ok=True)
    with FileLock(workshop.built / "lock"):  # two runs would take the kit from each other
        names = options.only or PLATFORMS
        try_all([row for name in names for row in attempts(name, workshop, options.quick)], options.jobs)


def try_all(tries: list[Attempt], jobs: int, head: Sequence[str] = HEAD) -> NoReturn:
    """Try all of them, print the table, and end the process."""
    print(f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", sep="\n", flush=True)
    results = []
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            for result, lines in pool.map(lines_of, tries):
                print(*lines, sep="\n", flush=True)
                results.append(result)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            sys.exit(130)
    short = results.count(False)
    print(f"{results.count(True)} passed, {short} fell short, {results.count(None)} not tried")
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
