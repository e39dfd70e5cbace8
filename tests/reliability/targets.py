"""The targets by name, and the kept inputs of each.

`corpus.zip` has a folder a target: inputs of earlier searches, named by their SHA-1, and repaired findings.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.reliability import bundle_targets, checkpoint_targets, document_targets
from tests.reliability.target import Target

CORPUS = Path(__file__).with_name("corpus.zip")
TARGETS: Mapping[str, type[Target]] = {
    "pickle": checkpoint_targets.Pickle,
    "torch-pickle": checkpoint_targets.TorchPickle,
    "torch-archive": checkpoint_targets.TorchArchive,
    "torch-legacy": checkpoint_targets.TorchLegacy,
    "tensorflow-table": checkpoint_targets.TensorFlowTable,
    "vocabulary": checkpoint_targets.VocabularyFile,
    "vocabulary-json": bundle_targets.VocabularyJson,
    "tokenizer-json": bundle_targets.TokenizerJson,
    "sentencepiece": bundle_targets.SentencePiece,
    "manifest": bundle_targets.Manifest,
    "graph": bundle_targets.GraphFile,
    "stream-fields": bundle_targets.StreamFields,
    "table": document_targets.Table,
    "utf-8": document_targets.Utf8,
    "words": document_targets.Words,
}


def corpus(name: str) -> dict[str, bytes]:
    """Return the kept inputs of a target by their names."""
    with zipfile.ZipFile(CORPUS) as archive:
        names = [member for member in archive.namelist() if member.startswith(f"{name}/")]
        return {member.rpartition("/")[2]: archive.read(member) for member in sorted(names)}
