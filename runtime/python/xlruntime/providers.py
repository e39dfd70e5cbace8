"""Load ONNX Runtime and open its sessions; raise an error if the requested device cannot run."""

from __future__ import annotations

import contextlib
import functools
import importlib
import mmap
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .devices import Device
from .errors import BundleFormatError, BundleGraphError, ProviderError
from .execution_providers import CPU_PROVIDER, PROVIDERS
from .graph_gate import read_graph
from .kernels import Kernels
from .messages import first_line
from .placement import RECORD_PLACEMENT, placed_nodes, require_placement

__all__ = [
    "add_linked_files",
    "device_value",
    "import_onnxruntime",
    "installed_wheels",
    "onnxruntime_errors",
    "open_session",
    "owned_value",
    "require_version",
    "session_options",
]

MODULE = "onnxruntime"  # of several distributions: one that is installed later overwrites the other
FOR_OTHERS = ", ".join(f"{other.package} for {other.name.removesuffix('ExecutionProvider')}" for other in PROVIDERS[1:])
OLDEST = (1, 24, 1)  # earlier versions read weights from any file that a graph names
# On ARM processors with SME, equal products of matrices differ from run to run, and convolutions are wrong.
WRONG_ON_ARM = {"1.27.0": "microsoft/onnxruntime#31569"}
FATAL_ONLY = 4  # ONNX Runtime's log severity; it also raises the errors that it logs
# Fused sum and layer normalization: on a CPU several times as slow as separate nodes, which costs 3 to 10% of a step.
SLOWER_FUSION = "SkipLayerNormFusion"
# That a thread waits for work before it sleeps. On two free cores, 100 make steps 12% faster; with another program on
# one of them, 7 to 28% slower. Pages of 2 MB for weights made no difference.
SPIN_MICROSECONDS = "20"
WEIGHTS_BESIDE = "weights.data"
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
# Names of ONNX Runtime's errors; except RuntimeError and ValueError, all derive from Exception alone.
ERRORS = (
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
)


def installed_wheels() -> dict[str, str]:
    """Return the installed distributions that have the module `onnxruntime`, with their versions."""
    from importlib import metadata  # a tenth of this package's import time

    records = (record for folder in sys.path for record in Path(folder).glob(f"{MODULE}*.dist-info"))
    wheels = (metadata.Distribution.at(record) for record in records)
    holders = (wheel for wheel in wheels if any(file.parts[0] == MODULE for file in wheel.files or ()))
    return dict(sorted((wheel.metadata["Name"].replace("_", "-"), wheel.version) for wheel in holders))


@functools.cache
def import_onnxruntime() -> ModuleType:
    """Import the module `onnxruntime` from exactly one wheel, without its telemetry unless the user has chosen.

    Raises:
        ProviderError: the module is missing, too old or cannot be loaded, or two wheels overwrote each other.
    """
    wheels = installed_wheels()
    if len(wheels) > 1:
        both = " and ".join(f"{name} {version}" for name, version in wheels.items())
        raise ProviderError(f"{both} are both installed and overwrite each other.", hint=f"Keep one: {_reinstall()}.")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # is read while the module is imported, and not later
    try:
        ort = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise ProviderError(
                f"ONNX Runtime lacks the module {error.name}.", hint=f"Install it again: {_reinstall()}."
            ) from error
        raise ProviderError(
            "ONNX Runtime is not installed.", hint=f"Install it: pip install {MODULE}, or {FOR_OTHERS}."
        ) from error
    except ImportError as error:
        raise ProviderError(f"ONNX Runtime cannot be loaded ({first_line(error)}).", hint=f"{_reinstall()}.") from error
    if not hasattr(ort, "InferenceSession"):  # left after one of two wheels was uninstalled
        raise ProviderError("ONNX Runtime is only partly installed.", hint=f"Install it again: {_reinstall()}.")
    if _version(ort.__version__) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ProviderError(
            f"ONNX Runtime is {ort.__version__}, expected {oldest} or newer: earlier ones let a graph read any file.",
            hint=f"Install it again: {_reinstall()}.",
        )
    if (issue := WRONG_ON_ARM.get(ort.__version__)) and platform.machine().lower() in ("aarch64", "arm64"):
        raise ProviderError(
            f"ONNX Runtime is {ort.__version__}, which computes wrong products on ARM processors ({issue}).",
            hint=f"Install another version: {_reinstall()}.",
        )
    return ort


