"""The step twin with rings of keys and values against the eager model with hidden states, over many segments.

The tests do not use ONNX, so every variant is fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import RingDriver, cut, tiny_model
from xlexport.architectures import architecture
from xlexport.architectures.step_module import TOP_K
from xlexport.architectures.transformer_xl.attention import SlicedAttention
from xlexport.architectures.transformer_xl.step import TransformerXLStep, project_memory
from xltraining.transformer_xl import TransformerXL

LOG_PROB_TOLERANCE = 2e-5  # nats
MEMORY_TOLERANCE = 1e-5
MIXED_LENGTHS = (16, 1, 7, 50, 1, 1, 16, 7, 50, 50, 7, 1, 16, 50)  # around a ring of 70 slots more than three times


def random_ids(length: int, n_token: int = 20, seed: int = 1) -> Tensor:
    return torch.randint(n_token, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def walk(model: TransformerXL, driver: RingDriver, segments: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Walk one document in both; return the largest differences of log-probabilities and of memories."""
    memory, log_prob_difference, memory_difference = None, 0.0, 0.0
    for tokens, targets in segments:
        hidden, memory = model(tokens, memory)
        made = driver.run(tokens, targets)
        difference = (made["log_prob"] - model.log_probs(hidden, targets)).abs().max()
        log_prob_difference = max(log_prob_difference, float(difference))
        carried = dict(project_memory(model, memory))
        assert carried.keys() == driver.rings.keys()
        for name, rows in carried.items():
            ring = driver.by_age(name)
            assert ring.shape == rows[0].shape
            memory_difference = max(memory_difference, float((ring - rows[0]).abs().max()))
    return log_prob_difference, memory_difference


def check(model: TransformerXL, lengths: Sequence[int] = MIXED_LENGTHS, **options: Any) -> None:
    """Walk a document of segments of these lengths around a ring more than three times, and compare."""
    driver = RingDriver(TransformerXLStep(model), **options)
    begin = driver.offset
    segments = cut(random_ids(1 + sum(lengths), model.config.n_token), lengths)
    log_prob, memory = walk(model, driver, segments)
    assert driver.offset - begin > 3 * driver.capacity
    assert log_prob <= LOG_PROB_TOLERANCE
    assert memory <= MEMORY_TOLERANCE


CHOICES: dict[str, tuple[Any, ...]] = {
    **{"pre_lnorm": (False, True), "first_memory": ("empty", "zeros"), "same_length": (False, True)},
    **{"untie_r": (True, False), "clamp_len": (-1, 11)},
}
UNUSUAL: list[dict[str, Any]] = [
    {"n_head": 3, "d_head": 1},
    {"n_head": 1, "d_head": 12, "n_layer": 1},
    {"n_layer": 5, "mem_len": 1, "same_length": True},
    {"mem_len": 1},
    {"d_model": 2, "tie_weight": False, "layer_norm_epsilon": 1e-3},
    {"n_token": 1, "clamp_len": 1},
]
MODELS = [*(dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())), *UNUSUAL]


@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_step_against_eager_over_mixed_segments(changes: dict[str, Any]) -> None:
    check(tiny_model(**changes))


