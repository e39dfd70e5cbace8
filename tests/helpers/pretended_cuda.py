"""An ONNX Runtime that claims a CUDA device, whose kernels and memory are the CPU's.

So the runtime's own code runs as on a GPU: a value on the device has its own memory, which numpy sees only as a copy.
A capture belongs to one thread, comes after runs without one, and its replays use the buffers of that time.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from xlruntime import cuda_graphs, providers, session
from xlruntime.providers import import_onnxruntime

__all__ = ["OnDevice", "SessionOnDevice", "pretend_cuda"]

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


def open_session(path: str, sess_options: Any, providers: Any, enable_fallback: int) -> Any:
    """Return an `onnxruntime.InferenceSession` for either device."""
    assert not enable_fallback
    if providers == [CPU]:
        return import_onnxruntime().InferenceSession(path, sess_options, providers=providers)
    (name, settings), host = providers
    assert (name, host) == (CUDA, CPU)
    return SessionOnDevice(path, sess_options, settings)


class SessionOnDevice:
    """`onnxruntime.InferenceSession` of that device."""

    def __init__(self, path: str, sess_options: Any, settings: dict[str, str]) -> None:
        self.settings = settings
        self.real = import_onnxruntime().InferenceSession(path, sess_options, providers=[CPU])
        self.captured: dict[tuple[int, str], Binding] = {}  # by thread and id
        for same in ("disable_fallback", "get_inputs", "get_modelmeta", "get_outputs", "run"):
            setattr(self, same, getattr(self.real, same))

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [node for part in self.real.get_provider_graph_assignment_info() for node in part.get_nodes()]
        return [SimpleNamespace(ep_name=CUDA, get_nodes=lambda: nodes)]

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


def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runtime find such an ONNX Runtime."""
    real = import_onnxruntime()
    pretended = SimpleNamespace(
        __version__=real.__version__,
        capi=real.capi,
        SessionOptions=real.SessionOptions,
        RunOptions=real.RunOptions,
        OrtValue=Values,
        InferenceSession=open_session,
        get_available_providers=lambda: [CUDA, CPU],
        preload_dlls=lambda: None,
    )
    for module in (providers, session, cuda_graphs):
        monkeypatch.setattr(module, "import_onnxruntime", lambda: pretended)
