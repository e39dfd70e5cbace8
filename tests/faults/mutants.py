"""Plant seeded small faults, and record which tests find each: `python -m tests.faults.mutants TABLE.jsonl`.

A mutant is one changed comparison, logical operator, minimum, sum or number. It stands in a line that tests execute,
and only these tests run. The table has a line for each mutant; a run that is interrupted goes on where it was. It needs
the package `coverage`.

The report at the end says which mutants no test found. It also names functions whose work other tests do: at least
`ENOUGH` mutants stand in lines that they execute, they find one or more, and functions that stay find all of these. So
all that it names may go together, as far as the mutants tell: few mutants tell little.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.find import PACKAGES, ROOT, SHOW_SOURCES

ENOUGH = 20  # mutants in its lines, before a function can be judged
SLOWEST = 10  # times as long as without a fault; then a mutant runs for ever
START = 5.0  # seconds until pytest runs the first test, at most
DURATION = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +(\S+?)(?:\[.*\])?$", re.MULTILINE)
PYTEST = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*\])?(?: - .*)?$", re.MULTILINE)
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    },
}


@dataclass(frozen=True)
class Mutant:
    """One small fault: the expression from one offset of a file's bytes to another, replaced by a text."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def plant(self, source: bytes) -> bytes:
        """Return the file's content with the fault."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    """Yield all mutants of a file; none within formatted texts, whose places Python 3.11 does not know."""
    starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
    tree = ast.parse(source)
    texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in texts or not isinstance(node, ast.expr) or (after := _changed(node)) is None:
            continue
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(file, node.lineno, start, end, source[start:end].decode(), f"({ast.unparse(after)})")


def _changed(node: ast.expr) -> ast.expr | None:
    """Return an expression with a small fault, or None."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[operator]):
            other.ops = [OPPOSITES[type(operator)]()]
        case ast.BoolOp():
            other.op = ast.Or() if isinstance(other.op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            return other.operand
        case ast.Call(func=ast.Name(id="min" | "max") as name):
            name.id = "max" if name.id == "min" else "min"
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            other.op = ast.Sub() if isinstance(other.op, ast.Add) else ast.Add()
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            other.value = value + 1
        case _:
            return None
    return other


class Tree:
    """A copy of the sources, whose tests run without the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tree"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.folder / name)
        paths = os.pathsep.join(str(self.folder / part) for part in PACKAGES.values())
        self.environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        sources = self.run([sys.executable, "-c", SHOW_SOURCES], None).stdout
        assert all(str(self.folder) in line for line in sources.split()), f"Python imports other sources: {sources}"

    def run(self, command: list[str], seconds: float | None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy."""
        environment = {**self.environment, **more}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )

    def contexts(self, sources: list[str], tests: list[str], data: Path) -> dict[str, dict[int, set[str]]]:
        """Return by file and line which test functions execute it; `data` keeps what `coverage` measured."""
        import coverage  # type: ignore[import-not-found,unused-ignore]

        if not data.exists():
            settings = self.folder / "contexts.ini"
            settings.write_text(f"[run]\ndynamic_context = test_function\nsource = {','.join(sources)}\n", "utf-8")
            command = ["-m", "coverage", "run", "--rcfile", str(settings), "-m", "pytest", "-q", "-n", "0", *tests]
            done = self.run([sys.executable, *command], None, COVERAGE_FILE=str(self.folder / "contexts"))
            if done.returncode:
                raise SystemExit(f"without a fault, tests fail: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            measured = coverage.CoverageData(str(self.folder / "contexts"))
            measured.read()
            lines = {
                str(Path(name).relative_to(self.folder)): measured.contexts_by_lineno(name)
                for name in measured.measured_files()
            }
            data.write_text(json.dumps(lines), "utf-8")
        return {
            file: {int(line): {self._node(name) for name in names if name} for line, names in lines.items()}
            for file, lines in json.loads(data.read_text("utf-8")).items()
        }

    def _node(self, context: str) -> str:
        """Return pytest's name of a test function, such as tests/runtime/test_memory.py::test_rows."""
        parts = context.split(".")
        length = next(
            n for n in range(len(parts), 0, -1) if (self.folder / Path(*parts[:n]).with_suffix(".py")).is_file()
        )
        return "::".join([Path(*parts[:length]).with_suffix(".py").as_posix(), *parts[length:]])

    def durations(self, tests: list[str]) -> dict[str, float]:
        """Return the seconds of each test function, without a fault."""
        done = self.run([*PYTEST, "-vv", "--durations=0", *tests], None)
        if done.returncode:
            raise SystemExit(f"without a fault, tests fail: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        seconds: dict[str, float] = defaultdict(float)
        for duration, test in DURATION.findall(done.stdout):
            seconds[test] += float(duration)
        return seconds

    def findings(self, tests: list[str], seconds: float) -> list[str] | None:
        """Return the test functions that fail; None: they have no end."""
        try:
            done = self.run([*PYTEST, "-q", *tests], seconds)
        except subprocess.TimeoutExpired:
            return None
        return sorted({*FAILED.findall(done.stdout), *(["the import"] if done.returncode > 1 else [])})


def plant(options: argparse.Namespace) -> None:
    """Plant mutants one by one, and add a line to the table for each."""
    done = [json.loads(line) for line in _lines(options.table)]
    tried = {tuple(entry["mutant"].values()) for entry in done}
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="mutants_", ignore_cleanup_errors=True) as folder:
        tree = Tree(Path(folder).resolve())
        contexts = tree.contexts(options.sources, options.tests, options.table.with_suffix(".contexts.json"))
        places = [
            mutant
            for file in sorted(contexts)
            for mutant in mutants_of(file, (ROOT / file).read_bytes())
            if contexts[file].get(mutant.line)
        ]
        random.Random(options.seed).shuffle(places)
        durations = tree.durations(options.tests)
        for number, mutant in enumerate(places[: options.places]):
            if tuple(asdict(mutant).values()) in tried or time.monotonic() > end:
                continue
            tests, file = sorted(contexts[mutant.file][mutant.line]), tree.folder / mutant.file
            source = file.read_bytes()
            file.write_bytes(mutant.plant(source))
            findings = tree.findings(tests, SLOWEST * (START + sum(durations[test] for test in tests)))
            file.write_bytes(source)
            entry = {"mutant": asdict(mutant), "tests": tests, "findings": findings}
            with options.table.open("a", encoding="utf-8") as table:
                table.write(json.dumps(entry) + "\n")
            by = "no end" if findings is None else f"found by {len(findings)} of {len(tests)}"
            print(f"{number + 1}: {mutant.file}:{mutant.line} {mutant.before!r} -> {mutant.after!r}: {by}", flush=True)


def report(table: Path) -> None:
    """Print what no test found, and the functions whose work other tests do."""
    entries = [json.loads(line) for line in _lines(table)]
    missed = [entry["mutant"] for entry in entries if entry["findings"] == []]
    print(f"{len(entries)} mutants, {len(missed)} found by no test:")
    for mutant in missed:
        print(f"  {mutant['file']}:{mutant['line']} {mutant['before']!r} -> {mutant['after']!r}")
    executed = Counter(test for entry in entries for test in entry["tests"])
    finders = [set(entry["findings"] or ()) for entry in entries]
    found = Counter(test for tests in finders for test in tests)
    for test in sorted(found, key=lambda test: (found[test], test)):
        own = [tests for tests in finders if test in tests]
        if executed[test] >= ENOUGH and all(len(tests) > 1 for tests in own):
            print(f"{test} may go: it executes {executed[test]} and finds {len(own)}, all of which others find")
            for tests in own:
                tests.remove(test)


def _lines(table: Path) -> list[str]:
    return table.read_text("utf-8").splitlines() if table.exists() else []


def main() -> None:
    """Plant, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="the table, which grows")
    parser.add_argument("--places", type=int, default=300, help="mutants to plant")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of places")
    parser.add_argument("--minutes", type=float, default=120, help="no mutant begins later")
    parser.add_argument("--sources", nargs="+", default=["runtime/python/xlruntime"], help="folders to plant in")
    parser.add_argument("--tests", nargs="+", default=["tests/runtime"], help="tests to judge")
    options = parser.parse_args()
    options.table = options.table.resolve()
    plant(options)
    report(options.table)


if __name__ == "__main__":
    main()
