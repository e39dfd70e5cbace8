"""A Hugging Face folder: `config.json`, weights, and perhaps the tokenizer. The configuration chooses the reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import CONFIG, inside, read_json
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.recurrent import huggingface as recurrent
from xlexport.families.recurrent import mamba_ssm, rwkv7_folder
from xlexport.families.reformer import huggingface as reformer
from xlexport.families.transformer_xl import huggingface as transformer_xl
from xlruntime.messages import shown

__all__ = ["NAME", "load", "matches"]

NAME = "huggingface"
READERS = (transformer_xl, reformer, recurrent, rwkv7_folder, mamba_ssm)


def matches(path: Path) -> bool:
    """Return whether `path` is a folder whose `config.json` is that of a known family."""
    config = path / CONFIG
    if not path.is_dir() or not config.is_file():
        return False
    try:
        content = read_json(config)
    except CheckpointError:
        return False
    return any(reader.is_config(content) for reader in READERS)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. A folder of no known family is read as a Transformer-XL's."""
    require("convert")
    if not path.is_dir():
        raise CheckpointError(f"{path}: one file.", hint=f"Give the folder with {CONFIG} and the weights.")
    if not inside(path, CONFIG).is_file():
        raise CheckpointError(f"{path}: no {CONFIG} in it.", hint="Give the folder that save_pretrained wrote.")
    content = read_json(path / CONFIG)
    if quantization := content.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise CheckpointError(
            f"{path}: its weights are quantized ({CONFIG} says quantization_config {shown(method)}).",
            hint="Give the folder of the model before quantization. `xlexport quantize` quantizes its bundle.",
        )
    reader = next((reader for reader in READERS if reader.is_config(content)), transformer_xl)
    return reader.read(path, content, config)
