"""Change states of `score --resume` and give them a matching digest."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt

import xlexport.scoring.resume
from reliability.damage import damage_array, damage_json
from reliability.judging import Outcome, judged
from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.errors import XlexportError
from xlexport.scoring.inputs import Reading, find_inputs
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.records import Level
from xlexport.scoring.resume import KIND, VERSION, SavedRun
from xlexport.scoring.run import score_run
from xlexport.scoring.run_options import Reporter, RunOptions
from xlruntime import XlruntimeError, load
from xlruntime.state_file import read_state, write_state

__all__ = ["ResumeFields"]

TEXTS = (b"It was the best of times, it was the worst of times", b"", b"x", b"it was the age of wisdom\nit was the",
         b"epoch of belief, \xe6\x99\x82\xe4\xbb\xa3 of incredulity \n\n")  # fmt: skip
WAYS: tuple[tuple[Level, int, bool], ...] = (
    ("token", 1, False), ("word", 2, False), ("line", 1, True), ("document", 3, False),
)  # fmt: skip
KNOWN_BY_NOTHING = (
    "position",
    "last",
    "spaced",
    "records",
    "totals",
    "offset",
    "log_prob_sum",
)  # other values are plausible, too


class _Stopped(BaseException):
    """An exception that ends a run, and that no code in it expects."""


class _Quiet:
    """A reporter that shows nothing."""

    def _ignore(self, *_: object) -> None:
        pass

    tell = fail = total = resumed = take = clear = _ignore


@dataclass(frozen=True)
class _State:
    """A stopped run: its options, the output so far, and its state."""

    options: RunOptions
    partial: bytes
    fields: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]
    expected: bytes


class ResumeFields:
    """A state with changed fields or tensors.

    A change must never lead to another output if the rest of the state, the documents or the model contradict it.
    """

    def __init__(self, folder: Path) -> None:
        """Stop runs with several options after each of their states."""
        vars(xlexport.scoring.resume)["BUSY"] = 0
        self._model = load(golden_bundle(EMPTY), threads=1)
        self._output = PartialFile(folder / "out.jsonl")
        paths = [folder / f"{number}.txt" for number in range(len(TEXTS))]
        for path, text in zip(paths, TEXTS, strict=True):
            path.write_bytes(text)
        self._inputs = find_inputs(paths, (), Reading(), [], lambda line: None)
        self._states = [state for way in WAYS for state in self._stopped(RunOptions(
            per=way[0], kind="jsonl", batch_size=way[1], continuous=way[2]))]  # fmt: skip

    def case(self, number: int) -> Outcome:
        """Change a state, and let a run continue from it."""
        rng = random.Random(f"resume fields {number}")
        state = rng.choice(self._states)
        fields, arrays = copy.deepcopy(dict(state.fields)), dict(state.arrays)
        if rng.random() < 0.9 or not arrays:
            try:
                changed = json.loads(damage_json(fields, rng))
            except (ValueError, RecursionError):
                return Outcome("refused", "JSON that a state cannot be written with")
            fields = changed if isinstance(changed, dict) else {}
        else:
            name = rng.choice(sorted(arrays))
            arrays[name] = damage_array(arrays[name], rng)
        try:
            write_state(self._output.state_path, KIND, VERSION, fields, arrays)
        except (ValueError, RecursionError, UnicodeError, TypeError):
            return Outcome("refused", "JSON that a state cannot be written with")
        self._output.partial.write_bytes(state.partial)
        try:
            allowed = _known_by_nothing(fields) == _known_by_nothing(state.fields)
        except RecursionError:
            allowed = False
        return judged(
            lambda: self._go_on(state.options),
            (XlruntimeError, XlexportError),
            lambda found: bool(found == state.expected),
            may_differ=allowed,
        )

    def _go_on(self, options: RunOptions) -> bytes:
        self._output.path.unlink(missing_ok=True)
        self._output.check(force=False, resume=True)
        try:
            self._run(options, resume=True)
            self._output.publish()
        finally:
            self._output.close()
        return self._output.path.read_bytes()

    def _run(self, options: RunOptions, resume: bool) -> None:
        score_run(self._model, self._model.evaluation(), self._inputs, options, io.BytesIO(), self._output,
                  cast(Reporter, _Quiet()), save_every=0, resume=resume)  # fmt: skip

    def _stopped(self, options: RunOptions) -> list[_State]:
        """Return the states of one run, each as it is on disk when the run is killed after saving it."""
        found: list[tuple[bytes, dict[str, Any], dict[str, Any]]] = []
        save = SavedRun.save

        def saving(run: SavedRun, fields: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
            save(run, fields, arrays)
            found.append((self._output.partial.read_bytes(), *read_state(self._output.state_path, KIND, VERSION, "")))

        SavedRun.save = saving  # type: ignore[assignment, method-assign]
        try:
            self._output.check(force=True, resume=False)
            self._run(options, resume=False)
        finally:
            SavedRun.save = save  # type: ignore[method-assign]
        self._output.publish()
        expected = self._output.path.read_bytes()
        return [_State(options, partial, fields, arrays, expected) for partial, fields, arrays in found]


def _known_by_nothing(value: Any) -> Any:
    """Leave out fields that may differ, and the order of rows that have read equally many tokens."""
    if isinstance(value, Mapping):
        return {name: _known_by_nothing(part) for name, part in value.items() if name not in KNOWN_BY_NOTHING}
    if isinstance(value, list):
        return sorted((_known_by_nothing(part) for part in value), key=repr)
    return value
