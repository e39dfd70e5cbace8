"""Save states: tensors and texts in a safetensors file, with a digest of both (rules 28 and 29 of the format).

`State` is a saved stream. `score --resume` keeps its own kind of state in such a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import atomic_output
from .bundle import RUN, Bundle
from .engine import Engine
from .errors import OptionError, StateDamagedError, StateMismatchError
from .evaluation import EvaluationSettings
from .held_text import MOST_HELD, HeldText
from .limits import Limits, parse_json
from .memory import MemoryPlan
from .messages import listed, named, shown

__all__ = ["LIMITS", "State", "array_problems", "read_state", "write_state"]

KIND, VERSION = "xlexport stream", 4
WITHOUT_HELD_TEXT = 3  # a version that streams had before they held text back
LIMITS = Limits()  # of the header; tensors take as much memory as they have in the file
LARGEST_COUNT = 2**52  # tokens: exact in any runtime, also after more of them
OWN = ("segment_len", "restart")  # settings that every bundle has
LONGEST_CHARACTER = 4  # bytes: a part of one may be held besides
TEXTS = ("held", "begun", "tokenizer")
COUNTERS = ("capacity", "offset", "length", "history", "pending", "position")
OF_ROWS = ("history", "position")  # counters of which a step model's stream has one for each row
HINT = "Save the stream again with Stream.save."
STATE_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(bool),
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}".lower()) for sign in "IU" for bits in (8, 16, 32, 64)},
}

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class State:
    """A saved stream.

    Attributes:
        fingerprint: the fingerprint of its bundle.
        settings: the evaluation settings, as `EvaluationSettings.to_dict` returns them.
        capacity: slots of the largest ring; offset: rows written to the rings.
        length: kept rows that a query may see; history: tokens read since the last restart.
        pending: id of the held token; None before the first one.
        position: tokens of the document, the held one included. Of a step model, position and history are the steps of
            each row, a tuple if there are several.
        held: the end of the text, which has no tokens yet.
        tokenizer: SHA-256 of the tokenizer's file, "" if it has none.
        memory: value of each carried tensor, by the name of its input.
    """

    fingerprint: str
    settings: Mapping[str, Any]
    capacity: Any
    offset: Any
    length: Any
    history: Any
    pending: Any
    position: Any
    held: HeldText
    tokenizer: str
    memory: Arrays

    def write(self, path: Path) -> None:
        """Write the state; the file appears whole or not at all.

        Raises:
            OSError: the file cannot be written; an older one stays as it was.
        """
        metadata = {"kind": KIND, "version": str(VERSION), "fingerprint": self.fingerprint}
        for name, value in self.settings.items():
            metadata[name if name in OWN else f"setting.{name}"] = _text(value)
        metadata |= {name: _text(getattr(self, name)) for name in COUNTERS}
        metadata |= {"held": self.held.raw.hex(), "begun": _text(self.held.begun), "tokenizer": self.tokenizer}
        write_state(path, metadata, self.memory)

    @classmethod
    def read(cls, path: Path, limits: Limits = LIMITS) -> State:
        """Read a state, without comparing it with a bundle.

        Raises:
            StateDamagedError: the file is not a stream's state, or was changed.
            StateMismatchError: another version has written it.
            FileNotFoundError: the file does not exist.
        """
        metadata, memory = read_state(path, KIND, VERSION, HINT, limits, older=WITHOUT_HELD_TEXT)
        if metadata["version"] == str(WITHOUT_HELD_TEXT):
            metadata |= {"held": "", "begun": _text(metadata.get("position") != "0"), "tokenizer": ""}
        missing = [name for name in ("fingerprint", *OWN, *COUNTERS, *TEXTS) if name not in metadata]
        if missing:
            raise StateDamagedError(f"{path}: {', '.join(missing)} is missing.", hint=HINT)
        names = [name for name in metadata if name in OWN or name.startswith("setting.")]
        settings = {name.removeprefix("setting."): _value(metadata[name]) for name in names}
        counters = {name: _value(metadata[name]) for name in COUNTERS}
        try:
            held = HeldText(bytes.fromhex(metadata["held"]), {"true": True, "false": False}[metadata["begun"]])
            if len(held.raw) > MOST_HELD + LONGEST_CHARACTER:
                raise ValueError(f"{len(held.raw):,} bytes")
        except (KeyError, ValueError) as error:
            raise StateDamagedError(f"{path}: its held text is impossible for a stream.", hint=HINT) from error
        tokenizer = metadata["tokenizer"]
        return cls(metadata["fingerprint"], settings, **counters, held=held, tokenizer=tokenizer, memory=memory)

    def evaluation(self, engine: Engine, where: Path) -> EvaluationSettings:
        """Check that a stream of this bundle can have this state, and return its settings.

        Raises:
            StateMismatchError: it is of another bundle, or of settings that this one does not have.
            StateDamagedError: its counters or tensors are impossible.
        """
        bundle = engine.bundle
        if self.fingerprint != bundle.fingerprint:
            raise StateMismatchError(
                f"{where}: saved from another bundle than {engine.folder}.", hint="Open the one it was saved from."
            )
        try:
            evaluation = bundle.evaluation.choose(**self.settings)
        except (TypeError, OptionError) as error:
            raise StateMismatchError(f"{where}: settings of another bundle ({error}).", hint=HINT) from error
        if self.held.raw and self.tokenizer != bundle.tokenizer_digest:
            raise StateMismatchError(f"{where}: it holds text for another tokenizer than this bundle's.", hint=HINT)
        own = {**evaluation.to_dict(), "segment_len": int(evaluation.segment_len)}  # as a text, true is not 1
        if {name: _text(value) for name, value in own.items()} != {n: _text(v) for n, v in self.settings.items()}:
            expected = ", ".join(map(named, evaluation.to_dict()))
            raise StateMismatchError(f"{where}: settings of another bundle, expected {expected}.", hint=HINT)
        problems = self._problems(evaluation, bundle)
        if not problems:  # before any memory is allocated
            plan = MemoryPlan(bundle.memory, {}, {}, evaluation, self.capacity, engine.device)
            problems = array_problems(self.memory, plan, len(self.rows("history")))
        if problems:
            raise StateDamagedError(f"{where}: {listed(problems)}.", hint=HINT)
        return evaluation

    def rows(self, counter: str) -> tuple[Any, ...]:
        """Return a counter of each row of a step model's stream."""
        value = getattr(self, counter)
        return value if isinstance(value, tuple) else (value,)

    def _problems(self, evaluation: EvaluationSettings, bundle: Bundle) -> list[str]:
        """Return the counters that no stream under these settings has."""
        steps, pending = bundle.purpose == RUN, bundle.vocab_size - 1
        most = dict.fromkeys(COUNTERS, LARGEST_COUNT) | {"length": evaluation.most_rows, "pending": pending}
        if evaluation.longest_part is not None:
            most["history"] = evaluation.longest_part
        problems = [
            f"{name} is {shown(value)}, expected 0 to {most[name]}"
            for name in COUNTERS
            for value in (self.rows(name) if steps and name in OF_ROWS else [getattr(self, name)])
            if type(value) is not int or not 0 <= value <= most[name]
            if name != "pending" or value is not None
        ]
        if problems:
            return problems
        if evaluation.max_segment(self.capacity) < 1:
            problems.append(f"capacity is {self.capacity}, but {evaluation.most_rows} rows are kept")
        if steps:
            if self.capacity != evaluation.capacity():
                problems.append(f"capacity is {self.capacity}, expected {evaluation.capacity()}")
            if self.history != self.position:
                problems.append(f"history is {self.history}, but position {self.position}")
            if self.offset < max(self.rows("position")):
                problems.append(f"offset is {self.offset}, but a row has read more steps")
            if self.held.raw or self.held.begun or self.tokenizer or evaluation.restart:
                problems.append("it is of a text")
            return problems
        if self.history > self.position:
            problems.append(f"history is {self.history}, but {self.position} tokens were read")
        if (self.pending is None) != (self.position == 0):
            problems.append(f"{self.position} tokens were read, and {self.pending} is held")
        return problems


