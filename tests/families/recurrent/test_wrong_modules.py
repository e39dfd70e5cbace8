"""Every wrong module is refused by an error that names its fault, and right modules pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from xlexport.errors import ExportError
from xlexport.families.recurrent.checks import check_module

N_TOKEN, D = 11, 8
State = Mapping[str, Tensor]


class Right(nn.Module):
    """Embeddings with a position, a causal convolution of three tokens, and two recurrent layers.

    One state has float16, but the same values for every cut; one begins with a parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.word, self.place = nn.Embedding(N_TOKEN, D), nn.Embedding(5, D)
        self.taps, self.first = nn.Parameter(torch.randn(3, D)), nn.Parameter(torch.full((D,), 0.5))
        self.cell_1, self.cell_2, self.head = nn.GRUCell(D, D), nn.GRUCell(D, D), nn.Linear(D, N_TOKEN)

    def first_state(self) -> State:
        seen, conv = torch.zeros((), dtype=torch.int64), torch.zeros(2, D, dtype=torch.float16)
        return {"seen": seen, "conv": conv, "h_1": torch.zeros(D), "h_2": self.first}

    def inputs(self, tokens: Tensor, seen: Tensor) -> Tensor:
        places = seen[:, None] + torch.arange(tokens.shape[1])  # (B, S)
        return self.word(tokens) + self.place(places % 5)

    def segment(self, tokens: Tensor, state: State) -> Any:
        x = torch.cat([state["conv"], self.inputs(tokens, state["seen"]).half()], dim=1)  # (B, 2 + S, D)
        conv, x = x[:, -2:], (x.unfold(1, 3, 1) * self.taps.T).sum(dim=3)  # (B, S, D)
        h_1, h_2, rows = state["h_1"], state["h_2"], []
        for x_t in x.unbind(dim=1):
            h_1 = self.cell_1(x_t, h_1)
            h_2 = self.cell_2(h_1, h_2)
            rows.append(h_2)
        new = {"h_2": h_2, "h_1": h_1, "conv": conv, "seen": state["seen"] + tokens.shape[1]}  # in another order
        return self.head(torch.stack(rows, dim=1)), new


class Wrong(Right):
    """A right module with one stage replaced: the state it reads, its inputs, or the state or logits it returns."""

    def __init__(
        self,
        reads: Callable[..., Any] = lambda old: old,
        embeds: Callable[..., Any] = lambda x: x,
        returns: Callable[..., Any] = lambda old, new: new,
        computes: Callable[..., Any] = lambda logits: logits,
    ) -> None:
        super().__init__()
        self.reads, self.embeds, self.returns, self.computes = reads, embeds, returns, computes

    def inputs(self, tokens: Tensor, seen: Tensor) -> Tensor:
        return self.embeds(super().inputs(tokens, seen))

    def segment(self, tokens: Tensor, state: State) -> Any:
        logits, new = super().segment(tokens, self.reads(state))
        return self.computes(logits), self.returns(state, new)


class OffByOne(Right):
    def segment(self, tokens: Tensor, state: State) -> Any:
        logits, new = super().segment(tokens, state)
        before = super().segment(tokens[:, :-1], state)[1] if tokens.shape[1] > 1 else state
        return logits, {**new, "h_2": before["h_2"]}


class ForgottenReset(Right):
    kept: Tensor | float = 0.0

    def segment(self, tokens: Tensor, state: State) -> Any:
        logits, new = super().segment(tokens, {**state, "h_1": state["h_1"] + self.kept})
        self.kept = new["h_1"][0]
        return logits, new


class FirstStateNotFresh(Right):
    def first_state(self) -> State:
        return {**super().first_state(), "h_1": torch.randn(D)}


class StepDiffers(Right):
    def step(self, token: Tensor, state: State) -> Any:
        logits, new = self.segment(token[:, None], state)
        return 1.01 * logits[:, 0], new


class Memoryless(Right):
    def first_state(self) -> State:
        return {}

    def segment(self, tokens: Tensor, state: State) -> Any:
        return self.head(self.word(tokens)), {}


def hide_old(x: Tensor) -> Tensor:
    """Let a segment see its newest 32 tokens only, counted from its end."""
    return x * (torch.arange(x.shape[1]) >= x.shape[1] - 32)[:, None]


def underflow(x: Tensor) -> Tensor:
    """Divide by a decay that float32 cannot hold after 149 tokens."""
    decay = 0.5 ** torch.arange(x.shape[1])[:, None]
    return x * decay / (decay + (decay == 0))


def lose_digits(logits: Tensor) -> Tensor:
    """Round by the number of rows, as large products do, by 1e-3 in float32; call the first token impossible."""
    rounded = logits + 9999 * len(logits) - 9999 * len(logits)
    return rounded.masked_fill(torch.arange(N_TOKEN) == 0, -torch.inf)


