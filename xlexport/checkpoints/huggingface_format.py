"""A Hugging Face folder of `TransfoXLLMHeadModel`: `config.json`, weights, and perhaps the tokenizer's vocabulary.

Of `config.json` only the keys that are settings are read. Weights that are safetensors leave out what is tied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import inside, read_json, read_tensors
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.transformer_xl_names import CODE_BASES, brief, plain_names
from xlexport.checkpoints.transformer_xl_settings import SETTINGS, torch_source, with_evaluation
from xlexport.errors import CheckpointError
from xlexport.extras import require

if TYPE_CHECKING:
    from xlruntime.vocabulary import Vocabulary

__all__ = ["NAME", "SPELLINGS", "is_config", "load", "matches", "settings_of"]

NAME = "huggingface"
CONFIG = "config.json"
MODEL_TYPE = "transfo-xl"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order of preference
INDEX = ".index.json"  # lists the parts where weights are in several files
VOCABULARIES = ("vocab.pkl", "vocab.bin", "vocab.txt")
SPELLINGS = {  # of keys that transformers also writes in another way
    "vocab_size": "n_token",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "d_model",
    "tie_word_embeddings": "tie_weight",
}
DEFAULTS = {"mem_len": 1600, "clamp_len": 1000, "same_length": True, "pre_lnorm": False}  # of TransfoXLConfig
SEGMENT = 128  # what the published model's config.json said before the key was dropped
MOSES = (
    "transformers splits raw text by Moses' rules before it looks words up; a bundle takes the words as white space "
    "parts them, as they are in the corpus."
)


def matches(path: Path) -> bool:
    """Whether it is a folder whose `config.json` is a Transformer-XL's."""
    config = path / CONFIG
    if not path.is_dir() or not config.is_file():
        return False
    try:
        return is_config(read_json(config))
    except CheckpointError:
        return False


def is_config(config: Mapping[str, Any]) -> bool:
    """Whether the content of a `config.json` is a Transformer-XL's; the oldest ones do not say their type."""
    architectures = config.get("architectures")
    if "model_type" in config:
        return bool(config["model_type"] == MODEL_TYPE)
    if isinstance(architectures, list) and architectures:
        return str(architectures[0]).startswith("TransfoXL")
    return {"untie_r", "clamp_len", "d_head"} <= set(config)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint, running no code of it.

    Args:
        config: evaluation settings other than those of its `config.json`.

    Raises:
        CheckpointError: it is damaged, of a kind that is not supported, or its tensors do not fit its configuration.
        MissingDependencyError: torch is not installed.
    """
    require("convert")
    if not path.is_dir():
        raise CheckpointError(f"{path}: one file. Give the folder with {CONFIG} and the weights.")
    config_file = inside(path, CONFIG)
    if not config_file.is_file():
        raise CheckpointError(f"{path}: no {CONFIG} in it. Give the folder that save_pretrained wrote.")
    stated, notes = settings_of(read_json(config_file), str(config_file))
    settings = with_evaluation(path, stated, config)
    files, tensors = _read_weights(path)
    tokenizer, vocabulary_file = _vocabulary(path)
    if tokenizer is not None and tokenizer.kind == "words":
        notes.append(MOSES)
    return torch_source(
        path,
        NAME,
        plain_names(tensors),
        settings,
        CODE_BASES[NAME],
        files=[config_file, *files, *([] if vocabulary_file is None else [vocabulary_file])],
        tokenizer=tokenizer,
        notes=notes,
    )


def settings_of(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """What a `config.json` says, under the field's words, and a note for each thing that it leaves open.

    Raises:
        CheckpointError: two spellings of a key disagree; names all of them.
    """
    settings: dict[str, Any] = {}
    problems = []
    for key in (*SETTINGS, *SPELLINGS):
        name = SPELLINGS.get(key, key)
        if config.get(key) is None:
            continue
        if settings.setdefault(name, config[key]) != config[key]:
            problems.append(f"{name} is {brief(settings[name])}, {key} is {brief(config[key])}")
    if problems:
        raise CheckpointError(f"{where}: {'; '.join(problems)}. Leave the right one in it.")
    settings.setdefault("tie_weight", True)
    cutoffs = settings.get("cutoffs")
    if "tie_projs" not in settings and isinstance(cutoffs, list):
        shared = config.get("proj_share_all_but_first", True) is not False
        settings["tie_projs"] = [False, *[shared] * len(cutoffs)]
    assumed = {name: value for name, value in DEFAULTS.items() if name not in settings}
    notes = []
    if "tgt_len" not in settings:
        settings["tgt_len"] = SEGMENT
        notes.append(f"{CONFIG} has no tgt_len: segments are {SEGMENT} tokens, unless --segment-len says otherwise.")
    if assumed:
        said = ", ".join(f"{name} {str(value).lower()}" for name, value in assumed.items())
        notes.append(f"{CONFIG} leaves out what transformers then takes to be {said}.")
    return {**assumed, **settings}, notes


def _read_weights(folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """The files that hold the weights, and their tensors by name.

    Raises:
        CheckpointError: there are none, they are damaged, or could run code.
    """
    for name in WEIGHTS:
        if (folder / name).exists():
            file = inside(folder, name)
            return [file], read_tensors(file)
        index = inside(folder, f"{name}{INDEX}")
        if index.is_file():
            return _read_parts(folder, index)
    found = ", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "nothing"
    raise CheckpointError(
        f"{folder}: none of {', '.join(WEIGHTS)} in it, only {ascii(found)[1:-1]}. Save it with PyTorch."
    )


def _read_parts(folder: Path, index: Path) -> tuple[list[Path], dict[str, Any]]:
    """Weights in several files; the index says which tensor is in which."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: no weight_map of file names in it. Copy the folder again.")
    files = [inside(folder, name) for name in sorted(set(weight_map.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: no {', '.join(map(ascii, missing))}, which {index.name} lists. Copy it again."
        )
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= read_tensors(file)
    return [index, *files], tensors


def _vocabulary(folder: Path) -> tuple[Vocabulary | None, Path | None]:
    """The vocabulary beside the weights, and its file."""
    from xlexport.vocabularies import read_vocabulary

    for name in VOCABULARIES:
        if (folder / name).is_file():
            file = inside(folder, name)
            return read_vocabulary(file), file
    return None, None
