"""Search for inputs that harm the readers, guided by the branches that each input reaches.

    python -m reliability.guided                              a minute, which all targets share
    python -m reliability.guided --seconds 3600 --jobs 2      an hour, two processes
    python -m reliability.guided --runs 50000000 --jobs 2     until this number of inputs has been read
    python -m reliability.guided --targets pickle,manifest    two of the targets
    python -m reliability.guided --repeat pickle FILE         one input and its result; needs no atheris

An input may give a result or an error of ours. Anything else is a finding: another error, a message that a terminal
cannot show, more than 2 seconds of processor time, more than 256 MB of memory, or a process that ends. Seconds in the
table are also processor time, so other programs on the machine do not change them much.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reliability.guided.findings import Findings
from reliability.guided.minimize import minimize
from reliability.guided.target import judge
from reliability.guided.targets import CORPUS, TARGETS, make_target
from reliability.guided.turns import Turn, finish_turn, import_readers, start_turn

NEEDED = (
    "atheris is not installed: pip install atheris. It has wheels for CPython 3.11 to 3.13 on Linux, x86-64. "
    "On other systems, read the kept inputs with: pytest tests/reliability/test_guided.py"
)
LONGEST_TURN = 30.0  # seconds; short turns reach every target before the deadline
LONGEST_LINE = 500
COLUMNS = (
    *("target", "executions", "seconds", "a second", "branches", "features", "corpus", "slowest", "memory"),
    "findings",
)
FINDINGS = Path("guided_findings")


@dataclass
class Total:
    """Sums over the turns of one target; coverage and corpus come from the last turn."""

    target: str
    executions: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    megabytes: float = 0.0
    coverage: int = 0
    features: int = 0
    inputs: int = 0

    def add(self, turn: Turn) -> None:
        self.executions += turn.executions
        self.seconds += turn.seconds
        self.slowest, self.megabytes = max(self.slowest, turn.slowest), max(self.megabytes, turn.megabytes)
        self.coverage, self.features, self.inputs = turn.coverage, turn.features, turn.inputs


class Search:
    """Turns of all targets, several at the same time."""

    def __init__(self, names: Sequence[str], work: Path, findings: Findings, jobs: int) -> None:
        self.totals = {name: Total(name) for name in names}
        self._work, self._findings, self.jobs = work, findings, jobs
        self._running: dict[int, Turn] = {}

    @property
    def executions(self) -> int:
        return sum(total.executions for total in self.totals.values())

    def round(self, seconds: float) -> None:
        """Give every target one turn of this number of seconds."""
        waiting = list(self.totals)
        while waiting or self._running:
            while waiting and len(self._running) < self.jobs:
                name = waiting.pop(0)
                turn = start_turn(name, self._work / name, self._findings, seconds)
                self._running[turn.process] = turn
            process, status, used = os.wait3(0)
            if (ended := self._running.pop(process, None)) is not None:
                finish_turn(ended, self._findings, status, used.ru_utime + used.ru_stime)
                self.totals[ended.target].add(ended)

    def stop(self) -> None:
        """End the processes that still run."""
        for process in self._running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def table(totals: Sequence[Total], findings: dict[str, int]) -> str:
    """Return the figures of all targets, as lines."""
    rows = [COLUMNS]
    for total in totals:
        rows.append(
            (total.target, f"{total.executions:,}", f"{total.seconds:,.0f}",
             f"{total.executions / max(total.seconds, 1e-9):,.0f}", f"{total.coverage:,}", f"{total.features:,}",
             f"{total.inputs:,}", f"{1000 * total.slowest:,.0f} ms", f"{total.megabytes:,.0f} MB",
             f"{findings.get(total.target, 0):,}"),
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        (row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def repeat(name: str, file: Path) -> int:
    """Read one input and print the result."""
    with tempfile.TemporaryDirectory() as folder:
        target = make_target(name, Path(folder))
        began = time.process_time()
        outcome = judge(target, file.read_bytes())
        print(f"{outcome.kind}: {outcome.said} ({time.process_time() - began:.3f} s)")
    return int(outcome.is_bug)


def search(names: Sequence[str], seconds: float, runs: int | None, jobs: int, folder: Path, keep: bool) -> int:
    """Run the search, print the table and the findings, and return the exit status."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # threads would not survive in the forked processes of the turns
    deadline = time.monotonic() + seconds
    findings = Findings(folder, f"{time.time()} {os.getpid()}")
    import_readers(names)
    ready = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="guided-", dir=ready) as work:
        running = Search(names, Path(work), findings, jobs)
        is_whole = False
        try:
            run_rounds(running, deadline, runs)
            is_whole = True
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        finally:
            running.stop()
        found = findings.found()
        counts = {name: sum(one.target == name for one in found) for name in names}
        print(table(list(running.totals.values()), counts))
        print(f"{running.executions:,} executions, {len(found):,} findings")
        for name in names if keep else ():
            new = [file.read_bytes() for file in sorted((Path(work) / name).glob("corpus/*"))]
            kept = minimize(name, new, CORPUS)
            print(f"{name}: keeps {kept.inputs:,} inputs of {kept.bytes:,} bytes")
    for one in found:
        said = one.said if one.said.isprintable() else ascii(one.said)
        print(f"{one.target}: {one.kind}, {one.times:,} times: {said[:LONGEST_LINE]}")
        print(f"  python -m reliability.guided --repeat {one.target} {one.file}")
    return 0 if is_whole and not found else 1


def run_rounds(running: Search, deadline: float, runs: int | None) -> None:
    """Run rounds up to the deadline, or with `runs` until this number of inputs has been read."""
    rounds = 0
    while rounds == 0 or (time.monotonic() < deadline - 1 if runs is None else running.executions < runs):
        share = (deadline - time.monotonic()) * running.jobs / len(running.totals)
        running.round(LONGEST_TURN if runs is not None else min(LONGEST_TURN, share))
        rounds += 1
        print(f"round {rounds}: {running.executions:,} executions", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reliability.guided", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", help=f"names separated by commas, from {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for all targets together (60)")
    parser.add_argument("--runs", type=int, help="number of inputs for all targets together, instead of --seconds")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes (1)")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help=f"folder for inputs of findings ({FINDINGS})")
    parser.add_argument(
        "--minimize", action="store_true", help="keep only inputs that reach something new, preferring small ones"
    )
    parser.add_argument("--repeat", nargs=2, metavar=("TARGET", "FILE"), help="read one input")
    chosen = parser.parse_args()
    names = chosen.targets.split(",") if chosen.targets else [*TARGETS]
    if unknown := {*names, *(chosen.repeat or names)[:1]} - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if chosen.repeat:
        sys.exit(repeat(chosen.repeat[0], Path(chosen.repeat[1])))
    if importlib.util.find_spec("atheris") is None:
        print(NEEDED, file=sys.stderr)
        sys.exit(2)
    sys.exit(search(names, chosen.seconds, chosen.runs, chosen.jobs, chosen.findings, chosen.minimize))


if __name__ == "__main__":
    main()
