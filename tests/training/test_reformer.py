"""The model against definitions written as loops over a whole document."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.tiers import thinned
from tests.training.reformers import SMALL, VARIANTS, layers_of, make, naive_forward, tokens_of, walk
from xltraining.errors import ConfigError, DataError
from xltraining.reformer import LSHTrace, Reformer


@torch.no_grad()
@pytest.mark.full
def test_any_segmentation_equals_the_direct_definition() -> None:
    model, tokens = make(), tokens_of(1, 96)
    expected, expected_overflows = naive_forward(model, tokens[0])
    assert all(0 < overflow.count_nonzero() < 96 for overflow in expected_overflows)
    for lengths in ([1] * 96, [7] * 13 + [5], [32] * 3, [96]):
        hidden, overflows, _ = walk(model, tokens, lengths)
        # float64: rounding errors of four layers; positions and buckets are the same numbers.
        torch.testing.assert_close(hidden[0], expected, atol=1e-10, rtol=0)
        assert torch.equal(torch.stack(overflows)[:, 0], torch.stack(expected_overflows))


@torch.no_grad()
@pytest.mark.parametrize("changes", thinned(VARIANTS, VARIANTS[1:2]), ids=str)
def test_variants_equal_the_direct_definition(changes: dict[str, Any]) -> None:
    model, tokens = make(**changes), tokens_of(1, 34)
    expected, expected_overflows = naive_forward(model, tokens[0])
    # Angles are rounded to float32, by up to 2.4e-7 each.
    tolerance = 1e-6 if model.config.position in ("sinusoid", "rotary") else 1e-10
    for lengths in ([34], [1] * 34, [5, 20, 9]):
        hidden, overflows, _ = walk(model, tokens, lengths)
        torch.testing.assert_close(hidden[0], expected, atol=tolerance, rtol=0)
        assert torch.equal(torch.stack(overflows)[:, 0], torch.stack(expected_overflows))


@torch.no_grad()
def test_rows_of_a_batch_are_independent() -> None:
    model, tokens = make(), tokens_of(3, 40)
    together, _, _ = walk(model, tokens, [25, 15])
    for row in range(3):
        alone, _, _ = walk(model, tokens[row : row + 1], [25, 15])
        torch.testing.assert_close(alone[0], together[row], atol=1e-12, rtol=0)


def test_memory_holds_the_last_rows_each_layer_needs() -> None:
    model, tokens = make(), tokens_of(2, 40)
    for lengths, reach in (([9], 9), ([9, 30], 21), ([40], 21)):
        _, _, memory = walk(model, tokens[:, : sum(lengths)], lengths)
        assert memory.position == sum(lengths)
        for kind, (rows, buckets) in zip(SMALL.attn_layers, memory.layers, strict=True):
            count = min(sum(lengths), SMALL.local_rows) if kind == "local" else reach
            assert rows.shape == (2, count, 12) and not rows.requires_grad
            assert rows.untyped_storage().nbytes() == rows.numel() * 8  # a view would keep the whole segment alive
            assert (buckets is None) == (kind != "lsh") and (buckets is None or buckets.shape == (2, 2, 2, count))


def test_first_memory_equals_a_new_document() -> None:
    model, tokens = make(), tokens_of(2, 12)
    assert torch.equal(model(tokens, model.first_memory(2))[0], model(tokens)[0])


@torch.no_grad()
def test_forced_buckets() -> None:
    model, tokens = make(), tokens_of(2, 30)
    trace: list[LSHTrace] = []
    hidden, memory = model(tokens, trace=trace)
    assert [entry.layer for entry in trace] == [1, 3]
    own: list[Tensor | None] = [None, trace[0].buckets, None, trace[1].buckets]
    again: list[LSHTrace] = []
    assert torch.equal(model(tokens, buckets=own, trace=again)[0], hidden)
    assert not any(entry.margin.any() for entry in (*trace, *again))

    forced = trace[1].buckets.clone()
    forced[0, 1, 0, 16] = (forced[0, 1, 0, 16] + 1) % 4
    changed: list[LSHTrace] = []
    other, other_memory = model(tokens, buckets=[None, None, None, forced], trace=changed)
    # The forced bucket moves other rows within their chunks, so PyTorch may add their float64 terms in another order.
    difference = (other - hidden).abs()
    assert difference[:, :16].max() < 1e-12 and difference[1].max() < 1e-12
    assert difference[0, 16:].max() > 1e-3
    assert torch.equal(changed[1].buckets, forced) and torch.equal(changed[1].own, trace[1].own)
    assert changed[1].margin.count_nonzero() == 1 and changed[1].margin[0, 1, 0, 16] > 0
    kept, before = other_memory.layers[3][1], memory.layers[3][1]
    assert kept is not None and before is not None and torch.equal(kept, forced[..., -21:])
    assert not torch.equal(kept, before)


@torch.no_grad()
def test_fewer_rounds_and_less_memory_at_evaluation() -> None:
    """Compare with the model that the same seed gives with fewer rounds: rotations are nested, weights shared."""
    model, tokens = make(n_hashes=4), tokens_of(1, 50)
    for changes in ({"n_hashes": 1}, {"n_hashes": 4}, {"n_hashes": 6}, {"mem_len": 5}, {"n_hashes": 2, "mem_len": 9}):
        other = make(**{"n_hashes": 4, **changes})
        other.load_state_dict({n: t for n, t in model.state_dict().items() if "rotations" not in n}, strict=False)
        twin = model.with_evaluation(**changes)
        torch.testing.assert_close(walk(twin, tokens, [30, 20])[0], walk(other, tokens, [30, 20])[0])
        assert all(a is b for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    assert model.config.n_hashes == 4 and layers_of(model)[1].attention.rotations.shape[1] == 4


def test_more_rounds_than_foreign_rotations_are_refused() -> None:
    model = make()
    layers_of(model)[3].attention.rotations.mul_(1.5)
    assert model.with_evaluation(n_hashes=1).config.n_hashes == 1
    with pytest.raises(ConfigError, match="mem_len must be at least 1, found 0"):
        model.with_evaluation(mem_len=0)
    with pytest.raises(ConfigError, match="n_hashes must be at most 2, found 3: the model's rotations were not drawn"):
        model.with_evaluation(n_hashes=3)


def test_redrawn_rotations_last_for_one_forward_pass() -> None:
    """Check that rows of memory are hashed again with new rotations, and that evaluation uses the fixed ones."""
    model, tokens = make(redraw_hashes=True), tokens_of(2, 50)
    fixed: list[LSHTrace] = []
    expected, memory = model(tokens[:, :25], trace=fixed)
    model.train()
    traces: list[list[LSHTrace]] = [[], [], []]
    for trace, seed in zip(traces, (5, 5, 6), strict=True):
        torch.manual_seed(seed)
        model(tokens[:, :25], trace=trace)
    drawn, again, other = (trace[0].buckets for trace in traces)
    assert torch.equal(drawn, again) and not torch.equal(drawn, other) and not torch.equal(drawn, fixed[0].buckets)

    # Nothing depends on the bucket ids in the memory, and a query finds rows of memory in its bucket.
    stale = replace(memory, layers=[(rows, None if ids is None else ids * 0 + 9) for rows, ids in memory.layers])
    empty = replace(
        memory, layers=[(rows[:, :0], None if ids is None else ids[..., :0]) for rows, ids in memory.layers]
    )
    results = []
    for past in (memory, stale, empty):
        torch.manual_seed(5)
        results.append(model(tokens[:, 25:], past)[0])
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert torch.equal(model.eval()(tokens[:, :25])[0], expected)


def test_feed_forward_by_parts_is_the_same() -> None:
    whole, parts, tokens = make().train(), make(ff_chunk=7).train(), tokens_of(2, 30)
    rows_at_once = []
    for layer in layers_of(parts):
        layer.feed_forward.inner.register_forward_hook(lambda _, args, __: rows_at_once.append(args[0].shape[1]))
    losses = [model.loss(model(tokens)[0], tokens) for model in (whole, parts)]
    torch.testing.assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    for (name, first), second in zip(whole.named_parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(second.grad, first.grad, msg=name)
    assert max(rows_at_once) == 7


def test_log_probabilities_of_targets_and_of_every_token() -> None:
    model, tokens = make(), tokens_of(2, 30)
    hidden, _ = model(tokens)
    everything = model.all_log_probs(hidden)
    torch.testing.assert_close(everything, model.logits(hidden).log_softmax(-1))
    expected = everything.gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(model.log_probs(hidden, tokens), expected)
    torch.testing.assert_close(model.loss(hidden, tokens), -expected.mean())
    torch.testing.assert_close(model.loss(hidden, tokens.masked_fill(tokens > 9, -100)), -expected[tokens <= 9].mean())


def test_loss_by_parts_has_the_same_gradients_and_never_all_logits() -> None:
    model, tokens = make(), tokens_of(2, 30)
    hidden = model(tokens)[0].detach().requires_grad_()
    rows_at_once = []
    model.head.register_forward_hook(lambda _, args, __: rows_at_once.append(args[0].numel() // args[0].shape[-1]))
    wanted = [hidden, *model.head.parameters()]
    expected = torch.autograd.grad(-model.all_log_probs(hidden).gather(-1, tokens[..., None]).mean(), wanted)
    rows_at_once.clear()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(hidden, tokens, chunk=8)
    for grad, other in zip(torch.autograd.grad(loss, wanted), expected, strict=True):
        torch.testing.assert_close(grad, other)
    assert max(rows_at_once) == 8 and len(rows_at_once) == 2 * math.ceil(60 / 8)
    assert not any(tensor.shape[-1:] == (20,) for tensor in kept)  # no logits wait for the backward pass


def test_documents_end_at_the_last_position() -> None:
    model = make()
    _, memory = model(tokens_of(1, 100))
    assert model(tokens_of(1, 28), memory)[1].position == 128
    with pytest.raises(DataError, match="128 positions, but this document has 129 tokens"):
        model(tokens_of(1, 29), memory)


def test_initial_weights_and_rotations_follow_the_seeds() -> None:
    def fresh(seed: int, hash_seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return Reformer(replace(SMALL, hash_seed=hash_seed)).state_dict()

    first, same, other_hash, other = fresh(1, 1), fresh(1, 1), fresh(1, 2), fresh(2, 1)
    assert all(torch.equal(first[name], same[name]) for name in first)
    for name in first:
        if "rotations" in name:  # of the configuration's seed alone
            assert torch.equal(first[name], other[name]) and not torch.equal(first[name], other_hash[name])
        elif "norm" not in name and not name.endswith("bias"):
            assert torch.equal(first[name], other_hash[name]) and not torch.equal(first[name], other[name])
    assert isinstance(Reformer(SMALL).positions.weights, nn.ParameterList)
