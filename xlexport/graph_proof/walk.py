"""Run a graph of others along streams, each step with the states of the step before."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.array_files import read_arrays
from xlexport.errors import GraphError
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.inputs import Source, make_source, shaped
from xlexport.graph_proof.layout import Layout, apart, find_layouts
from xlexport.graph_proof.options import GraphOptions, parts_of
from xlexport.graph_proof.pairs import find_pairs
from xlexport.graph_proof.report import Pair
from xlruntime.messages import first_line, listed, named
from xlruntime.providers import add_linked_files, import_onnxruntime, onnxruntime_errors, session_options

__all__ = ["GraphWalk", "State", "StepError", "open_graph", "open_walk", "reason_of"]

State = Mapping[str, npt.NDArray[Any]]
"""Carried states by the names of their inputs."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
LENGTHS = tuple(1 << power for power in range(17))  # of a free axis that are tried
NODE = re.compile(r"running (\w+) node\. Name:'([^']*)'")
LONGEST = 200  # characters of an error of ONNX Runtime
OUT_OF_MEMORY = ("bad_alloc", "bad allocation", "allocate memory", "Failed to allocate")


class StepError(Exception):
    """A graph fails in a step; the text is one line."""


def open_graph(file: GraphFile) -> Any:
    """Return an `onnxruntime.InferenceSession` on one thread of the CPU, so that equal steps have equal bits.

    Raises:
        GraphError: ONNX Runtime cannot load the graph.
        MemoryError: it needs too much memory.
    """
    options, folder = session_options(threads=1), file.path.absolute().parent
    options.add_session_config_entry(WEIGHTS_FOLDER, str(folder))
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        with contextlib.ExitStack() as opened:
            add_linked_files(options, folder, file.locations, opened)
            return import_onnxruntime().InferenceSession(
                file.content, sess_options=options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
    except onnxruntime_errors() as error:
        _raise_memory(error)
        what = f"{file.path}: ONNX Runtime cannot load it ({reason_of(error)})."
        raise GraphError(what, hint="Export it again for this version, with operators of ONNX.") from error


def reason_of(error: Exception) -> str:
    """Return why ONNX Runtime fails, after the innermost node in which it does."""
    text = first_line(error).removeprefix("[ONNXRuntimeError] : ")
    *_, message = text.split("Status Message: ")
    nodes = NODE.findall(text)
    return f"{nodes[-1][0]} {named(nodes[-1][1])}: {message[:LONGEST]}" if nodes else message[:LONGEST]


def _raise_memory(error: Exception) -> None:
    if any(words in str(error) for words in OUT_OF_MEMORY):
        raise MemoryError from error


@dataclass(frozen=True)
class GraphWalk:
    """A graph with all that a walk needs.

    Attributes:
        session: of ONNX Runtime.
        sources: of the inputs that are no states.
        results: names of the outputs that are no states.
        length: size of the free axis of the stream in a step.
        first: values of the states before the first step, for one row.
    """

    file: GraphFile
    session: Any
    pairs: tuple[Pair, ...]
    sources: tuple[Source, ...]
    layout: Layout
    results: tuple[str, ...]
    length: int
    first: State

    @property
    def states(self) -> tuple[Port, ...]:
        """The inputs that are states."""
        ports = {port.name: port for port in self.file.inputs}
        return tuple(ports[pair.input] for pair in self.pairs)

    @property
    def observed(self) -> tuple[str, ...]:
        """The outputs that show what a state does: the results, or the states themselves if there are none."""
        return self.results or tuple(pair.output for pair in self.pairs)

    @property
    def steps(self) -> float:
        """How many steps the files of inputs have."""
        return min((source.steps for source in self.sources), default=math.inf)

    def first_state(self, rows: int = 1) -> State:
        """Return the states before the first step, the same for each row."""
        state = {}
        for port in self.states:
            value, at = self.first[port.name], self.layout.place(port, self.layout.rows)
            state[port.name] = value if at is None else np.repeat(value, rows, at)
        return state

    def past(self, state: State) -> int:
        """Return the size of the caches that grow."""
        for port in self.states:
            if (at := self.layout.place(port, self.layout.grows)) is not None:
                return state[port.name].shape[at]
        return 0

    def feeds(self, start: int, stop: int, state: State, rows: Sequence[int] = (0,)) -> dict[str, Any]:
        """Return the inputs of a call that reads the steps `start` to `stop`, states included."""
        past = self.past(state)
        read = {one.port.name: one.values(self.layout, rows, start, stop, self.length, past) for one in self.sources}
        return {**read, **state}

    def run(self, feeds: Mapping[str, Any]) -> tuple[dict[str, npt.NDArray[Any]], State]:
        """Return all outputs, and the states for the next step.

        Raises:
            StepError: the graph fails.
            MemoryError: it needs too much memory.
        """
        try:
            values = self.session.run(None, dict(feeds))
        except onnxruntime_errors() as error:
            _raise_memory(error)
            raise StepError(reason_of(error)) from error
        outputs = dict(zip((port.name for port in self.file.outputs), values, strict=True))
        return outputs, {pair.input: outputs[pair.output] for pair in self.pairs}

    def read(
        self, start: int, stop: int, state: State, rows: Sequence[int] = (0,)
    ) -> tuple[dict[str, npt.NDArray[Any]], State]:
        """Return the outputs and states of one call; arguments as `feeds`, errors as `run`."""
        return self.run(self.feeds(start, stop, state, rows))

    def along(
        self, start: int, stop: int, state: State | None = None, rows: Sequence[int] = (0,)
    ) -> tuple[list[dict[str, npt.NDArray[Any]]], State]:
        """Return the results of each step and the last states.

        Args:
            state: None: the first one.
        """
        state = self.first_state(len(rows)) if state is None else state
        results = []
        for at in range(start, stop):
            outputs, state = self.read(at, at + 1, state, rows)
            results.append({name: outputs[name] for name in self.observed})
        return results, state


def open_walk(file: GraphFile, options: GraphOptions, folder: Path, others: Sequence[Port] = ()) -> GraphWalk:
    """Return a graph ready to walk: its states, its axes and a length of a step that it takes.

    Args:
        folder: where names of files in `options` begin.
        others: inputs of the graph to compare with: options may name them, and a fixed size says how long a step is.

    Raises:
        GraphError: an option names what is not there, the graph has no state, or it does not run.
        MemoryError: it needs too much memory.
    """
    names, texts = [port.name for port in (*file.inputs, *file.optional)], parts_of("input", options.input)
    contexts = {name: int(value) for name, value in parts_of("context", options.context).items()}
    first: State = {} if options.first is None else read_arrays(folder / options.first)
    known = {*names, *(port.name for port in others)}
    for option, given in (("--input", texts), ("--context", contexts), ("--first", first)):
        if wrong := [named(name) for name in given if name not in known]:
            what = f"{file.path}: no input {listed(wrong)}, which {option} names."
            raise GraphError(what, hint=f"Its inputs are {listed(map(named, names))}.")
    session = open_graph(file)
    pairs = find_pairs(file, parts_of("state", options.state), [*texts, *contexts])
    if not pairs and not file.recurrences:
        seen = "; ".join(
            f"{kind} {listed(map(str, ports))}" for kind, ports in (("inputs", file.inputs), ("outputs", file.outputs))
        )
        hint = "If an output feeds an input, say so: --state INPUT=OUTPUT. Otherwise there is no state to prove."
        raise GraphError(f"{file.path}: no state found: {seen}.", hint=hint)
    carried = {pair.input for pair in pairs}
    if wrong := [named(name) for name in first if name in names and name not in carried]:
        what = f"{file.path}: {listed(wrong)} is no state, and --first names it."
        raise GraphError(what, hint="Give what the graph reads with --input, or a state with --state INPUT=OUTPUT.")
    first = {**{name: value for name in carried if (value := file.first(name)) is not None}, **first}
    used = [*file.inputs, *(port for port in file.optional if port.name in (*carried, *texts))]
    ports = [shaped(port, first, texts.get(port.name), folder) for port in used]
    read = [port for port in ports if port.name not in carried]
    file = replace(file, inputs=tuple(apart(port, read) if port.name in carried else port for port in ports))
    states = [port for port in file.inputs if port.name in carried]
    results = tuple(port.name for port in file.outputs if port.name not in {pair.output for pair in pairs})
    failure = ""
    for layout in find_layouts(read, states):
        _check_streams(file, pairs, states, layout)
        for length in _lengths(layout, read, options.length, contexts, others):
            sources = tuple(
                make_source(
                    file, port, texts.get(port.name), layout, length, contexts.get(port.name, 0), folder, options.seed
                )
                for port in read
            )
            try:
                walk = _started(GraphWalk(file, session, pairs, sources, layout, results, length, {}), first)
                if layout.is_guess:  # which two rows can refute
                    walk.read(0, 1, walk.first_state(2), (0, 1))
                return walk
            except StepError as error:
                failure = failure or str(error)
    hint = "Say what it reads, --input NAME=VALUE or --length N, or give first states, --first FILE, or --state IN=OUT."
    raise GraphError(f"{file.path}: does not run: {failure}.", hint=hint)


def _check_streams(file: GraphFile, pairs: Sequence[Pair], states: Sequence[Port], layout: Layout) -> None:
    """Refuse an output that has the axis of the stream as the next value of a state that lacks it."""
    for pair, port in zip(pairs, states, strict=True):
        after = next(one.shape for one in file.outputs if one.name == pair.output)
        axes = zip(port.shape or (), after or (), strict=False)
        if any(new == layout.stream and isinstance(old, int) for old, new in axes):
            what = f"{file.path}: {named(pair.output)} cannot carry {port}: its axis {layout.stream} is the stream's."
            raise GraphError(what, hint="Give the right output: --state INPUT=OUTPUT.")


def _lengths(
    layout: Layout, read: Sequence[Port], given: int | None, contexts: Mapping[str, int], others: Sequence[Port]
) -> Sequence[int]:
    """Return the sizes of the free axis that are tried in turn."""
    if given is not None or layout.stream is None:
        return [given or 1]
    for port, other in zip(read, others, strict=False):
        at, axes = layout.place(port, (layout.stream,)), other.shape or ()
        if at is not None and len(axes) == len(port.shape or ()):
            fixed = axes[at]
            if isinstance(fixed, int) and fixed > contexts.get(port.name, 0):
                return [fixed - contexts.get(port.name, 0)]
    return LENGTHS


def _started(walk: GraphWalk, given: State) -> GraphWalk:
    """Return the walk with first states, after two steps have shown that they carry and which of them grow.

    Raises:
        GraphError: first states do not fit.
        StepError: the graph fails, or states change their shape from step to step.
    """
    none = frozenset[str]()
    unknown = none.union(axis for port in walk.states for axis in port.shape or () if isinstance(axis, str))
    unknown -= walk.layout.rows
    trials, failure = [(unknown, unknown), (none, unknown), (none, none)], StepError()  # what begins empty, what grows
    for empty, grows in trials:
        layout = replace(walk.layout, grows=grows)
        first = {port.name: _first(walk, port, given, empty) for port in walk.states}
        tried = replace(walk, layout=layout, first=first)
        try:
            once = tried.read(0, 1, tried.first_state())[1]
            grown = _grown(tried, once)
            if grown == grows:
                tried.read(1, 2, once)
                return tried
        except StepError as error:
            failure = failure if failure.args else error
        else:
            trials += [trial for trial in ((grown, grown), (none, grown)) if trial not in trials]
    raise failure


def _grown(walk: GraphWalk, once: State) -> frozenset[str]:
    """Return the axes of states that have grown in a step; StepError if others have changed."""
    grown = set[str]()
    for port in walk.states:
        before, after = walk.first[port.name], once[port.name]
        fits = before.ndim == after.ndim and before.dtype == after.dtype
        for axis, old, new in zip(port.shape or (), before.shape, after.shape, strict=False):
            fits = fits and (new == old or (new > old and isinstance(axis, str) and axis not in walk.layout.rows))
            grown |= {str(axis)} if new > old else set()
        if not fits:
            found, expected = (f"{one.dtype} {one.shape}" for one in (after, before))
            raise StepError(f"after a step, {named(port.name)} is {found}, expected {expected}")
    return frozenset(grown)


def _first(walk: GraphWalk, port: Port, given: State, empty: Collection[str]) -> npt.NDArray[Any]:
    """Return the first value of a state; free axes of zeros have the size one, or none."""
    axes = [axis if isinstance(axis, int) else 0 if axis in empty else 1 for axis in port.shape or ()]
    if port.name not in given:
        return np.zeros(axes, port.dtype)
    value = given[port.name]
    fixed = [isinstance(axis, int) for axis in port.shape or ()]
    if value.ndim != len(axes) or any(
        is_fixed and size != axis for is_fixed, size, axis in zip(fixed, value.shape, axes, strict=True)
    ):
        what = f"{walk.file.path}: --first has {named(port.name)} of shape {value.shape}, expected {port}."
        raise GraphError(what, hint="Write it again with numpy.savez.")
    return value.astype(port.dtype)
