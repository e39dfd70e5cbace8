"""Checks of a user's recurrent module in eager mode, before anything is exported: the most specific fault first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.families.recurrent.cuts import CALLS, LONGEST, check_cuts, check_ids
from xlexport.families.recurrent.eager import batched
from xlexport.families.recurrent.horizon import Horizon
from xlexport.families.recurrent.trial import Result, Trial, many_calls
from xlruntime.messages import listed

__all__ = ["check_module"]

SHORT = 17  # tokens of the checks before the passes: odd, so that a parity shows
LARGEST_SEGMENT = 2048  # tokens that most checks read at once; a mask of their pairs must fit into memory
NEAR_ENDS = 16  # ids at both ends of the vocabulary
STATELESS = "the logits do not depend on the state: the next segment starts as a new document does"


def check_module(model: Any, n_token: int, special: Iterable[int] = (), limit: int | None = None) -> Horizon:
    """Refuse a module in evaluation mode that breaks a rule of `RecurrentModel`, at the start of a document or later.

    Args:
        special: ids that the tokenizer gives a role.
        limit: most tokens of a document; None: any number.

    Returns:
        How far the module was read, for the checks of its graph.

    Raises:
        ExportError: the first broken rule, with the place, the difference and the likely cause.
    """
    tokens = _tokens(n_token, limit)
    short = max(1, min(SHORT, (limit or LONGEST) // 2))
    rows = torch.randint(n_token, (3, short), generator=torch.Generator().manual_seed(0))  # (B, S)
    with many_calls(model):
        trial = Trial(model, n_token)
        _check_repeats(trial, rows)
        _check_calls(trial, rows)
        horizon = Horizon(trial, tokens, limit)
        if "segment" in trial.forms:  # steps are the same wherever a document is cut
            check_cuts(trial, tokens)
            ids = {*range(NEAR_ENDS), *range(n_token - NEAR_ENDS, n_token), *special}
            check_ids(trial, sorted(number for number in ids if 0 <= number < n_token), tokens)
        if "step" in trial.forms:
            _check_step(trial, tokens[:, :CALLS])
        if horizon.walk.token:
            far = horizon.far(trial)
            _check_calls(far, rows)
            if _moves_logits(trial, rows) and not _moves_logits(far, rows):
                raise far.error(trial.forms[0], STATELESS, "Let a mask or a decay leave what the state holds.")
        horizon.compare_cuts(trial)
        if "segment" in trial.forms:
            longest = min(2 * max(LONGEST, horizon.largest_axis), LARGEST_SEGMENT) + CALLS
            longer = _tokens(n_token, limit, longest)
            check_cuts(trial, longer, [LONGEST], longer.shape[1])
        horizon.look_ahead(trial)
    return horizon


def _tokens(n_token: int, limit: int | None, count: int = LONGEST + CALLS) -> Tensor:
    return torch.randint(n_token, (1, min(count, limit or count)), generator=torch.Generator().manual_seed(0))


def _check_calls(trial: Trial, rows: Tensor) -> None:
    """Check single calls with rows (B, S), at the start of a document or far into it."""
    _check_rows(trial, rows)
    _check_use_of_state(trial, rows)
    if "segment" in trial.forms:
        _check_causality(trial, rows)


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
        raise trial.error(trial.forms[0], STATELESS, "Compute the logits from the state, or return no state.")


def _moves_logits(trial: Trial, rows: Tensor) -> bool:
    """Return whether the first values of all states that differ between rows change logits, in numbers."""
    _, state = trial.read(rows, trial.first(len(rows)))
    first = batched(trial.model.first_state(), len(rows))
    other = {name: first[name] for name, value in state.items() if not torch.equal(value, value.roll(1, dims=0))}
    try:
        results = [trial.read(rows[:, :2], {**state, **each})[0] for each in (other, {})]
    except ExportError:  # such states do not occur together
        return True
    return not other or not torch.equal(*results)


def _check_causality(trial: Trial, rows: Tensor) -> None:
    """Refuse a module whose logits depend on later tokens."""
    changed = torch.cat([rows[:, :-1], (rows[:, -1:] + 1) % trial.n_token], dim=1)

    def both(trial: Trial) -> tuple[Result, Result]:
        results = [trial.read(each, trial.first(len(rows)))[0][:, :-1] for each in (changed, rows)]
        return (results[0], {}), (results[1], {})

    if difference := trial.difference(*both(trial), both):
        problem = f"token {rows.shape[1] - 1} changes earlier logits, so the module looks ahead: {difference}"
        hint = "Mask later keys, pad convolutions in front only, and compute no mean or norm over a segment's tokens."
        raise trial.error("segment", problem, hint)


def _check_step(trial: Trial, tokens: Tensor) -> None:
    """Refuse a module whose `step` differs from its `segment`, if it has both."""

    def both(trial: Trial) -> tuple[Result, Result]:
        return trial.read(tokens, trial.first(), "step"), trial.read(tokens, trial.first())

    if difference := trial.difference(*both(trial), both):
        problem = f"it computes something else than segment: {difference}"
        raise trial.error("step", problem, "Compare both token by token, or leave one of them out.")
