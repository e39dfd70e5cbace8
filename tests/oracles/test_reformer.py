"""The eager Reformer, built from the code bases' checkpoints, against the code bases."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from tests.oracles.reformer_configurations import HUGGING_FACE, REFORMER_PYTORCH, ReformerCase
from tests.oracles.reformers import HuggingFaceReformer, PyTorchReformer, ReformerOracle
from xlexport.formats import load
from xltraining.reformer import LSHTrace, Reformer

# float32 on both sides, with sums in another order: observed differences are a tenth of this, of logits up to 10.
TOLERANCE = 1e-4
# Sums of up to 64 products differ by rounding of about 1e-6 of the largest.
FLIP_MARGIN = 1e-5

QUICK = {"one round", "three rounds, two factors", "chunks of no common length", "two chunks before", "local alone"}
QUICK |= {"rotary", "axial", "full attention"}
CASES = [
    pytest.param(kind, case, id=f"{name}-{case}", marks=[] if str(case) in QUICK else pytest.mark.full)
    for name, kind, cases in (
        ("huggingface", HuggingFaceReformer, HUGGING_FACE),
        ("reformer_pytorch", PyTorchReformer, REFORMER_PYTORCH),
    )
    for case in cases
]


def document(oracle: ReformerOracle, batch_size: int, length: int) -> Tensor:
    """Return tokens (B, T), some of which occur many times."""
    generator = torch.Generator().manual_seed(length)
    odds = torch.arange(1, oracle.n_token + 1).reciprocal()
    return torch.multinomial(odds, batch_size * length, replacement=True, generator=generator).view(batch_size, length)


def difference(oracle: ReformerOracle, model: Reformer, tokens: Tensor) -> float:
    """Return the difference of logits under the oracle's buckets; the model's own must be the same except for ties."""
    wanted, buckets = oracle.run(tokens)
    trace: list[LSHTrace] = []
    with torch.no_grad():
        found = model.logits(model(tokens, buckets=buckets, trace=trace)[0])
    for one in trace:
        assert (one.margin[one.own != one.buckets] < FLIP_MARGIN).all()
    return float((found - wanted).abs().max())


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_logits_against_the_code_base(
    kind: Callable[[ReformerCase], ReformerOracle], case: ReformerCase, tmp_path: Path
) -> None:
    if str(case) == "three axes, tanh, epsilon" and transformers.__version__ >= "5":
        pytest.skip("transformers 5 computes positions of two axes only")
    oracle = kind(case)
    model = load(oracle.save(tmp_path / "checkpoint"), config=oracle.config).build_model()
    for length in case.lengths:
        assert difference(oracle, model, document(oracle, case.batch_size, length)) <= TOLERANCE, length


def small(**settings: Any) -> ReformerCase:
    return ReformerCase("small", {"attn_layers": ["local", "lsh"], "num_hashes": 2, **settings}, (100,))


@pytest.mark.parametrize(
    "oracle",
    [
        HuggingFaceReformer(small()),
        HuggingFaceReformer(small(axial_pos_embds=False)),
        PyTorchReformer(replace(REFORMER_PYTORCH[0], settings={"max_seq_len": 128})),
        PyTorchReformer(REFORMER_PYTORCH[1]),
    ],
    ids=["huggingface", "huggingface-plain", "reformer_pytorch", "reformer_pytorch-axial"],
)
@pytest.mark.full
def test_every_tensor_shows_in_the_logits(oracle: ReformerOracle, tmp_path: Path) -> None:
    """Check that a change of 1 % of any tensor is over tolerance; rotations change by rows, as 1 % has no effect."""
    tokens = document(oracle, 2, getattr(oracle, "settings", {}).get("max_seq_len", 100))
    wanted, buckets = oracle.run(tokens)
    model = load(oracle.save(tmp_path / "checkpoint"), config=oracle.config).build_model()
    for name, tensor in model.state_dict().items():
        before = tensor.clone()
        with torch.no_grad():
            if name.endswith("rotations"):
                tensor.copy_(before.flip(2))
                found, _ = model(tokens)
            else:
                tensor.mul_(1.01)
                found, _ = model(tokens, buckets=buckets)
            assert (model.logits(found) - wanted).abs().max() > 10 * TOLERANCE, name
            tensor.copy_(before)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hashes": 1},
        {"num_buckets": 10},
        {"num_buckets": [2, 4]},
        {"hash_seed": 12},
        {"lsh_attn_chunk_length": 32},
        {"lsh_num_chunks_before": 0},
        {"local_attn_chunk_length": 16},
        {"local_num_chunks_before": 2},
        {"hidden_act": "gelu"},
        {"layer_norm_eps": 1e-2},
    ],
    ids=str,
)
def test_every_setting_shows_in_the_logits(change: dict[str, Any], tmp_path: Path) -> None:
    oracle = HuggingFaceReformer(small())
    folder = oracle.save(tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    tokens = document(oracle, 2, 100)
    wanted, _ = oracle.run(tokens)
    model = load(folder).build_model()
    with torch.no_grad():
        assert (model.logits(model(tokens)[0]) - wanted).abs().max() > 10 * TOLERANCE
