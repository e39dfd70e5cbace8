"""States of `score --resume` with a matching digest, but with fields that no run can have written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reliability.resume_targets import KNOWN_BY_NOTHING
from tests.scoring.conftest import Score
from xlexport.scoring.resume import KIND, VERSION, SavedRun
from xlruntime.state_file import read_state, write_state

Change = Callable[[dict[str, Any], dict[str, Any]], Any]
WAYS = {
    "token": ("--per", "token"),
    "word": ("--per", "word", "--batch-size", "2"),
    "line": ("--per", "line", "--continuous"),
    "document": ("--batch-size", "3"),
}
TEXTS = {"1": "It is", "2": "It was the best of times. " * 3, "3": "It was the worst of times.\n" * 4, "4": "It"}
VALUES = (None, -1, 2**63, "x")


class Stopped(BaseException):
    """An exception that ends a run, and that no code in it expects."""


class Run:
    """A run that was stopped after its fourth saved state."""

    def __init__(self, way: str, score: Score, folder: Path) -> None:
        folder.mkdir()
        texts = [folder / name for name in TEXTS]
        for path in texts:
            path.write_text(TEXTS[path.name])
        self.score, self.output = score, folder / "out.jsonl"
        self.arguments = (*texts, *WAYS[way], "-o", self.output)
        score(*self.arguments).succeeded()
        self.whole = self.output.read_bytes()
        self.output.unlink()
        self.state, self.partial = (folder / f"out.jsonl.{name}" for name in ("partial.state", "partial"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("xlexport.scoring.resume.BUSY", 0)
            save, saved = SavedRun.save, []

            def saving(self: SavedRun, *arguments: Any) -> None:
                save(self, *arguments)
                saved.append(1)
                if len(saved) == 4:
                    raise Stopped

            patch.setattr(SavedRun, "save", saving)
            with pytest.raises(Stopped):
                score(*self.arguments, "--save-every", "0")
        self.written = self.partial.read_bytes()
        self.fields, self.arrays = read_state(self.state, KIND, VERSION, "")

    def resume(self, how: Change) -> str:
        """Continue from a changed state; return the error, or nothing if the output equals an undisturbed run's."""
        fields, arrays = copy.deepcopy(self.fields), dict(self.arrays)
        how(fields, arrays)
        write_state(self.state, KIND, VERSION, fields, arrays)
        self.partial.write_bytes(self.written)
        shown = self.score(*self.arguments, "--resume")
        if shown.code:
            *said, line = shown.err.splitlines()
            assert line.startswith("Error: ")
            assert all("going on after" in other for other in said)
            assert not self.output.exists()
            assert self.partial.read_bytes() == self.written
            return line
        found = self.output.read_bytes()
        self.output.unlink()
        return "" if found == self.whole else "another output"


@pytest.fixture
def run(score: Score, tmp_path: Path) -> Callable[[str], Run]:
    return lambda way: Run(way, score, tmp_path / way)


@pytest.mark.parametrize("way", WAYS)
def test_state_as_it_was_is_gone_on_from(way: str, run: Callable[[str], Run]) -> None:
    assert run(way).resume(lambda fields, arrays: None) == ""


