"""`checkpoint_*.pt` of NVIDIA's PyTorch code (DeepLearningExamples): a dict with configuration, weights and vocabulary.

The file also holds the state of training, which is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.safe_pickle import read, summarize
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.vocabularies import vocabulary_of
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.transformer_xl.tensors import (
    CODE_BASES,
    SETTINGS,
    plain_names,
    torch_source,
    training_notes,
    with_evaluation,
)
from xlruntime.messages import named
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["NAME", "load", "matches"]

NAME = "nvidia"
PARTS = ("model_config", "model_state")
BPE_VOCABULARY = "OpenAIVocab"
DEFAULTS = {  # of the model's constructor
    "tie_weight": True,
    "tie_projs": [False],
    "div_val": 1,
    "cutoffs": [],
    "pre_lnorm": False,
    "clamp_len": -1,
    "same_length": False,
    "attn_type": 0,
    "ext_len": 0,
    "sample_softmax": -1,
    "dropout": 0.0,
    "dropatt": 0.0,
}
NEEDED = ("tgt_len", "mem_len")
WITHOUT_EFFECT = ("dtype", "adapt_inp")
NOT_TRAINING = (*PARTS, "vocab", "args")


def matches(path: Path) -> bool:
    """Return whether `path` is a file with the names of NVIDIA's checkpoints."""
    summary = None if path.is_dir() else summarize(path)
    return summary is not None and set(PARTS) <= set(summary.strings)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. `config` has evaluation settings other than those of training."""
    require("convert")
    content = read(path)
    if not isinstance(content, dict) or not all(isinstance(content.get(part), dict) for part in PARTS):
        raise CheckpointError(
            f"{path}: no {' and '.join(PARTS)} in it.", hint="Give a checkpoint that NVIDIA's train.py wrote."
        )
    model_config = content["model_config"]
    settings = {name: value for name, value in model_config.items() if name in SETTINGS}
    settings = with_evaluation(path, {**DEFAULTS, **settings}, config)
    missing = [name for name in NEEDED if settings.get(name) is None]
    if missing:
        raise CheckpointError(
            f"{path}: its model_config has no {' and no '.join(missing)}.", hint="Give them with --config."
        )
    tokenizer, notes = _vocabulary(path, content.get("vocab"))
    unknown = [named(name) for name in model_config if name not in (*SETTINGS, *WITHOUT_EFFECT)]
    if unknown:
        notes.append(f"Its model_config also has {', '.join(unknown[:9])}, which is unknown and ignored.")
    training = [named(name) for name in content if name not in NOT_TRAINING]
    if training:
        notes.append(f"The state of training is left out: {', '.join(training[:20])}.")
    return torch_source(
        path,
        NAME,
        plain_names(content["model_state"]),
        settings,
        CODE_BASES[NAME],
        files=[path],
        tokenizer=tokenizer,
        notes=[*training_notes(settings, config), *notes],
    )


def _vocabulary(path: Path, vocab: Any) -> tuple[Vocabulary | None, list[str]]:
    """Return the vocabulary in the checkpoint, or a note with the reason why there is none."""
    if vocab is None:
        return None, []
    if str(getattr(vocab, "name", "")).rpartition(".")[2] == BPE_VOCABULARY:
        return None, [
            "Its vocabulary is GPT-2's, whose files it does not hold: give GPT-2's tokenizer.json with --tokenizer."
        ]
    try:
        return vocabulary_of(vocab, f"{path}, vocab"), []
    except CheckpointError as error:
        return None, [f"Its vocabulary cannot be used, give --tokenizer ({error})"]
