"""Experiments that find out why segments of several lengths differ, so that the error can name the fault."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from xlexport.architectures.recurrent.trial import Result, State, Trial, difference_of

__all__ = ["half_precision", "likely_cause"]

PERIOD = 16  # tokens of a segment in the experiment with one repeated token

Cause = tuple[str, str]  # the end of a sentence, and what to write instead


def likely_cause(trial: Trial, tokens: Tensor, length: int) -> Cause:
    """Return the likely cause if tokens (1, N) in segments of `length` differ from longer segments."""
    start, tail = tokens[:, :length], tokens[:, length : 2 * length]
    log_probs, state = trial.read(start, trial.first())
    longer, end = trial.read(tokens[:, : 2 * length], trial.first())
    if trial.difference((longer[:, :length], state), (log_probs, state)):
        cause = f"the first {length:,} tokens alone already differ, so the length of a segment changes the result"
        return cause, "Make masks, positions and scales from the state and the tokens before, not from tokens.shape[1]."
    expected = longer[:, length:], end
    return (
        _stale(trial, start, state)
        or _swapped(trial, tail, state, expected)
        or _position(trial, tokens[:, :1])
        or _unknown(trial, tail, state, expected)
    )


def half_precision(state: State, expected: State) -> str | None:
    """Return the name of a float32 state that other cuts change, and whose fractions all fit into 16 bits."""
    for name, value in state.items():
        fits = any(torch.equal(value, value.to(half).to(value.dtype)) for half in (torch.float16, torch.bfloat16))
        if value.dtype == torch.float32 and fits and not torch.equal(value, expected[name]):
            return name
    return None


def _stale(trial: Trial, start: Tensor, state: State) -> Cause | None:
    """Name a state that does not change, or that another last token does not change: it is one token too old."""
    other = start.clone()
    other[:, -1] = (other[:, -1] + 1) % trial.n_token
    first, (_, after_other) = trial.first(), trial.read(other, trial.first())
    for name, value in state.items():
        if value.is_floating_point() and torch.equal(value, first[name]):
            return f"the state {name!r} keeps its first value, so it is stale", "Return its value after the last token."
        if value.is_floating_point() and torch.equal(value, after_other[name]):
            cause = f"the state {name!r} lacks the last token of a segment: it is off by one"
            return cause, "Return its value after the last token, not before it."
    return None


def _swapped(trial: Trial, tail: Tensor, state: State, expected: Result) -> Cause | None:
    """Name two states of equal shape whose exchange gives the expected log-probabilities after the cut."""
    for a, b in combinations(state, 2):
        if (state[a].shape, state[a].dtype) == (state[b].shape, state[b].dtype):
            log_probs, _ = trial.read(tail, {**state, a: state[b], b: state[a]})
            if bool((difference_of(log_probs, expected[0]) <= trial.tolerance).all()):
                return f"the states {a!r} and {b!r} are swapped", "Return each under the name under which it is read."
    return None


def _position(trial: Trial, token: Tensor) -> Cause | None:
    """Recognise results that follow the place within a segment, although one token (1, 1) repeats for ever."""
    tokens, state, segments = token.repeat(1, PERIOD), trial.first(), []
    for _ in range(PERIOD):
        log_probs, state = trial.read(tokens, state)
        segments.append(log_probs)
    settled = difference_of(segments[-1], segments[-2]).max() <= trial.tolerance
    if bool(settled and difference_of(segments[-1][:, 1:], segments[-1][:, :1]).max() > trial.tolerance):
        cause = "the result follows the position in the segment, which the state does not carry"
        return cause, "Count the tokens of the document in a state of int64, and add torch.arange to it."
    return None


def _unknown(trial: Trial, tail: Tensor, state: State, expected: Result) -> Cause:
    """Name the states that differ after the first cut, if any."""
    _, new = trial.read(tail, state)
    apart = [name for name in new if bool((difference_of(new[name], expected[1][name]) > trial.tolerance).any())]
    where = f" (after the first cut: {', '.join(map(repr, apart))})" if apart else ""
    cause = f"the state lacks something that the next segment needs, or holds it in less precision{where}"
    return cause, "Return all that the next token needs: convolution inputs, counters, and every layer's state."
