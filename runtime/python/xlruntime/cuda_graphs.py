"""Capture steps of fixed shapes as CUDA graphs and replay them, instead of launching kernel by kernel.

A replay uses the addresses recorded at capture, so all buffers stay where they are: the session owns buffers for the
step's small inputs and outputs, and memories own theirs. CPU nodes are not replayed and would return stale values, so
nothing is computed there.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .memory import Memory
from .providers import device_value, import_onnxruntime
from .session import GraphSession, running

__all__ = ["CapturedSession"]


@dataclass
class _Capture:
    """The values bound for one memory, and the id of the CUDA graph captured with them."""

    memory: weakref.ref[Memory]
    addresses: tuple[int, ...]  # of its buffers
    binding: Any
    options: Any
    graph_id: int


class CapturedSession(GraphSession):
    """An ONNX Runtime session for a graph of fixed shapes; on CUDA it captures and replays each memory's steps.

    A memory with windows has two captures, because its buffers change places. All runs take turns in one thread: ONNX
    Runtime keeps captures by thread, so each further thread would capture, and keep, its own.

    Raises:
        BundleError: ONNX Runtime cannot load the file.
        ProviderError: the device is missing, or has no kernel for a node.
    """

    captures = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        axes = self.graph.fixed
        self._inputs: dict[str, tuple[Any, Any]] = {}  # made at the first step
        self._values = {
            name: self._buffer(np.zeros([a if isinstance(a, int) else axes[a] for a in tensor.shape], tensor.dtype))
            for name, tensor in self.graph.outputs.items()
        }
        self._captures: list[_Capture] = []
        self._captured = 0
        self._thread = ThreadPoolExecutor(1, "CUDA graphs")

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        """Run one segment as `GraphSession.step` does."""
        return self._thread.submit(self._replay, feeds, memory).result()

    def _replay(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        if not self._inputs:
            self._inputs = {name: self._buffer(array.copy()) for name, array in feeds.items()}
        capture = self._capture_of(memory)
        for name, (_, value) in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(feeds[name]))
        with running(self._file, self._deadline, capture.options):
            self._session.run_with_iobinding(capture.binding, capture.options)
        capture.binding.synchronize_outputs()
        return {name: value.numpy().copy() for name, (_, value) in self._values.items()}

    def _buffer(self, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Any]:
        """Return an array and a value for it. If they share memory, the array must live as long as the value."""
        return array, device_value(array, self.device)

    def _capture_of(self, memory: Memory) -> _Capture:
        """Return the capture of `memory` at its buffers. Drop those of memories that are gone or have other buffers."""
        addresses = tuple(memory.buffer_addresses())
        own = [capture for capture in self._captures if capture.memory() is memory]
        for capture in own:
            if capture.addresses == addresses:
                return capture
        stale = [capture for capture in self._captures if capture.memory() is None]
        for capture in stale + own[:-1]:  # the other one is of the buffers before the last step
            self._captures.remove(capture)
            self._session.release_captured_graph(capture.graph_id)
        capture = _Capture(weakref.ref(memory), addresses, self._bind(memory), self._options(), self._captured)
        self._captures.append(capture)
        return capture

    def _bind(self, memory: Memory) -> Any:
        binding = self._session.io_binding()
        for name, (_, value) in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in memory.constants.items():
            if name in self.graph.inputs:
                binding.bind_ortvalue_input(name, value)
        for entry in memory.entries:
            binding.bind_ortvalue_input(entry.input, memory.values[entry.input])
            binding.bind_ortvalue_output(entry.output, memory.target(entry))
        for name, (_, value) in self._values.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def _options(self) -> Any:
        """Return run options with an id of their own: a capture holds the addresses of one memory."""
        self._captured += 1
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._captured))
        return options
