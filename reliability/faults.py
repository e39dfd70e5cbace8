"""Let every call that changes the disk fail once, and kill the process before each, command by command.

    python -m reliability.faults                     all commands, as RELIABILITY.md has it
    python -m reliability.faults train --points 20   one of them, at 20 of its calls
    python -m reliability.faults --kills             without the write errors

A preloaded shim (faults.c; needs a C compiler and Linux) counts calls that write, make, rename or sync below the
command's folder. Each run is a fork of one process that has imported everything.

After a write error, the command must report it in one line. It must leave the old output or the complete new output,
and nothing else (`score` may leave the files from which --resume continues). After a kill, the old or the complete new
output must exist. A kill before a call is also a kill after the call before it. Then the same command, with --resume if
it has that option, must succeed and leave nothing else.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from reliability.fault_commands import NEW, NONE, OLD, Command, commands
from tests.helpers.paths import ROOT

__all__ = ["Found", "inject", "preloaded"]

SOURCE = Path(__file__).with_name("faults.c")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
KILL = 0
PARTS = 2  # processes
FOUND = "found.pickle"  # results of a process, for its parent


@dataclass
class Found:
    """The results of the faults of one command."""

    command: str
    calls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of calls
    failed: Counter[str] = field(default_factory=Counter)  # after write errors: the state
    killed: Counter[str] = field(default_factory=Counter)  # after kills: the state
    bugs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        shown = [
            f"{counter.total():4} {name} ({', '.join(f'{count} {state}' for state, count in counter.most_common())})"
            for name, counter in (("write errors", self.failed), ("kills", self.killed))
        ]
        return f"{self.command:24} {self.calls:4} calls: {', '.join(shown)}; {self.seconds:,.0f} s"


def preloaded(arguments: list[str], folder: Path) -> int:
    """Run this module in two processes with the shim, each with half of the calls, and print their results together.

    Returns:
        The exit status, which is 0 if no bug was found.
    """
    shim = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(SOURCE), "-ldl"], check=True)
    parts, workers = [folder / str(number) for number in range(PARTS)], []
    for part in parts:
        part.mkdir()
        environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1", "XLEXPORT_FAULTS": str(part)}
        workers.append(subprocess.Popen([sys.executable, "-m", __spec__.name, *arguments], cwd=ROOT, env=environment))
    if any([worker.wait() for worker in workers]):
        return 1
    failed = killed = bugs = 0
    for found in map(_together, zip(*(_read(part / FOUND) for part in parts), strict=True)):
        print(found)
        for bug in found.bugs[:6]:
            print(f"  {bug}")
        failed, killed = failed + found.failed.total(), killed + found.killed.total()
        bugs += len(found.bugs)
    print(f"{failed:,} write errors, {killed:,} kills, {bugs:,} bugs", flush=True)
    return 1 if bugs else 0


def _read(file: Path) -> list[Found]:
    return [Found(**fields) for fields in pickle.loads(file.read_bytes())]


def _together(parts: tuple[Found, ...]) -> Found:
    """Add up the results of several processes for one command."""
    found = Found(parts[0].command, parts[0].calls, parts[0].kinds)
    for part in parts:
        found.failed += part.failed
        found.killed += part.killed
        found.bugs += part.bugs
        found.seconds = max(found.seconds, part.seconds)
    return found


def inject(command: Command, scratch: Path, points: int | None = None, errors: bool = True, part: int = 0) -> Found:
    """Count the command's calls, then let each one fail (unless `errors` is off), and kill before each one.

    Args:
        points: number of calls to try, evenly spread; None: all.
        part: number of this process, which tries every PARTS-th call.
    """
    found, start = Found(command.name), time.monotonic()
    folder = scratch / "work"
    code, said = _forked(command, folder, -1, KILL)
    names = (scratch / "calls").read_text().split()
    found.calls, found.kinds = len(names), Counter(names)
    if code != 0 or command.state(folder) != NEW or _strange(command, folder):
        found.bugs.append(f"without any fault: {code}, {said}, {_strange(command, folder)}")
        return found
    stride = max(1, len(names) // points) if points else 1
    for at in range(1 + part * stride, len(names) + 1, stride * PARTS):
        name = names[at - 1]
        if errors and not name.startswith(("unlink", "rmdir")):
            error = ERRORS[at // stride % len(ERRORS)]
            state = _after_error(command, folder, at, error)
            found.failed[state if state in (OLD, NEW, NONE) else "BUG"] += 1
            if state not in (OLD, NEW, NONE):
                found.bugs.append(f"{name} (call {at}) fails with {errno.errorcode[error]}: {state}")
        state = _after_kill(command, folder, at)
        found.killed[state if state in (OLD, NEW, NONE) else "BUG"] += 1
        if state not in (OLD, NEW, NONE):
            found.bugs.append(f"killed before {name} (call {at}): {state}")
    found.seconds = time.monotonic() - start
    return found


def _after_error(command: Command, folder: Path, at: int, error: int) -> str:
    code, said = _forked(command, folder, at, error)
    try:
        state = command.state(folder)
    except Exception as problem:  # errors of any kind are reported
        return f"{code}, {said}; then {type(problem).__name__}: {problem}"
    if strange := _strange(command, folder, command.unfinished if code else frozenset()):
        return f"{code}, {said}; leaves {strange}"
    if code == 0:
        return state if state == NEW else f"exit status 0, but {state} is there"
    lines = [line for line in said.splitlines() if line.startswith("Error: ")]
    if code != 1 or len(lines) != 1 or "Traceback" in said:
        return f"{code}: {said[-800:]}"
    return _again(command, folder, state)


def _after_kill(command: Command, folder: Path, at: int) -> str:
    code, said = _forked(command, folder, at, KILL)
    if code != -signal.SIGKILL:
        return f"{code} instead of a kill: {said[-300:]}"
    try:
        state = command.state(folder)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return _again(command, folder, state)


def _again(command: Command, folder: Path, state: str) -> str:
    """Run the command again; return `state` if everything is right then."""
    code, said = _forked(command, folder, None, KILL)
    if code != 0:
        return f"{state}, but run again: {code}: {said[-500:]}"
    try:
        again = command.state(folder)
    except Exception as problem:
        return f"{state}, but run again: {type(problem).__name__}: {problem}"
    strange = _strange(command, folder)
    return state if again == NEW and not strange else f"{state}, and run again: {again}, leaves {strange}"


def _strange(command: Command, folder: Path, more: frozenset[str] = frozenset()) -> list[str]:
    hidden = {path.name for path in folder.rglob(".*")}
    return sorted(({path.name for path in folder.iterdir()} | hidden) - command.left - more)


def _forked(command: Command, folder: Path, at: int | None, error: int) -> tuple[int, str]:
    """Run it in a fork: in a fresh folder with a fault at a call, or (None) without a fault in the same folder."""
    run = command.run
    if at is None:
        run = command.again or command.run
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        command.prepare(folder)
    said, calls = folder.with_name("said"), folder.with_name("calls")
    child = os.fork()
    if not child:
        code = 99
        try:
            for number in (1, 2):
                os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if number == 1 else os.O_APPEND)), number)
            log = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            if at is not None:
                ctypes.CDLL(None).fault_watch(os.fsencode(folder), ctypes.c_long(at), error, log)
            code = run(folder)
            sys.stdout.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="beginning of its name")
    parser.add_argument("--points", type=int, help="number of calls of each command to try  [default: all]")
    parser.add_argument("--kills", action="store_true", help="only kill the process; let no call fail")
    chosen = parser.parse_args()
    scratch = os.environ.get("XLEXPORT_FAULTS")
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            sys.exit(preloaded(sys.argv[1:], Path(folder)))
    made = []
    for command in commands(Path(scratch), chosen.commands):
        part = int(Path(scratch).name)
        made.append(inject(command, Path(scratch), chosen.points, errors=not chosen.kills, part=part))
        print(f"part {part + 1} of {PARTS}: {made[-1]}", file=sys.stderr, flush=True)
    (Path(scratch) / FOUND).write_bytes(pickle.dumps(list(map(vars, made))))


if __name__ == "__main__":
    main()
