"""How far a module holds: tables, counters, decays, growth and cuts far into a document; and its own limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xlexport
import xlruntime
from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CRuntime
from xlexport.errors import ExportError
from xlexport.families.recurrent.checks import check_module
from xlruntime.errors import TooLongError

N_TOKEN, D, LIMIT = 40, 8, 700
State = Mapping[str, Tensor]


class Counter(nn.Module):
    """A recurrent layer whose logits follow a function of a counter."""

    def __init__(
        self,
        place: Callable[[Tensor], Tensor] = torch.cos,
        count: Callable[[Tensor], Tensor] = lambda n: n + 1,
        dtype: torch.dtype = torch.float32,
        first: float = 0.0,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(N_TOKEN, D), nn.Linear(D, N_TOKEN)
        self.place, self.count, self.first = place, count, torch.full((1,), first, dtype=dtype)

    def first_state(self) -> State:
        return {"n": self.first, "h": torch.zeros(D)}

    def step(self, token: Tensor, state: State) -> Any:
        h = torch.tanh(self.embedding(token) + state["h"].roll(1, dims=1))
        return self.head(h + self.place(state["n"])), {"n": self.count(state["n"]), "h": h}


class Places(nn.Module):
    """A segment whose logits follow the positions n + [0 ... S - 1], and tokens of the past."""

    def __init__(self, place: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head, self.place = nn.Embedding(N_TOKEN, D), nn.Linear(D, N_TOKEN), place
        self.dtype = dtype

    def first_state(self) -> State:
        return {"n": torch.zeros(1, dtype=self.dtype), "h": torch.zeros(D)}

    def segment(self, tokens: Tensor, state: State) -> Any:
        S = tokens.shape[1]
        h = state["h"][:, None] + self.embedding(tokens).cumsum(dim=1) / 10  # (B, S, D)
        x = h + self.place(state["n"] + torch.arange(S), state["n"].expand(-1, S))[:, :, None]
        return self.head(torch.sin(x)), {"n": state["n"] + S, "h": h[:, -1]}


class Table(Places):
    """A table of positions, which the class limits."""

    max_positions = LIMIT

    def __init__(self) -> None:
        super().__init__(lambda place, n: self.table[place])
        self.register_buffer("table", torch.randn(LIMIT))


def fading(n: Tensor) -> Tensor:
    return n / n


def late(place: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 50_000, (place - n) / 10, n * 0)


def table(size: int) -> Callable[..., Tensor]:
    values = torch.randn(size)
    return lambda place, *_: values[place]


ENDS = {
    "table": (r"at most 90,000 tokens; then .* IndexError .*max_positions = 90000", lambda: Places(table(90_000))),
    "float16 counter": (r"2,048 tokens; .*'n' is at 2,048, where float16", lambda: Counter(dtype=torch.float16)),
    "bfloat16 counter": (r"256, where bfloat16", lambda: Counter(count=lambda n: (n + 1).bfloat16().float())),
    "phase": (
        r"'n' is at [\d,]+, where float32 is too coarse for steps of 0.3",
        lambda: Counter(count=lambda n: n + 0.3),
    ),
    "decay": (
        r"1\d,\d{3} tokens; then the logits are not finite",
        lambda: Counter(fading, lambda n: n * 0.99, first=1),
    ),
    "log decay": (r"10,\d{3} tokens", lambda: Counter(lambda n: fading((n * -0.01).exp()))),
    "growth": (r"at most \d{3} tokens; then the state 'n' grows", lambda: Counter(count=lambda n: n * 1.2 + 1)),
    "slow growth": (
        r"8\d,\d{3} tokens; then the state 'n' grows",
        lambda: Counter(torch.cos, lambda n: n * 1.001, first=1),
    ),
    "late cut": (r"50,0\d\d tokens; then segments of 7 and 64 tokens differ", lambda: Places(late)),
}


@pytest.mark.parametrize("name", ENDS)
def test_module_that_ends_is_refused_with_the_number_of_tokens(name: str) -> None:
    pattern, make = ENDS[name]
    with pytest.raises(ExportError, match=pattern):
        check_module(make().eval(), N_TOKEN)


RIGHT = {
    "saturates": lambda: Counter(count=lambda n: (n + 1).clamp(max=256)),
    "stops": lambda: Counter(count=lambda n: torch.where(n < 9000, n + 1, n)),
    "begins again": lambda: Places(lambda place, n: (place % 86_400) / 86_400),
    "with a table": lambda: Counter(table(50_000), lambda n: (n + 1) % 50_000, torch.int64),
    "fades": lambda: Counter(lambda n: 1 / (1.01 - n), lambda n: n * 0.99, first=1),
    "sums": lambda: Counter(lambda n: 1 / (1 + n), lambda n: n + torch.tensor([0.25])),
}


@pytest.mark.parametrize("name", RIGHT)
def test_counter_that_stops_by_intention_passes(name: str) -> None:
    assert check_module(RIGHT[name]().eval(), N_TOKEN).limit is None


def test_counter_that_holds_for_long_gives_the_bundle_a_limit() -> None:
    horizon = check_module(Counter().eval(), N_TOKEN)
    assert horizon.limit == 2**24
    assert str(horizon.note).startswith("Documents have at most 16,777,216 tokens: then the state 'n' is at")
    horizon = check_module(Places(lambda place, n: (place % 1000) / 100, torch.int32).eval(), N_TOKEN)
    assert (horizon.limit, horizon.compared) == (2**30, 4096 + 64 + 577)  # the largest number of the manifest


class Reset(Places):
    """Forgets its state at one token, but only if that begins a segment."""

    def __init__(self, token: int) -> None:
        super().__init__(lambda place, n: place % 5)
        self.embedding, self.head, self.token = nn.Embedding(5000, D), nn.Linear(D, 5000), token

    def segment(self, tokens: Tensor, state: State) -> Any:
        return super().segment(tokens, {**state, "h": state["h"] * (tokens[:, :1] != self.token)})


def test_ids_that_random_tokens_hardly_hit_are_read_first_and_within_a_segment() -> None:
    for token, special in ((4999, ()), (3, ()), (2500, [2500])):
        with pytest.raises(ExportError, match=rf"token {token} acts otherwise if it begins a segment"):
            check_module(Reset(token).eval(), 5000, special)
    check_module(Reset(2500).eval(), 5000)  # a token without a role, which no check reads


def test_limit_that_a_module_names_is_checked() -> None:
    assert check_module(Table().eval(), N_TOKEN, limit=LIMIT).compared == LIMIT
    with pytest.raises(ExportError, match=r"at most 700 tokens; then .* IndexError .* Its max_positions is 710\."):
        check_module(Table().eval(), N_TOKEN, limit=LIMIT + 10)
    model = Table()
    for wrong in (0, 1.5, True, "9"):
        model.max_positions = wrong  # type: ignore[assignment]
        with pytest.raises(ExportError, match=r"^Table.max_positions is .*, expected a whole number from 2 on"):
            xlexport.export_module(model, "never.bundle")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limited") / "own.bundle"
    report = xlexport.export_module(Table(), folder)
    assert report.cuts_compared == LIMIT
    return folder


def test_document_beyond_the_limit_is_refused(limited: Path) -> None:
    model, ids = xlruntime.load(limited, threads=1), [1, 2, 3] * 300
    (scored,) = model.score_tokens([ids[: LIMIT + 1]])  # the last token is only predicted
    assert len(scored.log_probs) == LIMIT
    with pytest.raises(TooLongError, match="900 tokens, but at most 701 are possible"):
        list(model.score_tokens([ids]))


@pytest.mark.native
def test_c_refuses_the_same_document(limited: Path, c_runtime: CRuntime) -> None:
    model = c_runtime.load(limited)
    model.score([1] * (LIMIT + 1))
    with pytest.raises(CError, match="at most 701 are possible") as caught:
        model.score([1] * (LIMIT + 2))
    assert caught.value.code == "too_long"