def array_problems(arrays: Arrays, plan: MemoryPlan, batch_size: int) -> list[str]:
    """Return the problems of a memory's tensors under this plan."""
    problems = []
    for entry in plan.entries:
        expected, array = tuple(plan.sizes(entry, batch_size)), arrays.get(entry.input)
        if array is None:
            problems.append(f"{entry.input} is missing")
        elif array.shape != expected or array.dtype != entry.dtype:
            problems.append(f"{entry.input} is {array.dtype} {array.shape}, expected {entry.dtype} {expected}")
        elif not np.isfinite(array).all():
            problems.append(f"{entry.input} has numbers that are not finite")
    return problems


def write_state(path: Path, metadata: Mapping[str, str], arrays: Arrays) -> int:
    """Write tensors and texts, `kind` and `version` among them, and return the file's size in bytes.

    The library of safetensors would hold all tensors twice more in memory.

    Raises:
        OSError: the file cannot be written; an older one stays as it was.
    """
    ordered = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    header: dict[str, Any] = {"__metadata__": {**metadata, "digest": _digest(metadata, *ordered.values())}}
    end = 0
    for name, array in ordered.items():
        begin, end = end, end + array.nbytes
        kind = next(kind for kind, dtype in STATE_DTYPES.items() if dtype == array.dtype)
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)  # aligns the tensors to 8 bytes
    with atomic_output.file(path) as temporary, temporary.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for array in ordered.values():
            file.write(_bytes(array))
        return file.tell()


