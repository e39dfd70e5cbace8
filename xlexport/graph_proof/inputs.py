"""Make the values that a graph reads: from files whose size is known before they are read, or random ones."""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.array_files import HINT, MOST_BYTES, read_array, read_arrays
from xlexport.errors import ArrayFileError, GraphError
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.layout import Layout
from xlruntime.limits import Limits, read_at_most
from xlruntime.messages import first_line, listed, named, near_path

__all__ = ["Source", "is_number", "make_source", "read_values", "shaped"]

BLOCK = 16  # steps whose random numbers are drawn together
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"{NUMBER}(?:\.\.{NUMBER})?")
WHOLE, REAL, EXTENSIBLE = 1, 3, 0xFFFE  # kinds of samples in a file .wav; the last has the kind further behind
RESET = re.compile(r"(?<![a-z])(done|reset|is_first|episode_start|terminat)")  # a random one would hide a state
Word = Literal["count", "total", "length"]
WORDS: dict[Word, str] = {
    "count": "its place in the stream",
    "total": "how many were read after this step",
    "length": "how many this step reads",
}


@dataclass(frozen=True, eq=False)
class Source:
    """What one input is fed with.

    Attributes:
        axis: the axis along which the steps of the stream lie; None for a value that is the same in each step.
        size: how many new values along the axis a step has; for a free axis, `length`.
        context: how many values of the step before come first.
        low, high: of random numbers; both are the same number if it is constant.
        data: an array whose axis `axis` is the whole stream.
        word: what the numbers count.
    """

    port: Port
    axis: int | None
    size: int
    context: int
    low: float = 0.0
    high: float = 0.0
    data: npt.NDArray[Any] | None = None
    word: Word | None = None
    seed: int = 0

    @property
    def steps(self) -> float:
        """How many steps there is data for."""
        return math.inf if self.data is None or self.axis is None else self.data.shape[self.axis] // self.size

    def __str__(self) -> str:
        if self.data is not None:
            how = f"{self.steps:,} steps of a file"
        elif self.word is not None:
            how = WORDS[self.word]
        elif self.low == self.high:
            how = f"{self.low:g}"
        else:
            how = f"random {self.low:g} to {self.high:g}"
        context = f", on axis {self.axis} after the last {self.context} of the step before" if self.context else ""
        return f"{self.port}: {how}{context}"

    def values(self, layout: Layout, rows: Sequence[int], start: int, stop: int, length: int, past: int) -> Any:
        """Return the input for steps `start` to `stop` in one call.

        Args:
            rows: numbers of documents, each of which is another stream.
            length: size of the free axis of the stream in one step.
            past: size of the caches that grow.
        """
        count = stop - start
        shape = layout.shape(self.port, len(rows), count * length, past)
        if self.word is None and self.low == self.high and self.data is None:
            return np.full(shape, self.low, self.port.dtype)
        if self.word is not None:
            first, size = start * length, count * length
            if self.word == "count" and self.axis is not None:
                numbers = first + np.arange(shape[self.axis])
                along = [1] * len(shape)
                along[self.axis] = shape[self.axis]
                return np.broadcast_to(numbers.reshape(along), shape).astype(self.port.dtype)
            return np.full(shape, {"count": first, "total": first + size, "length": size}[self.word], self.port.dtype)
        pieces = [self._row(layout, row, start, stop, length) for row in rows]
        at = layout.place(self.port, layout.rows)
        return pieces[0] if at is None else np.concatenate(pieces, at)

    def _row(self, layout: Layout, row: int, start: int, stop: int, length: int) -> npt.NDArray[Any]:
        """Return the values of one document."""
        if self.axis is None:
            return self._step(layout, row, 0, length)
        steps = [self._step(layout, row, step, length) for step in range(start, stop)]
        if self.context:
            before: list[npt.NDArray[Any]] = []
            missing, step = self.context, start - 1
            while missing > 0:
                part = self._step(layout, row, step, length) if step >= 0 else np.zeros_like(steps[0])
                part = np.take(part, range(max(0, part.shape[self.axis] - missing), part.shape[self.axis]), self.axis)
                before.insert(0, part)
                missing, step = missing - part.shape[self.axis], step - 1
            steps = before + steps
        return np.concatenate(steps, self.axis) if len(steps) > 1 else steps[0]

    def _step(self, layout: Layout, row: int, step: int, length: int) -> npt.NDArray[Any]:
        """Return what is new in one step of one document."""
        if self.data is not None:
            if self.axis is None:
                return self.data
            first = (row * 7 + step) * self.size % (self.data.shape[self.axis] - self.size + 1)
            return np.take(self.data, range(first, first + self.size), self.axis)
        shape = list(layout.shape(self.port, 1, length, 0))
        if self.axis is not None:
            shape[self.axis] = self.size
        return self._random((BLOCK, *shape), row, step // BLOCK)[step % BLOCK]

    @functools.lru_cache(maxsize=8)  # noqa: B019 - a proof has few sources, which live as long as it
    def _random(self, shape: tuple[int, ...], row: int, block: int) -> npt.NDArray[Any]:
        """Return the random numbers of a block of steps."""
        generator = np.random.default_rng([self.seed, row, block, *self.port.name.encode()])
        if self.port.dtype.kind in "iub":
            return generator.integers(int(self.low), int(self.high), shape, self.port.dtype, endpoint=True)
        return generator.uniform(self.low, self.high, shape).astype(self.port.dtype)


def is_number(text: str) -> bool:
    """Return whether a value of `--input` is a number or a range, not a file or a word."""
    return bool(RANGE.fullmatch(text))


def make_source(
    graph: GraphFile, port: Port, text: str | None, layout: Layout, length: int, context: int, folder: Path, seed: int
) -> Source:
    """Return the source of one input.

    Args:
        text: what the user says; None: chosen by name and type.
        folder: where names of files begin.

    Raises:
        GraphError: the text, the file or the size of the context does not fit the input.
    """
    axis = _stream_axis(port, layout)
    free = axis is not None and layout.place(port, (layout.stream,)) == axis
    size = length if free or axis is None else int((port.shape or ())[axis]) - context
    if context and (axis is None or size < 1):
        what = (
            f"{graph.path}: --context {named(port.name)}={context}: {port} has no axis for more than {context} values."
        )
        raise GraphError(what, hint="Give a smaller number.")
    if layout.stream is not None and not free:
        axis = None  # it has no part in the stream, so it stays the same
    source = functools.partial(Source, port, axis, size, context, seed=seed)
    if text is None:
        return _chosen(graph, port, layout, source)
    if (word := next((one for one in WORDS if one == text), None)) is not None:
        return source(word=word)
    if is_number(text):
        low, _, high = text.partition("..")
        ends = _as_type(port, _numbers([low, high or low]))
        with np.errstate(over="ignore", invalid="ignore"):
            width = ends[1].astype(float) - ends[0].astype(float)
        if not 0 <= width < np.inf:
            what = f"--input {named(port.name)}={text}: from {low} to {high} is no range of {port.dtype}."
            raise GraphError(what, hint="Give LOW..HIGH.")
        return source(low=ends[0].item(), high=ends[1].item())
    return source(data=_fitting(port, _read_for(port, folder / text), layout, axis, length))


def shaped(port: Port, first: Mapping[str, npt.NDArray[Any]], text: str | None, folder: Path) -> Port:
    """Return an input of unknown shape with that of its first value, of a step in its file, or of a number.

    Raises:
        GraphError: nothing says its shape.
    """
    if port.shape is not None:
        return port
    if port.name in first:
        return replace(port, shape=first[port.name].shape)
    if text is None:
        hint = f"Give all steps, --input {named(port.name)}=FILE.npy, or a state's first value, --first FILE.npz."
        raise GraphError(f"{port}: nothing says what a step reads.", hint=hint)
    is_one = is_number(text) or text in WORDS
    return replace(port, shape=() if is_one else read_values(folder / text, port.name).shape[1:])


def _read_for(port: Port, path: Path) -> npt.NDArray[Any]:
    """Return the numbers of a file; sound reaches from end to end of a type of whole numbers."""
    values = read_values(path, port.name)
    if path.suffix != ".wav" or port.dtype.kind not in "iu":
        return values
    half = 2.0 ** (8 * min(port.dtype.itemsize, 4) - 1)
    return np.floor(values * half) + (half if port.dtype.kind == "u" else 0)


def _as_type(port: Port, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values in the type of an input; GraphError if it cannot hold them."""
    if port.dtype.kind in "iub":
        low, high = (0, 1) if port.dtype.kind == "b" else (np.iinfo(port.dtype).min, np.iinfo(port.dtype).max)
        wrong = ~((values >= low) & (values < high + 1) & (values == np.floor(values)))
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(port.dtype)
    if port.dtype.kind not in "iub":
        wrong = np.isinf(cast.astype(float)) & np.isfinite(values)
    if wrong.any():
        what = f"--input {named(port.name)}: {port.dtype} cannot hold {values[wrong].flat[0]:g}."
        raise GraphError(what, hint="Give other values.")
    return cast


def _stream_axis(port: Port, layout: Layout) -> int | None:
    """Return the free axis of the stream; without one, the last axis of more than one number."""
    at = layout.place(port, (layout.stream,))
    if at is None and port.shape:
        fixed = [place for place, axis in enumerate(port.shape) if isinstance(axis, int)]
        at = next((place for place in reversed(fixed) if port.shape[place] != 1), fixed[-1] if fixed else None)
    return at


def _chosen(graph: GraphFile, port: Port, layout: Layout, source: Any) -> Source:
    """Return the source of an input about which the user says nothing."""
    kind, name = port.dtype.kind, port.name.lower()
    if "mask" in name:
        seen = float(kind != "b" or "padding" not in name)  # PyTorch's own is true where nothing is
        return source(low=seen, high=seen)
    if RESET.search(name):
        return source()
    if "position" in name and kind in "iu":
        return source(word="count")
    if kind == "b":
        return source(low=0, high=1)
    if kind in "iu":
        if port.name not in graph.vocabularies:
            what = f"{graph.path}: {port} holds whole numbers, whose range nothing shows."
            raise GraphError(what, hint=f"Give a number, a file or a range: --input {named(port.name)}=0..9.")
        return source(low=0, high=graph.vocabularies[port.name] - 1)
    return source(low=-1.0, high=1.0)


def _fitting(port: Port, data: npt.NDArray[Any], layout: Layout, axis: int | None, length: int) -> npt.NDArray[Any]:
    """Return an array of a file in the shape of an input, with all its steps along the axis of the stream."""
    axes = layout.shape(port, 1, length, 0)
    if data.shape == axes or axis is None:
        fits = data.size == math.prod(axes)
        steps = data.reshape(axes) if fits else data
    elif data.ndim == 1:
        shape = [1] * len(axes)
        shape[axis] = len(data)
        steps, fits = data.reshape(shape), all(n == 1 for at, n in enumerate(axes) if at != axis)
    else:
        if data.ndim == len(axes) + 1:  # a step is a part of its own
            data = np.concatenate(list(data), axis) if len(data) else data
        steps = data
        fits = data.ndim == len(axes) and all(n == axes[at] for at, n in enumerate(data.shape) if at != axis)
    if not fits or not steps.size or (axis is not None and steps.shape[axis] < axes[axis]):
        what = f"--input {named(port.name)}: an array of shape {data.shape} does not fit {port}."
        raise GraphError(what, hint="Give all steps along one axis, or steps of that shape in an array with one more.")
    return _as_type(port, steps)


def read_values(path: Path, name: str) -> npt.NDArray[Any]:
    """Return the numbers of a file: the array `name` of an archive (or its only one), an array, sound, or a text.

    Raises:
        GraphError: it is missing, too large, or not what its ending says.
    """
    if not path.is_file():
        raise GraphError(f"{path}: no such file.", hint=near_path(path) or "Give a number, LOW..HIGH or a file.")
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        if name not in arrays and len(arrays) != 1:
            raise GraphError(f"{path}: no array {named(name)}, only {listed(map(named, arrays))}.", hint="Rename one.")
        return arrays.get(name, next(iter(arrays.values())))
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return read_array(file, str(path))
        return _read_sound(path) if path.suffix == ".wav" else _read_text(path)
    except (ArrayFileError, GraphError):
        raise
    except Exception as error:  # NumPy parses headers as Python
        raise GraphError(f"{path}: damaged or of another kind ({first_line(error)}).", hint=HINT) from error


def _read_sound(path: Path) -> npt.NDArray[np.float64]:
    """Return the first channel of sound, between -1 and 1."""
    with path.open("rb") as file:
        content = read_at_most(file, Limits(bytes=MOST_BYTES).budget(str(path), GraphError))
    if content[:4] not in (b"RIFF", b"RF64") or content[8:12] != b"WAVE":
        raise ValueError("no RIFF file of sound")
    at, form, size = 12, b"", 0
    while (name := content[at : at + 4]) != b"data":
        size = int.from_bytes(content[at + 4 : at + 8], "little")
        form = content[at + 8 : at + 8 + size] if name == b"fmt " else form
        at += 8 + size + size % 2
        if at >= len(content):
            raise ValueError("no samples")
    size, raw = int.from_bytes(content[at + 4 : at + 8], "little"), content[at + 8 :]
    if size not in (0, 0xFFFFFFFF):  # as programs write that send sound to others
        if size > len(raw):
            raise ValueError(f"ends after {len(raw):,} of {size:,} bytes")
        raw = raw[:size]
    kind, channels, _, _, block, _ = struct.unpack_from("<HHIIHH", form)
    width = block // channels
    kind = int.from_bytes(form[24:26], "little") if kind == EXTENSIBLE else kind
    samples = np.frombuffer(raw, np.uint8, len(raw) // block * block).reshape(-1, block)[:, :width]
    if kind == WHOLE and 1 < width <= 4:
        return np.pad(samples, ((0, 0), (4 - width, 0))).view("<i4")[:, 0] / 2.0**31
    if kind == WHOLE and width == 1:
        return samples[:, 0] / 128.0 - 1.0
    if kind == REAL and width in (4, 8):
        return samples.copy().view(f"<f{width}")[:, 0].astype(np.float64)
    raise ValueError(f"{8 * width} bits a sample of kind {kind}, expected 8 to 32 of whole numbers, or floats")


def _read_text(path: Path) -> npt.NDArray[Any]:
    """Return numbers separated by white space: token ids, or values."""
    with path.open("rb") as file:
        return _numbers(read_at_most(file, Limits(bytes=MOST_BYTES // 8).budget(str(path), GraphError)).split())


def _numbers(words: Sequence[str | bytes]) -> npt.NDArray[Any]:
    """Return whole numbers, or floats if one is none or too large."""
    try:
        return np.array(words, dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(words, dtype=np.float64)
