"""The requested device runs, or an error says what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from xlruntime import providers
from xlruntime.devices import Device, parse_device
from xlruntime.errors import BundleError, OptionError, ProviderError
from xlruntime.providers import import_onnxruntime, open_session

# One Gelu node, opset 20, IR version 10: x (N,) float32 -> y (N,).
GELU = bytes.fromhex(
    "080a3a380a0c0a0178120179220447656c75120474696e795a100a0178120b0a09080112050a0312014e62100a0179120b0a"
    "09080112050a0312014e42040a001014"
)


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Clear the cache of `import_onnxruntime` before and after a test."""
    import_onnxruntime.cache_clear()
    yield
    import_onnxruntime.cache_clear()


@pytest.fixture
def gelu(tmp_path: Path) -> Path:
    path = tmp_path / "gelu.onnx"
    path.write_bytes(GELU)
    return path


def install(monkeypatch: pytest.MonkeyPatch, **wheels: str) -> None:
    """Replace pip's records by exactly these wheels of ONNX Runtime."""

    def version(name: str) -> str:
        if name not in wheels:
            raise importlib.metadata.PackageNotFoundError(name)
        return wheels[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def on_import(monkeypatch: pytest.MonkeyPatch, outcome: ModuleType | Exception) -> None:
    """Replace the outcome of importing onnxruntime."""

    def import_module(name: str) -> ModuleType:
        assert name == "onnxruntime"
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu", 0)),
        ("cuda", Device("cuda", 0)),
        ("cuda:0", Device("cuda", 0)),
        ("cuda:12", Device("cuda", 12)),
    ],
)
def test_parse_device(text: str, device: Device) -> None:
    assert parse_device(text) == device
    assert parse_device(str(device)) == device


@pytest.mark.parametrize("text", ["", "gpu", "CUDA", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "cuda:٣"])
def test_parse_device_refuses_anything_else(text: str) -> None:
    with pytest.raises(OptionError, match="expected cpu, cuda or cuda:N"):
        parse_device(text)


def of_version(version: str) -> ModuleType:
    """Return an onnxruntime of a version that is complete."""
    made = ModuleType("onnxruntime")
    made.__version__, made.InferenceSession = version, object  # type: ignore[attr-defined]
    return made


INSTALL = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime ("
ONE, TWO = {"onnxruntime": "1.31.1"}, {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"}


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("wheels", "outcome", "problem", "command"),
    [
        ({}, ModuleNotFoundError("", name="onnxruntime"), "not installed", "pip install onnxruntime, or onnxruntime-g"),
        (TWO, of_version("1.31.1"), "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0 are both installed", INSTALL),
        (ONE, ModuleType("onnxruntime"), "only partly installed", INSTALL),
        (ONE, ImportError("libm.so: not found\nmore"), "cannot be loaded (libm.so: not found)", INSTALL),
        (ONE, ModuleNotFoundError("", name="numpy"), "lacks the module numpy", INSTALL),
        *(
            (ONE, of_version(version), f"ONNX Runtime is {version}, expected 1.24.1 or newer", INSTALL)
            for version in ("1.21.0", "1.23.2", "1.24.0", "1.9.0", "1.24", "dev")  # they let a graph read any file
        ),
    ],
    ids=str,
)
def test_onnxruntime_that_cannot_be_used_names_the_commands_to_repair_it(
    wheels: dict[str, str],
    outcome: ModuleType | Exception,
    problem: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, **wheels)
    on_import(monkeypatch, outcome)
    with pytest.raises(ProviderError) as caught:
        import_onnxruntime()
    message = str(caught.value)
    assert problem in message and command in message and "\n" not in message


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("version", ["1.24.1", "1.24.1.dev20260101", "1.31.1", "1.31.1+cu126", "2.0"])
def test_newer_onnxruntime_is_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, onnxruntime=version)
    new = of_version(version)
    on_import(monkeypatch, new)
    assert import_onnxruntime() is new


@pytest.mark.parametrize("content", [None, b"", b"not a graph", GELU[:-20]], ids=["absent", "empty", "text", "cut off"])
def test_file_that_cannot_be_loaded_is_a_bundle_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "score.onnx"
    if content is not None:
        path.write_bytes(content)
    said = r"score.onnx: (no such file|not an ONNX graph \(|ONNX Runtime .* cannot load it \(.*convert)"
    with pytest.raises(BundleError, match=said) as caught:
        open_session(path, Device("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in import_onnxruntime().get_available_providers(), reason="this ONNX Runtime has CUDA"
)
def test_cuda_on_the_cpu_wheel_is_an_error_with_a_hint(gelu: Path) -> None:
    with pytest.raises(ProviderError, match=r"cuda:1: .*no CUDAExecutionProvider.*pip install onnxruntime-gpu"):
        open_session(gelu, Device("cuda", 1))


class CudaRuntime:
    """A fake onnxruntime built for CUDA, with a chosen outcome of starting the provider."""

    __version__ = "1.31.1"

    def __init__(self, outcome: list[str] | Exception) -> None:
        self.outcome = outcome
        real = import_onnxruntime()
        self.capi, self.SessionOptions = real.capi, real.SessionOptions
        self.asked_for: Any = None

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def preload_dlls(self) -> None:
        print("loading")

    def InferenceSession(self, path: str, sess_options: Any, providers: Any, enable_fallback: int) -> Any:
        assert not enable_fallback
        self.asked_for = providers
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return SimpleNamespace(get_providers=lambda: self.outcome, disable_fallback=lambda: None)


def test_cuda_is_asked_for_with_full_precision(
    gelu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = CudaRuntime(["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(providers, "import_onnxruntime", lambda: runtime)
    open_session(gelu, Device("cuda", 1))
    (name, settings), host = runtime.asked_for
    assert (name, host) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert (settings["device_id"], settings["use_tf32"]) == ("1", "0")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\n")  # stdout is for data


@pytest.mark.parametrize(
    "outcome", [["CPUExecutionProvider"], RuntimeError("CUDA failure 100: no CUDA-capable device is detected")]
)
def test_cuda_that_does_not_start_is_never_replaced(
    outcome: list[str] | Exception, gelu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = CudaRuntime(outcome)
    monkeypatch.setattr(providers, "import_onnxruntime", lambda: runtime)
    with pytest.raises(ProviderError, match=r"cuda:0: .*did not start .*nvidia-smi.*onnxruntime-gpu\[cuda,cudnn\]"):
        open_session(gelu, Device("cuda"))