@pytest.mark.parametrize("clamp_len", [-1, 11])
@pytest.mark.parametrize("first_memory", ["empty", "zeros"])
def test_step_of_custom_operators_against_eager(
    first_memory: str, clamp_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the operators' PyTorch form, which ONNX graphs are traced with and no other step uses."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    monkeypatch.setattr(SlicedAttention, "by_slot", None)  # the plain form, which must not run
    check(tiny_model(first_memory=first_memory, clamp_len=clamp_len))


@pytest.mark.parametrize("first_memory", ["empty", "zeros"])
def test_ring_without_a_spare_slot(first_memory: str) -> None:
    check(tiny_model(first_memory=first_memory), [7] * 14, capacity=20 + 7)


@pytest.mark.parametrize("offset", [-1, -69, 71, 10**12 + 1, 2**62, -(2**62)])
def test_offset_may_be_any_number(offset: int) -> None:
    check(tiny_model(same_length=True), offset=offset)


@pytest.mark.parametrize("same_length", [False, True], ids=["growing", "same"])
@pytest.mark.parametrize("first_memory", ["empty", "zeros"])
def test_rows_of_a_batch_are_independent(
    first_memory: str,
    same_length: bool,
) -> None:
    """Read six documents in three rows, padded at their ends; each must equal the eager model on it alone."""
    model = tiny_model(first_memory=first_memory, same_length=same_length, pre_lnorm=True)
    S, rows = 8, 3
    documents = [random_ids(length, seed=length) for length in (2, 61, 18, 90, 9, 34)]
    driver = RingDriver(TransformerXLStep(model), rows, capacity=model.config.mem_len + S)
    waiting = list(enumerate(documents))
    active: dict[int, tuple[int, Tensor]] = {}  # row -> document and its remaining ids
    found: dict[int, list[Tensor]] = {number: [] for number, _ in waiting}
    lengths_seen = set()
    while waiting or active:
        for row in range(rows):
            if row not in active and waiting:
                active[row] = waiting.pop(0)
                driver.restart(row)
        lengths_seen.add(tuple(driver.memory_length.tolist()))
        tokens, targets = torch.zeros(2, rows, S, dtype=torch.int64)
        for row, (_, ids) in active.items():
            n = min(S, len(ids) - 1)
            tokens[row, :n], targets[row, :n] = ids[:n], ids[1 : n + 1]
        log_prob = driver.run(tokens, targets)["log_prob"]
        for row, (number, ids) in list(active.items()):
            n = min(S, len(ids) - 1)
            found[number].append(log_prob[row, :n])
            active[row] = (number, ids[n:])
            if len(ids) - n == 1:
                del active[row]
    assert first_memory == "zeros" or any(len(set(lengths)) == rows for lengths in lengths_seen)

    for number, ids in enumerate(documents):
        last = len(ids) - 1
        memory, wanted = None, []
        for tokens, targets in cut(ids, [S] * (last // S) + [last % S] * bool(last % S)):
            with torch.no_grad():
                hidden, memory = model(tokens, memory)
                wanted.append(model.log_probs(hidden, targets)[0])
        assert torch.allclose(torch.cat(found[number]), torch.cat(wanted), rtol=0, atol=LOG_PROB_TOLERANCE)


@pytest.mark.parametrize("first_memory", ["empty", "zeros"])
@pytest.mark.parametrize("extra", [0, 1])
def test_window_against_naive_attention(
    extra: int,
    first_memory: str,
    naive: Callable[..., Any],
) -> None:
    """Check `same_length` with mem_len keys (kimiyoung) and mem_len + 1 (NVIDIA); the eager model has only one rule."""
    model = tiny_model(same_length=True, first_memory=first_memory)
    window = model.config.mem_len + extra
    driver = RingDriver(TransformerXLStep(model), window=window)
    lengths = (16, 1, 7, 30, 16)
    ids = random_ids(1 + sum(lengths))
    found = [driver.run(*segment)["log_prob"][0].numpy() for segment in cut(ids, lengths)]
    wanted = naive(model, ids, lengths, window=window)
    assert np.abs(np.concatenate(found) - wanted).max() <= LOG_PROB_TOLERANCE
    other = naive(model, ids, lengths, window=window + 1)
    assert np.abs(other - wanted).max() > 1e-3


@pytest.mark.parametrize("n_token", [20, TOP_K - 4])
def test_detail_outputs_against_naive(n_token: int) -> None:
    model = tiny_model(n_token=n_token)
    driver = RingDriver(TransformerXLStep(model), batch_size=2)
    ids = random_ids(34, n_token).view(2, 17)
    tokens, targets = ids[:, :-1], ids[:, 1:]
    made = driver.run(tokens, targets)
    with torch.no_grad():
        logits = model.logits(model(tokens)[0]).double()
    assert torch.allclose(made["logits"].double(), logits[:, -1], rtol=0, atol=1e-5)
    for row in range(2):
        for place in range(16):
            log_probs = (logits[row, place] - torch.logsumexp(logits[row, place], 0)).tolist()
            best_first = sorted(range(n_token), key=log_probs.__getitem__, reverse=True)
            target = int(targets[row, place])
            assert made["log_prob"][row, place].item() == pytest.approx(log_probs[target], abs=1e-5)
            assert made["rank"][row, place].item() == best_first.index(target) + 1
            entropy = -sum(np.exp(log_prob) * log_prob for log_prob in log_probs)
            assert made["entropy"][row, place].item() == pytest.approx(entropy, abs=1e-5)
            top = best_first[:TOP_K]
            assert made["top_ids"][row, place].tolist() == top
            assert made["top_log_probs"][row, place].tolist() == pytest.approx([log_probs[id] for id in top], abs=1e-5)


@pytest.mark.parametrize(("clamp_len", "near"), [(-1, 40), (0, 40), (1, 11), (9, 19), (29, 39), (30, 40), (400, 40)])
def test_only_distances_that_differ_have_positional_keys(clamp_len: int, near: int) -> None:
    """Check the number of keys: clamp_len for a step's last query, and 10 more for the first, one per spare slot."""
    step = TransformerXLStep(tiny_model())
    keys = step.positions(*(torch.tensor([number]) for number in (40, 30, clamp_len)))
    assert {key.shape[2] for key in keys} == {near + 1}


@pytest.mark.parametrize("clamp_len", [-1, 0, 1, 9, 400])
def test_positional_keys_of_every_distance(clamp_len: int) -> None:
    """Expect a zero column, then W_kR (R_d - R_29) for d = 29 … 0; a clamp that is not positive has no effect."""
    model = tiny_model()
    config = model.config
    keys = TransformerXLStep(model).positions(torch.tensor([30]), torch.tensor([1]), torch.tensor([clamp_len]))
    for index, key in enumerate(keys):
        assert key.shape == (config.n_head, config.d_head, 31)
        assert not key[:, :, 0].any()
        weight = model.state_dict()[f"layers.{index}.attention.position.weight"].double().numpy()

        def encoding(distance: int, weight: npt.NDArray[np.float64] = weight) -> npt.NDArray[np.float64]:
            clamped = min(distance, clamp_len) if clamp_len > 0 else distance
            angles = clamped / 10000 ** (np.arange(0, config.d_model, 2) / config.d_model)
            return weight @ np.concatenate([np.sin(angles), np.cos(angles)])

        for column in range(1, 31):
            wanted = encoding(30 - column) - encoding(29)
            assert np.abs(key[:, :, column].detach().numpy().reshape(-1) - wanted).max() <= 1e-5


def test_rows_of_a_zero_first_memory() -> None:
    """Expect W·LN(0), the projected bias of the norm, with pre-LayerNorm, else zero and no value in the spec."""
    pre = tiny_model(pre_lnorm=True, first_memory="zeros")
    step = TransformerXLStep(pre)
    for index in range(pre.config.n_layer):
        attention = f"layers.{index}.attention"
        weights = pre.state_dict()
        _, key, value = (weights[f"{attention}.qkv.weight"] @ weights[f"{attention}.norm.bias"]).chunk(3)
        for kind, wanted in (("key", key), ("value", value)):
            row = step.first_rows()[f"memory_{kind}_{index}"]
            assert row.abs().max() > 0.01
            assert torch.allclose(row.reshape(-1), wanted, rtol=0, atol=1e-6)
    assert [entry.first_value for entry in step.memory] == [entry.input for entry in step.memory]

    for changes in ({"first_memory": "zeros"}, {"pre_lnorm": True}):
        other = TransformerXLStep(tiny_model(**changes))
        assert {entry.first_value for entry in other.memory} == {None}
    post = TransformerXLStep(tiny_model(first_memory="zeros"))
    assert not any(row.any() for row in post.first_rows().values())


def test_step_declares_what_forward_takes_and_gives() -> None:
    step = architecture("transformer_xl").build_step(tiny_model(), {})
    example = step.example()
    free: dict[int | str, int] = {}
    for tensor, entry in zip(example, step.inputs, strict=True):
        assert str(tensor.dtype) == f"torch.{entry.dtype}"
        assert tensor.ndim == len(entry.shape)
        for size, axis in zip(tensor.shape, entry.shape, strict=True):
            assert free.setdefault(axis, size) == size
    named = {axis: size for axis, size in free.items() if isinstance(axis, str)}
    assert named.keys() == {"batch", "segment", "capacity", "near + 1"}
    assert len(set(named.values())) == 4 and min(named.values()) > 1
    assert {entry.input for entry in step.memory} <= {entry.name for entry in step.inputs}
    outputs = {tensor.name: tensor for tensor in step.purposes["score"]}
    assert all(outputs[entry.output].shape == entry.shape for entry in step.memory)
