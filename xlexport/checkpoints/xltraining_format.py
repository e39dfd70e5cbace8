"""Checkpoints that `xlexport train` writes: one `.pt` file, or a folder of `model.safetensors` and `config.json`."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path

from xlexport.checkpoints.pickles import check_archive, is_archive, summarize
from xlexport.checkpoints.source import SourceCheckpoint, digest_files
from xlexport.errors import CheckpointError
from xlexport.extras import require

__all__ = ["NAME", "load", "matches"]

NAME = "xltraining"
FOLDER_FILES = ("config.json", "model.safetensors")


def matches(path: Path) -> bool:
    """Whether the file or folder says that it is of this format."""
    if path.is_dir():
        return _config_says_so(path / "config.json")
    summary = summarize(path)
    return summary is not None and summary.has_entry("format", NAME)


def load(path: Path) -> SourceCheckpoint:
    """Read the checkpoint, running no code of it.

    Raises:
        CheckpointError: it is damaged, does not fit its configuration, or has weights that are not finite.
        MissingDependencyError: torch is not installed.
    """
    require("convert")
    from xltraining.checkpoint import build_model, load_checkpoint
    from xltraining.errors import XltrainingError

    if path.is_file():
        if not is_archive(path):
            raise CheckpointError(f"{path}: not a file that `xlexport train` wrote. Check the path.")
        check_archive(path)
    try:
        with warnings.catch_warnings():  # torch warns of unusual pickles before it refuses them: one error says it
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)
            checkpoint = load_checkpoint(path)
    except XltrainingError as error:
        raise CheckpointError(str(error)) from error
    broken = [name for name, tensor in checkpoint.state_dict.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise CheckpointError(
            f"{path}: infinite or undefined weights in {', '.join(broken)}. Use a checkpoint of before it diverged."
        )
    files = [path / name for name in FOLDER_FILES] if path.is_dir() else [path]
    return SourceCheckpoint(
        architecture="transformer_xl",
        format=NAME,
        config=checkpoint.config.to_dict(),
        tokenizer=checkpoint.tokenizer,
        files=digest_files(*files),
        build_model=functools.partial(build_model, checkpoint),
    )


def _config_says_so(config: Path) -> bool:
    try:
        content = json.loads(config.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == NAME
