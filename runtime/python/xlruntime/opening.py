"""Open a bundle as one of the interfaces for applications: a model of documents, or a translator."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

from .bundle import Bundle
from .bundle_files import BundleFiles, check_digests, read_bundle
from .engine import Engine
from .errors import BundleFormatError, OptionError
from .load_options import LoadOptions

__all__ = ["open_as"]

E = TypeVar("E", bound=Engine)

logger = logging.getLogger("xlruntime.model")


def open_as(kind: type[E], folder: str | Path, options: LoadOptions, *, translates: bool) -> E:
    """Open a bundle; see `load`.

    Args:
        kind: the interface.
        translates: whether it is for bundles with an encoder.

    Raises:
        BundleError, ProviderError, OptionError: as `load`; or the bundle needs another interface.
    """
    path = Path(folder)
    bundle = read_bundle(path, options.digest, check_files=False)
    _check_kind(path, bundle, translates)
    files = BundleFiles(path, bundle)  # before digests are compared, to notice files replaced meanwhile
    size = sum(file.size for file in bundle.files.values())
    checked = "compared with their digests" if options.check_files else "not compared with their digests"
    logger.info("%s: opening %s, %s", path, bundle.architecture, bundle.precision)
    if options.check_files:
        check_digests(path, bundle.files)
    logger.info("%s: %d files, %s bytes, %s", path, len(bundle.files), f"{size:,}", checked)
    if options.cuda_graphs and not any(graph.static for graph in bundle.graphs.values()):
        raise OptionError(
            f"{path}: no graphs for cuda_graphs.", hint="Convert the checkpoint again with --set cuda_graphs=true."
        )
    return kind(path, bundle, options, files=files)


def _check_kind(folder: Path, bundle: Bundle, translates: bool) -> None:
    if translates and bundle.encoder is None:
        raise BundleFormatError(
            f"{folder}: a language model, which has no encoder, so it translates nothing.",
            hint="Score or continue documents with it (xlruntime.load), or give the bundle of an encoder-decoder.",
        )
    if not translates and bundle.encoder is not None:
        raise BundleFormatError(
            f"{folder}: an encoder-decoder, which turns one text into another, so it neither scores nor continues "
            "documents.",
            hint="Use `xlexport translate`, or open it with xlruntime.load_translator.",
        )
