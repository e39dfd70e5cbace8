"""The interface of a step module, which computes all graphs of a bundle in PyTorch, for the emitters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar

from xlruntime import bundle
from xlruntime.bundle import ENCODE, OUTPUTS, POSITIONS, Choice, Feed, Graph, MemoryEntry

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

__all__ = [
    "FixedSizes",
    "Form",
    "Step",
    "StepGraphs",
    "StepTensor",
    "carried_inputs",
    "carried_outputs",
    "describe_graph",
    "example_of",
    "graphs_of",
    "outputs_of",
    "steps_of",
    "traced_outputs",
]


@dataclass(frozen=True)
class StepTensor:
    """One input or output of a step module."""

    name: str
    dtype: str  # numpy name, "float32"
    shape: tuple[bundle.Axis, ...]
    feed: Feed | None = None  # of an input


@dataclass(frozen=True)
class StepGraphs:
    """The graphs that an exporter has written, by name, and those that can run a step of each purpose."""

    graphs: dict[str, Graph]
    steps: dict[str, tuple[Choice, ...]]


@dataclass(frozen=True)
class Form:
    """Another way to compute the same results. Purposes of a form have their own outputs, memory included.

    Attributes:
        prefix: the beginning of their names inside the step, which returns the outputs of all purposes.
        max_segment: the most tokens of a step for which this form is made; None: any number.
        variant_of: the purpose with the same outputs; None: there is none.
    """

    prefix: str
    max_segment: int | None = None
    variant_of: str | None = None


@dataclass(frozen=True)
class FixedSizes:
    """The sizes of a step all of whose axes are fixed, as accelerators for phones and CUDA graphs need.

    Attributes:
        batch, segment: rows, and tokens in this step.
        longest: tokens in the longest step of the same bundle, on whose memories both run.
        rows: rows of memory that a window keeps.
    """

    batch: int
    segment: int
    longest: int
    rows: int

    @property
    def axes(self) -> Mapping[str, int]:
        """The sizes of the free axes of inputs and outputs, by name."""
        return {"batch": self.batch, "segment": self.segment}

    @property
    def keys(self) -> int:
        """The keys of the longest step: the rows of memory and its own."""
        return self.rows + self.longest

    def shape(self, shape: tuple[bundle.Axis, ...]) -> tuple[bundle.Axis, ...]:
        """Return a shape with numbers instead of the names of axes."""
        return tuple(self.axes.get(str(axis), axis) for axis in shape)


class Step(Protocol):
    """The interface of an architecture's step module (a `torch.nn.Module`), the eager twin of the graphs.

    Attributes:
        fixed: the sizes of all axes; None if they are free.
        inline: whether its ONNX graphs have standard operators only, which `convert` sets before the export.
    """

    fixed: FixedSizes | None
    inline: bool

    @property
    def inputs(self) -> tuple[StepTensor, ...]:
        """The inputs of `forward`, in order."""

    @property
    def memory(self) -> tuple[MemoryEntry, ...]:
        """The inputs that are carried from step to step, and the output that becomes each of them."""

    @property
    def purposes(self) -> dict[str, tuple[StepTensor, ...]]:
        """The graphs that are cut out of `forward`, and the outputs of each."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """The purposes that `forward` computes in another form than the rest."""

    @property
    def traceable(self) -> bool:
        """Whether one example is enough to trace everything: no loop depends on data, and no block on sizes."""

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with, each a separate tensor: a tracer merges inputs that are one tensor."""

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return the content of a slot of each memory for a zero hidden state, by input name."""

    def discard(self) -> None:
        """Release all weights, including the trained model's; neither can run afterwards."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all purposes, each once, in the order of `traced_outputs`.

        The signature must be `*inputs`, because tracers take the free sizes as one list.
        """


def traced_outputs(step: Step) -> dict[str, StepTensor]:
    """Return each output of all purposes once, by its name inside the step, in the order of first appearance."""
    outputs: dict[str, StepTensor] = {}
    for purpose, tensors in step.purposes.items():
        outputs |= {_prefix(step, purpose) + tensor.name: tensor for tensor in tensors}
    return outputs


def outputs_of(step: Step, purpose: str, outputs: Iterable[T]) -> dict[str, T]:
    """Select the outputs of a purpose, by their names in its graph, from all outputs as in `traced_outputs`."""
    traced = dict(zip(traced_outputs(step), outputs, strict=True))
    return {tensor.name: traced[_prefix(step, purpose) + tensor.name] for tensor in step.purposes[purpose]}


def _prefix(step: Step, purpose: str) -> str:
    return f"{step.forms[purpose].prefix}." if purpose in step.forms else ""


def carried_inputs(memory: Iterable[MemoryEntry]) -> tuple[StepTensor, ...]:
    """Return the inputs that take memories."""
    return tuple(StepTensor(entry.input, entry.dtype, entry.shape, Feed("memory")) for entry in memory)


def carried_outputs(memory: Iterable[MemoryEntry]) -> tuple[StepTensor, ...]:
    """Return the outputs that become memories."""
    return tuple(StepTensor(entry.output, entry.dtype, entry.shape) for entry in memory)


def graphs_of(step: Step, shorter: Iterable[Step]) -> Iterator[tuple[Step, str, str]]:
    """Yield each graph of a bundle: its step, purpose and name.

    Args:
        shorter: steps of the same model that fix fewer tokens. Their graphs, `<purpose>_<tokens>`, run the same steps
            as those of `step`.
    """
    for purpose in step.purposes:
        yield step, purpose, purpose
    for other in shorter:
        assert other.fixed is not None
        for purpose in other.purposes:
            if purpose in OUTPUTS:  # steps of all lengths share others, such as `positions`
                yield other, purpose, f"{purpose}_{other.fixed.segment}"


def steps_of(step: Step, shorter: Iterable[Step] = ()) -> dict[str, tuple[Choice, ...]]:
    """Return the graphs of `graphs_of` that can run a step of each purpose, in the order in which it prefers them.

    Those for the fewest tokens come first, but among graphs that fix their number those for the most.
    """
    steps: dict[str, list[tuple[float, int, Choice]]] = {}
    for each, purpose, name in graphs_of(step, shorter):
        if purpose in (POSITIONS, ENCODE):
            continue
        form = each.forms.get(purpose) or Form("")
        tokens = 0 if each.fixed is None else each.fixed.segment
        choice = Choice(name, form.max_segment)
        steps.setdefault(form.variant_of or purpose, []).append((form.max_segment or inf, -tokens, choice))
    return {
        purpose: tuple(choice for *_, choice in sorted(choices, key=lambda entry: entry[:2]))
        for purpose, choices in steps.items()
    }


def describe_graph(
    step: Step, purpose: str, file: str, graph_format: bundle.GraphFormat, inputs: Iterable[StepTensor]
) -> Graph:
    """Return the description of a graph that takes these of the step's inputs."""
    carried = {entry.output for entry in step.memory}
    return Graph(
        file,
        graph_format,
        inputs={tensor.name: tensor.feed for tensor in inputs if tensor.feed is not None},
        outputs={
            tensor.name: bundle.Tensor(tensor.dtype, tensor.shape)
            for tensor in step.purposes[purpose]
            if tensor.name not in carried
        },
        fixed={} if step.fixed is None else step.fixed.axes,
    )


def example_of(step: Step, sizes: Mapping[str, int], values: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return zero inputs with these sizes of the free axes; `values` gives another fill value by input name."""
    import torch

    tensors = {
        entry.name: torch.zeros(
            [axis if isinstance(axis, int) else sizes[axis] for axis in entry.shape], dtype=getattr(torch, entry.dtype)
        )
        for entry in step.inputs
    }
    return tuple(tensor.fill_(values[name]) if name in values else tensor for name, tensor in tensors.items())
