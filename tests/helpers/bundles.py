"""Tiny checkpoints and their bundles, each made once for all tests of a session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.export_cache import cached_exports
from tests.helpers.shared import shared_folder
from tests.helpers.tiny import BAND, CHUNK, PAPER, tiny_model, tiny_reformer
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.fixed_shapes import FixedShapes
from xlexport.formats import load
from xlexport.verification.parity import ParityReport
from xlruntime import Model
from xlruntime import load as load_bundle
from xlruntime.load_options import LoadOptions
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL

OTHER_CHOICES = {"pre_lnorm": True, "first_memory": "zeros", "clamp_len": 15, "same_length": True, "tie_weight": False}


@dataclass(frozen=True)
class _Bundle:
    """A bundle that was made of a tiny checkpoint."""

    source: SourceCheckpoint
    folder: Path
    report: ParityReport

    @functools.cached_property
    def _opened(self) -> Model:
        return load_bundle(self.folder, threads=1)

    def open(self) -> Model:
        """Return a new `Model`, which a test may break. All share their sessions, which take long to open."""
        return Model(
            self.folder,
            self._opened.bundle,
            LoadOptions(threads=1),
            open_session=lambda purpose, _: self._opened.session(purpose),
        )


@dataclass(frozen=True)
class Converted(_Bundle):
    """A tiny Transformer-XL and its bundle."""

    checkpoint: Path
    model: TransformerXL


@dataclass(frozen=True)
class ConvertedReformer(_Bundle):
    """A tiny Reformer and its bundle."""

    model: Reformer


def convert_tiny(factory: pytest.TempPathFactory, name: str, options: ConversionOptions, **changes: Any) -> Converted:
    """Convert a tiny Transformer-XL into the session's folder of this name."""

    def make(folder: Path) -> ParityReport:
        made = tiny_model(**changes)
        save_checkpoint(folder / "checkpoint.pt", made.config, made.state_dict())
        with cached_exports():
            return convert(load(folder / "checkpoint.pt"), folder / "bundle", options).report

    folder, report = shared_folder(factory, name, make)
    checkpoint = folder / "checkpoint.pt"
    return Converted(load(checkpoint), folder / "bundle", report, checkpoint, tiny_model(**changes))


def convert_tiny_reformer(
    factory: pytest.TempPathFactory, name: str, config: ReformerConfig, inline: bool = False
) -> ConvertedReformer:
    """Convert a tiny Reformer into the session's folder of this name."""

    def make(folder: Path) -> ParityReport:
        save_checkpoint(folder / "checkpoint.pt", config, tiny_reformer(config).state_dict(), tokenizer=None)
        with cached_exports():
            options = ConversionOptions(tokenizer="none", threads=1, inline=inline)
            return convert(load(folder / "checkpoint.pt"), folder / "bundle", options).report

    folder, report = shared_folder(factory, name, make)
    return ConvertedReformer(load(folder / "checkpoint.pt"), folder / "bundle", report, tiny_reformer(config))


@pytest.fixture(scope="session")
def bytes_bundle(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Return a bundle with post-LayerNorm, empty first memory and a byte vocabulary; tests must not change it."""
    return convert_tiny(tmp_path_factory, "bytes", ConversionOptions(), n_token=256)


@pytest.fixture(scope="session")
def ids_bundle(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Return a bundle with the other choices: pre-LayerNorm, zeros as first memory, clamped, same_length, token ids."""
    return convert_tiny(tmp_path_factory, "ids", ConversionOptions(tokenizer="none"), **OTHER_CHOICES)


@pytest.fixture(scope="session")
def fixed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """Return the model of `ids_bundle` with graphs of fixed shapes, for 8 tokens and for one."""
    options = ConversionOptions(tokenizer="none", fixed=FixedShapes.parse("segment=8"))
    return convert_tiny(tmp_path_factory, "fixed", options, **OTHER_CHOICES)


@pytest.fixture(scope="session")
def band(tmp_path_factory: pytest.TempPathFactory) -> ConvertedReformer:
    """Return a bundle with all kinds of layers, LSH attention by rule `band`; tests must not change it."""
    return convert_tiny_reformer(tmp_path_factory, "band", BAND)


@pytest.fixture(scope="session")
def chunk(tmp_path_factory: pytest.TempPathFactory) -> ConvertedReformer:
    """Return a bundle with LSH attention by rule `chunk`, where a document is one step."""
    return convert_tiny_reformer(tmp_path_factory, "chunk", CHUNK)


@pytest.fixture(scope="session")
def paper(tmp_path_factory: pytest.TempPathFactory) -> ConvertedReformer:
    """Return a bundle with LSH attention by rule `paper`, where a document is one step."""
    return convert_tiny_reformer(tmp_path_factory, "paper", PAPER)


@pytest.fixture
def reuse_export(bytes_bundle: Converted, reuse_graphs: Callable[[Path], None]) -> None:
    """Make `convert` reuse the graphs of `bytes_bundle`."""
    reuse_graphs(bytes_bundle.folder)
