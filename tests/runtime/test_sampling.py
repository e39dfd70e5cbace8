"""Draw tokens, and continue after them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import Close, RandomIds
from xlruntime import GrowingText, Model, OptionError, Random, Sampling, TextError
from xlruntime.tokenizers import ByteTokenizer

GREEDY = Sampling(temperature=0)
PROBABILITIES = np.array([0.05, 0.5, 0.15, 0.3])


def shares(sampling: Sampling, draws: int = 4000) -> list[float]:
    """Return the frequency of each token in draws from the logits of PROBABILITIES."""
    logits = (np.log(PROBABILITIES) + 3.0).astype(np.float32)
    rng = sampling.rng()
    drawn = np.bincount([sampling.draw(logits, rng) for _ in range(draws)], minlength=4)
    return list(drawn / draws)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(seed=0), PROBABILITIES),
        (Sampling(temperature=0), [0, 1, 0, 0]),
        (Sampling(temperature=1e-320, seed=0), [0, 1, 0, 0]),
        (Sampling(temperature=0.5, seed=0), PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (Sampling(temperature=2, seed=0), PROBABILITIES**0.5 / (PROBABILITIES**0.5).sum()),
        (Sampling(temperature=float("inf"), seed=0), [0.25] * 4),
        (Sampling(top_k=2, seed=0), [0, 0.625, 0, 0.375]),
        (Sampling(top_p=0.79, seed=0), [0, 0.625, 0, 0.375]),
        (Sampling(top_k=3, top_p=0.6, seed=0), [0, 0.625, 0, 0.375]),
        (Sampling(min_p=0.59, seed=0), [0, 0.625, 0, 0.375]),
        (Sampling(min_p=1, seed=0), [0, 1, 0, 0]),
        (Sampling(top_p=0.79, min_p=0.9, seed=0), [0, 1, 0, 0]),
        (Sampling(top_k=3, min_p=0.29, seed=0), [0, 10 / 19, 3 / 19, 6 / 19]),
    ],
)
@pytest.mark.full
def test_tokens_are_drawn_by_their_probabilities(sampling: Sampling, expected: Any) -> None:
    found = shares(sampling)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.03)
    assert [share > 0 for share in found] == [bool(share > 0) for share in expected]


def test_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones() -> None:
    logits, recent = np.array([2.0, -1.0, 1.5, 0.9], np.float32), [0, 1, 0]
    rule = Sampling(temperature=1, repetition_penalty=2, repetition_window=2, seed=0)
    rng = rule.rng()
    found = np.bincount([rule.draw(logits, rng, recent) for _ in range(4000)], minlength=4) / 4000
    penalised = np.exp([1.0, -2.0, 1.5, 0.9])
    np.testing.assert_allclose(found, penalised / penalised.sum(), rtol=0, atol=0.03)
    assert logits[0] == 2
    largest = np.array([np.finfo(np.float32).max, -1, 0], np.float32)  # its product is not a float32
    assert Sampling(repetition_penalty=1e-9).draw(largest, rng, [0, 1, 2]) == 0
    assert list(rule.recent(np.array([5, 6, 7]))) == [6, 7]


def test_penalty_holds_for_prompt_and_draws(bytes_model: Model, random_ids: RandomIds) -> None:
    rule = Sampling(temperature=0, repetition_penalty=1e9, repetition_window=200)
    prompt = random_ids(30)
    stream = bytes_model.stream()
    stream.feed(prompt[:29])
    for drawn in (
        bytes_model.generate(prompt, max_tokens=40, sampling=rule),
        stream.generate([prompt[29]], max_tokens=9, sampling=rule),
    ):
        tokens = list(drawn)
        assert len({*tokens} - {*prompt[28:].tolist()}) == len(tokens)


def test_random_numbers_are_those_of_the_specification() -> None:
    random = Random(0)
    numbers = [random.next() for _ in range(3)]
    assert [int(number * 2**53) for number in numbers] == [
        z >> 11 for z in (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    ]
    assert Random(2**64 - 1).next() != Random(0).next()


def by_full_sort(sampling: Sampling, logits: Any, u: float) -> int:
    """Draw a token as the specification says it, one token after the other."""
    largest = float(logits.max())
    probabilities = [math.exp((float(logit) - largest) / sampling.temperature) for logit in logits]
    tokens = list(range(len(logits)))
    if sampling.top_k is not None or sampling.top_p not in (None, 1):
        tokens = sorted(tokens, key=lambda token: -probabilities[token])[: sampling.top_k]
    if sampling.top_p is not None:
        total, kept, reached = sum(probabilities[token] for token in tokens), [], 0.0
        for token in tokens:
            kept.append(token)
            reached += probabilities[token]
            if reached >= sampling.top_p * total:
                break
        tokens = kept
    total, reached = sum(probabilities[token] for token in tokens), 0.0
    for token in tokens:
        reached += probabilities[token]
        if reached > u * total:
            return token
    return tokens[-1]


class Fixed(Random):
    """A generator of one number."""

    def __init__(self, u: float) -> None:
        self.u = u

    def next(self) -> float:
        return self.u


@pytest.mark.parametrize("top_k", [None, 1, 2, 5, 30, 31, 99])
@pytest.mark.parametrize("top_p", [None, 1e-9, 0.3, 0.77, 0.999, 1.0])
@pytest.mark.parametrize("decimals", [0, 7])
def test_draw_equals_a_full_sort(top_k: int | None, top_p: float | None, decimals: int) -> None:
    """Test also whole logits, where many tokens are equally likely: lower ids come first."""
    logits = np.random.default_rng(3).normal(0, 1.5, 31).round(decimals).astype(np.float32)
    sampling = Sampling(temperature=1.3, top_k=top_k, top_p=top_p)
    for u in [*np.linspace(0, 1, 257)[:-1], 1 - 2**-53]:
        assert sampling.draw(logits, Fixed(u)) == by_full_sort(sampling, logits, u), u


def test_all_sampling_options_out_of_range_are_listed() -> None:
    with pytest.raises(OptionError) as caught:
        Sampling(temperature=-1, top_k=0, top_p=1.5, seed=-1, min_p=2, repetition_penalty=0, repetition_window=0)
    assert str(caught.value) == (
        "sampling: temperature is -1, at least 0 is needed; top_k is 0, at least 1 is needed; "
        "top_p is 1.5, expected more than 0 and at most 1; seed is -1, expected 0 to 18446744073709551615; "
        "min_p is 2, expected 0 to 1; repetition_penalty is 0, expected 1e-9 to 1e9; "
        "repetition_window is 0, at least 1 is needed."
    )


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": float("nan")}, {"top_p": 0}, {"top_p": float("nan")}, {"seed": 2**64}),
        {"repetition_penalty": 1e-300},
    ],
)
def test_sampling_option_out_of_range_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(settings))):
        Sampling(**settings)


def test_limits_that_are_just_allowed() -> None:
    logits = np.random.default_rng(0).normal(size=9).astype(np.float32)
    assert Sampling(min_p=1, repetition_window=1).draw(logits, Sampling(seed=1).rng()) == logits.argmax()


def test_temperature_zero_takes_the_likeliest_token(variant: Model, random_ids: RandomIds) -> None:
    """Compare with the detail graph, which ranks the drawn tokens; draw enough to wrap the ring often."""
    prompt = random_ids(21, vocab_size=variant.bundle.vocab_size)
    drawn = list(variant.generate(prompt, max_tokens=60, sampling=GREEDY, segment_len=1))
    ids = np.concatenate([prompt, drawn])
    memory = variant.new_memory(variant.evaluation(segment_len=1))
    ranks = [
        int(variant.step("detail", memory, token[None, None], target[None, None])["rank"][0, 0])
        for token, target in itertools.pairwise(ids)
    ]
    assert ranks[20:] == [1] * 60
    assert set(ranks[:20]) != {1}


def test_seed_makes_draws_repeatable(model: Model) -> None:
    def draw(seed: int | None) -> list[int]:
        return list(model.generate(b"prompt", max_tokens=40, sampling=Sampling(seed=seed)))

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_generation_goes_on_after_a_feed(model: Model, random_ids: RandomIds) -> None:
    ids = random_ids(40)
    expected = list(model.generate(ids, max_tokens=12, sampling=GREEDY))
    stream = model.stream()
    stream.feed(ids[:39])
    assert list(stream.generate(ids[39:], max_tokens=5, sampling=GREEDY)) == expected[:5]
    assert list(stream.generate(max_tokens=7, sampling=GREEDY)) == expected[5:]


def test_generation_can_be_left_at_any_token(model: Model, random_ids: RandomIds, close: Close) -> None:
    ids, more = random_ids(20), random_ids(20, seed=1)
    stream = model.stream()
    drawn = list(itertools.islice(stream.generate(ids, max_tokens=1000, sampling=GREEDY), 4))
    expected = model.stream().feed(np.concatenate([ids, drawn, more])).log_probs
    close(stream.feed(more).log_probs, expected[-20:])


def test_no_tokens_are_drawn_but_the_prompt_is_read(model: Model, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(40)
    stream = model.stream()
    assert list(stream.generate(ids[:30], max_tokens=0)) == []
    close(stream.feed(ids[30:]).log_probs, model.stream().feed(ids).log_probs[-10:])


@pytest.mark.parametrize("prompt", [b"", "", [], None])
def test_nothing_to_continue_is_refused_at_once(prompt: Any, bytes_model: Model) -> None:
    with pytest.raises(TextError, match=r"nothing to continue: .* Give a prompt\."):
        bytes_model.stream().generate(prompt, max_tokens=3)


def test_negative_number_of_tokens_is_refused_at_once(bytes_model: Model) -> None:
    with pytest.raises(OptionError, match="max_tokens is -1, at least 0 is needed"):
        bytes_model.generate(b"prompt", max_tokens=-1)


def grown(text: bytes, *stops: str, before: bytes = b"") -> tuple[list[str], str, bool]:
    """Return the texts of each byte, the rest, and whether a stop was found."""
    growing = GrowingText(ByteTokenizer(), list(before), stops)
    pieces = [growing.add(token) for token in text]
    return pieces, growing.end(), growing.stopped


@pytest.mark.parametrize("before", [b"", b"0123456789", "é".encode()])
def test_characters_appear_when_they_are_complete(before: bytes) -> None:
    pieces, rest, _ = grown("aé€b".encode(), before=before)
    assert pieces == ["a", "", "é", "", "", "€", "b"]
    assert rest == ""


def test_broken_characters_appear_in_the_end() -> None:
    assert grown(b"a\xe2\x82") == (["a", "", ""], "\ufffd", False)
    pieces, rest, _ = grown(b"\x80" * 100)
    assert len("".join(pieces) + rest) == 100


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        (b"one. two", (". ",), "one"),
        (b"one. two", ("two", "e"), "on"),
        (b"one.", (". ",), "one."),
        (b"aab", ("ab",), "a"),
        (b"aabc", ("abc", "b"), "aa"),  # the stop that is complete first
        (b"one", ("",), "one"),
    ],
)
def test_text_ends_before_the_first_stop(text: bytes, stops: tuple[str, ...], expected: str) -> None:
    pieces, rest, stopped = grown(text, *stops)
    assert "".join(pieces) + rest == expected
    assert stopped == (expected != text.decode())
    assert all(expected.startswith("".join(pieces[:n])) for n in range(len(pieces)))


class SearchedOnce(str):
    """A text that may not be searched from its beginning."""

    def __add__(self, other: str) -> SearchedOnce:
        return SearchedOnce(str(self) + other)

    def __getitem__(self, key: Any) -> SearchedOnce:
        return SearchedOnce(str(self)[key])

    def find(self, *_: Any) -> int:
        raise AssertionError


def test_held_text_is_searched_once() -> None:
    growing = GrowingText(ByteTokenizer(), [], ["x" * 60_000, "yz"])
    growing._text = SearchedOnce()
    assert "".join(growing.add(token) for token in b"yyyz") == "yy" and growing.stopped
