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

from .bundle import POSITIONS, Bundle, Graph
from .bundle_files import BundleFiles
from .devices import Device
from .memory import Memory
from .providers import device_value, import_onnxruntime, open_session
from .session import Deadline, running

__all__ = ["FixedSession", "FixedSessions"]

logger = logging.getLogger(__name__)

STEADY = 4  # ordinary steps of one shape before it gets a session of its own
KEPT = 4  # shapes whose sessions stay open: each has its own copy of the weights on the device

_Key = tuple[str, tuple[tuple[str, int], ...]]  # purpose and sizes of all free axes


@dataclass
class _Capture:
    """The values bound for one memory, and the id of the CUDA graph captured with them."""

    memory: weakref.ref[Memory]
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
        memory: Memory,
        data_files: Collection[str] = (),
        deadline: Deadline | None = None,
    ) -> None:
        self.graph = graph
        self._device = device
        self._file = folder / graph.file
        self._session = open_session(self._file, device, threads, sizes=sizes, data_files=data_files)
        self._deadline = deadline
        self._constants = [name for name in graph.inputs if name in memory.constants]
        self._inputs: dict[str, tuple[Any, Any]] = {}  # made at the first step
        self._outputs = {
            name: self._buffer(np.zeros([a if isinstance(a, int) else sizes[a] for a in tensor.shape], tensor.dtype))
            for name, tensor in graph.outputs.items()
        }
        self._captures: list[_Capture] = []
        self._captured = 0
        self._lock = threading.Lock()

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        """Run one segment as `GraphSession.step` does. Threads take turns."""
        with self._lock:
            if not self._inputs:
                self._inputs = {name: self._buffer(array.copy()) for name, array in feeds.items()}
            capture = self._capture_of(memory)
            for name, (_, value) in self._inputs.items():
                value.update_inplace(np.ascontiguousarray(feeds[name]))
            with running(self._file, self._deadline, capture.options):
                self._session.run_with_iobinding(capture.binding, capture.options)
            capture.binding.synchronize_outputs()
            return {name: value.numpy().copy() for name, (_, value) in self._outputs.items()}

    def _buffer(self, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Any]:
        """Return an array and a value for it. If they share memory, the array must live as long as the value."""
        return array, device_value(array, self._device)

    def _capture_of(self, memory: Memory) -> _Capture:
        """Return the capture of `memory`. Drop captures of memories that are gone, or that have other buffers now."""
        addresses = tuple(memory.values[entry.input].data_ptr() for entry in memory.entries)
        for capture in list(self._captures):
            if capture.memory() is memory and capture.addresses == addresses:
                return capture
            if capture.memory() in (None, memory):
                self._captures.remove(capture)
                self._session.release_captured_graph(capture.graph_id)
        capture = _Capture(weakref.ref(memory), addresses, self._bind(memory), self._run_options(), self._captured)
        self._captures.append(capture)
        return capture

    def _bind(self, memory: Memory) -> Any:
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

    def session(self, purpose: str, memory: Memory, sizes: Mapping[str, int]) -> FixedSession | None:
        """Return the session for such a step; None if the shape is too rare or the bundle has no graph for it.

        Args:
            sizes: sizes of `batch`, `segment` and the slots of rings.
        """
        graph = next((g for g in self._bundle.variants(purpose, static=True).values() if g.fits(sizes)), None)
        if graph is None:
            return None
        constants = self._bundle.graphs[POSITIONS].outputs if POSITIONS in self._bundle.graphs else {}
        for name, tensor in constants.items():  # they have axes of their own
            sizes = {**sizes, **_free_axes(tensor.shape, memory.constants[name].shape())}
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
                        self._bundle.files,
                        self._deadline,
                    )
            self._open.move_to_end(key)
            return self._open[key]


def _free_axes(shape: Iterable[int | str], sizes: Iterable[int]) -> dict[str, int]:
    """Return the sizes of the named axes."""
    return {axis: size for axis, size in zip(shape, sizes, strict=True) if isinstance(axis, str)}
