"""Run one graph of a bundle with its memory bound in place. `GraphSession` uses ONNX Runtime.

`Deadline` ends steps that take too long, and `check_outputs` compares what a step returned with the bundle.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .bundle import Graph, MemoryEntry, Tensor
from .devices import Device
from .errors import BundleGraphError, OptionError, StepTimeoutError
from .kernels import Kernels
from .memory import Memory
from .messages import first_line, listed, named
from .placement import PlacedNode, placed_nodes
from .providers import device_value, import_onnxruntime, onnxruntime_errors, open_session, owned_value

__all__ = ["Deadline", "GraphSession", "Session", "SessionFactory", "check_outputs", "running"]

HOST = Device("cpu")
LONGEST_PAUSE = 1.0  # seconds between two checks of a deadline
IDLE_LOOKS = 8  # checks without a step before the thread ends; the next step starts another
SMALLEST_ID = {"rank": 1, "top_ids": 0}  # of outputs that count tokens; a tokenizer has none for larger ids


class Session(Protocol):
    """A session that runs one graph. Any number of threads may run it at once."""

    @property
    def providers(self) -> list[str]:
        """Return the execution providers in use, the preferred one first."""

    @property
    def nodes(self) -> tuple[PlacedNode, ...]:
        """Return the nodes of the graph that runs, and which execution provider computes each."""

    @property
    def graph(self) -> Graph:
        """Return the description of the graph."""

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run as a pure function, and return the outputs by name, memories included."""

    def constant(self, array: npt.NDArray[Any]) -> Any:
        """Return an array in the form that `step` takes as a constant of a memory."""

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        """Run one segment on `memory`, which the caller advances, and return the graph's other outputs by name."""


SessionFactory = Callable[[str, Graph], Session]  # opens the session of one purpose


class Deadline:
    """A time limit for steps, exceeded by at most a quarter. Safe to share between threads.

    ONNX Runtime checks between two operators whether to stop, so a running operator is never interrupted.

    Attributes:
        seconds: how long a step may take.

    Raises:
        OptionError: it is not a positive number.
    """

    def __init__(self, seconds: float) -> None:
        if not (math.isfinite(seconds) and seconds > 0):
            raise OptionError(f"step_timeout is {seconds}, expected a positive number of seconds.")
        self.seconds = seconds
        self._lock = threading.Lock()
        self._running: dict[int, tuple[float, Any]] = {}
        self._thread: threading.Thread | None = None
        self._idle = 0

    def begin(self, options: Any) -> None:
        """Watch a run from its start until `end`; `options` are its `onnxruntime.RunOptions`."""
        with self._lock:
            self._running[id(options)] = time.monotonic() + self.seconds, options
            self._idle = 0
            if self._thread is None or not self._thread.is_alive():  # a fork has none of its parent's threads
                self._thread = threading.Thread(target=self._look, name="step deadline", daemon=True)
                self._thread.start()

    def end(self, options: Any) -> None:
        """Stop watching a run. Its options can be used again."""
        with self._lock:
            self._running.pop(id(options), None)
            options.terminate = False

    def _look(self) -> None:
        while True:
            time.sleep(min(self.seconds / 4, LONGEST_PAUSE))
            with self._lock:
                now = time.monotonic()
                for until, options in self._running.values():
                    if now > until:
                        options.terminate = True
                self._idle += not self._running
                if self._idle > IDLE_LOOKS:
                    self._thread = None
                    return


@contextlib.contextmanager
def running(file: Path, deadline: Deadline | None = None, options: Any = None, device: Device = HOST) -> Iterator[None]:
    """Translate ONNX Runtime errors raised during a step, and end one that takes too long.

    Args:
        file: the graph.
        deadline: the time limit of the run; None: no limit.
        options: the `onnxruntime.RunOptions` of the run, which a deadline needs.
        device: the device of the run, for the message.

    Raises:
        StepTimeoutError: the deadline ended the run.
        MemoryError: there was too little memory; ONNX Runtime has no separate error for this.
        BundleGraphError: the graph in `file` cannot run as bundle.json says.
    """
    if deadline is not None:
        deadline.begin(options)
    try:
        yield
    except onnxruntime_errors() as error:
        if deadline is not None and options.terminate:
            raise StepTimeoutError(
                f"{file}: a step took longer than step_timeout, {deadline.seconds:g} seconds.",
                hint="If you trust the bundle, use shorter segments or a longer step_timeout.",
            ) from error
        reason = first_line(error)
        if "allocat" in reason:
            raise MemoryError(reason) from error
        raise BundleGraphError(
            f"{file}: ONNX Runtime cannot run it on {device} ({reason}).",
            hint="Copy the bundle again, convert the checkpoint again, or use device cpu.",
        ) from error
    finally:
        if deadline is not None:
            deadline.end(options)


