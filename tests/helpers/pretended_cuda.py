"""An ONNX Runtime that claims another execution provider, whose kernels and memory are the CPU's.

So the runtime's own code runs as on a GPU: a value on CUDA has its own memory, which numpy sees only as a copy.
A capture belongs to one thread, comes after runs without one, and its replays use the buffers of that time.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from xlruntime import cuda_graphs, providers, session
from xlruntime.providers import import_onnxruntime

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
RUNS_BEFORE_CAPTURE = 2


class OnDevice:
    """A value whose memory nobody else has."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._kept = array.copy()
        self.value = import_onnxruntime().OrtValue.ortvalue_from_numpy(self._kept)

    def numpy(self) -> npt.NDArray[Any]:
        return self._kept.copy()

    def update_inplace(self, array: npt.NDArray[Any]) -> None:
        assert array.flags.c_contiguous and (array.dtype, array.shape) == (self._kept.dtype, self._kept.shape)
        self._kept[...] = array

    def data_ptr(self) -> int:
        return int(self.value.data_ptr())

    def shape(self) -> list[int]:
        return list(self._kept.shape)


class Values:
    """`onnxruntime.OrtValue`, as far as the runtime uses it."""

    @staticmethod
    def ortvalue_from_numpy(array: npt.NDArray[Any], kind: str = "cpu", index: int = 0) -> Any:
        return OnDevice(array) if kind == "cuda" else import_onnxruntime().OrtValue.ortvalue_from_numpy(array)

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Any, dtype: Any, kind: str = "cpu", index: int = 0) -> Any:
        return Values.ortvalue_from_numpy(np.zeros(shape, dtype), kind, index)


class Binding:
    """`onnxruntime.IOBinding`: takes values of both kinds."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        for name in ("bind_output", "get_outputs"):
            setattr(self, name, getattr(binding, name))

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.binding.bind_ortvalue_input(name, getattr(value, "value", value))

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.binding.bind_ortvalue_output(name, getattr(value, "value", value))


class PretendedRuntime:
    """The module `onnxruntime`, with one more execution provider.

    Args:
        on_cpu: operators that the provider leaves to the CPU; None: all.
        outcome: what opening a session raises, or the providers that it claims to have.
    """

    OrtValue = Values

    def __init__(
        self, provider: str, on_cpu: Collection[str] | None = (), outcome: list[str] | Exception | None = None
    ) -> None:
        real = import_onnxruntime()
        self.__version__, self.capi = real.__version__, real.capi
        self.SessionOptions, self.RunOptions = real.SessionOptions, real.RunOptions
        self.provider, self.on_cpu, self.outcome = provider, on_cpu, outcome
        self.asked: list[dict[str, str]] = []

    def get_available_providers(self) -> list[str]:
        return [self.provider, CPU]

    def preload_dlls(self) -> None:
        print("loading")

    def InferenceSession(self, path: str, sess_options: Any, providers: Any, enable_fallback: int) -> Any:
        assert not enable_fallback
        if providers == [CPU]:
            return import_onnxruntime().InferenceSession(path, sess_options, providers=providers)
        first, host = providers
        name, settings = first if isinstance(first, tuple) else (first, {})
        assert (name, host) == (self.provider, CPU)
        self.asked.append(settings)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return SessionOnDevice(self, path, sess_options, settings)


class SessionOnDevice:
    """`onnxruntime.InferenceSession` of that provider."""

    def __init__(self, runtime: PretendedRuntime, path: str, sess_options: Any, settings: dict[str, str]) -> None:
        self.runtime, self.settings = runtime, settings
        self.real = import_onnxruntime().InferenceSession(path, sess_options, providers=[CPU])
        self.captured: dict[tuple[int, str], Binding] = {}  # by thread and id
        for same in ("disable_fallback", "get_inputs", "get_modelmeta", "get_outputs", "run"):
            setattr(self, same, getattr(self.real, same))

    def get_providers(self) -> list[str]:
        assert not isinstance(self.runtime.outcome, Exception)
        return self.runtime.outcome or [self.runtime.provider, CPU]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [node for part in self.real.get_provider_graph_assignment_info() for node in part.get_nodes()]
        left = [node for node in nodes if self.runtime.on_cpu is None or node.op_type in self.runtime.on_cpu]
        taken = [node for node in nodes if node not in left]
        return [
            SimpleNamespace(ep_name=name, get_nodes=lambda part=part: part)
            for name, part in ((self.runtime.provider, taken), (CPU, left))
        ]

    def release_captured_graph(self, graph_id: int) -> None:
        del self.captured[threading.get_ident(), str(graph_id)]

    def io_binding(self) -> Binding:
        return Binding(self.real.io_binding())

    def run_with_iobinding(self, binding: Binding, options: Any = None) -> None:
        if self.settings.get("enable_cuda_graph"):
            key = threading.get_ident(), options.get_run_config_entry("gpu_graph_id")
            for _ in range(0 if key in self.captured else RUNS_BEFORE_CAPTURE):
                self.real.run_with_iobinding(binding.binding, options)
            binding = self.captured.setdefault(key, binding)
        self.real.run_with_iobinding(binding.binding, options)


def pretend(
    monkeypatch: pytest.MonkeyPatch, provider: str = CUDA, on_cpu: Collection[str] | None = (), **more: Any
) -> PretendedRuntime:
    """Let the runtime find such an ONNX Runtime."""
    pretended = PretendedRuntime(provider, on_cpu, **more)
    for module in (providers, session, cuda_graphs):
        monkeypatch.setattr(module, "import_onnxruntime", lambda: pretended)
    return pretended
