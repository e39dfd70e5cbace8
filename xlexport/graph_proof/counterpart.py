"""Run another graph, or a module, on the steps that a graph has read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import GraphError
from xlexport.graph_proof.compare import moving_axis
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.inputs import is_number
from xlexport.graph_proof.options import GraphOptions, parts_of
from xlexport.graph_proof.walk import GraphWalk, State, StepError, open_walk
from xlexport.model_names import load_reference
from xlruntime.messages import first_line, named

__all__ = ["OtherGraph", "OtherModule", "matched", "open_module", "open_other"]

Arrays = Mapping[str, npt.NDArray[Any]]


class OtherGraph:
    """Another graph, which may read single steps or many, and call its inputs otherwise.

    Attributes:
        walk: the other graph; only its session, states and layout are used.
        inputs: the inputs of the graph that is proved by those of the other; names: its results by those of the other.
    """

    def __init__(self, walk: GraphWalk, of: GraphWalk) -> None:
        self.walk = walk
        self.inputs = _by_name_or_place(walk, of)
        self.names = matched(walk, of)
        self.state: State = walk.first_state()

    def step(self, feeds: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return the results of the next step, by the names of the graph's results."""
        outputs, self.state = self._call([feeds], self.state)
        return {name: outputs[other] for name, other in self.names.items()}

    def together(self, steps: Sequence[Arrays]) -> list[dict[str, npt.NDArray[Any]]]:
        """Return the results of each step of a document that one call reads from the first state.

        Raises:
            StepError: the other graph does not read several steps at once, or has no result for each.
        """
        one, whole = (self._call(part, self.walk.first_state())[0] for part in (steps[:1], steps))
        found = [dict[str, npt.NDArray[Any]]() for _ in steps]
        for name, other in self.names.items():
            axis = moving_axis(one[other], whole[other])
            if axis is None or whole[other].shape[axis] % len(steps):
                raise StepError(f"{named(name)} has no result for each step")
            for results, part in zip(found, np.split(whole[other], len(steps), axis), strict=True):
                results[name] = part
        return found

    def _call(self, steps: Sequence[Arrays], state: State) -> tuple[dict[str, npt.NDArray[Any]], State]:
        """Return outputs and states of one call that reads several steps."""
        feeds: dict[str, npt.NDArray[Any]] = {}
        for source in self.walk.sources:
            port, name = source.port, self.inputs.get(source.port.name)
            if name is None:  # a setting that only the other graph has
                feeds[port.name] = source.values(self.walk.layout, (0,), 0, len(steps), self.walk.length, 0)
                continue
            parts = [_fitted(self.walk, port, one[name]) for one in steps]
            axis = self.walk.layout.place(port, (self.walk.layout.stream,))
            feeds[port.name] = parts[0] if len(parts) == 1 or axis is None else np.concatenate(parts, axis)
        return self.walk.run({**feeds, **state})


def _by_name_or_place(walk: GraphWalk, of: GraphWalk) -> dict[str, str]:
    """Return the graph's inputs by the other graph's: those of one name, then the rest in order."""
    names = {source.port.name for source in of.sources}
    found = {one.port.name: one.port.name for one in walk.sources if one.port.name in names}
    rest = [source for source in of.sources if source.port.name not in found.values() and source.port.shape]
    for one in walk.sources:
        if one.port.name not in found and one.port.shape and rest:
            found[one.port.name] = rest.pop(0).port.name
    return found


def matched(walk: GraphWalk, of: GraphWalk) -> dict[str, str]:
    """Return the results of another graph by those of a graph: of one name, or all in order.

    Raises:
        GraphError: their numbers differ, and names do not decide.
    """
    shared = [name for name in of.observed if name in walk.observed]
    if len(shared) < len(of.observed) == len(walk.observed):
        return dict(zip(of.observed, walk.observed, strict=True))
    if shared:
        return {name: name for name in shared}
    what = f"{walk.file.path}: {len(walk.observed)} results, and {of.file.path} has {len(of.observed)} of other names."
    raise GraphError(what, hint="Give graphs with the same results.")


