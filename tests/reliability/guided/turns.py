"""One turn of a target: a separate process that atheris feeds, and its results."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import mmap
import os
import re
import resource
import signal
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reliability.guided import targets
from tests.reliability.guided.findings import Findings
from tests.reliability.guided.target import Target, judge
from tests.reliability.guided.targets import CORPUS, make_target
from tests.reliability.judging import Outcome

__all__ = ["MOST_MEGABYTES", "MOST_SECONDS", "Turn", "Watched", "finish_turn", "import_readers", "start_turn"]

MOST_SECONDS = 2.0  # processor time for one input, because wall time means nothing on a busy machine
MOST_MEGABYTES = 256  # that one input may take in addition to all inputs before it
HANG_SECONDS = 30  # wall time; then the process ends and reports its input
DATA_BYTES = 3 << 30  # limit of a process, including libraries
PROCESS_MEGABYTES = 2048  # in memory
LARGEST_INPUT = 1 << 20
DIED = {"crash": "ended", "timeout": "hung", "oom": "memory"}  # libFuzzer's names for the input at which it ended
MESSAGES = 128  # counters for the messages of a library
VALUES = re.compile(r"[`'\"].*[`'\"]|[^A-Za-z .:,]+")  # parts of messages that belong to one input
STATUS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")


class Shared:
    """Memory that a process shares with its parent; it remains when the process ends in any way."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LARGEST_INPUT + mmap.PAGESIZE)
        self._figures = (ctypes.c_double * 4).from_buffer(self._memory)  # executions, slowest, megabytes, length

    def begin(self, raw: bytes) -> None:
        """Store the input that is read now."""
        self._figures[3] = len(raw)
        self._memory[mmap.PAGESIZE : mmap.PAGESIZE + len(raw)] = raw

    def end(self, seconds: float, megabytes: float) -> None:
        """Store the time and memory that it took."""
        figures = self._figures
        figures[0] += 1
        figures[1] = max(figures[1], seconds)
        figures[2] = megabytes

    @property
    def figures(self) -> tuple[int, float, float]:
        """Executions, seconds of the slowest one, and the largest number of megabytes."""
        return int(self._figures[0]), self._figures[1], self._figures[2]

    @property
    def last(self) -> bytes:
        """The input that was read last."""
        return self._memory[mmap.PAGESIZE : mmap.PAGESIZE + int(self._figures[3])]


@dataclass
class Turn:
    """A process and its results.

    Attributes:
        shared: memory in which the process reports while it runs.
        coverage: number of reached branches of our modules; features: branches with their counts, as libFuzzer counts.
        inputs: number of inputs in the corpus `folder / "corpus"`.
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
    """Import our modules with counters at their branches in this context."""
    import atheris

    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=[*targets.PACKAGES]):
        yield


def import_readers(names: Iterable[str]) -> None:
    """Import the readers of targets once, with counters, before the processes of the turns start."""
    with _instrumented():
        targets.import_readers(names)


def start_turn(target: str, folder: Path, findings: Findings, seconds: float) -> Turn:
    """Start a turn of this number of seconds in a separate process.

    Args:
        folder: the target's folder.
        findings: receives the inputs of findings.
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
    """Judges inputs one after the other, and keeps the inputs of findings.

    Args:
        deadline: time of `time.monotonic` at which the process must end.
    """

    def __init__(self, name: str, target: Target, findings: Findings, shared: Shared, deadline: float) -> None:
        self.target = target
        self._name, self._findings, self._shared, self._deadline = name, findings, shared, deadline
        self._peak = 0.0
        self._atheris: Any = None
        if (
            target.of_library
        ):  # a library has no counters at its branches, so only its message shows what an input reached
            self._atheris = importlib.import_module("atheris")
            self._messages = [self._atheris._reserve_counter() for _ in range(MESSAGES)]

    def warm_up(self, raw: bytes) -> None:
        """Judge a first input, during which libraries may be loaded."""
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
        if peak > self._peak:  # only an input that takes more than all before it can be measured
            taken, self._peak = max(peak - self._peak, peak - _megabytes()), peak
        if self._atheris is not None:
            self._atheris._trace_branch(self._messages[zlib.crc32(VALUES.sub("", outcome.said).encode()) % MESSAGES])
        if time.monotonic() > self._deadline:
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer then ends the process itself
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
    """Note the results of a process that ended with this status, and its seconds of processor time."""
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
