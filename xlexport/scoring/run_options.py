"""The choices of a scoring run, the interfaces to its caller, and a description by which a later process knows it."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from xlexport import __version__
from xlexport.scoring.inputs import Input, Reading, digest_inputs
from xlexport.scoring.output_formats import Format
from xlexport.scoring.records import Level
from xlexport.scoring.totals import Totals
from xlruntime import EvaluationSettings, Model, TokenScores
from xlruntime.providers import import_onnxruntime
from xlruntime.scorer import BatchSize

__all__ = ["Reporter", "RunOptions", "Sink", "describe_run"]


@dataclass(frozen=True)
class RunOptions:
    """The choices of a run, except model and evaluation settings.

    Attributes:
        per: the unit of one record; kind: the format of the records.
        reading: how inputs become documents.
        separator: with `continuous`, the text between documents; its tokens belong to none of them.
        batch_size: most documents at a time; `auto`: batches of similar lengths.
        detail: number of likeliest tokens in a token's record, with rank and entropy; None: no detail at all.
        bos: name or text of a token that the model reads before each document; None: none.
        corrected: whether words and regions have surprisal with the correction for boundaries, too.
        by_chunks: whether the run goes on after whole documents, with any number of processes (`chunk_run`).
        strict: whether the first document that fails ends the run.
    """

    per: Level = "document"
    kind: Format = "text"
    reading: Reading = dataclasses.field(default_factory=Reading)
    batch_size: BatchSize = 1
    detail: int | None = None
    continuous: bool = False
    separator: str = ""
    strict: bool = False
    bos: str | None = None
    corrected: bool = False
    by_chunks: bool = False


class Sink(Protocol):
    """Where records go."""

    def write(self, raw: bytes) -> None:
        """More of them."""

    def flush(self) -> None:
        """Make everything written so far visible to readers."""


class Reporter(Protocol):
    """An object that shows a person or a program what happens in a run, in addition to its records."""

    def tell(self, line: str) -> None:
        """Show a line."""

    def fail(self, document: str, error: Exception) -> None:
        """Show why a document has no score."""

    def total(self, fields: Mapping[str, Any]) -> None:
        """Show the total of a document, if the records describe its parts."""

    def resumed(self, totals: Totals) -> None:
        """Count documents that an earlier process scored."""

    def take(self, part: TokenScores) -> None:
        """Count the tokens that a step scored."""

    def clear(self) -> None:
        """Remove the progress line from the terminal."""


def describe_run(
    model: Model, settings: EvaluationSettings, options: RunOptions, inputs: Sequence[Input]
) -> dict[str, Any]:
    """Return everything that the bytes of a run's output depend on, except the processor, for JSON.

    This reads the inputs.
    """
    reading, tokenizer = options.reading, model.bundle.tokenizer
    library = {tokenizer.kind} & {"tokenizers", "sentencepiece"}  # kinds with the name of the library that runs them
    return {
        "bundle": model.bundle.fingerprint,
        "tokenizer": {
            **asdict(tokenizer),
            "sha256": getattr(model.bundle.files.get(tokenizer.file or ""), "sha256", None),
        },
        "settings": {**settings.to_dict(), "first_memory": settings.fresh_memory},
        "options": {
            "--per": options.per,
            "--format": options.kind,
            "--batch-size": options.batch_size,
            "documents shared by processes": options.by_chunks,
            "--top": options.detail,
            "--continuous": options.continuous,
            "--bos": options.bos,
            "--boundary": "corrected" if options.corrected else "plain",
            "--region-field": reading.region_field,
            "--separator": repr(options.separator),
            "--separator after contexts": None if reading.context_field is None else repr(reading.separator),
            "--ids": reading.ids,
            "--field": reading.field,
            "--id-field": reading.id_field,
            "--context-field": reading.context_field,
            "--keep": None if reading.keep is None else ",".join(reading.keep),
            "--set binary": reading.binary,
            "--set max_document_bytes": [reading.line_limits.bytes, reading.document_limits.bytes],
            "--device": str(model.device),
            "--threads": model.threads,
        },
        "versions": {
            "xlexport": __version__,
            "ONNX Runtime": import_onnxruntime().__version__,
            "NumPy": np.__version__,
            "kernels": str(model.kernels or "none"),
            **{name: import_module(name).__version__ for name in library},
            "machine": platform.machine(),
        },
        "inputs": digest_inputs(inputs),
    }