def _fitted(walk: GraphWalk, port: Port, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what the graph read in the shape that the other graph reads.

    Raises:
        GraphError: it has another number of values.
    """
    axes = port.shape or ()
    fits = len(axes) == value.ndim and all(
        isinstance(axis, str) or axis == size for axis, size in zip(axes, value.shape, strict=True)
    )
    if fits:
        return value.astype(port.dtype)
    fixed = math.prod(axis for axis in axes if isinstance(axis, int))
    at = walk.layout.place(port, (walk.layout.stream,))
    if fixed and value.size % fixed == 0 and (value.size == fixed or at is not None):
        shape = [axis if isinstance(axis, int) else 1 for axis in axes]
        if at is not None:
            shape[at] = value.size // fixed
        if math.prod(shape) == value.size:
            return value.reshape(shape).astype(port.dtype)
    what = f"{walk.file.path}: {port} does not fit a step of shape {value.shape}."
    raise GraphError(what, hint="Give --length, or --context if steps overlap.")


class OtherModule:
    """A module of Python, called as it was exported: `module(*inputs)` in the graph's order, outputs in its order."""

    def __init__(self, module: Callable[..., Any], of: GraphWalk, name: str) -> None:
        self.module, self.of, self.name = module, of, name
        self.state: State = of.first_state()

    def step(self, feeds: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return the results of the next step, by the names of the graph's results."""
        given = {**feeds, **self.state}
        outputs = self._call([given[port.name] for port in self.of.file.inputs])
        ports = self.of.file.outputs
        if len(outputs) != len(ports):
            what = f"{self.name}: returns {len(outputs)} arrays, expected {len(ports)}, as {self.of.file.path} does."
            raise GraphError(what, hint="Return the results and states in the graph's order.")
        values = {port.name: value for port, value in zip(ports, outputs, strict=True)}
        self.state = {pair.input: values[pair.output] for pair in self.of.pairs}
        return {name: values[name] for name in self.of.observed}

    def _call(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Return the arrays that the module returns; a module of PyTorch gets tensors, other code gets arrays."""
        try:
            if not hasattr(self.module, "parameters"):
                return [np.asarray(value) for value in _flat(self.module(*arrays))]
            import torch

            with torch.no_grad():
                values = self.module(*(torch.from_numpy(np.array(one)) for one in arrays))
            return [value.detach().numpy() for value in _flat(values)]
        except Exception as error:
            what = f"{self.name}: {type(error).__name__}: {first_line(error)[:300]}."
            raise GraphError(what, hint="It is called with the graph's inputs in their order.") from error


def _flat(values: Any) -> Iterator[Any]:
    """Yield the arrays in nested tuples, lists and mappings, in order."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def open_other(file: GraphFile, of: GraphWalk, options: GraphOptions, folder: Path) -> OtherGraph:
    """Return another graph, with the options that name something in it; errors as `open_walk`."""
    inputs, outputs = ({port.name for port in ports} for ports in (file.inputs, file.outputs))
    pairs = parts_of("state", options.state).items()
    own = replace(
        options,
        state=tuple(f"{before}={after}" for before, after in pairs if before in inputs and after in outputs),
        input=tuple(f"{name}={text}" for name, text in parts_of("input", options.input).items() if is_number(text)),
        context=(),
        length=None,
    )
    return OtherGraph(open_walk(file, own, folder, others=of.file.inputs), of)


def open_module(name: str, of: GraphWalk, trust: bool, folder: Path) -> OtherModule:
    """Return the module `FILE.py:NAME`, once its code has run in `folder`; errors as `load_reference`."""
    if (file := name.rstrip(":")).endswith(".py"):
        hint = f"Give {file}:NAME, of a module, or of a function that takes the graph's inputs."
        raise GraphError(f"{file}: Python code, without a name in it.", hint=hint)
    with contextlib.chdir(folder):
        module = load_reference(name, trust=trust)
    if hasattr(module, "eval"):
        module = module.eval()
    return OtherModule(module, of, name)
