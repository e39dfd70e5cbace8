"""Checks of a user's recurrent module in eager mode, before anything is exported: the most specific fault first."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from xlexport.families.recurrent.trial import NARROW, TOLERANCE, Result, State, Trial, difference_of
from xlruntime.messages import listed

__all__ = ["check_module"]

LENGTHS = (64, 7, 1)  # even, odd, and one token: each is compared with the longest
LONGEST = 513  # longer than most windows
CALLS = 64  # of a pass: single tokens are read only so far
SHORT = 17  # tokens of the checks before the passes: odd, so that a parity shows
PERIOD = 16  # tokens of a segment in the experiment with one repeated token

Cause = tuple[str, str]  # the end of a sentence, and what to write instead


def check_module(model: Any, n_token: int) -> None:
    """Refuse a module in evaluation mode that breaks a rule of `RecurrentModel`.

    About 250 calls read at most 4,000 random tokens.

    Raises:
        ExportError: the first broken rule, with the place, the difference and the likely cause.
    """
    tokens = torch.randint(n_token, (1, LONGEST + 64), generator=torch.Generator().manual_seed(0))
    rows = tokens[:, : 3 * SHORT].reshape(3, SHORT)  # (B, S)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trial = Trial(model, n_token)
        _check_repeats(trial, rows)
        _check_rows(trial, rows)
        _check_use_of_state(trial, rows)
        if "segment" in trial.forms:  # steps are the same wherever a document is cut
            _check_causality(trial, rows)
            _check_cuts(trial, tokens)
        if "step" in trial.forms:
            _check_step(trial, tokens[:, :CALLS])


def _check_repeats(trial: Trial, rows: Tensor) -> None:
    """Refuse a module whose results, or first state, depend on earlier calls or on chance."""
    form, first = trial.forms[0], trial.first(len(rows))
    torch.manual_seed(0)
    result, before = trial.read(rows, first), _attributes(trial.model)
    torch.manual_seed(0)
    difference, later = trial.difference(trial.read(rows, first), result), trial.first(len(rows))
    for name in first:
        if not torch.equal(first[name], later[name]):
            problem = f"{name!r} changes between calls, so a document would not start fresh"
            raise trial.error("first_state", problem, "Return new tensors with the same values every time.")
    written = [name for name, value in _attributes(trial.model).items() if before.get(name) != value]
    if difference or any(name in written for name, _ in trial.model.named_buffers()):
        where = f"its attribute {written[0]!r}" if written else "itself"
        problem = f"the module keeps a state in {where}, so a repeated call differs"
        raise trial.error(form, problem, "Pass all that one call leaves to the next through `state`.")
    torch.manual_seed(1)
    if difference := trial.difference(trial.read(rows, first), result):
        hint = "Use nn.Dropout and model.eval(), or F.dropout(x, p, self.training)."
        raise trial.error(form, f"the result is random, as with dropout that is left on: {difference}", hint)


def _attributes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return, for each tensor or other value that a module holds, its identity and a count of writes into it."""
    return {
        f"{prefix}.{name}".lstrip("."): (id(value), value._version if isinstance(value, Tensor) else 0)
        for prefix, part in model.named_modules()
        for name, value in {**vars(part), **part._buffers, **part._parameters}.items()
    }


def _check_rows(trial: Trial, rows: Tensor) -> None:
    """Refuse a module that computes a row otherwise in a batch than alone, also after a state of its own."""
    _, state = trial.read(rows, trial.first(len(rows)))
    for row in range(len(rows)):

        def batch_and_alone(trial: Trial, one: slice = slice(row, row + 1)) -> tuple[Result, Result]:
            log_probs, new = trial.read(rows.flip(1), state)
            alone = trial.read(rows[one].flip(1), {name: value[one] for name, value in state.items()})
            return (log_probs[one], {name: new[name][one] for name in new}), alone

        if difference := trial.difference(*batch_and_alone(trial), batch_and_alone):
            problem = f"row {row} of a batch of {len(rows)} depends on the other rows: {difference}"
            hint = "Compute no mean, norm or softmax over axis 0, which is the batch."
            flow, *_ = trial.flow(rows, {**state, "tokens": rows})
            if flow.decided:
                names = sorted(flow.decided - {"tokens"}) or ["tokens"]
                problem += f"; {flow.line} decides by the value of {listed(names)}, once for all rows"
                hint = "Use torch.where, and no `if`, .item() or int()."
            raise trial.error(trial.forms[0], problem, hint)


