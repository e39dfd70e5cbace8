"""Checkpoints that `xlexport train` writes: one `.pt` file, or a folder of `model.safetensors` and `config.json`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import CONFIG, inside, read_json, read_tensors
from xlexport.checkpoints.safe_pickle import is_archive, summarize
from xlexport.checkpoints.source import SourceCheckpoint, model_source
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.recurrent.source import recurrent_source
from xlruntime.errors import VocabularyError
from xlruntime.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from xltraining.data.tokenizer_file import TokenizerFile

__all__ = ["NAME", "load", "matches"]

NAME = "xltraining"
FOLDER_FILES = (CONFIG, "model.safetensors")


def matches(path: Path) -> bool:
    """Return whether the file or folder says that it is of this format."""
    if path.is_dir():
        config = path / CONFIG
        try:
            return config.is_file() and read_json(config).get("format") == NAME
        except CheckpointError:
            return False
    summary = summarize(path)
    return summary is not None and ("format", NAME) in itertools.pairwise(summary.strings)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. It holds its own configuration, so `config` must be empty."""
    require("convert")
    from xltraining.architectures import model_class
    from xltraining.checkpoint import checkpoint_from
    from xltraining.data.tokenizer_file import TokenizerFile
    from xltraining.errors import XltrainingError

    if config:
        raise CheckpointError(f"{path}: holds its own configuration.", hint="Leave out --config.")
    files = [inside(path, name) for name in FOLDER_FILES] if path.is_dir() else [path]
    content = _read_folder(path, *files) if path.is_dir() else _read_file(path)
    try:
        checkpoint = checkpoint_from(content, path)
    except XltrainingError as error:
        raise CheckpointError(error.message, error.hint) from error
    tokenizer: str | Vocabulary | TokenizerFile | None = checkpoint.tokenizer
    if isinstance(tokenizer, TokenizerFile) and tokenizer.kind == "vocabulary":
        tokenizer = _vocabulary(tokenizer, path)
    source, own = model_source(path, NAME, checkpoint, tokenizer=tokenizer, files=files), checkpoint.config
    if not hasattr(model_class(own), "first_state"):
        return source
    recurrent = recurrent_source(
        source.build_model,
        NAME,
        model=own.NAME,
        n_token=own.n_token,
        parameters=source.parameters,
        sizes={name: size for name, size in source.config.items() if size is not None},
        files=files,
        segment_len=own.tgt_len,
        tokenizer=tokenizer,
    )
    return replace(recurrent, about=source.about)


def _vocabulary(tokenizer: TokenizerFile, path: Path) -> Vocabulary:
    try:
        return Vocabulary.from_json(tokenizer.content.decode("utf-8"), f"the vocabulary in {path}")
    except VocabularyError as error:
        raise CheckpointError(error.message, hint="Train with the prepared data again.") from error


def _read_folder(path: Path, config: Path, weights: Path) -> dict[str, Any]:
    missing = [file.name for file in (config, weights) if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: the folder holds no {' and no '.join(missing)}.", hint="Give a .pt file or a folder with both."
        )
    return {**read_json(config), "state_dict": read_tensors(weights)}


def _read_file(path: Path) -> dict[Any, Any]:
    if not is_archive(path):
        raise CheckpointError(f"{path}: not a file that `xlexport train` wrote.", hint="Check the path.")
    return read_tensors(path)
