"""Check what is installed and what works with it, and suggest how to repair the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from xlexport.bundles import open_any_bundle
from xlexport.commands.options import json_option
from xlexport.commands.values import BUNDLE
from xlexport.errors import XlexportError
from xlexport.extras import install_command, is_installed, missing_packages, packages_of
from xlexport.sample import sample_checkpoint
from xlexport.terminal import print_json, print_table
from xlruntime import BundleError, Device, LoadOptions, ProviderError, XlruntimeError, __version__, known_answers
from xlruntime.execution_providers import PROVIDERS, ExecutionProvider
from xlruntime.kernels import DISTRIBUTION, Kernels, find_kernels
from xlruntime.providers import import_onnxruntime, installed_wheels, open_session

__all__ = ["OLDEST_PYTHON", "TINY_MODEL", "Finding", "doctor", "run_checks"]

OLDEST_PYTHON = (3, 11)
INSTALL_KERNELS = "pip install ./runtime/c"
PURPOSES = {
    "convert": "converting, verifying and the demo",
    "train": "training",
    "tensorboard": "curves of `train --set tensorboard=FOLDER`",
    "text": "bundles with a tokenizer.json or a SentencePiece model",
    "tables": "Parquet files",
    "plot": "plots of `plot`, `context` and `bench`",
    "images": "photographs, for experiments with images",
    "serve": "answering HTTP requests with `serve`",
    "lm-eval": "lm-evaluation-harness",
    "ray": "`score --ray`",
}
# The flags by which ONNX Runtime and its kernels choose their code.
INSTRUCTION_SETS = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
# A graph of one Gelu node (new in opset 20) with IR version 10, as a bundle's graphs have: x (N,) float32 -> y.
TINY_MODEL = bytes.fromhex(
    "080a3a380a0c0a0178120179220447656c75120474696e795a100a0178120b0a09080112050a0312014e62100a0179120b0a"
    "09080112050a0312014e42040a001014"
)


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool | None
    """True: good; False: must be repaired; None: only for information, something optional is missing."""
    detail: str
    hint: str | None = None
    """What to type or do if `ok` is not True."""


def run_checks(bundle: Path | None = None) -> list[Finding]:
    """Run all checks; the failure of one does not stop the others.

    Args:
        bundle: a folder whose known answers are compared, too.
    """
    version = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    new = sys.version_info >= OLDEST_PYTHON
    python = Finding("python", new, version, None if new else "Install Python 3.11 or newer.")
    checks = [python, Finding("numpy", True, f"numpy {np.__version__}"), _onnxruntime()]
    if checks[-1].ok:
        checks += [*map(_device, PROVIDERS), _kernels()]
        checks += [] if bundle is None else [_known_answers(bundle)]
    checks += [_extra(name) for name in PURPOSES]
    return [*checks, _sample(), _cores(), _memory(), _instruction_sets()]


def _onnxruntime() -> Finding:
    try:
        ort = import_onnxruntime()
    except ProviderError as error:
        return _failed("onnxruntime", error)
    wheels = ", ".join(f"{name} {version}" for name, version in installed_wheels().items())
    providers = ", ".join(ort.get_available_providers())
    return Finding("onnxruntime", True, f"{wheels or f'onnxruntime {ort.__version__}'}: {providers}")


def _device(entry: ExecutionProvider) -> Finding:
    """Run a graph of the opset and IR version that bundles have."""
    device = LoadOptions(device=entry.device).place
    name = f"graphs on {device.description}"
    if entry.name not in import_onnxruntime().get_available_providers():
        hint = f"For {entry.form}: pip uninstall -y {' '.join(installed_wheels())} && pip install {entry.package}."
        return Finding(name, None, f"this ONNX Runtime has no {entry.name}", hint)
    try:
        result = _run_tiny(device)
    except BundleError as error:
        return Finding(name, False, error.message.removesuffix("."), "Upgrade it: pip install -U onnxruntime.")
    except ProviderError as error:
        return _failed(name, error)
    good = result == [0.0, 30.0]
    return Finding(name, good, f"{entry.form}, opset 20, IR 10: " + ("runs" if good else f"wrong result {result}"))


def _run_tiny(device: Device, kernels: Kernels | None = None) -> list[float]:
    """Run a graph of one node on 0 and 30, and return the results.

    Raises:
        BundleError, ProviderError: as `open_session`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tiny.onnx")
        path.write_bytes(TINY_MODEL)
        session = open_session(path, device, threads=1, kernels=kernels)
        return list(map(float, session.run(None, {"x": np.array([0.0, 30.0], np.float32)})[0]))