@pytest.mark.parametrize(
    ("way", "how", "said"),
    [
        ("token", lambda f, a: f.pop("scorer"), "scorer is missing"),
        ("token", lambda f, a: f.update(position=-1), "position is -1, expected at least 0"),
        ("token", lambda f, a: f.update(position=None), "position is None, expected a whole number"),
        ("token", lambda f, a: f.update(records={}), "records has a value, expected null"),
        ("token", lambda f, a: f["totals"].update(bits="0"), "totals.bits is '0', expected a number"),
        ("token", lambda f, a: f["totals"].update(documents=3), "3 documents are done, expected 1"),
        ("token", lambda f, a: f["totals"].update(byte_squares=-1.0), "sums of squares are below 0"),
        ("token", lambda f, a: f["run"].update(inputs=[1]), "an input has changed"),
        ("token", lambda f, a: f["run"].update(extra="\x1b[2J"), "extra was '\\x1b[2J', now not given"),
        ("token", lambda f, a: f["scorer"].update(taken=10**400), "taken is 1000"),
        ("token", lambda f, a: f["scorer"].update(last=1), "last is a token, expected null"),
        ("token", lambda f, a: f["scorer"].update(memory=None), "memory is null, but documents were scored"),
        ("token", lambda f, a: f["scorer"]["memory"].update(offset=-1), "offset is -1, expected 0 to"),
        ("token", lambda f, a: f["scorer"]["memory"].update(offset=5), "memory.position is 24, expected 0 to 5"),
        ("token", lambda f, a: f["scorer"]["memory"].update(capacity=2**40), "capacity is 1099511627776, expected 20"),
        ("token", lambda f, a: f["scorer"]["memory"].update(memory_length=[3]), "memory_length is 3, expected 12"),
        ("token", lambda f, a: f["scorer"]["memory"].update(position=[8]), "but 25 tokens were read"),
        ("token", lambda f, a: f["scorer"]["memory"].update(position=[]), "memory has 1 rows, expected 1"),
        ("token", lambda f, a: f["scorer"]["rows"][0].update(held=256), "held is 256, expected 0 to 255"),
        ("token", lambda f, a: f["scorer"]["rows"][0].update(held=0), "not the text that was left there"),
        ("token", lambda f, a: f["scorer"]["rows"][0].update(name="other"), "not the text that was left there"),
        ("token", lambda f, a: f["scorer"]["rows"][0].update(number=7), "number is 7, expected 0 to 1"),
        ("token", lambda f, a: f["scorer"]["rows"][0].update(log_prob_sum=4.0), "log_prob_sum is 4.0, expected at"),
        ("token", lambda f, a: f["scorer"]["rows"].append(None), "there are 2 rows, expected at most 1"),
        ("word", lambda f, a: f["scorer"]["rows"].reverse() or f["scorer"]["rows"].pop(), "memory has 2 rows, exp"),
        ("word", lambda f, a: f["records"].clear(), "records does not hold the documents that are not done"),
        ("word", lambda f, a: f["records"]["1"].update(before=256), "before is 256, expected 0 to 255"),
        ("word", lambda f, a: f["records"]["1"].update(base=10**6), "but only 78 bytes were read"),
        ("word", lambda f, a: f["records"]["1"]["open"].update(text="時"), "text is not the bytes of a text"),
        ("token", lambda f, a: f["scorer"]["rows"][0].update(unscored=0), "unscored is 0, but last is None"),
        ("document", lambda f, a: f["records"].update(following=0), "done does not hold the documents after the"),
        ("document", lambda f, a: f["records"]["done"].append([3, {}]), "document is missing"),
        ("document", lambda f, a: a.pop("memory_key_0"), "memory_key_0 is missing"),
        ("document", lambda f, a: a.update(memory_key_0=a["memory_key_0"][:1]), "is float32 (1, 2, 20, 8)"),
        ("document", lambda f, a: a.update(memory_key_0=a["memory_key_0"] * np.nan), "numbers that are not finite"),
    ],
)  # fmt: skip
def test_state_that_no_run_has_is_refused(way: str, how: Change, said: str, run: Callable[[str], Run]) -> None:
    line = run(way).resume(how)
    assert said in line
    assert line.isprintable()
    assert "--force" in line or "same documents" in line


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field, including lists and objects."""
    if path:
        yield path
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(part, (*path, name))


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_every_field_is_checked(way: str, run: Callable[[str], Run]) -> None:
    """Change one field at a time: no traceback, and no other output unless the change cannot be detected."""
    stopped = run(way)
    refused = 0
    for number, path in enumerate(leaves(stopped.fields)):
        # All values in one way; in the others, which share most of the code, the values in turns.
        for value in VALUES if way == "token" else VALUES[number % len(VALUES) :][:1]:

            def change(fields: Any, arrays: Any, path: tuple[Any, ...] = path, value: Any = value) -> None:
                for name in path[:-1]:
                    fields = fields[name]
                fields[path[-1]] = value

            said = stopped.resume(change)
            refused += said not in ("", "another output")
            if said == "another output":
                assert set(path) & set(KNOWN_BY_NOTHING), (path, value)
    assert refused > 100
