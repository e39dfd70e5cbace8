"""Compare results of a module under different cuts of a document, and name the likely cause of a difference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from xlexport.errors import ExportError
from xlexport.families.recurrent.trial import NARROW, TOLERANCE, Result, State, Trial, difference_of

__all__ = ["CALLS", "LONGEST", "check_cuts", "check_ids"]

LENGTHS = (64, 7, 1)  # even, odd, and one token: each is compared with the longest
LONGEST = 513  # longer than most windows
CALLS = 64  # of a pass: single tokens are read only so far
AROUND = 8  # tokens of a segment in the check of single ids
PERIOD = 16  # tokens of a segment in the experiment with one repeated token

Cause = tuple[str, str]  # the end of a sentence, and what to write instead


def check_cuts(trial: Trial, tokens: Tensor, lengths: Sequence[int] = LENGTHS, longest: int = LONGEST) -> None:
    """Refuse a module for which the place of cuts changes log-probabilities or the last state.

    Args:
        tokens: (1, N), read in segments of each of the `lengths` and of `longest`.
    """
    for length in lengths:
        part = tokens[:, : CALLS * length]

        def cuts(trial: Trial, part: Tensor = part, length: int = length) -> tuple[Result, Result]:
            return trial.read(part, trial.first(), length=length), trial.read(part, trial.first(), length=longest)

        result, expected = cuts(trial)
        problem = f"segments of {length:,} and {longest:,} tokens differ"
        difference = trial.difference(result, expected, cuts)
        if name := _half_precision(result[1], expected[1]):
            problem += f": the state {name!r} is rounded to half precision"
            raise trial.error("segment", problem, "Carry it in float32, or in int64 if it counts, and do not round it.")
        if difference and NARROW in difference:
            raise trial.error("segment", f"{problem}: {difference}", "Bound decays and sums for float32.")
        if difference:
            cause, hint = _likely_cause(trial, tokens, length)
            raise trial.error("segment", f"{problem}: {difference}; {cause}", hint)


def check_ids(trial: Trial, ids: Sequence[int], tokens: Tensor, at_once: int = 21) -> None:
    """Refuse a module for which a cut before or after one of these ids, among tokens (1, N), changes a result."""
    for start in range(0, len(ids), at_once):
        part = ids[start : start + at_once]
        rows = tokens[:, : 3 * AROUND].repeat(len(part), 1)  # (B, 3 * AROUND)
        rows[:, AROUND] = rows[:, -AROUND // 2] = torch.tensor(part)  # the first of a segment, and within one
        for length, place in ((AROUND, "begins"), (AROUND + 1, "ends")):
            try:
                result, expected = (trial.read(rows, trial.first(len(rows)), length=each) for each in (length, None))
            except ExportError:  # the module may refuse an id: its embedding can have fewer rows than its logits
                difference = None if len(part) == 1 else "of one of them"
            else:
                difference = trial.difference(result, expected)
            if difference and len(part) > 1:
                check_ids(trial, part, tokens, at_once=1)
                break
            if difference:
                problem = f"token {part[0]} acts otherwise if it {place} a segment: {difference}"
                hint = "Look for it among all tokens of a segment, not at the first or last place alone."
                raise trial.error("segment", problem, hint)


def _half_precision(state: State, expected: State) -> str | None:
    """Return the name of a float32 state that other cuts change, and whose fractions all fit into 16 bits."""
    for name, value in state.items():
        fits = any(torch.equal(value, value.to(half).to(value.dtype)) for half in (torch.float16, torch.bfloat16))
        if value.dtype == torch.float32 and fits and value.any() and not torch.equal(value, expected[name]):
            return name
    return None


def _likely_cause(trial: Trial, tokens: Tensor, length: int) -> Cause:
    """Return the likely cause if tokens (1, N) in segments of `length` differ from longer segments."""
    start, tail = tokens[:, :length], tokens[:, length : 2 * length]
    log_probs, state = trial.read(start, trial.first())
    longer, _ = trial.read(tokens[:, : 2 * length], trial.first())
    if trial.difference((longer[:, :length], state), (log_probs, state)):
        cause = f"the first {length:,} tokens alone already differ, so the length of a segment changes the result"
        return cause, "Make masks, positions and scales from the state and the tokens before, not from tokens.shape[1]."
    unknown = "the state lacks something that the next segment needs, or a mask counts from the segment's first token"
    return (
        _stale(trial, start, state)
        or _swapped(trial, tail, state, longer[:, length:])
        or _position(trial, tokens[:, :1])
        or (unknown, "Return convolution inputs, counters and every layer's state. Mask by places in the document.")
    )


def _stale(trial: Trial, start: Tensor, state: State) -> Cause | None:
    """Name a state that does not change, or that another last token does not change: it is one token too old."""
    other = torch.cat([start[:, :-1], (start[:, -1:] + 1) % trial.n_token], dim=1)
    first, (_, after_other) = trial.first(), trial.read(other, trial.first())
    _, after_all_other = trial.read((start + 1) % trial.n_token, trial.first())  # counters depend on no token
    for name, value in state.items():
        if value.is_floating_point() and torch.equal(value, first[name]):
            return f"the state {name!r} keeps its first value, so it is stale", "Return its value after the last token."
        if torch.equal(value, after_other[name]) and not torch.equal(value, after_all_other[name]):
            cause = f"the state {name!r} lacks the last token of a segment: it is off by one"
            return cause, "Return its value after the last token, not before it."
    return None


def _swapped(trial: Trial, tail: Tensor, state: State, expected: Tensor) -> Cause | None:
    """Name two states of equal shape whose exchange gives the expected log-probabilities after the cut."""
    for a, b in combinations(state, 2):
        if (state[a].shape, state[a].dtype) == (state[b].shape, state[b].dtype):
            log_probs, _ = trial.read(tail, {**state, a: state[b], b: state[a]})
            if bool((difference_of(log_probs, expected) <= TOLERANCE).all()):
                return f"the states {a!r} and {b!r} are swapped", "Return each under the name under which it is read."
    return None


def _position(trial: Trial, token: Tensor) -> Cause | None:
    """Recognise results that follow the place within a segment, although one token (1, 1) repeats for ever."""
    tokens, state, segments = token.repeat(1, PERIOD), trial.first(), []
    for _ in range(PERIOD):
        log_probs, state = trial.read(tokens, state)
        segments.append(log_probs)
    settled = difference_of(segments[-1], segments[-2]).max() <= TOLERANCE
    if bool(settled and difference_of(segments[-1][:, 1:], segments[-1][:, :1]).max() > TOLERANCE):
        cause = "the result follows the position in the segment, which the state does not carry"
        return cause, "Count the tokens of the document in a state of int64, and add torch.arange to it."
    return None
