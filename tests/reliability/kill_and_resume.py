"""Kill `xlexport score` at random moments, continue with --resume, and compare the files byte for byte.

    python -m tests.reliability.kill_and_resume bundle --points 50
    python -m tests.reliability.kill_and_resume bundle --points 20 --way "two processes"

Runs use the options below in turn. Each run is killed up to three times, at random moments of its whole time including
loading, and continues with --resume each time. Half of the kills are a SIGKILL for the run, a quarter is one for a
process that it started, and a quarter is Ctrl-C. A run that several processes share continues with another number of
them. Its output must equal that of an undisturbed run. No process and, except temporaries, no file may be left. Every
kill is a point. A run that ends before it is killed does not count as a point, but is compared as well.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

import psutil

PATIENCE = 120.0  # seconds in which a run that was killed must end, with all of its processes

WAYS: dict[str, tuple[str, ...]] = {
    "tokens": ("scores.jsonl", "--per", "token"),
    "words, three at a time": ("scores.csv", "--per", "word", "--batch-size", "3"),
    "documents, four at a time": ("scores.jsonl", "--batch-size", "4"),
    "tokens with alternatives, two at a time": ("scores.csv", "--per", "token", "--top", "3", "--batch-size", "2"),
    "lines, as one text": ("scores.jsonl", "--per", "line", "--continuous"),
    "words of JSON lines, two at a time": ("scores.jsonl", "--per", "word", "--field", "text", "--batch-size", "2"),
    "short documents, by length": ("scores.jsonl", "--field", "text", "--batch-size", "auto"),
    "short documents, two processes": ("scores.jsonl", "--field", "text", "--processes", "2"),
    "tokens of a long document": ("scores.jsonl", "--per", "token", "--batch-size", "4"),
    "words of a long document, by length": ("scores.csv", "--per", "word", "--batch-size", "auto"),
    "words of a long document, two processes": ("scores.csv", "--per", "word", "--processes", "2"),
    "words of short documents, two processes": ("scores.csv", "--per", "word", "--field", "text", "--processes", "2"),
}


@dataclass
class Outcome:
    """The results of all points.

    Attributes:
        runs: number of compared runs; kills: number of kills of all runs.
        at_states: sizes of the states at the kills that came after one.
        positions: fraction of the output that existed at each of these kills.
        different: runs whose output differed from the undisturbed run's.
    """

    runs: int = 0
    kills: int = 0
    at_states: list[int] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def write_documents(folder: Path, size: int) -> tuple[Path, Path]:
    """Write documents of `size` bytes together into a folder, one empty and one packed, and some as JSON lines."""
    documents, lines = folder / "documents", folder / "documents.jsonl"
    documents.mkdir()
    text = (topics["specialnames"] + topics["with"] + topics["class"]).replace("object", "objêt –").encode() * 9
    rng, at, number = random.Random(0), 0, 0
    while at < size:
        length = rng.choice((1, 40, 300, size // 8, size // 4))
        (documents / f"{number:03}.txt").write_bytes(text[at : at + length])
        at, number = at + length, number + 1
    (documents / "empty.txt").touch()
    (documents / "packed.txt.gz").write_bytes(gzip.compress(text[at : at + size // 8], mtime=0))
    entries = [{"text": path.read_bytes().decode("utf-8", "replace")} for path in sorted(documents.glob("0*.txt"))]
    lines.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return documents, lines


def write_short_documents(folder: Path, count: int) -> Path:
    """Write short documents as JSON lines, of which one is broken."""
    path, text = folder / "short.jsonl", topics["specialnames"]
    lines = [json.dumps({"text": text[number : number + 2 + number % 40]}) for number in range(count)]
    lines[count // 2] = '{"text": 5}'
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


class Runs:
    """The ways to run on a bundle, each with the output of an undisturbed run.

    Args:
        size: bytes of all documents of ordinary runs; short: number of documents of runs by chunks of documents.
    """

    def __init__(
        self,
        bundle: Path,
        folder: Path,
        size: int,
        save_every: float,
        ways: Sequence[str] = tuple(WAYS),
        short: int = 1000,
    ) -> None:
        self.bundle, self.folder, self.save_every, self.ways = bundle, folder, save_every, tuple(ways)
        self.documents, self.lines = write_documents(folder, size)
        self.short = write_short_documents(folder, short)
        self.long = folder / "long.txt"
        self.long.write_bytes(b"".join(path.read_bytes() for path in sorted(self.documents.glob("0*.txt"))))
        self.expected: dict[str, bytes] = {}
        self.seconds: dict[str, float] = {}
        for way in self.ways:
            began = time.monotonic()
            process = self.start(way, folder / "undisturbed")
            process.communicate()
            self.seconds[way] = time.monotonic() - began
            self.expected[way] = (folder / "undisturbed" / WAYS[way][0]).read_bytes()

    def start(self, way: str, out: Path, *more: str) -> subprocess.Popen[bytes]:
        """Start a run in a separate process; it saves its state so often that most kills come after one."""
        out.mkdir(exist_ok=True)
        name, *options = WAYS[way]
        named = {"short": self.short, "long": self.long}
        source = next((path for word, path in named.items() if word in way), None)
        source = source or (self.lines if "--field" in options else self.documents)
        line = [sys.executable, "-m", "xlexport", "score", str(self.bundle), str(source), "-o", str(out / name)]
        line += ["--threads", "1", "--set", f"save_every={self.save_every}", *options, *more]
        if (out / name).exists():
            line.append("--force")
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)

    def kill(self, way: str, rng: random.Random, outcome: Outcome) -> None:
        """Kill runs at random moments, continue them, and compare the outputs."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            out = Path(scratch)
            name = WAYS[way][0]
            partial, state = out / f"{name}.partial", out / f"{name}.partial.state"
            killed, ended = 0, False
            for _ in range(rng.choice((1, 1, 2, 3))):
                process = self.start(way, out, *_again(way, killed, rng))
                began, moment = time.monotonic(), rng.uniform(0, self.seconds[way])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                    if not killed:  # it ended before the kill
                        self.seconds[way] = min(self.seconds[way], time.monotonic() - began)
                    ended = True
                    break
                _kill(process, rng)
                if not _end(process):
                    outcome.different.append(f"{way}: a process of a run that was killed did not end")
                killed += 1
                if (out / name).exists() and partial.exists():
                    outcome.different.append(f"{way}: both {name} and its partial one were there")
                if state.exists() and partial.exists():
                    outcome.at_states.append(state.stat().st_size)
                    outcome.positions.append(partial.stat().st_size / len(self.expected[way]))
            if not ended:
                process = self.start(way, out, *_again(way, killed, rng))
            _, err = process.communicate()
            outcome.runs += 1
            outcome.kills += killed
            if (out / name).read_bytes() != self.expected[way] if (out / name).exists() else True:
                outcome.different.append(f"{way}, killed {killed} times: {err.decode().strip()[-300:]}")
            elif left := [path.name for path in out.iterdir() if path.name != name and ".tmp-" not in path.name]:
                outcome.different.append(f"{way}: left {left}")