def wrong(**stages: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Wrong(**stages)


WRONG: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "swapped states": (
        r"segments of 64 and 513 tokens differ: .* from token 64; the states 'h_2' and 'h_1' are swapped",
        wrong(returns=lambda old, new: {**new, "h_1": new["h_2"], "h_2": new["h_1"]}),
    ),
    "off by one": (r"from token 64; the state 'h_2' lacks the last token of a segment: it is off by one", OffByOne),
    "stale convolution": (
        r"from token 64; the state 'conv' keeps its first value, so it is stale",
        wrong(returns=lambda old, new: {**new, "conv": old["conv"]}),
    ),
    "half precision": (
        r"segments of 64 and 513 tokens differ: the state 'h_1' is rounded to half precision",
        wrong(returns=lambda old, new: {**new, "h_1": new["h_1"].half().float()}),
    ),
    "forgotten reset": (r"keeps a state in its attribute 'kept', so a repeated call differs", ForgottenReset),
    "first state not fresh": (r"first_state: 'h_1' changes between calls, .* not start fresh", FirstStateNotFresh),
    "position not carried": (
        r"from token 64; the result follows the position in the segment",
        wrong(
            reads=lambda old: {**old, "seen": 0 * old["seen"]},
            returns=lambda old, new: {**new, "seen": old["seen"] + new["seen"]},
        ),
    ),
    "mask from length": (r"the first 64 tokens .* the length of a segment changes", wrong(embeds=hide_old)),
    "dropout left on": (r"random, as with dropout that is left on", wrong(embeds=lambda x: functional.dropout(x, 0.1))),
    "growing cache": (
        r"the state 'conv' becomes \(3, 4, 8\) float16, expected \(3, 2, 8\) .* must not grow",
        wrong(returns=lambda old, new: {**new, "conv": torch.cat([old["conv"], new["conv"]], dim=1)}),
    ),
    "mean over the batch": (
        r"row 0 of a batch of 3 depends on the other rows",
        wrong(embeds=lambda x: x - x.mean(dim=0)),
    ),
    "small mean over the batch": (
        r"row \d of a batch of 3 depends on the other rows: [^;]*$",
        wrong(embeds=lambda x: x + 1e-3 * x.mean(dim=0)),
    ),
    "decision for all rows": (
        r"depends on the other rows.*; test_wrong_modules.py:\d+ decides by the value of seen",
        wrong(reads=lambda old: {**old, "h_1": old["h_1"] * (2 if old["seen"].sum() > 20 else 1)}),
    ),
    "underflow": (
        r"segments of 64 and 513 tokens differ: .*; in float64 they agree, so float32 overflows",
        wrong(embeds=underflow),
    ),
    "written in place": (
        r"writes in place into its argument: state\['h_1'\]",
        wrong(returns=lambda old, new: {**new, "h_1": old["h_1"].copy_(new["h_1"])}),
    ),
    "state of another layer": (
        r"'h_2' is returned but never read\. Read .* in its own",
        wrong(reads=lambda old: {**old, "h_2": old["h_1"]}),
    ),
    "state forgotten": (r"the logits do not depend on the state", wrong(computes=torch.zeros_like)),
    "state dropped": (
        r"the new state has \['h_1'\], expected .*'h_2'",
        wrong(returns=lambda old, new: {"h_1": new["h_1"]}),
    ),
    "dtype changed": (
        r"the state 'seen' becomes \(3,\) float32, expected \(3,\) int64\. Keep the dtype",
        wrong(returns=lambda old, new: {**new, "seen": new["seen"] / 1}),
    ),
    "not finite": (
        r"the logits are not finite at token 90",
        wrong(embeds=lambda x: x + (89 - torch.arange(x.shape[1])).float().sqrt()[:, None] * 0),
    ),
    "looks ahead": (r"so the module looks ahead: .* from token 15", wrong(embeds=lambda x: x + x.roll(-1, dims=1))),
    "step differs": (r"step: it computes something else than segment: .* from token 0", StepDiffers),
    "probabilities": (r"the logits are probabilities", wrong(computes=lambda logits: logits.softmax(dim=-1))),
    "wrong vocabulary": (
        r"the logits are \(3, 17, 10\) float32, expected",
        wrong(computes=lambda logits: logits[..., 1:]),
    ),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.full
def test_wrong_module_is_refused_by_the_name_of_its_fault(fault: str) -> None:
    pattern, make = WRONG[fault]
    with pytest.raises(ExportError, match=pattern) as caught:
        check_module(make().eval(), N_TOKEN)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("state", [[], {"h": 0.0}, {"h": torch.zeros(2, dtype=torch.float64)}])
def test_first_state_of_other_types_is_refused(state: Any) -> None:
    model = Right().eval()
    model.first_state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(ExportError, match=r"^Right.first_state: the result is not a mapping of names to tensors of"):
        check_module(model, N_TOKEN)


@pytest.mark.parametrize("make", [Right, Memoryless, wrong(computes=lose_digits)])
@pytest.mark.full
def test_right_module_passes(make: Callable[[], nn.Module]) -> None:
    model, before = make().eval(), torch.random.get_rng_state()
    check_module(model, N_TOKEN)
    assert torch.equal(torch.random.get_rng_state(), before)
