"""Targets: the configurations of checkpoints, with weights that fit the first seed of each."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.reliability.guided.target import BrokenPromiseError, InputFile, Target
from xlexport.checkpoints import load
from xlexport.checkpoints.files import read_json
from xlexport.checkpoints.formats import huggingface_reformer, reformer_pytorch
from xlexport.checkpoints.transformer_xl import CLUSTER_NAMES, LAYER_NAMES
from xlexport.errors import CheckpointError
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

__all__ = ["GivenConfig", "HuggingFaceConfig", "OwnConfig"]

CUT = TransformerXLConfig(
    n_token=40, n_layer=1, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=6, mem_len=9, dropout=0.0,
)  # fmt: skip
HASHED = ReformerConfig(d_model=16, n_head=2, d_head=4, d_inner=20, attn_layers=("lsh", "local"), axial_dims=(4, 12))
CHUNKED = ReformerConfig(
    n_token=50, d_model=8, n_head=2, d_head=4, d_inner=32, attn_layers=("lsh",), n_buckets=(8,), chunk_length=16,
    rule="chunk", position="absolute", max_positions=128,
)  # fmt: skip
SUMMED = ReformerConfig(
    n_token=50, d_model=8, n_head=2, d_head=4, d_inner=32, attn_layers=("lsh",), n_buckets=(8,), chunk_length=16,
    rule="chunk", position="absolute", max_positions=128, streams="mean", attention_bias=True, scale_scores=True,
)  # fmt: skip
NUMBERS = (b"1e308", b"NaN", b"null", b"true", b"-1", b"[]", b"{}", b"2147483648", b"1000000")


def _words(values: Mapping[str, Any]) -> tuple[bytes, ...]:
    return (*(json.dumps(name).encode() for name in values), *NUMBERS)


def _renamed(tensors: Mapping[str, Tensor], name_of: Callable[[str], str]) -> dict[str, Tensor]:
    return {name_of(name): tensor.clone() for name, tensor in tensors.items()}


class _Folders(Target):
    """A configuration with one of two folders of weights; its text decides which one."""

    errors = (CheckpointError,)
    longest = 2048

    def __init__(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._folders = folder / "transformer_xl", folder / "reformer"
        self._configs = self.make(*self._folders)
        self._files = [InputFile(place / "config.json") for place in self._folders]

    def make(self, transformer_xl: Path, reformer: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the weights and return configurations that fit them."""
        raise BrokenPromiseError("a target without weights")

    def seeds(self) -> Iterable[bytes]:
        return [json.dumps(config).encode() for config in self._configs]

    def read(self, raw: bytes) -> object:
        place = int(b"reformer" in raw)
        self._files[place].write(raw)
        return load(self._folders[place]).config


