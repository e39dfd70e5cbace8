"""The targets by name, and the kept corpus of each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from tests.reliability.guided.target import Target

__all__ = ["CORPUS", "PACKAGES", "TARGETS", "import_readers", "make_target", "read_corpus"]

PACKAGE = "tests.reliability.guided"
CORPUS = Path(__file__).resolve().parent / "corpus"
PACKAGES = ("xlexport", "xlruntime", "xltraining")  # the search follows the branches of these, not of libraries
TARGETS = {  # name: module, relative to this package if it begins with a dot; class
    "pickle": (".pickle_readers", "Pickle"),
    "summary": (".pickle_readers", "Summary"),
    "torch-pickle": (".pickle_readers", "TorchPickle"),
    "torch-archive": (".pickle_readers", "TorchArchive"),
    "torch-legacy": (".pickle_readers", "TorchLegacy"),
    "tensorflow-index": (".tensor_readers", "TensorFlowIndex"),
    "tensorflow-table": (".tensor_readers", "TensorFlowTable"),
    "safetensors": (".tensor_readers", "Safetensors"),
    "config-xltraining": (".config_readers", "OwnConfig"),
    "config-huggingface": (".config_readers", "HuggingFaceConfig"),
    "config-given": (".config_readers", "GivenConfig"),
    "vocabulary": (".vocabulary_readers", "VocabularyFile"),
    "vocabulary-json": (".vocabulary_readers", "VocabularyJson"),
    "tokenizer-json": (".vocabulary_readers", "TokenizerJson"),
    "sentencepiece": (".vocabulary_readers", "SentencePiece"),
    "manifest": (".bundle_readers", "Manifest"),
    "graph": (".graph_readers", "GraphFile"),
    "evaluation": (".bundle_readers", "Evaluation"),
    "json-lines": (".text_readers", "JsonLines"),
    "json-ids": (".text_readers", "JsonIds"),
    "table": (".text_readers", "Table"),
    "ids": (".text_readers", "Ids"),
    "regions": (".text_readers", "Regions"),
    "gzip": (".text_readers", "Gzip"),
    "utf-8": (".text_readers", "Utf8"),
    "words": (".text_readers", "Words"),
    "stream-state": (".state_readers", "StreamBytes"),
    "stream-fields": (".state_readers", "StreamFields"),
}


def import_readers(names: Iterable[str]) -> None:
    """Import the modules of targets, and with them the readers."""
    for name in names:
        importlib.import_module(TARGETS[name][0], PACKAGE)


def make_target(name: str, folder: Path) -> Target:
    """Make a target, with `folder` for its files."""
    module, kind = TARGETS[name]
    made: Target = getattr(importlib.import_module(module, PACKAGE), kind)(folder)
    return made


def read_corpus(name: str, corpus: Path = CORPUS) -> dict[Path, bytes]:
    """Return the kept inputs of a target by their files, in the order of their names."""
    folder = corpus / name
    return {file: file.read_bytes() for file in sorted(folder.iterdir())} if folder.is_dir() else {}