class GraphSession:
    """An ONNX Runtime session for one graph.

    Args:
        profile: see `open_session`.
        data_files: names of the bundle's files; the graph must not use others.
        deadline: the time limit of each run; None: no limit.
        kernels: the library of kernels for custom operators; None: their fallbacks run.

    Raises:
        BundleGraphError: ONNX Runtime cannot load the file, or the file is not the graph that the bundle describes.
        ProviderError: the device's execution provider is missing, or with `strict_device` lacks a kernel.
    """

    captures = False  # whether ONNX Runtime captures steps as CUDA graphs

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        memory: Iterable[MemoryEntry],
        device: Device,
        threads: int | None,
        strict_device: bool = False,
        profile: str | None = None,
        data_files: Collection[str] = (),
        deadline: Deadline | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.graph = graph
        self.device = device
        carried = {entry.output for entry in memory if entry.input in graph.inputs}
        self._results, self._outputs = list(graph.outputs), [*graph.outputs, *sorted(carried)]
        self._file = folder / graph.file
        self._session = open_session(
            self._file,
            device,
            threads,
            strict=strict_device,
            profile=profile,
            data_files=data_files,
            kernels=kernels,
            captures=self.captures,
        )
        self._deadline = deadline
        inputs = {tensor.name for tensor in self._session.get_inputs()}
        missing = {*self._outputs} - {tensor.name for tensor in self._session.get_outputs()}
        if differing := sorted(inputs ^ graph.inputs.keys()) + sorted(missing):
            raise BundleGraphError(
                f"{self._file}: its inputs and outputs are not those of bundle.json: {listed(map(named, differing))}.",
                hint="Convert the checkpoint again.",
            )

    @property
    def providers(self) -> list[str]:
        """Execution providers in use, the preferred one first."""
        return list(self._session.get_providers())

    @property
    def nodes(self) -> tuple[PlacedNode, ...]:
        """The nodes of the graph that runs, and which execution provider computes each."""
        return placed_nodes(self._session)

    def end_profiling(self) -> Path:
        """End a session that was opened with `profile`, and return the file that it has written."""
        return Path(self._session.end_profiling())

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run as a pure function, and return the outputs by name, memories included."""
        options = self._run_options()
        with running(self._file, self._deadline, options, self.device):
            return dict(zip(self._outputs, self._session.run(self._outputs, dict(feeds), options), strict=True))

    def constant(self, array: npt.NDArray[Any]) -> Any:
        """Return an OrtValue on the device, which may outlive the session."""
        return owned_value(array, self.device)

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        """Run one segment; `memory` is read and written in place, never copied.

        Args:
            feeds: the graph's small inputs.
            memory: buffers and constants; the caller advances the memory.

        Returns:
            The graph's other outputs, by name, on the CPU.
        """
        options = self._run_options()
        with running(self._file, self._deadline, options, self.device):
            binding = self._session.io_binding()
            bound = []  # a bound value must outlive the run
            for name, array in feeds.items():
                value = device_value(array, HOST)
                bound.append(value)
                binding.bind_ortvalue_input(name, value)
            memory.bind(binding, self.graph)
            for name in self._results:
                binding.bind_output(name, HOST.entry.memory)
            self._session.run_with_iobinding(binding, options)  # returns after the device has done its work
            # Bound outputs are returned in binding order: memories first.
            values = binding.get_outputs()[len(memory.entries) :]
            return {name: value.numpy() for name, value in zip(self._results, values, strict=True)}

    def _run_options(self) -> Any:
        """Return options through which a deadline can end a run; None without a deadline."""
        return None if self._deadline is None else import_onnxruntime().RunOptions()


def check_outputs(
    file: Path, graph: Graph, outputs: Mapping[str, Any], sizes: Mapping[str, int], vocab_size: int
) -> None:
    """Raise unless a graph returned what the bundle describes. Scores that are not finite pass.

    Args:
        file: the graph's file, for messages.
        sizes: sizes of named axes; named axes without an entry may have any size.

    Raises:
        BundleGraphError: an output differs; the message has the file, the output, and the expected and found values.
    """
    for name, tensor in graph.outputs.items():
        array = outputs[name]
        if not _is_kind(array, tensor, sizes):
            shape = " x ".join(str(sizes.get(str(axis), axis)) for axis in tensor.shape)
            raise _not_as_described(file, f"output {named(name)} is {_kind(array)}, expected {tensor.dtype} {shape}")
        if vocab_size and name in SMALLEST_ID and array.size:
            least, most = SMALLEST_ID[name], SMALLEST_ID[name] + vocab_size - 1
            if array.min() < least or array.max() > most:
                problem = f"values from {array.min()} to {array.max()}, expected {least} to {most}"
                raise _not_as_described(file, f"output {name} has {problem}")


def _is_kind(array: Any, tensor: Tensor, sizes: Mapping[str, int]) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype != tensor.dtype or array.ndim != len(tensor.shape):
        return False
    expected = [axis if isinstance(axis, int) else sizes.get(axis) for axis in tensor.shape]
    return all(axis in (None, size) for axis, size in zip(expected, array.shape, strict=True))


def _kind(array: npt.NDArray[Any] | object) -> str:
    if not isinstance(array, np.ndarray):
        return "not a tensor"
    return f"{array.dtype} {' x '.join(map(str, array.shape)) or 'scalar'}"


def _not_as_described(file: Path, problem: str) -> BundleGraphError:
    return BundleGraphError(f"{file}: {problem}.", hint="Convert the checkpoint again.")
