"""What is tried: runners of the kit on platforms, and what they report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

LAST_LINE = re.compile(r"^(\d+) of (\d+) cases passed; largest difference (\S+), with low precision (\S+)$")
SHOWN = 12  # lines of a run that fell short
LONGEST = 3600  # seconds that one run may take


class Missing(Exception):
    """Report that what a platform needs is not there; the message says how to get it."""


class Broken(Exception):
    """Report that what this repository has cannot be built for a platform; the message says why."""


@dataclass(frozen=True)
class Program:
    """A command that is ready to run, apart from its last arguments.

    Attributes:
        environment: what is added to the environment of this process. An empty value removes a variable.
        path: how the program calls a file of this machine.
    """

    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    path: Callable[[Path], str] = str


@dataclass(frozen=True)
class Runner:
    """A runner of the kit.

    Attributes:
        platform: the machine that it runs on, as the table calls it.
        runtime: the language; what the runner itself reports takes its place.
        kernels: what it must report: an instruction set, "none", or "" where kernels do not exist.
        prepare: makes its program ready; it raises `Missing` if that cannot be done here.
        quick: whether quick runs try it, which compile nothing.
    """

    platform: str
    runtime: str
    kernels: str
    prepare: Callable[[], Program]
    quick: bool = True


@dataclass(frozen=True)
class Outcome:
    """What one try gave: a row of the table.

    Attributes:
        cases: how many of how many passed, or what was done instead.
        largest: the largest difference, in nats; over bundles of low precision, `low`.
        runtime, kernels: what the runner reports of itself, if it does.
        seconds: how long it ran.
        problems: lines that explain what fell short.
    """

    passed: bool
    cases: str
    largest: str = ""
    low: str = ""
    runtime: str | None = None
    kernels: str | None = None
    seconds: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """A row of the table before it is tried; `run` raises `Missing` if it cannot be tried here."""

    platform: str
    runtime: str
    kernels: str
    run: Callable[[], Outcome]
    quick: bool = True


def run_program(program: Program, arguments: Sequence[str | Path]) -> tuple[int, list[str], list[str]]:
    """Run a program, and return its exit status, the lines that it printed, and those of its errors."""
    environment = {**os.environ, **program.environment}
    environment = {name: value for name, value in environment.items() if value}
    command = [*program.command, *(program.path(one) if isinstance(one, Path) else one for one in arguments)]
    # Files, because programs under wine cannot write to a pipe.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, timeout=LONGEST,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 124, [], [f"no result after {LONGEST} seconds"]
        except OSError as error:
            return 127, [], [str(error)]
        return done.returncode, _lines(output), _lines(errors)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()


def play(runner: Runner, kit: Callable[[], Path], only: str = "", options: Sequence[str | Path] = ()) -> Outcome:
    """Play the kit with a runner.

    Args:
        kit: returns the folder of the kit; it is asked after the program is ready.
        only: plays the cases with this text in their names.

    Raises:
        Missing: the program cannot run here.
    """
    program, folder = runner.prepare(), kit()
    arguments = [folder, "--only", only, *options]
    start = time.monotonic()
    status, lines, errors = run_program(program, arguments)
    # An emulator may crash now and then by itself; a fault of the program under it comes again.
    again = status < 0 and Path(program.command[0]).name.startswith("qemu-")
    if again:
        status, lines, errors = run_program(program, arguments)
    seconds = time.monotonic() - start
    last = next((match for line in reversed(lines) if (match := LAST_LINE.match(line))), None)
    if last is None:
        ending = tuple([*lines, *errors][-SHOWN:])
        return Outcome(False, f"ended with status {status}", seconds=seconds, problems=ending)
    passed, played = int(last[1]), int(last[2])
    untried = sum(line.startswith("not tried: ") for line in lines)
    problems = [line for line in lines if line.startswith(("failed", "    "))][:SHOWN]
    expected = sum(only in name for name in json.loads((folder / "kit.json").read_text("utf-8"))["cases"])
    if played + untried != expected:
        problems.append(f"{expected} cases were expected")
    kernels = _reported("kernels", lines)
    if runner.kernels and runner.kernels not in (kernels or ""):
        problems.append(f"kernels {runner.kernels} were expected, and {kernels} ran")
    if status or passed != played:
        problems.append(f"ended with status {status}")
    return Outcome(
        not problems,
        f"{passed} of {played}" + (f", {untried} not tried" if untried else "") + (", second try" if again else ""),
        last[3],
        last[4],
        _reported("runtime", lines),
        kernels,
        seconds,
        tuple(problems),
    )


def _reported(name: str, lines: Sequence[str]) -> str | None:
    return next((line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")), None)
