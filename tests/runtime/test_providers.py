"""The requested device runs, or an error says what to do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers.paths import ROOT
from tests.helpers.pretended_cuda import CPU, pretend
from tests.runtime.conftest import Golden, RandomIds
from xlruntime import load, providers
from xlruntime.devices import Device, named_provider, parse_device
from xlruntime.errors import BundleError, OptionError, ProviderError
from xlruntime.execution_providers import PROVIDERS
from xlruntime.providers import import_onnxruntime, installed_wheels, open_session

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
    monkeypatch.setattr(providers, "installed_wheels", lambda: wheels)


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
        ("cpu", Device("cpu")),
        ("cuda", Device("cuda", "0")),
        ("cuda:12", Device("cuda", "12")),
        ("openvino", Device("openvino", "CPU")),
        ("openvino:NPU", Device("openvino", "NPU")),
    ],
)
def test_parse_device(text: str, device: Device) -> None:
    assert parse_device(text) == device
    assert parse_device(str(device)) == device


@pytest.mark.parametrize(
    "text", ["", "gpu", "CUDA", "cpu:0", "cpu:", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "cuda:٣", "openvino:XPU"]
)
def test_parse_device_refuses_anything_else(text: str) -> None:
    with pytest.raises(OptionError, match=r"expected cpu, cuda\[:N\], openvino\[:CPU\|GPU\|NPU\].* option provider"):
        parse_device(text)


@pytest.mark.parametrize(
    ("name", "options", "description"),
    [
        ("XnnpackExecutionProvider", {"a": "1", "b": "2"}, "XnnpackExecutionProvider(a=1,b=2) (untried)"),
        ("OpenVINOExecutionProvider", {}, "openvino:CPU"),  # the table knows it
        ("OpenVINOExecutionProvider", {"cache_dir": "x"}, "openvino:CPU(cache_dir=x) (untried)"),
    ],
)
def test_named_provider_says_if_it_is_untried(name: str, options: dict[str, str], description: str) -> None:
    assert named_provider(name, options).description == description


def test_name_that_no_provider_has_is_refused() -> None:
    with pytest.raises(OptionError, match=r"provider 'xnnpack': .* for example XnnpackExecutionProvider"):
        named_provider("xnnpack")


@pytest.mark.parametrize("module", ["onnxruntime", "onnxruntime_qnn"])
def test_wheels_that_have_the_module_are_found(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "onnxruntime_pretended-1.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime_pretended\nVersion: 1.2\n")
    (record / "RECORD").write_text(f"{module}/__init__.py,,\n")
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_wheels() == ({"onnxruntime-pretended": "1.2"} if module == "onnxruntime" else {})


def of_version(version: str) -> ModuleType:
    """Return an onnxruntime of a version that is complete."""
    made = ModuleType("onnxruntime")
    made.__version__, made.InferenceSession = version, object  # type: ignore[attr-defined]
    return made


INSTALL = "&& pip install onnxruntime (or onnxruntime-gpu for CUDA, onnxruntime-openvino for OpenVINO)"
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
@pytest.mark.parametrize("machine", ["arm64", "aarch64", "ARM64", "x86_64"])
def test_version_with_wrong_products_is_refused_on_arm(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    install(monkeypatch, onnxruntime="1.27.0")
    on_import(monkeypatch, module := of_version("1.27.0"))
    if machine == "x86_64":
        assert import_onnxruntime() is module
    else:
        with pytest.raises(ProviderError, match=r"1\.27\.0, which computes wrong products on ARM.*#31569.*pip install"):
            import_onnxruntime()


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
        open_session(gelu, parse_device("cuda:1"))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda:1", {"device_id": "1", "use_tf32": "0"}),
        ("openvino:GPU", {"device_type": "GPU", "precision": "ACCURACY", "num_of_threads": "2"}),
    ],
)
def test_provider_is_asked_for_with_full_precision(
    device: str,
    expected: dict[str, str],
    gelu: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = parse_device(device)
    runtime = pretend(monkeypatch, place.provider)
    open_session(gelu, place, threads=2)
    assert runtime.asked[0].items() >= expected.items()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\n" if device == "cuda:1" else "")  # stdout is for data


@pytest.mark.parametrize(
    ("device", "outcome", "said"),
    [
        ("cuda", [CPU], r"cuda:0: .*did not start .*nvidia-smi.*onnxruntime-gpu\[cuda,cudnn\]"),
        ("cuda", RuntimeError("CUDA failure 100: no device"), r"cuda:0: .*did not start \(CUDA failure.*nvidia-smi"),
        ("openvino:NPU", RuntimeError("OpenVINO: no NPU"), r"openvino:NPU: .*did not start .* use device cpu"),
    ],
)
def test_provider_that_does_not_start_is_never_replaced(
    device: str, outcome: list[str] | Exception, said: str, gelu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = parse_device(device)
    pretend(monkeypatch, place.provider, outcome=outcome)
    with pytest.raises(ProviderError, match=said):
        open_session(gelu, place)


def test_page_has_the_table_of_providers() -> None:
    page = (ROOT / "docs/hardware.md").read_text("utf-8")
    for entry in PROVIDERS:
        tried = "yes" if entry.tried == {""} else ", ".join(sorted(entry.tried)) or "no"
        form = entry.form.replace("|", "\\|")
        in_place, kernels = ("yes" if value else "no" for value in (entry.in_place, entry.kernels))
        assert f"| `{form}` | `{entry.name}` | `{entry.package}` | {tried} | {in_place} | {kernels} |\n" in page


def test_untried_provider_writes_no_ring_in_place(
    golden: Golden, random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, provider = "post_lnorm_same_length_empty", "XnnpackExecutionProvider"
    ids = random_ids(200, vocab_size=golden(name).bundle.vocab_size)
    expected = golden(name).stream().feed(ids).log_probs
    pretend(monkeypatch, provider)
    model = load(golden(name).folder, provider=provider)
    assert caplog.messages == [f"device {provider} is untried: compare its scores with the device cpu."]
    memory = model.new_memory(model.bundle.settings)
    for entry in memory.entries:
        assert memory.target(entry).data_ptr() != memory.values[entry.input].data_ptr()
    assert memory.nbytes == 2 * golden(name).new_memory(model.bundle.settings).nbytes
    stream = model.stream()
    first = stream.feed(ids[:100]).log_probs
    np.testing.assert_array_equal(np.concatenate([first, stream.feed(ids[100:]).log_probs]), expected)
