"""A folder of mamba_ssm, the code of Mamba's and Mamba-2's authors: its `config.json` has other keys, and no type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import CONFIG
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError
from xlexport.families.recurrent.huggingface import read_as
from xlruntime.messages import shown

__all__ = ["NAME", "is_config", "read"]

NAME = "huggingface"
KINDS = {"Mamba1": "mamba", "Mamba2": "mamba2"}  # by `layer` in `ssm_cfg`
KEYS = {  # of `ssm_cfg`, with transformers' names; shapes of tensors show the other sizes
    "ngroups": "n_groups",
    "dt_limit": "time_step_limit",
}
DEFAULTS = {"ngroups": 1}
# Settings of which a bundle computes one value, in `config.json` and in its `ssm_cfg`.
ONLY: dict[str, Any] = {"rms_norm": True, "attn_layer_idx": [], "attn_cfg": {}, "d_intermediate": 0}
ONLY_MIXER: dict[str, Any] = {"rmsnorm": True, "norm_before_gate": False, "D_has_hdim": False, "d_ssm": None}


def is_config(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is of mamba_ssm."""
    return "model_type" not in config and {"d_model", "n_layer", "ssm_cfg"} <= set(config)


def read(path: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint with this content of `config.json`; see `CheckpointFormat`."""
    mixer = content.get("ssm_cfg") or {}
    kind = mixer.get("layer", "Mamba1") if isinstance(mixer, dict) else mixer
    if not isinstance(kind, str) or kind not in KINDS:
        raise CheckpointError(
            f"{path}/{CONFIG}: ssm_cfg has layers {shown(kind)}, expected {' or '.join(KINDS)}.",
            hint="docs/own_models.md converts other models.",
        )
    problems = [
        f"{key} is {shown(values[key])}, expected {shown(expected)}"
        for values, only in ((content, ONLY), (mixer, ONLY_MIXER))
        for key, expected in only.items()
        if values.get(key, expected) != expected and values[key] is not None
    ]
    if problems:
        raise CheckpointError(
            f"{path}/{CONFIG}: {'; '.join(problems)}.", hint="docs/own_models.md converts such models."
        )
    keys = {KEYS[key]: value for key, value in {**DEFAULTS, **mixer}.items() if key in KEYS}
    tied = content.get("tie_embeddings", True)
    return read_as(KINDS[kind], path, {**keys, "tie_word_embeddings": tied}, config)
