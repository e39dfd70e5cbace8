"""A Hugging Face folder of RWKV-7, as the package fla (flash-linear-attention) saves it: with names of its own."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import CONFIG, read_weights
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.state_dicts import unwrapped
from xlexport.errors import CheckpointError
from xlexport.families.recurrent.config_values import ConfigValues
from xlexport.families.recurrent.rwkv import TOKENIZERS, rwkv7_source
from xlexport.families.recurrent.source import refuse_config
from xlruntime.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAME", "is_config", "read"]

NAME = "huggingface"
LAST_NORM = "model.norm.weight"
ONLY = {"hidden_act": "sqrelu", "norm_first": True, "norm_bias": True, "attn": None, "tie_word_embeddings": False}
NAMES = (  # of fla, and the authors'
    (r"model\.layers\.0\.pre_norm\.", "blocks.0.ln0."),
    (r"model\.layers\.(\d+)\.attn_norm\.", r"blocks.\1.ln1."),
    (r"model\.layers\.(\d+)\.ffn_norm\.", r"blocks.\1.ln2."),
    (r"model\.layers\.(\d+)\.attn\.(\w)_lora\.lora\.0\.weight", r"blocks.\1.att.\g<2>1"),
    (r"model\.layers\.(\d+)\.attn\.(\w)_lora\.lora\.2\.weight", r"blocks.\1.att.\g<2>2"),
    (r"model\.layers\.(\d+)\.attn\.(\w)_lora\.lora\.2\.bias", r"blocks.\1.att.\g<2>0"),
    (r"model\.layers\.(\d+)\.attn\.g_norm\.", r"blocks.\1.att.ln_x."),
    (r"model\.layers\.(\d+)\.attn\.r_proj\.", r"blocks.\1.att.receptance."),
    (r"model\.layers\.(\d+)\.attn\.k_proj\.", r"blocks.\1.att.key."),
    (r"model\.layers\.(\d+)\.attn\.v_proj\.", r"blocks.\1.att.value."),
    (r"model\.layers\.(\d+)\.attn\.o_proj\.", r"blocks.\1.att.output."),
    (r"model\.layers\.(\d+)\.attn\.", r"blocks.\1.att."),
    (r"model\.layers\.(\d+)\.ffn\.", r"blocks.\1.ffn."),
    (r"model\.embeddings\.", "emb."),
    (r"model\.norm\.", "ln_out."),
    (r"lm_head\.", "head."),
)
LOW_RANK, VECTOR = re.compile(r".*\.att\.[wavg][12]"), re.compile(r".*\.(att\.([wav]0|k_k|k_a)|(att|ffn)\.x_\w)")


def is_config(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is an RWKV-7's."""
    return config.get("model_type") == "rwkv7"


def read(path: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint with this content of `config.json`; see `CheckpointFormat`.

    Sizes come from the tensors. The normalization of a head adds head_dim × norm_eps, which is the authors' 64e-5 for
    heads of 64.
    """
    refuse_config(path, config)
    values = ConfigValues(content)
    for key, only in ONLY.items():
        values.value(key, only, shown(only), partial(operator.eq, only))
    epsilon = values.positive("norm_eps", 1e-5)
    try:
        values.finish()
    except CheckpointError as error:
        raise CheckpointError(f"{path}/{error.message}", hint="docs/own_models.md converts such models.") from error
    files, content_of_files = read_weights(path)
    tensors, notes = unwrapped(path, content_of_files, (LAST_NORM,))
    own = dict(_as_authors(name, tensor) for name, tensor in tensors.items())
    return rwkv7_source(
        path,
        NAME,
        own,
        files=[path / CONFIG, *files],
        tokenizers=TOKENIZERS,
        notes=notes,
        epsilon=epsilon,
    )


def _as_authors(name: str, tensor: Any) -> tuple[str, Any]:
    """Return a tensor with the name and the layout that it has in the authors' files."""
    for pattern, other in NAMES:
        if match := re.match(pattern, name):
            name = match.expand(other) + name[match.end() :]
            break
    return name, _laid_out(name, tensor)


def _laid_out(name: str, tensor: Tensor) -> Tensor:
    import torch

    if not isinstance(tensor, torch.Tensor):
        return tensor
    if LOW_RANK.fullmatch(name):
        return tensor.mT.contiguous() if tensor.dim() == 2 else tensor
    return tensor.reshape(1, 1, -1) if VECTOR.fullmatch(name) and tensor.numel() else tensor
