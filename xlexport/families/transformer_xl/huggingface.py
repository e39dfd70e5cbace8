"""A Hugging Face folder of `TransfoXLLMHeadModel`: `config.json`, weights, and perhaps the tokenizer's vocabulary.

Only the settings among the keys of `config.json` are read. Weights in safetensors leave out tied tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import CONFIG, TOKENIZERS, inside, read_weights
from xlexport.checkpoints.source import Note, SourceCheckpoint
from xlexport.checkpoints.state_dicts import unwrapped
from xlexport.checkpoints.vocabularies import read_vocabulary
from xlexport.errors import CheckpointError
from xlexport.families.segment_length import DEFAULT_SEGMENT_LEN
from xlexport.families.transformer_xl.tensors import (
    ANCHOR,
    CODE_BASES,
    HUGGING_FACE_PREFIX,
    SETTINGS,
    plain_names,
    torch_source,
    with_evaluation,
)
from xlruntime.messages import quoted, shown
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["NAME", "SPELLINGS", "VOCABULARIES", "is_config", "read", "settings_of"]

NAME = "huggingface"
MODEL_TYPE = "transfo-xl"
VOCABULARIES = ("vocab.pkl", "vocab.bin", "vocab.txt")
SPELLINGS = {  # of keys for which transformers has two names
    "vocab_size": "n_token",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "d_model",
    "tie_word_embeddings": "tie_weight",
}
DEFAULTS = {"mem_len": 1600, "clamp_len": 1000, "same_length": True, "pre_lnorm": False}  # of TransfoXLConfig
MOSES = (
    "transformers splits raw text by Moses' rules before it looks words up. A bundle splits text at white space only, "
    "as in the corpus."
)


def is_config(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is a Transformer-XL's; the oldest ones do not name a type."""
    architectures = config.get("architectures")
    if "model_type" in config:
        return bool(config["model_type"] == MODEL_TYPE)
    if isinstance(architectures, list) and architectures:
        return str(architectures[0]).startswith("TransfoXL")
    return {"untie_r", "clamp_len", "d_head"} <= set(config)


def read(path: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`.

    Args:
        content: of its `config.json`.
        config: evaluation settings.
    """
    config_file = path / CONFIG
    file_settings, notes = settings_of(content, str(config_file))
    settings = with_evaluation(path, file_settings, config)
    files, content_of_files = read_weights(path)
    tensors, where = unwrapped(path, content_of_files, (HUGGING_FACE_PREFIX + ANCHOR,))
    tokenizer, tokenizer_file = _tokenizer(path, notes)
    return torch_source(
        path,
        NAME,
        plain_names(tensors),
        settings,
        CODE_BASES[NAME],
        files=[config_file, *files, *([] if tokenizer_file is None else [tokenizer_file])],
        tokenizer=tokenizer,
        notes=[*where, *notes],
    )


def settings_of(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a `config.json` under the field's names, and a note for each that it leaves open.

    Raises:
        CheckpointError: two spellings of a key disagree. The message names all such keys.
    """
    settings: dict[str, Any] = {}
    problems = []
    for key in (*SETTINGS, *SPELLINGS):
        name = SPELLINGS.get(key, key)
        if config.get(key) is None:
            continue
        if settings.setdefault(name, config[key]) != config[key]:
            problems.append(f"{name} is {shown(settings[name])}, {key} is {shown(config[key])}")
    if problems:
        raise CheckpointError(f"{where}: {'; '.join(problems)}.", hint="Remove the wrong one.")
    settings.setdefault("tie_weight", True)
    cutoffs = settings.get("cutoffs")
    if "tie_projs" not in settings and isinstance(cutoffs, list):
        shared = config.get("proj_share_all_but_first", True) is not False
        settings["tie_projs"] = [False, *[shared] * len(cutoffs)]
    assumed = {name: value for name, value in DEFAULTS.items() if name not in settings}
    notes: list[str] = []
    if "tgt_len" not in settings:
        settings["tgt_len"] = length = DEFAULT_SEGMENT_LEN  # as in the published model's, before the key was dropped
        notes.append(
            Note(
                f"{CONFIG} has no tgt_len: segments are {length} tokens. --segment-len sets another length.",
                options=("segment_len",),
            )
        )
    if assumed:
        defaults = ", ".join(f"{name} {str(value).lower()}" for name, value in assumed.items())
        notes.append(f"{CONFIG} leaves out some keys. The defaults of transformers are used: {defaults}.")
    return {**assumed, **settings}, notes


def _tokenizer(folder: Path, notes: list[str]) -> tuple[Vocabulary | Path | None, Path | None]:
    """Return the tokenizer in the folder of the weights and its file: transformers' own vocabulary, or a library's."""
    library = next((inside(folder, name) for name in TOKENIZERS if (folder / name).is_file()), None)
    for name in VOCABULARIES:
        if (folder / name).is_file():
            file = inside(folder, name)
            vocabulary = read_vocabulary(file)
            if vocabulary.kind == "words":
                notes.append(MOSES)
            if library is not None:
                notes.append(f"{name} is the tokenizer. --tokenizer {quoted(str(library))} chooses that file.")
            return vocabulary, file
    return library, library
