"""One turn of a target: a process of its own that atheris feeds, and what it leaves to know."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import mmap
import os
import re
import resource
import shutil
import signal
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliability.guided import targets
from reliability.guided.findings import Findings
from reliability.guided.target import Target, judge
from reliability.guided.targets import CORPUS, make_target
from reliability.judging import Outcome

__all__ = ["MOST_MEGABYTES", "MOST_SECONDS", "Turn", "Watched", "finish_turn", "import_readers", "start_turn"]

MOST_SECONDS = 2.0  # of the processor's time for one input: on a busy machine the clock says nothing
MOST_MEGABYTES = 256  # that one input may take more than all before it
HANG_SECONDS = 30  # by the clock; then the process ends, and says what it was reading
DATA_BYTES = 3 << 30  # that a process may take, libraries included
PROCESS_MEGABYTES = 2048  # in memory
LARGEST_INPUT = 1 << 20
DIED = {"crash": "ended", "timeout": "hung", "oom": "memory"}  # what libFuzzer calls the input at which it ended
MESSAGES = 128  # counters for the messages of a library
VALUES = re.compile(r"[`'\"].*[`'\"]|[^A-Za-z .:,]+")  # what messages say of one input alone
STATUS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")


class Shared:
    """Memory that a process shares with the one that has started it: it is there whatever ends the process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LARGEST_INPUT + mmap.PAGESIZE)
        self._figures = (ctypes.c_double * 4).from_buffer(self._memory)  # executions, slowest, megabytes, length

    def begin(self, raw: bytes) -> None:
        """Say what is read now."""
        self._figures[3] = len(raw)
        self._memory[mmap.PAGESIZE : mmap.PAGESIZE + len(raw)] = raw

    def end(self, seconds: float, megabytes: float) -> None:
        """Say what it took."""
        figures = self._figures
        figures[0] += 1
        figures[1] = max(figures[1], seconds)
        figures[2] = megabytes

    @property
    def figures(self) -> tuple[int, float, float]:
        """Executions, seconds of the slowest, and megabytes at most."""
        return int(self._figures[0]), self._figures[1], self._figures[2]

    @property
    def last(self) -> bytes:
        """The input that was read last."""
        return self._memory[mmap.PAGESIZE : mmap.PAGESIZE + int(self._figures[3])]


@dataclass
class Turn:
    """A process, and what came of it.

    Attributes:
        shared: what the process tells while it runs.
        coverage: branches of our modules that were seen; features: those with how often, as libFuzzer counts.
        inputs: of the corpus, which is in `folder / "corpus"`.
    """

    target: str
    folder: Path
    process: int
    shared: Shared
    seconds: float = 0.0
    executions: int = 0
    slowest: float = 0.0
    megabytes: float = 0.0
    coverage: int = 0
    features: int = 0
    inputs: int = 0


@contextlib.contextmanager
def _instrumented() -> Iterator[None]:
    """Within it, our modules are imported with counters at their branches."""
    import atheris

    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=[*targets.PACKAGES]):
        yield


def import_readers(names: Iterable[str]) -> None:
    """Import the readers of targets with counters, once, before processes for the turns are made."""
    with _instrumented():
        targets.import_readers(names)


def start_turn(target: str, folder: Path, findings: Findings, seconds: float) -> Turn:
    """Begin a turn of so many seconds in a process of its own.

    Args:
        folder: of the target; its inputs stay there for the next turn.
        findings: where inputs are kept that must not have come through.
    """
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    shared = Shared()
    process = os.fork()
    if process == 0:
        try:
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            for stream in (1, 2):
                os.dup2(log, stream)
            _fuzz(target, folder, findings, time.monotonic() + seconds, Path(CORPUS) / target, shared)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
    return Turn(target, folder, process, shared)


