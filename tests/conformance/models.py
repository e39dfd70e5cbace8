"""The recurrent models of a kit: the families that convert from files, and the modules in samples/models.

`carried_NAME` reads a document in 1,000 segments and expects the log-probabilities of the trained model in PyTorch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from xlexport import formats
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.families.recurrent.mamba import Mamba1, Mamba1Sizes
from xlexport.families.recurrent.mamba2 import Mamba2, Mamba2Sizes
from xlexport.families.recurrent.rwkv4 import RWKV4, RWKV4Sizes
from xlexport.families.recurrent.rwkv7 import RWKV7, RWKV7Sizes
from xlexport.fixed_shapes import FixedShapes
from xlexport.model_names import load_source

from .actions import Case, opening
from .player import floats
from .step_models import POLICIES

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples" / "models"
SMALL = ("gru", "rwkv4")  # of every kit: an operator, and a scan whose first state is not zero
SEGMENT, CARRIED = 16, 1000  # tokens of a segment, and segments that a document carries a state through
N_TOKEN, SPREAD, SEED = 256, 0.15, 1

Config = Mapping[str, Any]
SIZES: Config = {"vocab_size": N_TOKEN, "hidden_size": 64, "num_hidden_layers": 2}
MAMBA: Config = {**SIZES, "state_size": 8}
# Name: how a family makes its model from a `config.json`.
FAMILIES: Mapping[str, tuple[Callable[[Config], nn.Module], Config]] = {
    "mamba1": (lambda config: Mamba1(Mamba1Sizes.from_huggingface(config)), {"model_type": "mamba", **MAMBA}),
    "falcon_mamba": (
        lambda config: Mamba1(Mamba1Sizes.from_huggingface(config)),
        {"model_type": "falcon_mamba", **MAMBA},
    ),
    "mamba2": (
        lambda config: Mamba2(Mamba2Sizes.from_huggingface(config)),
        {"model_type": "mamba2", **SIZES, "state_size": 16, "num_heads": 4, "head_dim": 32, "n_groups": 1},
    ),
    "rwkv4": (lambda config: RWKV4(RWKV4Sizes.from_huggingface(config)), {"model_type": "rwkv", **SIZES}),
}
RWKV7_SIZES = RWKV7Sizes(N_TOKEN, 2, 64, 2, 224, 16, 16, 8, 16)


def model_names() -> list[str]:
    """Return the names of all models."""
    modules = (path.stem for path in SAMPLES.glob("*.py"))
    return [*FAMILIES, "rwkv7", *sorted(name for name in modules if name not in POLICIES)]


def write_models(
    folder: Path, names: Collection[str], report: Callable[[str], object] = print, fixed: str | None = None
) -> None:
    """Convert models, each verified, to bundles in `folder`: `NAME`, or `fixed_NAME` with shapes; `report` each."""
    shapes = None if fixed is None else FixedShapes.parse(fixed)
    for name in names:
        report(f"converting {name}")
        with tempfile.TemporaryDirectory() as work:
            options = ConversionOptions.of(tokenizer="none", threads=1, segment_len=SEGMENT, segments=20, fixed=shapes)
            convert(_source(name, Path(work)), folder / (f"fixed_{name}" if fixed else name), options)


def carried_case(name: str) -> Case:
    """Return the case of one document in 1,000 segments, which expects what the trained model gives."""
    ids = np.random.default_rng(SEED).integers(0, N_TOKEN, SEGMENT * CARRIED + 1)
    with tempfile.TemporaryDirectory() as work, torch.inference_mode():
        model, memory, log_probs = _source(name, Path(work)).build_model(), None, []
        for start in range(0, len(ids) - 1, SEGMENT):
            tokens, targets = (torch.from_numpy(ids[None, start + one : start + one + SEGMENT]) for one in (0, 1))
            hidden, memory = model(tokens, memory)
            log_probs.append(model.log_probs(hidden, targets)[0].numpy())
    expected = {"log_probs": floats(np.concatenate(log_probs))}
    score = {"do": "score", "document": {"ids": ids.tolist()}, "settings": {"segment_len": SEGMENT}}
    return {"name": f"carried_{name}", "actions": [opening(name), {**score, "expect": expected}]}


def _source(name: str, work: Path) -> SourceCheckpoint:
    """Return a model with random weights, read from files as a user has them."""
    torch.manual_seed(SEED)
    if name in FAMILIES:
        make, config = FAMILIES[name]
        (work / "config.json").write_text(json.dumps({"tie_word_embeddings": False, **config}), "utf-8")
        save_file(dict(_weights(make({"tie_word_embeddings": False, **config}))), work / "model.safetensors")
        return formats.load(work)
    if name == "rwkv7":
        torch.save(dict(_weights(RWKV7(RWKV7_SIZES))), work / "rwkv7.pth")
        return formats.load(work / "rwkv7.pth")
    return load_source(f"{SAMPLES / name}.py:model", trust=True)


def _weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a model with random numbers, so that every weight matters."""
    random = np.random.default_rng(SEED)
    for name, tensor in model.state_dict().items():
        is_norm = "norm" in name or ".ln" in name or name.startswith("ln")
        center = float(is_norm and name.endswith("weight"))
        yield name, torch.from_numpy(random.normal(center, SPREAD, tuple(tensor.shape)).astype(np.float32))