def read_state(
    path: Path, kind: str, version: int, hint: str, limits: Limits = LIMITS, older: int | None = None
) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """Return the texts and tensors that `write_state` wrote.

    Args:
        hint: the end of every message: what a user can do about an unusable state.
        limits: bounds for the header; tensors take as much memory as they have in the file.
        older: another version that is read.

    Raises:
        StateDamagedError: the file is not a state of this kind, or was changed.
        StateMismatchError: another version has written it.
        OSError: the file cannot be read.
    """
    what = f"not a {kind.removeprefix('xlexport ')}'s state"

    def damaged(problem: str) -> StateDamagedError:
        return StateDamagedError(f"{path}: {what} ({problem}).", hint=hint)

    if path.exists() and not path.is_file():
        raise damaged("not a file")
    budget = limits.budget(str(path), StateDamagedError, hint)
    with path.open("rb") as file:
        size, available = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size - 8
        if size > available:
            raise damaged(f"its header has {size:,} bytes, but only {max(available, 0):,} follow")
        budget.charge(size)
        header = parse_json(file.read(size), budget, strict=True)
        metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise damaged("it has no texts")
        if metadata.get("kind") != kind:
            raise damaged("another safetensors file")
        if metadata.get("version") not in (str(version), str(older)):
            saved_version = shown(metadata.get("version"))
            raise StateMismatchError(f"{path}: state version {saved_version}, expected {version}.", hint=hint)
        arrays, begin = {}, 0
        for name, tensor in sorted(header.items()):
            array = _allocated(tensor, begin, available - size)
            if array is None:
                raise damaged(f"{named(name)} is not a tensor behind the one before it")
            file.readinto(_bytes(array))
            arrays[name], begin = array, begin + array.nbytes
    try:
        intact = begin == available - size and metadata.pop("digest", None) == _digest(metadata, *arrays.values())
    except UnicodeEncodeError:
        intact = False
    if not intact:
        raise StateDamagedError(f"{path}: damaged since it was saved (its SHA-256 differs).", hint=hint)
    return metadata, arrays


def _allocated(tensor: Any, begin: int, available: int) -> npt.NDArray[Any] | None:
    """Return room for a tensor that begins at `begin`; None if its description does not fit into the file."""
    if not isinstance(tensor, dict) or tensor.get("dtype") not in [*STATE_DTYPES]:
        return None
    dtype, shape, offsets = STATE_DTYPES[tensor["dtype"]], tensor.get("shape"), tensor.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or {*map(type, shape + offsets)} - {int}:
        return None
    end = begin + math.prod(shape) * dtype.itemsize
    if offsets != [begin, end] or end > available or min(shape, default=0) < 0:
        return None
    try:
        return np.empty(shape, dtype)
    except (ValueError, OverflowError):  # more axes than numpy has, or larger ones
        return None


def _digest(metadata: Mapping[str, str], *arrays: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of a line for each text, sorted by name, and of the tensors."""
    sha256 = hashlib.sha256("".join(f"{name}={metadata[name]}\n" for name in sorted(metadata)).encode())
    for array in arrays:
        sha256.update(_bytes(array))
    return sha256.hexdigest()


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8).data


def _text(value: bool | int | tuple[int, ...] | None) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value).lower()


def _value(text: str) -> Any:
    """Return the number, numbers or boolean that a text says; None for an empty text, and any other text as it is."""
    if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"(0|[1-9][0-9]{0,18})( (0|[1-9][0-9]{0,18}))+", text, re.ASCII):
        return tuple(map(int, text.split()))
    return {"": None, "true": True, "false": False}.get(text, text)
