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
from tests.helpers.c_library import build_c_runtime, find_onnxruntime
from tests.helpers.c_runtime import CError, CRuntime
from xlexport.errors import ExportError
from xlexport.families.recurrent.checks import check_module
from xlruntime.errors import TooLongError

N_TOKEN, D, LIMIT = 40, 8, 700


class Base(nn.Module):
    """A state that counts, and one that remembers tokens; `place` says what a position adds to the logits."""

    def __init__(self, place: Any = torch.cos, count: Any = lambda n: n + 1, first: Any = 0.0, **kind: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(N_TOKEN, D), nn.Linear(D, N_TOKEN)
        self.place, self.count, self.first = place, count, torch.full((1,), first, **kind)

    def first_state(self) -> Mapping[str, Tensor]:
        return {"n": self.first, "h": torch.zeros(D)}


class Step(Base):
    def step(self, token: Tensor, state: Mapping[str, Tensor]) -> Any:
        h = torch.tanh(self.embedding(token) + state["h"].roll(1, dims=1))
        return self.head(h + self.place(state["n"])), {"n": self.count(state["n"]), "h": h}


class Segment(Base):
    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> Any:
        S = tokens.shape[1]
        h = state["h"][:, None] + self.embedding(tokens).cumsum(dim=1) / 10  # (B, S, D)
        x = h + self.place(state["n"] + torch.arange(S), state["n"])[:, :, None]
        return self.head(torch.sin(x)), {"n": state["n"] + S, "h": h[:, -1]}


class Reset(Segment):
    """Forgets its state at one token, but only if that begins a segment."""

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> Any:
        return super().segment(tokens, {**state, "h": state["h"] * (tokens[:, :1] != self.place.token)})


class Table(Segment):
    """A table of positions, which the class limits."""

    max_positions = LIMIT

    def __init__(self) -> None:
        super().__init__(table(LIMIT), first=0)


def table(size: int) -> Callable[..., Tensor]:
    values = torch.randn(size)
    return lambda place, *_: values[place]


def late(place: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 50_000, (place - n) / 10, n * 0)


ENDS = {
    r"at most 90,000 tokens; then .* IndexError .*max_positions = 90000": lambda: Segment(table(90_000), first=0),
    r"2,048 tokens; .*'n' is at 2,048, where float16": lambda: Step(dtype=torch.float16),
    r"256, where bfloat16": lambda: Step(count=lambda n: (n + 1).bfloat16().float()),
    r"'n' is at [\d,]+, where float32 is too coarse for steps of 0.3": lambda: Step(count=lambda n: n + 0.3),
    r"1\d,\d{3} tokens; then the logits are not finite": lambda: Step(lambda n: n / n, lambda n: n * 0.99, 1.0),
    r"at most \d{3} tokens; then the state 'n' grows": lambda: Step(count=lambda n: n * 1.2 + 1),
    r"8\d,\d{3} tokens; then the state 'n' grows": lambda: Step(count=lambda n: n * 1.001, first=1.0),
    r"50,0\d\d tokens; then segments of 7 and 64 tokens differ": lambda: Segment(late, first=0),
}


@pytest.mark.parametrize("pattern", ENDS)
@pytest.mark.full
def test_module_that_ends_is_refused_with_the_number_of_tokens(pattern: str) -> None:
    with pytest.raises(ExportError, match=pattern):
        check_module(ENDS[pattern]().eval(), N_TOKEN)


LIMITS = {
    "saturates": (None, lambda: Step(count=lambda n: (n + 1).clamp(max=256))),
    "stops": (None, lambda: Step(count=lambda n: torch.where(n < 9000, n + 1, n))),
    "wraps before its table ends": (None, lambda: Step(table(50_000), lambda n: (n + 1) % 50_000, 0)),
    "fades": (None, lambda: Step(lambda n: 1 / (1.01 - n), lambda n: n * 0.99, 1.0)),
    "float32": (2**24, Step),
    "int32": (2**30, lambda: Segment(lambda place, n: (place % 1000) / 1000, first=0, dtype=torch.int32)),
}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.full
def test_counter_that_holds_for_long_passes_with_its_limit(name: str) -> None:
    limit, make = LIMITS[name]
    horizon = check_module(make().eval(), N_TOKEN)
    assert horizon.limit == limit
    assert (horizon.note or "").startswith("" if limit is None else f"Documents have at most {limit:,} tokens: then ")


@pytest.mark.full
def test_special_ids_are_read_first_and_within_a_segment() -> None:
    model = Reset(lambda place, n: place % 5, first=0).eval()
    model.embedding, model.head = nn.Embedding(3000, D), nn.Linear(D, 3000)
    for model.place.token, special in ((2990, ()), (1500, [1500])):  # among the last, and one with a role
        with pytest.raises(ExportError, match=rf"token {model.place.token} acts otherwise if it begins a segment"):
            check_module(model, 3000, special)


def test_limit_that_a_module_names_is_checked() -> None:
    with pytest.raises(ExportError, match=r"at most 700 tokens; then .* IndexError .* Its max_positions is 710\."):
        check_module(Table().eval(), N_TOKEN, limit=LIMIT + 10)
    model = Table()
    for wrong in (0, True, "9"):
        model.max_positions = wrong  # type: ignore[assignment]
        with pytest.raises(ExportError, match=r"^Table.max_positions is .*, expected a whole number from 2 on"):
            xlexport.export_module(model, "never.bundle")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limited") / "own.bundle"
    assert xlexport.export_module(Table(), folder).cuts_compared == LIMIT
    return folder


@pytest.mark.release
def test_document_beyond_the_limit_is_refused(limited: Path) -> None:
    model = xlruntime.load(limited, threads=1)
    scored = model.score_tokens([[1] * (LIMIT + 1)])  # the last token is only predicted
    assert sum(len(part.log_probs) for part in scored) == LIMIT
    with pytest.raises(TooLongError, match="at most 701 are possible"):
        list(model.score_tokens([[1] * (LIMIT + 2)]))


@pytest.mark.native
def test_c_refuses_the_same_document(limited: Path) -> None:
    model = CRuntime(build_c_runtime() / "libxlruntime.so", find_onnxruntime()).load(limited)
    model.score([1] * (LIMIT + 1))
    with pytest.raises(CError, match="at most 701 are possible") as caught:
        model.score([1] * (LIMIT + 2))
    assert caught.value.code == "too_long"


@pytest.mark.full
def test_checks_leave_threads_and_chance_as_they_were() -> None:
    module, threads = Step().eval(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        state = torch.get_rng_state()
        check_module(module, N_TOKEN)
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)