class OwnConfig(_Folders):
    """The `config.json` of a folder that `xlexport train` wrote."""

    words = (*_words(CUT.to_dict()), *_words(HASHED.to_dict()), b'"architecture"', b'"reformer"')

    def make(self, transformer_xl: Path, reformer: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        save_checkpoint(transformer_xl, CUT, TransformerXL(CUT).state_dict())
        save_checkpoint(reformer, HASHED, Reformer(HASHED).state_dict())
        return read_json(transformer_xl / "config.json"), read_json(reformer / "config.json")


class HuggingFaceConfig(_Folders):
    """The `config.json` of a Hugging Face folder."""

    words = (*_words(CUT.to_dict()), *_words(huggingface_reformer.FIELDS), b'"model_type"', b'"axial_pos_shape"',
             b'"axial_pos_embds_dim"', b'"num_buckets"', b'"max_position_embeddings"', b'"hash_seed"')  # fmt: skip

    def make(self, transformer_xl: Path, reformer: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        transformer_xl.mkdir()
        tensors = TransformerXL(CUT).state_dict()
        save_file(_renamed(tensors, _huggingface_name), transformer_xl / "model.safetensors")
        ours = {name: CUT.to_dict()[name] for name in ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner")}
        more = {"mem_len": 9, "clamp_len": -1, "same_length": True, "untie_r": CUT.untie_r, "cutoffs": [], "div_val": 1}
        reformer.mkdir()
        tensors = {name: t for name, t in Reformer(CHUNKED).state_dict().items() if not name.endswith("rotations")}
        save_file(_renamed(tensors, _huggingface_reformer_name), reformer / "model.safetensors")
        theirs = {key: CHUNKED.to_dict()[field] for key, (field, _) in huggingface_reformer.FIELDS.items()}
        return (
            {"model_type": "transfo-xl", "d_embed": CUT.d_model, "layer_norm_epsilon": 1e-5, **ours, **more},
            {**theirs, "model_type": "reformer", "num_buckets": 8, "axial_pos_embds": False, "hidden_act": "relu",
             "is_decoder": True, "max_position_embeddings": 128, "chunk_size_lm_head": 0, "hash_seed": 1},
        )  # fmt: skip


def _huggingface_name(name: str) -> str:
    if layer := re.fullmatch(r"(layers\.\d+\.)(.+)", name):
        return f"transformer.{layer[1]}{LAYER_NAMES[layer[2]]}"
    cluster = re.fullmatch(r"(\w+\.clusters\.)(\d+)(\.\w+)", name)
    assert cluster is not None
    theirs = CLUSTER_NAMES[f"{cluster[1]}{{}}{cluster[3]}"][0].format(cluster[2])
    return theirs if theirs.startswith("crit.") else f"transformer.{theirs}"


def _huggingface_reformer_name(name: str) -> str:
    if layer := re.fullmatch(r"layers\.(\d+)\.(\w+\.\w+)\.(weight|bias)", name):
        return f"reformer.encoder.layers.{layer[1]}.{huggingface_reformer.LAYER_NAMES[layer[2]]}.{layer[3]}"
    if name.startswith("positions."):
        return f"{huggingface_reformer.POSITIONS}.embedding.weight"
    return huggingface_reformer.NAMES[name][0]


class GivenConfig(_Folders):
    """A file for `--config FILE` with a state dict: of the authors' code, or of reformer-pytorch."""

    words = (*_words(CUT.to_dict()), b'"source"', b'"bucket_size"', b'"heads"', b'"causal"', b'"num_buckets"',
             b'"max_length"', b'"max_seq_len"', b'"ff_activation"', b'"use_full_attn"', b'"dim_head"')  # fmt: skip

    def make(self, transformer_xl: Path, reformer: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        for place in (transformer_xl, reformer):
            place.mkdir()
        names = {name: _huggingface_name(name).removeprefix("transformer.") for name in TransformerXL(CUT).state_dict()}
        torch.save(_renamed(TransformerXL(CUT).state_dict(), names.__getitem__), transformer_xl / "model.pt")
        tensors = {name: t for name, t in Reformer(SUMMED).state_dict().items() if not name.endswith("rotations")}
        torch.save(_renamed(tensors, _reformer_pytorch_name), reformer / "model.pt")
        lengths = {"tgt_len": 5, "mem_len": 6, "clamp_len": 7, "same_length": True, "pre_lnorm": False}
        given = {"bucket_size": 16, "n_hashes": 2, "causal": True, "heads": 2, "num_buckets": 8, "hash_seed": 3}
        return lengths, {**given, "ff_activation": "gelu", "note": "reformer"}

    def seeds(self) -> Iterable[bytes]:
        yield from super().seeds()
        yield json.dumps({**self._configs[1], "note": None, "reformer": 1}).encode()

    def read(self, raw: bytes) -> object:
        place = int(b"reformer" in raw)
        config = read_json(self._files[place].write(raw))
        for word in ("note", "reformer"):
            config.pop(word, None)
        return load(self._folders[place] / "model.pt", config=config).config


def _reformer_pytorch_name(name: str) -> str:
    if layer := re.fullmatch(r"layers\.(\d+)\.(\w+\.\w+)\.(weight|bias)", name):
        block = reformer_pytorch.BLOCK.format(layer[1])
        return f"{block}.{reformer_pytorch.LAYER_NAMES[layer[2]][0]}.{layer[3]}"
    return reformer_pytorch.TABLE if name.startswith("positions.") else reformer_pytorch.NAMES[name][0]
