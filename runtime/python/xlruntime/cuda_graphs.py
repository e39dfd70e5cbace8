"""Capture steps of fixed shapes as CUDA graphs and replay them, instead of launching kernel by kernel.

A replay uses the addresses recorded at capture, so all buffers stay where they are: the session owns buffers for the
step's small inputs and outputs, and memories own theirs. CPU nodes are not replayed and would return stale values, so
nothing is computed there.

A copy between host and device waits for the device. So a step copies only inputs that changed, and each result once.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ProviderError
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
        self._inputs: dict[str, tuple[npt.NDArray[Any], Any]] = {}  # what the device has; made at the first step
        self._values = {
            name: device_value(
                np.zeros([a if isinstance(a, int) else axes[a] for a in tensor.shape], tensor.dtype), self.device
            )
            for name, tensor in self.graph.outputs.items()
        }
        self._captures: list[_Capture] = []
        self._captured = 0
        self._thread, self._process = ThreadPoolExecutor(1, "CUDA graphs"), os.getpid()

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        """Run one segment as `GraphSession.step` does.

        Raises:
            ProviderError: this process was forked from the one that opened the session.
        """
        if os.getpid() != self._process:  # it has neither the thread nor the use of CUDA
            raise ProviderError(
                f"device {self.device}: a forked process cannot use what its parent opened.",
                hint="Open the bundle in the process that uses it.",
            )
        return self._thread.submit(self._replay, feeds, memory).result()

    def _replay(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        if not self._inputs:
            self._inputs = {name: (array.copy(), device_value(array, self.device)) for name, array in feeds.items()}
        capture = self._capture_of(memory)
        for name, (last, value) in self._inputs.items():
            if not np.array_equal(last, feeds[name]):
                last[...] = feeds[name]
                value.update_inplace(last)
        with running(self._file, self._deadline, capture.options):
            self._session.run_with_iobinding(capture.binding, capture.options)
        return {name: value.numpy() for name, value in self._values.items()}  # copies, as they are on a device

    def _capture_of(self, memory: Memory) -> _Capture:
        """Return the capture of `memory` at its buffers. Drop those of memories that are gone or have other buffers."""
        self._drop([capture for capture in self._captures if capture.memory() is None])
        buffers = ((memory.values[entry.input], memory.target(entry)) for entry in memory.entries)
        addresses = tuple(value.data_ptr() for pair in buffers for value in pair)
        own = [capture for capture in self._captures if capture.memory() is memory]
        for capture in own:
            if capture.addresses == addresses:
                return capture
        self._drop(own[:-1])  # the other one is of the buffers before the last step
        capture = _Capture(weakref.ref(memory), addresses, self._bind(memory), self._options(), self._captured)
        self._captures.append(capture)
        return capture

    def _drop(self, captures: Iterable[_Capture]) -> None:
        for capture in captures:
            self._captures.remove(capture)
            self._session.release_captured_graph(capture.graph_id)

    def _bind(self, memory: Memory) -> Any:
        binding = self._session.io_binding()
        for name, (_, value) in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        memory.bind(binding, self.graph)
        for name, value in self._values.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def _options(self) -> Any:
        """Return run options with an id of their own: a capture holds the addresses of one memory."""
        self._captured += 1
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(self._captured))
        return options