def _kernels() -> Finding:
    """Let ONNX Runtime load the kernels for custom operators, if they are installed."""
    try:
        kernels = find_kernels("auto", Device("cpu"))
        if kernels is not None:
            _run_tiny(Device("cpu"), kernels)
    except (BundleError, ProviderError) as error:
        return _failed("kernels", error)
    if kernels is None:
        hint = f"For faster steps on a CPU, in a copy of the repository: {INSTALL_KERNELS}."
        return Finding("kernels", None, f"{DISTRIBUTION} is not installed: bodies of standard operators run", hint)
    if kernels.version != __version__:
        detail = f"{kernels}, but xlexport is {__version__}: operators that changed run as bodies"
        return Finding("kernels", None, detail, f"Install the same version: {INSTALL_KERNELS}.")
    return Finding("kernels", True, f"{kernels}: {kernels.path}")


def _known_answers(bundle: Path) -> Finding:
    """Compare a bundle's scores on this machine with those that it brings."""
    name = f"known answers of {bundle}"
    try:
        engine = open_any_bundle(bundle)
        result = known_answers.check(engine)
    except (BundleError, ProviderError) as error:
        return _failed(name, error)
    if result.passed is None:
        why = "the bundle has none: an earlier version wrote it, or its inputs did not suit"
        return Finding(name, None, why, "To get some, convert the checkpoint again.")
    if result.passed:
        return Finding(name, True, str(result))
    hint = "Convert the checkpoint again." if engine.kernels is None else "Choose --set ops=none."
    return Finding(name, False if result.certain else None, str(result), hint)


def _extra(extra: str) -> Finding:
    if not packages_of(extra):
        return Finding(extra, None, f"for {PURPOSES[extra]}: unknown, because xlexport itself is not installed")
    missing = missing_packages(extra)
    packages = [f"{name} {importlib.metadata.version(name)}" for name in packages_of(extra) if is_installed(name)]
    detail = f"for {PURPOSES[extra]}: {', '.join(packages) or 'nothing installed'}"
    if not missing:
        return Finding(extra, True, detail)
    return Finding(extra, None, f"{detail}; missing {', '.join(missing)}", install_command(missing))


def _sample() -> Finding:
    try:
        path = sample_checkpoint()
    except XlexportError as error:
        return _failed("sample checkpoint", error, ok=None)
    return Finding("sample checkpoint", True, f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    detail = f"{usable} of {os.cpu_count()} usable by this process, load {load:.1f}"
    # What a container allows; ONNX Runtime ignores it.
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "max").strip().partition(" ")
    allowed = int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
    if allowed is None or (usable is not None and allowed >= usable):
        busy = "Other programs keep them busy, and PyTorch suffers most: --threads 1 may be faster."
        return Finding("cores", True, detail) if load < (usable or 1) else Finding("cores", None, detail, busy)
    hint = f"Use --threads {max(1, int(allowed))}."
    return Finding("cores", None, f"{detail}; its container may use {allowed:g}", hint)


def _memory() -> Finding:
    fields = {}
    for line in (_read("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    if "MemAvailable" not in fields:
        return Finding("memory", None, "unknown on this system")
    detail = f"{fields['MemAvailable'] / 1e9:.1f} GB available of {fields['MemTotal'] / 1e9:.1f} GB"
    limit = (_read("/sys/fs/cgroup/memory.max") or "max").strip()
    return Finding("memory", True, detail + (f"; container limit {int(limit) / 1e9:.1f} GB" if limit.isdigit() else ""))


def _instruction_sets() -> Finding:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, ARM
            flags = set(value.split())
            usable = [flag for flag in INSTRUCTION_SETS if flag in flags]
            return Finding("instruction sets", True, f"{platform.machine()}: {' '.join(usable) or 'none of note'}")
    return Finding("instruction sets", None, f"{platform.machine()}: unknown on this system")


def _failed(name: str, error: XlexportError | XlruntimeError, ok: bool | None = False) -> Finding:
    """Return an error as the result of a check."""
    return Finding(name, ok, error.message.removesuffix("."), error.hint)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return None


@click.command()
@click.argument("bundle", type=BUNDLE, required=False)
@json_option("the checks")
def doctor(bundle: Path | None, as_json: bool) -> None:
    """Check this installation: what works, what is missing, and how to repair it.

    With BUNDLE, also compare its scores on this machine with the known answers that it brings.
    """
    checks = run_checks(bundle)
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        marks = {True: "ok", False: "FAILED", None: "info"}
        print_table(
            [
                (f"{marks[check.ok]:6} {check.name}", check.detail + (f". {check.hint}" if check.hint else ""))
                for check in checks
            ]
        )
    if any(check.ok is False for check in checks):
        click.get_current_context().exit(1)
