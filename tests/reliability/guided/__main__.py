"""Search for inputs that harm the readers, guided by the branches that each input reaches.

    python -m tests.reliability.guided                              a minute, which all targets share
    python -m tests.reliability.guided --seconds 3600 --jobs 2      an hour, two processes
    python -m tests.reliability.guided --targets pickle,manifest    two of the targets
    python -m tests.reliability.guided --repeat pickle FILE         one input and its result; needs no atheris

An input may give a result or an error of ours. Anything else is a finding: another error, a message that a terminal
cannot show, more than 2 seconds of processor time, more than 256 MB of memory, or a process that ends; then its target
is not searched further. Seconds in the table are also processor time, so other programs on the machine do not change
them much.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.reliability.guided.findings import Findings
from tests.reliability.guided.target import judge
from tests.reliability.guided.targets import TARGETS, make_target
from tests.reliability.guided.turns import Turn, finish_turn, import_readers, start_turn

NEEDED = (
    "atheris is not installed: pip install atheris. It has wheels for CPython 3.11 to 3.13 on Linux, x86-64. "
    "On other systems, read the kept inputs with: pytest tests/reliability/test_guided.py"
)
LONGEST_LINE = 500
LINE = "{:18}{:>12}{:>9}{:>10}{:>10}{:>10}{:>8}{:>10}{:>9}{:>10}"
COLUMNS = (
    *("target", "executions", "seconds", "a second", "branches", "features", "corpus", "slowest", "memory"),
    "findings",
)
FINDINGS = Path("guided_findings")


def run_turns(names: Sequence[str], work: Path, findings: Findings, jobs: int, seconds: float) -> Iterator[Turn]:
    """Give every target a turn of this many seconds, `jobs` at the same time; yield each turn when it has ended."""
    waiting, running = list(names), dict[int, Turn]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                turn = start_turn(name, work / name, findings, seconds)
                running[turn.process] = turn
            process, status, used = os.wait3(0)
            if (ended := running.pop(process, None)) is not None:
                finish_turn(ended, findings, status, used.ru_utime + used.ru_stime)
                yield ended
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def repeat(name: str, file: Path) -> int:
    """Read one input and print the result."""
    with tempfile.TemporaryDirectory() as folder:
        target = make_target(name, Path(folder))
        began = time.process_time()
        outcome = judge(target, file.read_bytes())
        print(f"{outcome.kind}: {outcome.said} ({time.process_time() - began:.3f} s)")
    return int(outcome.is_bug)


def search(names: Sequence[str], seconds: float, jobs: int, folder: Path) -> int:
    """Run the search, print the table and the findings, and return the exit status."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # threads would not survive in the forked processes of the turns
    findings = Findings(folder, f"{time.time()} {os.getpid()}")
    import_readers(names)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    executions, complete = 0, False
    print(LINE.format(*COLUMNS))
    try:
        with tempfile.TemporaryDirectory(prefix="guided-", dir=memory) as work:
            for turn in run_turns(names, Path(work), findings, jobs, seconds * jobs / len(names)):
                executions += turn.executions
                print_turn(turn, Counter(finding.target for finding in findings.found())[turn.target])
        complete = True
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    harmful = findings.found()
    print(f"{executions:,} executions, {len(harmful):,} findings")
    for finding in harmful:
        said = finding.said if finding.said.isprintable() else ascii(finding.said)
        print(f"{finding.target}: {finding.kind}, {finding.times:,} times: {said[:LONGEST_LINE]}")
        print(f"  python -m tests.reliability.guided --repeat {finding.target} {finding.file}")
    return 0 if complete and not harmful else 1


def print_turn(turn: Turn, findings: int) -> None:
    """Print the figures of a target."""
    rate = turn.executions / max(turn.seconds, 1e-9)
    counts = (turn.coverage, turn.features, turn.inputs)
    figures = [f"{turn.executions:,}", f"{turn.seconds:,.0f}", f"{rate:,.0f}", *(f"{count:,}" for count in counts)]
    figures += [f"{1000 * turn.slowest:,.0f} ms", f"{turn.megabytes:,.0f} MB", f"{findings:,}"]
    print(LINE.format(turn.target, *figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability.guided",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--targets", help=f"names separated by commas, from {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for all targets together (60)")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes (1)")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help=f"folder for inputs of findings ({FINDINGS})")
    parser.add_argument("--repeat", nargs=2, metavar=("TARGET", "FILE"), help="read one input")
    options = parser.parse_args()
    names = options.targets.split(",") if options.targets else [*TARGETS]
    if unknown := {*names, *(options.repeat or names)[:1]} - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if options.repeat:
        sys.exit(repeat(options.repeat[0], Path(options.repeat[1])))
    if importlib.util.find_spec("atheris") is None:
        print(NEEDED, file=sys.stderr)
        sys.exit(2)
    sys.exit(search(names, options.seconds, options.jobs, options.findings))


if __name__ == "__main__":
    main()
