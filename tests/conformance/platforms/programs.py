"""The documented programs in C, C++ and Rust on other platforms: they print what they print here."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from . import emulated, linux, windows
from .runners import Attempt, Outcome, Program, run_program
from .workshop import NATIVE, Workshop

__all__ = ["alike", "programs"]

BUNDLE = "small_transformer_xl"  # reads bytes, and runs with kernels
TEXT = "The old man walked down to the river."
LARGEST = 1e-4  # relative difference of printed numbers
EXAMPLES = ("xlscore", "stream", "stream_cpp")


def programs(workshop: Workshop) -> list[Attempt]:
    """Return the examples of runtime/c on aarch64 and, but for Rust, on Windows."""
    rows: list[tuple[str, str, Callable[[], Program]]] = [
        (emulated.ARM, name, partial(emulated.aarch64_program, workshop, name)) for name in EXAMPLES
    ]
    rows.append((emulated.ARM, "stream_rust", lambda: _rust(workshop, emulated.aarch64_program, "aarch64")))
    rows += [
        (f"{windows.NAME}, {compiler}", name, partial(windows.windows_c, workshop, name, compiler))
        for compiler in windows.COMPILERS
        for name in EXAMPLES
    ]
    return [Attempt(place, name, "yes", partial(_compare, workshop, name, prepare)) for place, name, prepare in rows]


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
    here = linux.host_program
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