def require_version(oldest: str, where: str) -> None:
    """Refuse a bundle that needs a newer ONNX Runtime.

    Raises:
        BundleFormatError: the message has both versions.
        ProviderError: as `import_onnxruntime`.
    """
    installed = import_onnxruntime().__version__
    if _version(installed) < _version(oldest):
        raise BundleFormatError(
            f"{where}: needs ONNX Runtime {oldest} or newer, found {installed}.", hint="Upgrade ONNX Runtime."
        )


def _version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (1, 31, 1) for "1.31.1" and for "1.31.1.dev5"."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that ONNX Runtime raises if it cannot load or run a graph."""
    state = import_onnxruntime().capi.onnxruntime_pybind11_state
    return (*(getattr(state, name) for name in ERRORS), RuntimeError, ValueError)


def device_value(array: npt.NDArray[Any], device: Device) -> Any:
    """Return an OrtValue of `array` on `device`. On the CPU it shares memory, so keep the array alive."""
    ort = import_onnxruntime()
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), *_memory(device))


def owned_value(array: npt.NDArray[Any], device: Device) -> Any:
    """Return an OrtValue with a copy of `array` on `device`."""
    ort = import_onnxruntime()
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, *_memory(device))
    value.update_inplace(np.ascontiguousarray(array))
    return value


def _memory(device: Device) -> tuple[str, int]:
    """Return ONNX Runtime's name of the memory where values of a device live, and its number."""
    return device.entry.memory, 0 if device.on_host else int(device.unit)


