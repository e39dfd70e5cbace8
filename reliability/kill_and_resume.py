"""Kill `xlexport score` at random moments with SIGKILL, continue with --resume, and compare the files byte for byte.

    python -m reliability.kill_and_resume bundle --points 50

Runs use the options below in turn. Each run is killed up to three times, at random moments of its whole time including
loading, and continues with --resume each time. Its output must equal that of an undisturbed run, and no other file may
be left. Every kill is a point. A run that ends before it is killed does not count as a point, but is compared as well.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

__all__ = ["WAYS", "Outcome", "Runs", "write_documents"]

WAYS: dict[str, tuple[str, ...]] = {
    "tokens": ("scores.jsonl", "--per", "token"),
    "words, three at a time": ("scores.csv", "--per", "word", "--batch-size", "3"),
    "documents, four at a time": ("scores.jsonl", "--batch-size", "4"),
    "tokens with alternatives, two at a time": ("scores.csv", "--per", "token", "--top", "3", "--batch-size", "2"),
    "lines, as one text": ("scores.jsonl", "--per", "line", "--continuous"),
    "words of JSON lines, two at a time": ("scores.jsonl", "--per", "word", "--field", "text", "--batch-size", "2"),
}


@dataclass
class Outcome:
    """The results of all points.

    Attributes:
        runs: number of compared runs; kills: number of kills of all runs.
        before_saving: kills before the first state; at_states: sizes of the states at the other kills.
        positions: fraction of the output that existed at each of these kills.
        different: runs whose output differed from the undisturbed run's.
    """

    runs: int = 0
    kills: int = 0
    before_saving: int = 0
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


class Runs:
    """The ways to run on a bundle, each with the output of an undisturbed run."""

    def __init__(
        self, bundle: Path, folder: Path, size: int, save_every: float, ways: Sequence[str] = tuple(WAYS)
    ) -> None:
        self.bundle, self.folder, self.save_every, self.ways = bundle, folder, save_every, tuple(ways)
        self.documents, self.lines = write_documents(folder, size)
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
        given = self.lines if "--field" in options else self.documents
        line = [sys.executable, "-m", "xlexport", "score", str(self.bundle), str(given), "-o", str(out / name)]
        line += ["--threads", "1", "--save-every", str(self.save_every), *options, *more]
        if (out / name).exists():
            line.append("--force")
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self, way: str, rng: random.Random, outcome: Outcome) -> None:
        """Kill runs at random moments, continue them, and compare the outputs."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            out = Path(scratch)
            name = WAYS[way][0]
            partial, state = out / f"{name}.partial", out / f"{name}.partial.state"
            killed = 0
            for _ in range(rng.choice((1, 1, 2, 3))):
                process = self.start(way, out, *(["--resume"] if killed else []))
                began, moment = time.monotonic(), rng.uniform(0, self.seconds[way])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                    if not killed:  # it ended before the kill
                        self.seconds[way] = min(self.seconds[way], time.monotonic() - began)
                    break
                process.kill()
                process.communicate()
                killed += 1
                if (out / name).exists() == partial.exists() and (out / name).exists():
                    outcome.different.append(f"{way}: both {name} and its partial one were there")
                if state.exists():
                    outcome.at_states.append(state.stat().st_size)
                    outcome.positions.append(partial.stat().st_size / len(self.expected[way]))
                else:
                    outcome.before_saving += 1
            if process.poll() is None or process.returncode < 0:
                process = self.start(way, out, "--resume")
            _, err = process.communicate()
            outcome.runs += 1
            outcome.kills += killed
            if (out / name).read_bytes() != self.expected[way] if (out / name).exists() else True:
                outcome.different.append(f"{way}, killed {killed} times: {err.decode().strip()[-300:]}")
            elif left := [path.name for path in out.iterdir() if path.name != name]:
                outcome.different.append(f"{way}: left {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--bytes", type=int, default=16_000, help="bytes of text for each run")
    parser.add_argument("--save-every", type=float, default=0.2, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcome, rng = Outcome(), random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.bundle, Path(folder), options.bytes, options.save_every)
        print({way: f"{len(runs.expected[way]):,} bytes in {runs.seconds[way]:.1f} s" for way in runs.ways}, flush=True)
        while outcome.kills < options.points:
            runs.kill(runs.ways[outcome.runs % len(runs.ways)], rng, outcome)
            print(f"\r{outcome.kills} kills, {outcome.runs} runs", end="", file=sys.stderr, flush=True)
    print(f"\nkills                 {outcome.kills}, {outcome.before_saving} of them before the first state")
    print(f"runs compared         {outcome.runs}")
    if outcome.at_states:
        print(f"output at the others  {min(outcome.positions):.0%} to {max(outcome.positions):.0%} of the whole")
        print(f"state                 {min(outcome.at_states):,} to {max(outcome.at_states):,} bytes")
    print(f"different             {len(outcome.different)}")
    for line in outcome.different:
        print(line)
    sys.exit(bool(outcome.different))


if __name__ == "__main__":
    main()
