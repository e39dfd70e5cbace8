"""Losses of an update, dropout for a whole segment, and the average of weights, each against its definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import BAND, tiny_model, tiny_reformer
from xltraining.data.tasks import text_task
from xltraining.language_model import LanguageModel
from xltraining.loop.processes import Processes
from xltraining.loop.updates import Updates, first_intermediate, update_loss
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig
from xltraining.transformer_xl.dropout import LockedDropout, WordDropout

ROUNDING = 1e-12  # float64: sums of other order
SMALL = TransformerXLConfig(n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=16, tgt_len=8, mem_len=8, dropout=0.0)


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(20, (2, 10), generator=torch.Generator().manual_seed(1))
    return ids[:, :9], ids[:, 1:]


def mean_of_positions(model: TransformerXL, hidden: Tensor, targets: Tensor, first: int) -> float:
    """Return the mean of -log p over rows and the positions from `first` on, one by one."""
    nats = []
    for row in range(len(targets)):
        for position in range(first, targets.shape[1]):
            scores = model.head.clusters[0].weight @ hidden[row, position] + model.head.clusters[0].bias
            nats.append(float(scores.logsumexp(0) - scores[targets[row, position]]))
    return sum(nats) / len(nats)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["relative", "learned"])
def test_half_and_full_loss_against_their_definition(encoding: str) -> None:
    model = tiny_model(encoding=encoding, mem_len=0, tgt_len=9).double()
    tokens, targets = batch()
    hidden, _ = model(tokens)
    for half, first in ((False, 0), (True, 4)):
        loss, own, _ = update_loss(model, tokens, targets, None, half)
        assert abs(float(loss) - mean_of_positions(model, hidden, targets, first)) < ROUNDING
        assert loss == own


@torch.no_grad()
@pytest.mark.parametrize("make", [tiny_model, partial(tiny_reformer, BAND)], ids=["transformer_xl", "reformer"])
def test_label_smoothing_against_its_definition_changes_no_score(make: Callable[[], LanguageModel]) -> None:
    model = make().double()
    tokens, targets = batch()
    loss, own, _ = update_loss(model, tokens, targets, None, smoothing=0.1)
    hidden, _ = model(tokens)
    nats = []
    for row, target in zip(model.logits(hidden).flatten(0, 1), targets.flatten(), strict=True):
        each = row.logsumexp(0) - row
        nats.append((float(0.9 * each[target] + 0.1 * each.mean()), float(each[target])))
    smoothed, plain = (sum(values) / len(values) for values in zip(*nats, strict=True))
    assert abs(float(loss) - smoothed) < ROUNDING
    assert abs(float(own) - plain) < ROUNDING
    assert abs(smoothed - plain) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("half", [False, True])
def test_intermediate_layers_add_their_own_losses(half: bool) -> None:
    model = tiny_model(encoding="learned", mem_len=0, tgt_len=9, n_layer=4).double()
    tokens, targets = batch()
    outputs, _ = model.forward_layers(tokens)
    each = [mean_of_positions(model, hidden, targets, 4 if half else 0) for hidden in outputs]
    loss, own, _ = update_loss(model, tokens, targets, None, half, intermediate=2)
    assert abs(float(loss) - sum(each[1:])) < ROUNDING
    assert abs(float(own) - each[3]) < ROUNDING


def test_intermediate_layers_end_one_after_the_other() -> None:
    config = TrainingConfig(steps=80, auxiliary=True)
    lowest = [first_intermediate(config, 4, step) for step in range(80)]
    # Of 4 layers, layer 1 counts during the first eighth of the run, layers 2 and 3 during two and three eighths.
    assert lowest == [1] * 10 + [2] * 10 + [3] * 10 + [None] * 50
    assert first_intermediate(TrainingConfig(steps=80), 4, 0) is None


def test_locked_dropout_drops_features_for_the_whole_segment() -> None:
    dropout = LockedDropout(0.5)
    dropped = dropout(torch.ones(3, 7, 64))
    assert torch.equal(dropped, dropped[:, :1].expand(3, 7, 64))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1])  # rows have their own masks
    assert torch.equal(dropout.eval()(torch.ones(3, 7, 64)), torch.ones(3, 7, 64))


def test_word_dropout_drops_all_places_of_a_word() -> None:
    tokens = torch.randint(30, (4, 50), generator=torch.Generator().manual_seed(0))
    dropped = WordDropout(0.5, 30)(torch.ones(4, 50, 3), tokens)
    for token in range(30):
        assert len(dropped[tokens == token].unique()) == 1
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_variational_model_draws_one_mask_a_segment() -> None:
    torch.manual_seed(0)
    config = TransformerXLConfig(
        **{**SMALL.to_dict(), "cutoffs": (), "tie_projs": (), "dropout": 0.5, "dropatt": 0.5, "variational": True}
    )
    model = TransformerXL(config).train()
    hidden, _ = model(torch.randint(20, (2, 8)))
    assert torch.equal(hidden == 0, (hidden == 0)[:, :1].expand(hidden.shape))
    assert 0 < int((hidden == 0).sum()) < hidden.numel()
    assert not torch.equal(model.eval()(torch.zeros(1, 8, dtype=torch.int64))[0] == 0, hidden[:1] == 0)


def test_average_is_the_mean_of_the_weights_after_its_beginning() -> None:
    torch.manual_seed(0)
    config = TrainingConfig(steps=8, batch_size=2, average_from=0.5, warmup_steps=0)
    text = torch.arange(256).repeat(4).to(torch.uint8)
    updates = Updates(TransformerXL(SMALL).train(), config, Processes())
    task = text_task(text, text[:0], config, SMALL.tgt_len)
    each = []
    for step in range(8):
        assert updates.evaluated is updates.model or step > 4
        updates.do(task, step)
        each.append({name: weight.clone() for name, weight in updates.model.state_dict().items()})
    for name, weight in updates.weights().items():
        expected = torch.stack([weights[name] for weights in each[4:]]).mean(dim=0)
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=0)  # float32: a running mean
