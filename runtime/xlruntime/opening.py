"""Open a bundle as one of the interfaces for applications: a model of documents, or a translator."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TypeVar

from .bundle import check_digests, read_bundle
from .bundle_files import BundleFiles
from .deadline import Deadline
from .devices import parse_device
from .engine import Engine
from .errors import BundleError, OptionError
from .kernels import find_kernels
from .spec import Bundle

__all__ = ["open_as"]

E = TypeVar("E", bound=Engine)

logger = logging.getLogger("xlruntime.model")


def open_as(
    kind: type[E],
    folder: str | Path,
    *,
    translates: bool,
    device: str = "cpu",
    threads: int | None = None,
    check_files: bool = True,
    strict_device: bool = False,
    cuda_graphs: bool = False,
    step_timeout: float | None = None,
    ops: str | Path = "auto",
) -> E:
    """Open a bundle; see `load`.

    Args:
        kind: the interface.
        translates: whether it is for bundles with an encoder.

    Raises:
        BundleNotFoundError, BundleError, ProviderError, OptionError: as `load`; or the bundle needs another interface.
    """
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}, at least 1 is needed.")
    path, where = Path(folder), parse_device(device)
    if cuda_graphs and where.kind != "cuda":
        raise OptionError(
            f"cuda_graphs needs a CUDA device, but the device is {where}.", repair="Leave it out, or choose cuda."
        )
    deadline = None if step_timeout is None else Deadline(step_timeout)
    kernels = find_kernels(ops, where)
    bundle = read_bundle(path, check_files=False)
    _check_kind(path, bundle, translates)
    _warn_of_saturation(path, bundle)
    files = BundleFiles(path, bundle)  # before digests are compared, to notice files replaced meanwhile
    size = sum(file.size for file in bundle.files.values())
    checked = "compared with their digests" if check_files else "not compared with their digests"
    logger.info("%s: opening %s, %s", path, bundle.architecture, bundle.precision)
    if check_files:
        check_digests(path, bundle.guarded_files)
    logger.info("%s: %d files, %s bytes, %s", path, len(bundle.files), f"{size:,}", checked)
    if cuda_graphs and not any(purpose.endswith("_fixed") for purpose in bundle.graphs):
        raise OptionError(
            f"{path}: no graphs for cuda_graphs.", repair="Convert the checkpoint again with --cuda-graphs."
        )
    opened = kind(path, bundle, where, threads, strict_device, files=files, deadline=deadline, kernels=kernels)
    if cuda_graphs:
        opened.use_fixed()
    return opened


def _check_kind(folder: Path, bundle: Bundle, translates: bool) -> None:
    if translates and bundle.encoder is None:
        raise BundleError(
            f"{folder}: a language model, which has no encoder, so it translates nothing.",
            repair="Score or continue documents with it (xlruntime.load), or give the bundle of an encoder-decoder.",
        )
    if not translates and bundle.encoder is not None:
        raise BundleError(
            f"{folder}: an encoder-decoder, which turns one text into another, so it neither scores nor continues "
            "documents.",
            repair="Use `xlexport translate`, or open it with xlruntime.load_translator.",
        )


def _warn_of_saturation(folder: Path, bundle: Bundle) -> None:
    """Warn of an int8 bundle whose weights were not limited to what 16 bits can hold."""
    quantization = bundle.provenance.get("quantization")
    if bundle.precision == "int8" and not (isinstance(quantization, dict) and "largest_pair" in quantization):
        warnings.warn(
            f"{folder}: an earlier version quantized it to int8, and sums may saturate on processors without VNNI, so "
            "scores may be wrong there. Quantize the float32 bundle again.",
            stacklevel=4,
        )