def _check_use_of_state(trial: Trial, rows: Tensor) -> None:
    """Refuse a state on which neither logits nor a state depend, for any numbers and weights."""
    first = trial.first(len(rows))
    flow, logits, new = trial.flow(rows, first)
    for name in sorted(first.keys() - flow.behind([logits, *new.values()])):
        hint = f"Read state[{name!r}] in its own layer, or leave it out of first_state."
        raise trial.error(trial.forms[0], f"the state {name!r} is returned but never read", hint)
    if first and not flow.behind([logits]):
        problem = "the logits do not depend on the state: the next segment starts as a new document does"
        raise trial.error(trial.forms[0], problem, "Compute the logits from the state, or return no state.")


def _check_causality(trial: Trial, rows: Tensor) -> None:
    """Refuse a module whose logits depend on later tokens."""
    changed = torch.cat([rows[:, :-1], (rows[:, -1:] + 1) % trial.n_token], dim=1)

    def both(trial: Trial) -> tuple[Result, Result]:
        results = [trial.read(each, trial.first(len(rows)))[0][:, :-1] for each in (changed, rows)]
        return (results[0], {}), (results[1], {})

    if difference := trial.difference(*both(trial), both):
        problem = f"token {SHORT - 1} changes earlier logits, so the module looks ahead: {difference}"
        hint = "Mask later keys, pad convolutions in front only, and compute no mean or norm over a segment's tokens."
        raise trial.error("segment", problem, hint)


def _check_cuts(trial: Trial, tokens: Tensor) -> None:
    """Refuse a module for which the place of cuts changes log-probabilities or the last state."""
    for length in LENGTHS:
        part = tokens[:, : CALLS * length]

        def cuts(trial: Trial, part: Tensor = part, length: int = length) -> tuple[Result, Result]:
            return trial.read(part, trial.first(), length=length), trial.read(part, trial.first(), length=LONGEST)

        result, expected = cuts(trial)
        problem = f"segments of {length:,} and {LONGEST:,} tokens differ"
        if name := _half_precision(result[1], expected[1]):
            problem += f": the state {name!r} is rounded to half precision"
            raise trial.error("segment", problem, "Carry it in float32, and do not round it.")
        if difference := trial.difference(result, expected, cuts):
            if NARROW in difference:
                raise trial.error("segment", f"{problem}: {difference}", "Bound decays and sums for float32.")
            cause, hint = _likely_cause(trial, tokens, length)
            raise trial.error("segment", f"{problem}: {difference}; {cause}", hint)


def _check_step(trial: Trial, tokens: Tensor) -> None:
    """Refuse a module whose `step` differs from its `segment`, if it has both."""

    def both(trial: Trial) -> tuple[Result, Result]:
        return trial.read(tokens, trial.first(), "step"), trial.read(tokens, trial.first())

    if difference := trial.difference(*both(trial), both):
        problem = f"it computes something else than segment: {difference}"
        raise trial.error("step", problem, "Compare both token by token, or leave one of them out.")


def _half_precision(state: State, expected: State) -> str | None:
    """Return the name of a float32 state that other cuts change, and whose fractions all fit into 16 bits."""
    for name, value in state.items():
        fits = any(torch.equal(value, value.to(half).to(value.dtype)) for half in (torch.float16, torch.bfloat16))
        if value.dtype == torch.float32 and fits and not torch.equal(value, expected[name]):
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
    unknown = "the state lacks something that the next segment needs, or holds it in less precision"
    return (
        _stale(trial, start, state)
        or _swapped(trial, tail, state, longer[:, length:])
        or _position(trial, tokens[:, :1])
        or (unknown, "Return all that the next token needs: convolution inputs, counters, and every layer's state.")
    )


def _stale(trial: Trial, start: Tensor, state: State) -> Cause | None:
    """Name a state that does not change, or that another last token does not change: it is one token too old."""
    other = torch.cat([start[:, :-1], (start[:, -1:] + 1) % trial.n_token], dim=1)
    first, (_, after_other) = trial.first(), trial.read(other, trial.first())
    for name, value in state.items():
        if value.is_floating_point() and torch.equal(value, first[name]):
            return f"the state {name!r} keeps its first value, so it is stale", "Return its value after the last token."
        if value.is_floating_point() and torch.equal(value, after_other[name]):
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
