"""Capture steps of one shape as CUDA graphs and replay them, instead of launching kernel by kernel.

A replay uses the addresses recorded at capture, so all buffers stay where they are: the session owns buffers for the
step's small inputs and outputs, and memories own theirs. CPU nodes are not replayed and would return stale values, so
not even sizes are computed there: they are constants here.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bundle_files import BundleFiles
from .deadline import Deadline
from .devices import Device
from .memory import BatchMemory
from .providers import device_value, import_onnxruntime, open_session
from .session import running
from .spec import Bundle, Graph

__all__ = ["FixedSession", "FixedSessions"]

logger = logging.getLogger(__name__)

STEADY = 4  # ordinary steps of one shape before it gets a session of its own
KEPT = 4  # shapes whose sessions stay open: each has its own copy of the weights on the device

_Key = tuple[str, tuple[tuple[str, int], ...]]  # purpose and sizes of all free axes


@dataclass
class _Walk:
    """The values bound for one memory."""

    memory: weakref.ref[BatchMemory]
    addresses: tuple[int, ...]  # of its buffers
    binding: Any
    options: Any
    graph_id: int


class FixedSession:
    """An ONNX Runtime session for a graph at fixed sizes; on CUDA it captures and replays each memory's steps.

    Raises:
        BundleError: ONNX Runtime cannot load the file.
        ProviderError: the device is missing, or has no kernel for a node.
    """

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        device: Device,
        threads: int | None,
        sizes: Mapping[str, int],
        memory: BatchMemory,
        data_files: Collection[str] = (),
        deadline: Deadline | None = None,
    ) -> None:
        self._device = device
        self._file = folder / graph.file
        self._session = open_session(self._file, device, threads, sizes=sizes, data_files=data_files)
        self._deadline = deadline
        carried = {entry.input for entry in memory.entries}
        made = {entry.output for entry in memory.entries}
        self._constants = [tensor.name for tensor in graph.inputs if tensor.name in memory.constants]
        self._inputs = {
            tensor.name: self._buffer(tensor.shape, tensor.dtype, sizes)
            for tensor in graph.inputs
            if tensor.name not in carried and tensor.name not in memory.constants
        }
        self._outputs = {
            tensor.name: self._buffer(tensor.shape, tensor.dtype, sizes)
            for tensor in graph.outputs
            if tensor.name not in made
        }
        self._walks: list[_Walk] = []
        self._captured = 0
        self._lock = threading.Lock()

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: BatchMemory) -> dict[str, npt.NDArray[Any]]:
        """Run one segment as `GraphSession.step` does. Threads take turns."""
        with self._lock:
            walk = self._walk(memory)
            for name, (_, value) in self._inputs.items():
                value.update_inplace(np.ascontiguousarray(feeds[name]))
            with running(self._file, self._deadline, walk.options):
                self._session.run_with_iobinding(walk.binding, walk.options)
            walk.binding.synchronize_outputs()
            return {name: value.numpy().copy() for name, (_, value) in self._outputs.items()}

    def _buffer(self, shape: Iterable[int | str], dtype: str, sizes: Mapping[str, int]) -> tuple[Any, Any]:
        """Return an array and a value for it. If they share memory, the array must live as long as the value."""
        array = np.zeros([axis if isinstance(axis, int) else sizes[axis] for axis in shape], dtype)
        return array, device_value(array, self._device)

    def _walk(self, memory: BatchMemory) -> _Walk:
        """Return the walk of `memory`. Drop captures of memories that are gone, or that have other buffers now."""
        addresses = tuple(memory.values[entry.input].data_ptr() for entry in memory.entries)
        for walk in list(self._walks):
            if walk.memory() is memory and walk.addresses == addresses:
                return walk
            if walk.memory() in (None, memory):
                self._walks.remove(walk)
                self._session.release_captured_graph(walk.graph_id)
        walk = _Walk(weakref.ref(memory), addresses, self._bind(memory), self._run_options(), self._captured)
        self._walks.append(walk)
        return walk

    def _bind(self, memory: BatchMemory) -> Any:
        binding = self._session.io_binding()
        for name, (_, value) in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._constants:
            binding.bind_ortvalue_input(name, memory.constants[name])
        for entry in memory.entries:
            binding.bind_ortvalue_input(entry.input, memory.values[entry.input])
            binding.bind_ortvalue_output(entry.output, memory.target(entry))
        for name, (_, value) in self._outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def _run_options(self) -> Any:
        """Return run options with an id of their own: a capture holds the addresses of one memory."""
        self._captured += 1
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._captured))
        return options


class FixedSessions:
    """The fixed sessions of a model, opened for shapes that repeat."""

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        device: Device,
        threads: int | None,
        files: BundleFiles,
        deadline: Deadline | None,
    ) -> None:
        self._folder, self._bundle, self._device, self._threads = folder, bundle, device, threads
        self._files, self._deadline = files, deadline
        self._seen: Counter[_Key] = Counter()
        self._open: OrderedDict[_Key, FixedSession] = OrderedDict()
        self._lock = threading.Lock()

    def session(self, purpose: str, memory: BatchMemory, segment_len: int) -> FixedSession | None:
        """Return the session for such a step; None if the shape is too rare or the bundle has no graph for it."""
        graph = self._bundle.graphs.get(f"{purpose}_fixed")
        if graph is None:
            return None
        sizes = {"batch": memory.batch_size, "segment": segment_len}
        sizes |= {symbol: memory.plan.slots(symbol) for symbol in memory.evaluation.rules.rings}
        for tensor in graph.inputs:  # constants have axes of their own
            if tensor.name in memory.constants:
                sizes |= _free_axes(tensor.shape, memory.constants[tensor.name].shape())
        key = (purpose, tuple(sizes.items()))
        with self._lock:
            self._seen[key] += 1
            if key not in self._open:
                if self._seen[key] <= STEADY:
                    return None
                logger.info("%s: opening it for one shape: %s", self._folder / graph.file, sizes)
                while len(self._open) >= KEPT:
                    self._open.popitem(last=False)
                with self._files.unchanged():
                    self._open[key] = FixedSession(
                        self._folder,
                        graph,
                        self._device,
                        self._threads,
                        sizes,
                        memory,
                        self._bundle.guarded_files,
                        self._deadline,
                    )
            self._open.move_to_end(key)
            return self._open[key]


def _free_axes(shape: Iterable[int | str], sizes: Iterable[int]) -> dict[str, int]:
    """Return the sizes of the named axes."""
    return {axis: size for axis, size in zip(shape, sizes, strict=True) if isinstance(axis, str)}