def _fuzz(name: str, folder: Path, findings: Findings, deadline: float, corpus: Path, shared: Shared) -> None:
    import atheris

    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with _instrumented():  # some readers import more when they are first called
        watched = Watched(name, make_target(name, scratch), findings, shared, deadline)
        for place, raw in enumerate(watched.target.seeds()):
            (folder / "corpus" / f"seed_{place}").write_bytes(raw)
            watched.warm_up(raw)
    words = ['"' + "".join(rf"\x{byte:02x}" for byte in word) + '"' for word in watched.target.words]
    (folder / "words").write_text("\n".join(["# words", *words]) + "\n")
    flags = ["-handle_usr1=1", f"-max_len={watched.target.longest}",
             f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={PROCESS_MEGABYTES}", f"-artifact_prefix={folder}/died-",
             f"-dict={folder / 'words'}", "-report_slow_units=3600", "-print_final_stats=1"]  # fmt: skip
    folders = [str(folder / "corpus"), *([str(corpus)] if corpus.is_dir() else [])]
    print(f"ready {deadline - time.monotonic():.1f} s before the end", flush=True)
    atheris.Setup(["guided", *flags, *folders], watched)
    atheris.Fuzz()


class Watched:
    """Judges inputs one after the other, and keeps those of findings.

    Args:
        deadline: of `time.monotonic`, when the process shall end.
    """

    def __init__(self, name: str, target: Target, findings: Findings, shared: Shared, deadline: float) -> None:
        self.target = target
        self._name, self._findings, self._shared, self._deadline = name, findings, shared, deadline
        self._peak = 0.0
        self._atheris: Any = None
        if target.of_library:  # it has no counters at its branches: its message is all that shows where an input led
            self._atheris = importlib.import_module("atheris")
            self._messages = [self._atheris._reserve_counter() for _ in range(MESSAGES)]

    def warm_up(self, raw: bytes) -> None:
        """Judge a first input, for which libraries may be loaded."""
        outcome = judge(self.target, raw)
        self._peak = _most_megabytes()
        if outcome.is_bug:
            self._findings.keep(self._name, outcome, raw)

    def __call__(self, raw: bytes) -> None:
        self._shared.begin(raw)
        began = time.process_time()
        outcome = judge(self.target, raw)
        seconds, peak = time.process_time() - began, _most_megabytes()
        self._shared.end(seconds, peak)
        taken = 0.0
        if peak > self._peak:  # an input that takes less than one before it does not show
            taken, self._peak = max(peak - self._peak, peak - _megabytes()), peak
        if self._atheris is not None:
            self._atheris._trace_branch(self._messages[zlib.crc32(VALUES.sub("", outcome.said).encode()) % MESSAGES])
        if time.monotonic() > self._deadline:
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer then ends in its own way
        if taken > MOST_MEGABYTES:
            outcome = Outcome("memory", f"{taken:,.0f} MB; {outcome.kind}: {outcome.said}")
        elif seconds > MOST_SECONDS:
            outcome = Outcome("slow", f"{seconds:.1f} s; {outcome.kind}: {outcome.said}")
        if outcome.is_bug or outcome.kind in ("memory", "slow"):
            self._findings.keep(self._name, outcome, raw)


def _most_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _megabytes() -> float:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE / (1 << 20)


def finish_turn(turn: Turn, findings: Findings, status: int, seconds: float) -> None:
    """Note what came of a process that has ended with this status, and took so many seconds of the processor."""
    turn.seconds = seconds
    turn.executions, turn.slowest, turn.megabytes = turn.shared.figures
    log = (turn.folder / "log").read_text("utf-8", "replace")
    if states := STATUS.findall(log):
        turn.coverage, turn.features, turn.inputs = map(int, states[-1])
    if status and not turn.executions:
        raise RuntimeError(f"{turn.target}: its process ended before the first input: {_last_words(log, status)}")
    if status:
        kinds = [DIED.get(file.name.split("-")[1], "ended") for file in turn.folder.glob("died-*")]
        findings.keep(turn.target, Outcome((kinds or ["ended"])[0], _last_words(log, status)), turn.shared.last)
    for file in turn.folder.glob("died-*"):
        file.unlink()


def _last_words(log: str, status: int) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith(("#", "stat::"))]
    errors = [line for line in lines if "ERROR" in line or "panicked" in line or "memory allocation" in line]
    return f"status {status}; {'; '.join((errors or lines[-3:])[:3])}"[:600]
