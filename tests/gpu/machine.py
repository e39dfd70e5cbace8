"""Describe the machine, and check that PyTorch and ONNX Runtime can use the GPU in one process, as the tests do."""

from __future__ import annotations

import platform
import subprocess
from typing import Any

import numpy as np

from benchmarks.sides import machine
from tests.gpu.parts import PartError, Record, Settings
from tests.helpers.paths import EMPTY, golden_bundle
from xlruntime import load
from xlruntime.providers import import_onnxruntime

__all__ = ["USABLE", "describe_machine"]

USABLE = "usable"  # a figure: whether ONNX Runtime runs a bundle on the device


def describe_machine(settings: Settings, record: Record) -> None:
    """Record the versions, then compute a product with PyTorch and a few scores with ONNX Runtime.

    Raises:
        PartError: a library has no CUDA, or both are built for different versions of it.
    """
    _use_onnxruntime(settings, record)  # before PyTorch's libraries are loaded, and below after them
    import torch

    ort = import_onnxruntime()
    cuda = {"torch": torch.version.cuda, "onnxruntime": getattr(ort, "cuda_version", None) or None}
    facts: dict[str, Any] = {**machine(), "cuda_versions": cuda, "platform": platform.platform()}
    record(facts)
    if settings.on_cuda:
        record({"driver": _driver(settings.index)})
        if not torch.cuda.is_available():
            raise PartError(f"PyTorch {torch.__version__} finds no CUDA device; its CUDA version is {cuda['torch']}")
        record({"gpu": torch.cuda.get_device_name(settings.index)})
        majors = {name: version.partition(".")[0] for name, version in cuda.items() if version}
        if len(set(majors.values())) > 1:
            raise PartError(
                f"PyTorch is built for CUDA {cuda['torch']}, ONNX Runtime for {cuda['onnxruntime']}, but one process "
                "loads one cuDNN. Install a PyTorch for the same CUDA."
            )
    ones = torch.ones(64, 64, device=settings.device)
    if not bool((ones @ ones == 64).all()):
        raise PartError("PyTorch's product of ones is wrong")
    _score(settings)


def _use_onnxruntime(settings: Settings, record: Record) -> None:
    """Check that ONNX Runtime can use the device; otherwise no other part can."""
    record({USABLE: False})
    _score(settings)
    record({USABLE: True})


def _score(settings: Settings) -> None:
    model = load(golden_bundle(EMPTY), device=settings.device)
    scores = model.stream().feed(np.arange(100) % model.bundle.vocab_size).log_probs
    if not np.isfinite(scores).all():
        raise PartError("ONNX Runtime's scores are not finite")


def _driver(index: int) -> str | None:
    """Return the description of the device by nvidia-smi, if that program is installed."""
    query = "name,driver_version,memory.total"
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