def _again(way: str, killed: int, rng: random.Random) -> list[str]:
    """Return the further options of a run that was killed so often."""
    if not killed:
        return []
    return ["--resume", *(["--processes", str(rng.randint(1, 3))] if "processes" in way else [])]


def _kill(process: subprocess.Popen[bytes], rng: random.Random) -> None:
    """Kill a run or a process of it, or interrupt them all, as Ctrl-C does."""
    kind = rng.choice(("run", "run", "worker", "Ctrl-C"))
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ended by itself
        if kind == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
            return
        children = psutil.Process(process.pid).children() if kind == "worker" else []
        if workers := [child for child in children if "spawn_main" in " ".join(child.cmdline())]:
            rng.choice(workers).kill()
            return
    process.kill()


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of a run and of the processes that it started; return whether all ended in time."""
    until = time.monotonic() + PATIENCE
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=PATIENCE)
    while _left(process.pid):
        if time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return False
        time.sleep(0.02)
    return True


def _left(group: int) -> list[int]:
    """Return the processes of a group that are there."""
    left: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
    return left


def main() -> None:
    """Kill runs until the number of points is reached, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--bytes", type=int, default=16_000, help="bytes of text for each run")
    parser.add_argument("--documents", type=int, default=4000, help="number of documents of runs by chunks")
    parser.add_argument("--way", default="", help="only runs with this in their names")
    parser.add_argument("--save-every", type=float, default=0.2, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcome, rng = Outcome(), random.Random(options.seed)
    ways = [way for way in WAYS if options.way in way] or parser.error(f"--way: none of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.bundle, Path(folder), options.bytes, options.save_every, ways, options.documents)
        while outcome.kills < options.points:
            way = runs.ways[outcome.runs % len(runs.ways)]
            runs.kill(way, rng, outcome)
            print(f"{outcome.kills} kills, {outcome.runs} runs, {len(outcome.different)} different: {way}", flush=True)
    print(f"{outcome.kills - len(outcome.at_states)} kills were before the first state")
    if outcome.at_states:
        print(f"output at the others  {min(outcome.positions):.0%} to {max(outcome.positions):.0%} of the whole")
        print(f"state                 {min(outcome.at_states):,} to {max(outcome.at_states):,} bytes")
    print(f"{len(outcome.different)} different", *outcome.different, sep="\n")
    sys.exit(bool(outcome.different))


if __name__ == "__main__":
    main()
