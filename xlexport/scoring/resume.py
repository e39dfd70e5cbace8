"""Save the state from which an interrupted run continues, and read it.

FILE.partial.state identifies the run. It says how much of FILE.partial belongs to the state, how many chunks are done,
and holds everything that is needed to write the rest of the chunk in work byte for byte.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np

from xlexport.atomic_output import naming
from xlexport.errors import ResumeError
from xlexport.scoring.chunks import ChunkState, Job
from xlexport.scoring.inputs import digest_inputs
from xlexport.scoring.partial_file import HINT, PartialFile
from xlexport.scoring.totals import Totals
from xlruntime import Model, __version__
from xlruntime.messages import named, shown
from xlruntime.providers import import_onnxruntime
from xlruntime.state import read_state, write_state

__all__ = ["Saved", "SavedRun", "changes", "describe_run"]

KIND = "xlexport score run"
VERSION = 5
READING = 2
"""Rises when the same files and options give other scores: begin tokens, byte-order marks, tokens of a part."""
BUSY = 20  # the run works at least this many times as long as writing a state takes


@dataclass(frozen=True)
class Saved:
    """A state of a run.

    Attributes:
        position: bytes of FILE.partial that belong to it; totals: sums over the finished documents.
        chunks: number of finished chunks; state: of the next chunk, unless it is at its beginning.
    """

    position: int
    totals: Totals
    chunks: int
    state: ChunkState | None


class SavedRun:
    """The saved states of a run.

    Args:
        run: fields that are equal only for the same run (`describe_run`).
        every: seconds between two states; more if a state takes long to write.
    """

    def __init__(self, output: PartialFile, run: Mapping[str, Any], every: float) -> None:
        self._output = output
        self._run: dict[str, Any] = json.loads(json.dumps(run))  # as a state holds it: tuples are lists
        self._every = every
        self._due = time.monotonic() + every

    def is_due(self) -> bool:
        """Return whether it is time to write the next state."""
        return time.monotonic() >= self._due

    def save(self, totals: Totals, chunks: int, state: ChunkState | None) -> None:
        """Write the output so far, and the state that is needed to continue from there."""
        began = time.monotonic()
        self._output.sync()
        fields = {
            "run": self._run,
            "position": self._output.position,
            "totals": asdict(totals),
            "chunks": chunks,
            "chunk": None if state is None else state.fields,
        }
        metadata = {"kind": KIND, "version": str(VERSION), "state": json.dumps(fields)}
        with naming(self._output.path):
            write_state(self._output.state_path, metadata, {} if state is None else state.arrays)
        ended = time.monotonic()
        self._due = ended + max(self._every, BUSY * (ended - began))

    def read(self) -> Saved | None:
        """Return the last saved state; None if there is none yet.

        Raises:
            ResumeError: the state belongs to another run; the message says what changed.
            StateError: the state is damaged.
        """
        output = self._output
        if not os.path.lexists(output.state_path) or not output.partial.exists():
            return None
        metadata, arrays = read_state(output.state_path, KIND, VERSION, HINT)
        fields = json.loads(metadata["state"])
        if differences := changes(fields["run"], self._run):
            raise ResumeError(
                f"{output.partial}: of another run: {'; '.join(differences)}.",
                hint="Give the files and options of that run, or start again with --force.",
            )
        state = None if fields["chunk"] is None else ChunkState(fields["chunk"], arrays)
        return Saved(fields["position"], Totals(**fields["totals"]), fields["chunks"], state)


def describe_run(model: Model, job: Job) -> dict[str, Any]:
    """Return everything that the bytes of a run's output depend on, except the processor, for JSON.

    This reads the inputs.
    """
    settings, tokenizer = job.settings, model.bundle.tokenizer
    library = {tokenizer.kind} & {"tokenizers", "sentencepiece"}  # kinds with the name of the library that runs them
    return {
        "bundle": model.bundle.fingerprint,
        "tokenizer": {
            **asdict(tokenizer),
            "sha256": getattr(model.bundle.files.get(tokenizer.file or ""), "sha256", None),
        },
        "settings": {**settings.to_dict(), "first_memory": settings.fresh_memory},
        "options": {
            **job.options.identity,
            "texts as this version reads them": READING,
            "--device": job.device or str(model.device),
            "--threads": model.threads,
        },
        "versions": {
            "xlexport": __version__,
            "ONNX Runtime": import_onnxruntime().__version__,
            "NumPy": np.__version__,
            "kernels": str(model.kernels or "none"),
            **{name: import_module(name).__version__ for name in library},
            "machine": platform.machine(),
        },
        "inputs": digest_inputs(job.inputs),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return sentences for people about what has changed, also in nested mappings."""
    differences = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if name == "inputs":
            differences.append(_inputs(old, new))
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += changes(old, new)
        else:
            differences.append(f"{named(name)} was {_stated(old)}, now {_stated(new)}")
    return differences


def _inputs(old: Any, new: Any) -> str:
    """Say how the inputs of two runs differ, as `digest_inputs` describes them."""
    if old["count"] != new["count"]:
        return f"there were {old['count']:,} inputs, now {new['count']:,}"
    for entry, new_entry in zip(old["files"] or (), new["files"] or (), strict=False):
        if entry[0] != new_entry[0]:
            return f"input {named(entry[0])} is {named(new_entry[0])} now"
        if entry != new_entry:
            return f"input {named(entry[0])} has changed"
    return "an input has changed"


def _stated(value: Any) -> str:
    if value is None:
        return "not given"
    text = str(value) if isinstance(value, bool | float | str) else shown(value)
    return named(text if len(text) <= 40 else f"{text[:16]}…")