def session_options(threads: int | None = None) -> Any:
    """Return the options of every session: `threads` per step (None: ONNX Runtime chooses), errors not logged.

    A buffer is freed after its last use. By default, ONNX Runtime keeps the buffers of a step for later tensors of the
    same sizes, and reserves a step's memory in one block. This makes no step faster. Steps with long segments become
    slower with it, and need up to twice the memory.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL_ONLY
    options.enable_mem_pattern = options.enable_mem_reuse = False
    # Spinning threads help while a step runs; between steps they would only occupy the caller's cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Long spinning takes cores from other programs: on a busy machine, two threads were slower than one.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
    options.add_session_config_entry(RECORD_PLACEMENT, "1")  # without measurable cost
    return options


def open_session(
    path: Path,
    device: Device,
    threads: int | None = None,
    *,
    strict: bool = False,
    captures: bool = False,
    profile: str | None = None,
    optimized: Path | None = None,
    data_files: Collection[str] = (),
    kernels: Kernels | None = None,
) -> Any:
    """Open an `onnxruntime.InferenceSession` of the graph in `path`, only on `device`.

    The device computes at least one node. A warning in the log counts the nodes that it leaves to the CPU. ONNX Runtime
    gets the checked content, so a file that is replaced meanwhile does no harm.

    Args:
        strict: require that the device computes everything except sizes of tensors. ONNX Runtime's own option
            `session.disable_cpu_ep_fallback` forbids sizes too, so graphs with free axes would not open.
        captures: let CUDA capture each run as a CUDA graph, so that the device must compute every node. Such a session
            needs bindings whose buffers stay in place.
        profile: path prefix of the file for ONNX Runtime's profile of all runs; None: no profile.
        optimized: a file into which ONNX Runtime writes the graph that it made of this one, weights beside it.
        data_files: names of files in the same folder that may hold the graph's weights.
        kernels: the library of kernels for custom operators, on the CPU; None: their bodies run.

    Raises:
        BundleGraphError: xlexport cannot have written the graph, or ONNX Runtime cannot load it.
        ProviderError: the device's execution provider is missing, does not start, computes nothing, or with `strict`
            lacks a kernel; or ONNX Runtime cannot use `kernels`.
    """
    ort = import_onnxruntime()
    options = session_options(threads)
    if device.on_host:
        options.add_session_config_entry("optimization.disable_specified_optimizers", SLOWER_FUSION)
        if kernels is not None and device.entry.kernels:
            _register(options, kernels)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_BESIDE)
    _require_provider(ort, device)
    settings = device.provider_options(threads, capture=captures)
    providers: list[Any] = [(device.provider, settings) if settings else device.provider]
    if device.provider != CPU_PROVIDER:
        providers.append(CPU_PROVIDER)  # for the few nodes that compute sizes
    content = read_graph(path, data_files)
    options.add_session_config_entry(WEIGHTS_FOLDER, os.fsencode(path.parent))  # the name may be any bytes
    options.add_session_config_entry("session.load_model_format", "ONNX")  # never ONNX Runtime's own format
    try:
        with contextlib.ExitStack() as opened:
            add_linked_files(options, path.parent, data_files, opened)
            session = ort.InferenceSession(content, sess_options=options, providers=providers, enable_fallback=0)
    except onnxruntime_errors() as error:
        reason = first_line(error)
        if device.provider.removesuffix("ExecutionProvider").upper() in str(error).upper():
            raise _not_started(device, reason) from error
        raise BundleGraphError(
            f"{path}: ONNX Runtime {ort.__version__} cannot load it ({reason}).",
            hint="Copy the bundle again, convert the checkpoint again, or upgrade ONNX Runtime.",
        ) from error
    session.disable_fallback()
    if session.get_providers()[0] != device.provider:
        raise _not_started(device, f"the session runs on {session.get_providers()[0]}")
    if device.provider != CPU_PROVIDER:
        allowed = frozenset() if captures else device.entry.on_cpu
        where = f"device {device}: {path}"
        require_placement(placed_nodes(session), device.provider, where, allowed, strict or captures)
    return session


def add_linked_files(options: Any, folder: Path, names: Iterable[str], opened: contextlib.ExitStack) -> None:
    """Map files that are links out of `folder`, as in the hub's cache: ONNX Runtime does not follow them."""
    real = folder.resolve()
    for name in names:
        place = (folder / name).resolve()
        if not place.is_relative_to(real) and place.is_file() and place.stat().st_size:
            file = opened.enter_context(place.open("rb"))
            content = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            options.add_external_initializers_from_files_in_memory([name], [content], [len(content)])


def _register(options: Any, kernels: Kernels) -> None:
    try:
        options.register_custom_ops_library(str(kernels.path))
    except onnxruntime_errors() as error:
        raise ProviderError(
            f"{kernels.path}: ONNX Runtime cannot use {kernels} ({first_line(error)}).",
            hint="Install ONNX Runtime and xlexport-ops again, or choose ops none: the results are the same.",
        ) from error


def _require_provider(ort: ModuleType, device: Device) -> None:
    """Check that this ONNX Runtime has the device's provider, and load the libraries that pip installed for it."""
    available, package = ort.get_available_providers(), device.entry.package
    if device.provider not in available:
        install = f"Install the wheel that has it: {_reinstall(package)}" if package else "Use one that it has"
        raise ProviderError(
            f"device {device}: onnxruntime {ort.__version__} has no {device.provider} (it has {', '.join(available)}).",
            hint=f"{install}; or use device cpu.",
        )
    if not device.on_host:
        with contextlib.redirect_stdout(sys.stderr):  # the library prints its report, and stdout is for data
            ort.preload_dlls()


def _reinstall(package: str | None = None) -> str:
    """Return the command that leaves one distribution of ONNX Runtime; None: the caller chooses which."""
    names = " ".join(sorted({*installed_wheels(), MODULE}))
    return f"pip uninstall -y {names} && pip install {package or f'{MODULE} (or {FOR_OTHERS})'}"


def _not_started(device: Device, reason: str) -> ProviderError:
    return ProviderError(
        f"device {device}: its execution provider did not start ({reason}).",
        hint=f"{device.entry.check}; or use device cpu.",
    )
