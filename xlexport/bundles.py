"""Open bundles in ONNX Runtime or PyTorch, and write them completely or not at all."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import xlruntime
from xlexport import atomic_output
from xlruntime.bundle import RUN, Bundle
from xlruntime.bundle_files import is_bundle, read_bundle
from xlruntime.errors import BundleDamagedError
from xlruntime.graph_gate import read_graph
from xlruntime.hub_cache import bundle_folder
from xlruntime.limits import Limits, read_json
from xlruntime.load_options import LoadKeywords

if TYPE_CHECKING:
    from xlruntime import Model, StepModel, Translator

__all__ = [
    "DESCRIPTIONS",
    "PARITY_FILE",
    "REPORT_FILE",
    "SMALL_TENSOR_BYTES",
    "WEIGHTS_FILE",
    "check_graphs",
    "check_output",
    "open_any_bundle",
    "open_bundle",
    "open_translator",
    "origin",
    "publishing",
    "recorded_options",
    "scale_of",
    "stored_parity",
]

PARITY_FILE = "parity.json"  # the figures of the verification
REPORT_FILE = "quantization.json"  # what quantization has cost
DESCRIPTIONS = ("README.md", PARITY_FILE, REPORT_FILE)  # for people, who may edit them
PARITY_LIMITS = Limits(bytes=64 << 20)
WEIGHTS_FILE = "weights.data"  # for all graphs of a bundle
SMALL_TENSOR_BYTES = 1024  # smaller initializers stay in the graph, where shape inference can see them


def open_bundle(folder: str | Path, *, trust: bool = False, **options: Unpack[LoadKeywords]) -> Model:
    """Open a bundle with `xlruntime.load`, or with `trust` and graphs for PyTorch with `xlexport.torch_runtime.load`.

    Args:
        trust: whether code in the bundle may run.
        options: the options of `xlruntime.load`.

    Raises:
        BundleError, ProviderError, OptionError: as in both functions.
    """
    opened: Model = _runtime(folder, trust).load(folder, **options)
    return opened


def open_translator(folder: str | Path, *, trust: bool = False, **options: Unpack[LoadKeywords]) -> Translator:
    """Open an encoder-decoder as `open_bundle` opens language models."""
    opened: Translator = _runtime(folder, trust).load_translator(folder, **options)
    return opened


def open_any_bundle(
    folder: str | Path, *, trust: bool = False, **options: Unpack[LoadKeywords]
) -> Model | Translator | StepModel:
    """Open a bundle with `load_step_model` if it is a step model, `open_translator` or `open_bundle`."""
    bundle = read_bundle(bundle_folder(folder), check_files=False)
    if bundle.purpose == RUN:
        return xlruntime.load_step_model(folder, **options)
    return (open_bundle if bundle.encoder is None else open_translator)(folder, trust=trust, **options)


def _runtime(folder: str | Path, trust: bool) -> Any:
    """Return the module that opens a bundle: `xlexport.torch_runtime` only with `trust`."""
    if trust:
        graphs = read_bundle(bundle_folder(folder), check_files=False).graphs
        if any(graph.format != "onnx" for graph in graphs.values()):
            from xlexport import torch_runtime

            return torch_runtime
    return xlruntime


def scale_of(ring: str) -> str:
    """Return the name of the scales, one a row, of a ring of integers."""
    return f"{ring}_scale"


def origin(bundle: Bundle) -> str:
    """Return what a bundle was converted from: the name of a model, or the names of its files."""
    options, sources = bundle.provenance.get("options"), bundle.provenance["sources"]
    model = options.get("model") if isinstance(options, dict) else None
    return str(model or ", ".join(sources) or bundle.config.get("model"))


def recorded_options(
    bundle: Bundle, format: str | None, config: Mapping[str, Any] | None
) -> tuple[str | None, dict[str, Any] | None]:
    """Return `format` and `config` for `formats.load`: what `convert` was given, unless the user gives it anew."""
    options = bundle.provenance.get("options")
    recorded = options if isinstance(options, dict) else {}
    before = recorded.get("config")
    merged = {**(before if isinstance(before, dict) else {}), **(config or {})}
    return format or recorded.get("format"), merged or None


def check_graphs(folder: Path, bundle: Bundle) -> list[str]:
    """Check the ONNX files of the bundle in `folder` as `xlruntime.load` does, and return their names.

    Raises:
        BundleDamagedError: a file is missing, or leads out of the folder.
        BundleGraphError: xlexport cannot have written a graph.
    """
    files = {graph.file for graph in bundle.graphs.values() if graph.format == "onnx"}
    files |= {name for name in bundle.files if name.endswith(".onnx")}
    for name in sorted(files):
        read_graph(folder / name, bundle.files)
    return sorted(files)


def check_output(output: Path, force: bool) -> None:
    """Refuse an output path that must not be replaced, before any work is done.

    Raises:
        OutputExistsError: the output exists and is not a bundle, or is a link, or is a bundle and `force` is off.
        OutputFolderError: its parent folder does not exist.
    """
    atomic_output.check_own_folder(output, force, is_bundle, "a bundle")


def publishing(output: Path, force: bool = False) -> AbstractContextManager[Path]:
    """Return a context with a folder to fill that becomes the bundle `output`; see `atomic_output.folder`.

    Raises:
        OutputExistsError, OutputFolderError: as in `check_output`.
    """
    return atomic_output.folder(output, functools.partial(check_output, output, force))


def stored_parity(folder: Path) -> dict[str, Any] | None:
    """Return the figures with which a bundle was verified; None if it has none.

    Raises:
        BundleDamagedError: the file is larger than any report.
        OSError: it cannot be read.
    """
    if not (folder / PARITY_FILE).is_file():
        return None
    figures = read_json(folder / PARITY_FILE, PARITY_LIMITS, BundleDamagedError)
    return figures if isinstance(figures, dict) else None
