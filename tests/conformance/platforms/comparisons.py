"""What two platforms do alike: states that one saves and the other continues, and what documented programs print."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from . import rows
from .runners import Attempt, Outcome, Program, Runner, play, run_program
from .workshop import NATIVE, Workshop

__all__ = ["alike", "crossings", "programs"]

BUNDLE = "small_transformer_xl"  # reads bytes, and runs with kernels
TEXT = "The old man walked down to the river."
LARGEST = 1e-4  # relative difference of printed numbers
EXAMPLES = ("xlscore", "stream", "stream_cpp")


def programs(workshop: Workshop) -> list[Attempt]:
    """Return the examples of runtime/c on aarch64 and, but for Rust, on Windows."""
    tries: list[tuple[str, str, Callable[[], Program]]] = [
        (rows.ARM, name, partial(rows.aarch64_program, workshop, name)) for name in EXAMPLES
    ]
    tries.append((rows.ARM, "stream_rust", lambda: _rust(workshop, rows.aarch64_program, "aarch64")))
    tries += [
        (f"{rows.WINDOWS}, {compiler}", name, partial(rows.windows_c, workshop, name, compiler))
        for compiler in rows.COMPILERS
        for name in EXAMPLES
    ]
    return [Attempt(place, name, "yes", partial(_compare, workshop, name, prepare)) for place, name, prepare in tries]


def _rust(workshop: Workshop, place: Callable[[Workshop, str], Program], processor: str) -> Program:
    """Compile the example in Rust, and return it as a program of a platform."""
    built = Path(place(workshop, "libxlruntime.so").command[-1]).parent
    triple = f"{processor}-unknown-linux-gnu"
    workshop.rust(NATIVE / "examples" / "stream.rs", built / "stream_rust", triple, built)
    program = place(workshop, "stream_rust")
    return Program(program.command, {**program.environment, "LD_LIBRARY_PATH": str(built)})


def _compare(workshop: Workshop, name: str, prepare: Callable[[], Program]) -> Outcome:
    """Run a program there and here, and compare what it prints."""
    with tempfile.TemporaryDirectory() as work:
        return _compare_in(Path(work), workshop, name, prepare)


def _compare_in(work: Path, workshop: Workshop, name: str, prepare: Callable[[], Program]) -> Outcome:
    bundle, text = workshop.kit() / "bundles" / BUNDLE, work / "text.txt"
    text.write_text(TEXT * 40, "utf-8")
    arguments: dict[str, Sequence[str | Path]] = {
        "xlscore": (bundle, text),
        "stream": (bundle, work / "saved.state"),
        "stream_cpp": (bundle,),
        "stream_rust": (bundle, TEXT),
    }
    here = rows.host_program
    own = _rust(workshop, here, "x86_64") if name == "stream_rust" else here(workshop, name)
    expected_status, expected, errors = run_program(own, arguments[name])
    if expected_status:
        return Outcome(False, "fails on this machine", problems=(*expected, *errors))
    status, printed, errors = run_program(prepare(), arguments[name])
    if status or not alike(" ".join(printed).split(), " ".join(expected).split()):
        problems = (*printed, *errors, "here:", *expected)
        return Outcome(False, "prints otherwise than here", problems=problems)
    return Outcome(True, "prints the same as here")


def alike(words: Iterable[str], expected: Iterable[str]) -> bool:
    """Return whether words are equal, and numbers up to rounding."""
    return all(word == other or _near(word, other) for word, other in zip_longest(words, expected, fillvalue=""))


def _near(word: str, other: str) -> bool:
    try:
        return math.isclose(float(word.strip(",")), float(other.strip(",")), rel_tol=LARGEST)
    except ValueError:
        return False


CASES = "state_"


def crossings(workshop: Workshop) -> list[Attempt]:
    """Return an attempt for each ordered pair of platforms."""
    places = {
        "Python on this machine": Runner(
            rows.HOST, "Python", "", lambda: rows.python_program([sys.executable], "none")
        ),
        "Python on aarch64": Runner(rows.ARM, "Python", "", lambda: rows.aarch64_python(workshop, "none")),
        "Node on Windows": Runner(rows.WINDOWS, "Node", "", partial(rows.windows_node, workshop, rows.NODES[0])),
        "C on Windows": Runner(rows.WINDOWS, "C", "", partial(rows.windows_c, workshop, "xlconformance")),
    }
    saved: dict[str, Outcome] = {}
    lock = threading.Lock()

    def cross(source: str, target: Runner) -> Outcome:
        folder = workshop.built / "states" / source
        with lock:
            if source not in saved:
                saved[source] = _save(places[source], workshop.kit, folder)
        if not saved[source].passed:
            return saved[source]
        return play(target, workshop.kit, CASES, ("--states", folder))

    return [
        Attempt(f"state of {source}, continued by {target}", target, "", partial(cross, source, runner))
        for source, (target, runner) in itertools.product(places, places.items())
        if source != target
    ]


def _save(runner: Runner, kit: Callable[[], Path], folder: Path) -> Outcome:
    """Save the states of all streams of the kit to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = play(runner, kit, CASES, ("--keep", folder))
    cases = [json.loads(file.read_text("utf-8")) for file in (kit() / "cases").glob(f"{CASES}*.json")]
    expected = {action["keep"] for case in cases for action in case["actions"] if "keep" in action}
    if outcome.passed and not expected <= {file.stem for file in folder.iterdir()}:
        return Outcome(False, "not all states were saved")  # those of the kit would take their place
    return outcome
