"""Targets: states of streams and of `score --resume`, as bytes and with any fields under a matching digest."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from reliability.guided.target import InputFile, Target
from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.errors import XlexportError
from xlexport.scoring.inputs import Input
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.run import score_run
from xlexport.scoring.run_options import RunOptions
from xlexport.scoring.totals import Totals
from xlruntime import TokenScores, XlruntimeError, load, state_file

__all__ = ["RunFields", "StreamBytes", "StreamFields"]

NAME = b"state.safetensors"
TEXT = b"It was the best of times, it was the worst of times. " * 3


class _Streams(Target):
    """A model and one of its saved streams."""

    errors: ClassVar[tuple[type[Exception], ...]] = (XlruntimeError,)
    longest = 1 << 13
    words = tuple(
        b"""
        "memory_length" "position" "pending" "offset" "history" "capacity" "evaluation" "mem_len"
        "segment_len" "same_length" "clamp_len" null true -1 NaN 1e999 4611686018427387904 1073741824
        """.split()
    )

    def __init__(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        self._model = load(golden_bundle(EMPTY), threads=1)
        stream = self._model.stream()
        stream.feed(TEXT[:20])
        stream.save(folder / "sound")
        self._sound = (folder / "sound").read_bytes()
        self._file = InputFile(folder / NAME.decode())

    def restore(self) -> object:
        """Read the file and continue the stream."""
        stream = self._model.restore(self._file.path)
        return stream.feed(TEXT[20:23]).log_probs


class StreamBytes(_Streams):
    """The file of a saved stream."""

    longest = 1 << 15
    of_library = True

    def seeds(self) -> Iterable[bytes]:
        yield self._sound

    def read(self, raw: bytes) -> object:
        self._file.write(raw)
        return self.restore()


class _Fields(_Streams):
    """A state whose fields are the input; its tensors are sound, and the digest is not checked."""

    def parts(self, sound: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """Return fields, header and tensors of a sound state."""
        size = struct.unpack_from("<Q", sound)[0]
        header = json.loads(sound[8 : 8 + size])
        return json.loads(header.pop("__metadata__")["xlexport"]), header, sound[8 + size :]

    def state(self, fields: bytes, header: Mapping[str, Any], tensors: bytes) -> bytes:
        """Return a file with these fields, as text of any kind."""
        metadata = {"__metadata__": {"xlexport": fields.decode("latin-1")}}
        raw = json.dumps({**metadata, **header}).encode()
        raw += b" " * (-len(raw) % 8)
        return struct.pack("<Q", len(raw)) + raw + tensors


def _is_intact(state: dict[str, Any], arrays: object) -> bool:
    state.pop("sha256", None)
    return True


class StreamFields(_Fields):
    """The fields of a saved stream."""

    def seeds(self) -> Iterable[bytes]:
        yield json.dumps(self.parts(self._sound)[0]).encode()

    def read(self, raw: bytes) -> object:
        self._file.write(self.state(raw, *self.parts(self._sound)[1:]))
        with mock.patch.object(state_file, "_is_intact", _is_intact):
            return self.restore()


class _Interrupted(Exception):
    """An exception that ends a run."""


class _Silent:
    """A reporter that shows nothing, and can interrupt a run after a number of steps."""

    def __init__(self, steps: int = 1 << 30) -> None:
        self._steps = steps

    def tell(self, line: str) -> None:
        """Do nothing."""

    def fail(self, document: str, error: Exception) -> None:
        """Do nothing."""

    def total(self, fields: Mapping[str, Any]) -> None:
        """Do nothing."""

    def resumed(self, totals: Totals) -> None:
        """Use what was read."""
        totals.summary()

    def take(self, part: TokenScores) -> None:
        """Count the steps."""
        self._steps -= 1
        if self._steps < 0:
            raise _Interrupted

    def clear(self) -> None:
        """Do nothing."""


class RunFields(_Fields):
    """The fields of an interrupted run of `score`, after the fields that identify the run."""

    errors = (XlruntimeError, XlexportError)
    words = (
        *_Streams.words,
        *b'"taken" "rows" "last" "held" "number" "unscored" "log_prob_sum" "batch_size" "scorer"'.split(),
        *b'"totals" "records" "following" "done"'.split(),
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        documents = [folder / "first.txt", folder / "second.txt"]
        for document in documents:
            document.write_bytes(TEXT[:26])
        self._inputs = [Input(document.name, document) for document in documents]
        self._output = folder / "out.jsonl"
        self._saved = self._interrupted()
        fields, self._header, self._tensors = self.parts(self._saved)
        self._run = {name: fields.pop(name) for name in ("kind", "version", "run")}
        fields.pop("sha256")
        self._fields = fields

    def _score(self, reporter: _Silent, save_every: float, resume: bool) -> None:
        output, settings = PartialFile(self._output), self._model.evaluation()
        options = RunOptions(kind="jsonl", batch_size=2)
        try:
            score_run(self._model, settings, self._inputs, options, io.BytesIO(), output, reporter, save_every, resume)
        finally:
            output.close()

    def _interrupted(self) -> bytes:
        """Return the state of a run that was interrupted after a few steps."""
        with mock.patch("xlexport.scoring.resume.BUSY", 0), contextlib.suppress(_Interrupted):
            self._score(_Silent(steps=3), 0.0, resume=False)
        return PartialFile(self._output).state_path.read_bytes()

    def seeds(self) -> Iterable[bytes]:
        yield json.dumps(self._fields)[1:].encode()

    def read(self, raw: bytes) -> None:
        output = PartialFile(self._output)
        output.partial.write_bytes(bytes(4096))
        output.state_path.write_bytes(
            self.state(json.dumps(self._run)[:-1].encode() + b", " + raw, self._header, self._tensors)
        )
        with mock.patch.object(state_file, "_is_intact", _is_intact):
            self._score(_Silent(), 1e9, resume=True)
