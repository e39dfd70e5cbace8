"""The declaration of an encoder in a manifest: what turns a source into constants of the steps over its target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .messages import listed, named

__all__ = ["ENCODE", "Encoder"]

ENCODE = "encode"  # purpose of the encoder's graph
LONGEST_SOURCE = 1 << 20
AXES: dict[int | str, int | str] = {"sources": "batch", "source_tokens": "source"}  # of `encode`, and of the others


@dataclass(frozen=True)
class Encoder:
    """The sizes and reserved ids of an encoder-decoder. Its other graphs read targets.

    The graph `encode` takes `source` (sources, source_tokens) int64. Its outputs are inputs of the other graphs, of the
    same names, and stay the same for the whole target. There the axes are named `batch` and `source`.

    Attributes:
        source_len: most tokens of a source.
        pad: id that pads shorter sources of a batch, behind their ends.
        start: id that a target begins with; it is read, not predicted.
        end: id that follows a target's last token.
    """

    source_len: int
    pad: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 1 <= self.source_len <= LONGEST_SOURCE:
            raise ValueError(f"source_len is {self.source_len}, expected 1 to {LONGEST_SOURCE}")
        if len({self.pad, self.start, self.end}) < 3:
            raise ValueError("pad, start and end are not three different ids")

    def contradictions(self, vocab_size: int, longest_target: int | None, every: Mapping[str, Any]) -> Iterator[str]:
        """Yield contradictions between this declaration and the rest of the manifest.

        Args:
            every: all graphs (`spec.Graph`) by purpose.
        """
        ids = {"pad": self.pad, "start": self.start, "end": self.end}
        if wrong := [f"{name} {value}" for name, value in ids.items() if not 0 <= value < vocab_size]:
            yield f"ids of the encoder are outside the vocabulary: {', '.join(wrong)}"
        if longest_target is None:
            yield "targets have no longest length, max_positions"
        graphs = dict(every)
        encode = graphs.pop(ENCODE, None)
        if encode is None:
            yield f"the graph {ENCODE!r} is missing"
            return
        if _kinds(encode.inputs) != {"source": ("int64", tuple(AXES))}:
            yield f"the graph {ENCODE!r} takes other inputs than source"
        made = _kinds(encode.outputs)
        if strange := [name for name, (_, shape) in made.items() if shape[:1] != ("sources",)]:
            yield f"outputs of the graph {ENCODE!r} have no axis 'sources' in front: {listed(map(named, strange))}"
        made = {name: (dtype, tuple(AXES.get(axis, axis) for axis in shape)) for name, (dtype, shape) in made.items()}
        for purpose, graph in graphs.items():
            taken = {name: kind for name, kind in _kinds(graph.inputs).items() if name in made}
            if any(made[name] != kind for name, kind in taken.items()) or not taken:
                yield f"the graph {named(purpose)!r} does not take what the graph {ENCODE!r} returns"


def _kinds(tensors: tuple[Any, ...]) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}
