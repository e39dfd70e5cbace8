"""Adaptive embedding and softmax: probabilities, losses and weights. tests/oracles compares them with other code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.weights import randomize
from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint, save_checkpoint
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

CONFIG = TransformerXLConfig(
    n_token=23, n_layer=2, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=6, mem_len=8, dropout=0.0
)
CLUSTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, projected": {"d_embed": 7},
    "two clusters": {"cutoffs": (9,)},
    "three clusters, projected": {"cutoffs": (5, 8), "d_embed": 16, "tie_projs": (False, True, False)},
    "narrowing": {"cutoffs": (9, 15), "div_val": 2, "tie_projs": (False, True, True)},
    "narrowing, one cluster": {"div_val": 2},
    "narrowing to width one": {"cutoffs": (4, 15), "div_val": 4, "d_embed": 16, "tie_weight": False},
    "no projection of the same width": {"cutoffs": (9,), "div_val": 3, "proj_same_dim": False},
}


@pytest.fixture(params=CLUSTERS)
def model(request: pytest.FixtureRequest) -> TransformerXL:
    """Make a model in which every weight counts."""
    torch.manual_seed(0)
    return randomize(TransformerXL(replace(CONFIG, **CLUSTERS[request.param])).eval())


@torch.no_grad()
@pytest.mark.parametrize("tokens", [range(23), range(5), range(9, 15), [22], [0, 22]], ids=str)
def test_log_probs_of_targets_are_those_of_all_tokens(tokens: Any, model: TransformerXL) -> None:
    targets = torch.tensor([[*tokens], [*reversed(tokens)]])
    hidden = torch.randn(*targets.shape, 12)
    everything = model.all_log_probs(hidden)
    assert torch.allclose(model.log_probs(hidden, targets), everything.gather(2, targets[..., None])[..., 0], atol=1e-5)
    assert torch.allclose(everything.exp().sum(dim=2), torch.ones(targets.shape), atol=1e-5)
    assert torch.allclose(model.logits(hidden).log_softmax(dim=2), everything, atol=5e-6)


def test_every_weight_learns(model: TransformerXL) -> None:
    tokens = torch.arange(model.config.n_token).view(1, -1)
    model.train().loss(model(tokens)[0], tokens.flip(1)).backward()
    assert not [name for name, parameter in model.named_parameters() if not parameter.grad.any()]


def test_tied_weights_are_one_and_are_stored_once(model: TransformerXL, tmp_path: Path) -> None:
    tied = model.tied_names(model.config)
    for name, owner in tied.items():
        assert model.get_parameter(name) is model.get_parameter(owner)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert len(own) == len(model.state_dict()) - len(tied)
    for path in (tmp_path / "checkpoint.pt", tmp_path / "folder"):
        save_checkpoint(path, model.config, model.state_dict())
        loaded = load_checkpoint(path)
        assert loaded.config == model.config
        again = build_model(loaded)
        assert len({parameter.data_ptr() for parameter in again.parameters()}) == len(own)
        tokens = torch.arange(23).view(1, -1)
        with torch.no_grad():
            assert torch.equal(again.log_probs(again(tokens)[0], tokens), model.log_probs(model(tokens)[0], tokens))


@pytest.mark.parametrize("tokens", [range(23), range(5), [22] * 9, [-100, 3, 22, -100, 9]], ids=str)
def test_the_loss_by_cluster_has_the_gradients_of_the_full_softmax(tokens: Any, model: TransformerXL) -> None:
    model = model.double()
    targets = torch.tensor([[*tokens], [*reversed(tokens)]])
    hidden = torch.randn(*targets.shape, 12, dtype=torch.float64, requires_grad=True)
    full = torch.nn.functional.cross_entropy(model.logits(hidden).flatten(0, 1), targets.flatten())
    clustered = model.loss(hidden, targets)
    assert clustered.item() == pytest.approx(full.item(), abs=1e-12)
    head = [hidden, *model.head.parameters()]
    wanted, found = torch.autograd.grad(full, head), torch.autograd.grad(clustered, head)  # no weight is left out
    assert max((left - right).abs().max().item() for left, right in zip(wanted, found, strict=True)) < 1e-12


def test_the_loss_never_computes_the_logits_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformerXL(replace(CONFIG, cutoffs=(9, 15)))
    sizes: list[tuple[int, ...]] = []
    linear = torch.nn.functional.linear

    def noted(*arguments: Any) -> Tensor:
        result = linear(*arguments)
        sizes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    model.loss(torch.randn(1, 4, 12), torch.tensor([[1, 8, 10, 22]]))
    assert sizes == [(4, 9 + 2), (1, 6), (1, 8)]


def test_a_model_of_a_checkpoint_uses_its_tensors() -> None:
    model = TransformerXL(CONFIG)
    checkpoint = Checkpoint(CONFIG, model.state_dict())
    shared = build_model(checkpoint).word_emb.clusters[0].table
    assert shared.data_ptr() == checkpoint.state_dict["word_emb.clusters.0.table"].data_ptr()


def test_checkpoints_of_version_1_have_other_names(tmp_path: Path) -> None:
    names = {
        "word_emb.clusters.0.table": "word_emb.weight",
        "head.clusters.0.weight": "head.weight",
        "head.clusters.0.bias": "head.bias",
    }
    model = TransformerXL(CONFIG)
    fields = {"d_embed", "cutoffs", "div_val", "tie_projs", "proj_same_dim", "window_extra"}
    old = {
        "format": "xltraining",
        "version": 1,
        "config": {name: value for name, value in CONFIG.to_dict().items() if name not in fields},
        "tokenizer": "bytes",
        "state_dict": {names.get(name, name): tensor for name, tensor in model.state_dict().items()},
    }
    torch.save(old, tmp_path / "old.pt")
    loaded = load_checkpoint(tmp_path / "old.pt")
    assert loaded.config == CONFIG
    assert loaded.state_dict.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, loaded.state_dict[name]) for name, tensor in model.state_dict().items())
