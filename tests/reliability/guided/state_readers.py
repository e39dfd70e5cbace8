"""Targets: states of streams, as bytes and with any texts under a matching digest."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from tests.helpers.paths import EMPTY, golden_bundle
from tests.reliability.guided.target import InputFile, Target
from xlruntime import XlruntimeError, load, state
from xlruntime.state import KIND, VERSION

__all__ = ["StreamBytes", "StreamFields"]

NAME = b"state.safetensors"
TEXT = b"It was the best of times, it was the worst of times. " * 3


class _Streams(Target):
    """A model and one of its saved streams."""

    errors: ClassVar[tuple[type[Exception], ...]] = (XlruntimeError,)
    longest = 1 << 13
    words = tuple(
        b"""
        length= position= pending= offset= history= capacity= setting.mem_len= restart= segment_len=
        setting.same_length= setting.clamp_len= true false -1 nan 4611686018427387904 1073741824
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


class StreamFields(_Streams):
    """A state whose texts are the input, a line each; its tensors are sound, and the digest is not checked."""

    def seeds(self) -> Iterable[bytes]:
        metadata = self._parts()[0]
        yield "\n".join(f"{name}={text}" for name, text in metadata.items()).encode()

    def read(self, raw: bytes) -> object:
        _, header, tensors = self._parts()
        lines = [line.partition("=") for line in raw.decode("latin-1").split("\n")]
        metadata = {name: text for name, _, text in lines} | {"kind": KIND, "version": str(VERSION), "digest": ""}
        head = json.dumps({"__metadata__": metadata, **header}).encode()
        self._file.write(struct.pack("<Q", len(head)) + head + tensors)
        with mock.patch.object(state, "_digest", lambda *_: ""):
            return self.restore()

    def _parts(self) -> tuple[dict[str, str], dict[str, Any], bytes]:
        """Return texts, header and tensors of a sound state."""
        size = struct.unpack_from("<Q", self._sound)[0]
        header = json.loads(self._sound[8 : 8 + size])
        return header.pop("__metadata__"), header, self._sound[8 + size :]
