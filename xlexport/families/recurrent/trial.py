"""One module under test: every call is checked, and an error names the method and the place."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from xlexport.errors import ExportError
from xlexport.families.recurrent.eager import batched
from xlexport.families.recurrent.flow import Flow
from xlexport.families.recurrent.own_copy import own_copy
from xlruntime.messages import first_line, listed

__all__ = ["NARROW", "STATE_TOLERANCE", "TOLERANCE", "Result", "State", "Trial", "difference_of", "many_calls"]

DTYPES = ("float32", "float16", "bool", "uint8", "int8", "int16", "int32", "int64")
TOLERANCE = 1e-4  # of a log-probability in nats, relative above 1 nat
CALLED = "Return (logits, new_state) for any tokens; the batch is the first axis of each state."
STATE_TOLERANCE = 10 * TOLERANCE  # rounding errors add up in a state
ROUNDING = 100 * TOLERANCE  # more than float32 rounds, unless numbers overflow, underflow or cancel
NARROW = "in float64 they agree, so float32 overflows, underflows or loses its digits"

SMALL = 1 << 24  # parameters; in calls of smaller modules, threads wait for each other longer than they compute

State = Mapping[str, Tensor]
Result = tuple[Tensor, State]  # log-probabilities (B, S, V) in nats, and the next state


@contextlib.contextmanager
def many_calls(module: nn.Module) -> Iterator[None]:
    """Call a module without gradients, a small one on one thread; afterwards chance and threads are as before."""
    before, size = torch.get_num_threads(), sum(parameter.numel() for parameter in module.parameters())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1 if size < SMALL else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Trial:
    """Calls of a user's module, each checked against the rules of `RecurrentModel`."""

    exact = False  # whether it computes in float64
    numbers = False  # whether the logits are numbers to compare as they are, which no softmax follows

    def __init__(self, model: Any, n_token: int) -> None:
        """Check the first state, before anything runs.

        Raises:
            ExportError: `first_state` does not return named tensors of finite numbers.
        """
        self.model, self.n_token = model, n_token
        self.numbers = getattr(model, "NUMBERS", False)
        self.forms = [form for form in ("segment", "step") if callable(getattr(model, form, None))]
        state = model.first_state()
        values = state.values() if isinstance(state, Mapping) else [None]
        if not all(isinstance(value, Tensor) and _dtype(value) in DTYPES for value in values):
            problem = f"the result is not a mapping of names to tensors of {', '.join(DTYPES)}"
            raise self.error("first_state", problem, 'Return one row without the batch axis: {"h": torch.zeros(256)}.')
        self._check_finite("first_state", "", state)

    def error(self, method: str, problem: str, hint: str) -> ExportError:
        """Return the error that names the module's class and method."""
        return ExportError(f"{type(self.model).__name__}.{method}: {problem}.", hint)

    def first(self, rows: int = 1) -> State:
        """Return the first state of `rows` rows, in memory of its own."""
        return batched(self.model.first_state(), rows)

    def read(self, tokens: Tensor, state: State, form: str | None = None, length: int | None = None) -> Result:
        """Read tokens (B, S) by `form`, by default in one segment if the module can, or in segments of `length`.

        Raises:
            ExportError: the call breaks a rule.
        """
        form, log_probs = form or self.forms[0], []
        step = 1 if form == "step" else length or tokens.shape[1]
        for start in range(0, tokens.shape[1], step):
            piece = tokens[:, start] if form == "step" else tokens[:, start : start + step]
            logits, state = self._call(form, piece, state, start)
            scores = logits if self.numbers else logits.log_softmax(dim=-1)
            log_probs.append(scores.reshape(len(tokens), -1, self.n_token))
        return torch.cat(log_probs, dim=1), state

    def flow(self, tokens: Tensor, origins: State) -> tuple[Flow, Tensor, State]:
        """Call a module that broke no rule; return what depends on what, logits and next state.

        Args:
            tokens: (B, S); `step` reads the first ones.
            origins: the state, and other tensors to follow.
        """
        form, state = self.forms[0], {name: origins[name] for name in self.model.first_state()}
        with Flow(origins) as flow:
            return flow, *getattr(self.model, form)(tokens if form == "segment" else tokens[:, 0], state)

    def difference(
        self, result: Result, expected: Result, again: Callable[[Trial], tuple[Result, Result]] | None = None
    ) -> str | None:
        """Return the first difference above the tolerance in words, or None.

        Args:
            again: computes both results by another trial. If they agree in float64, a small difference is rounding.
        """
        difference = _in_words(result, expected, TOLERANCE)
        if difference is None or again is None:
            return difference
        try:
            # In float64, unchecked. Half precision stays: it is the module's own.
            other = copy.copy(self)
            other.model, other.exact = own_copy(self.model).double(), True
            agree = _in_words(*again(other), TOLERANCE) is None
        except Exception:  # the module works only in float32
            return difference
        if agree and (difference := _in_words(result, expected, ROUNDING)):
            difference += f"; {NARROW}"
        return difference

    def _call(self, form: str, tokens: Tensor, state: State, start: int) -> Result:
        """Call `segment` or `step`, and raise ExportError for the first rule that it breaks."""
        if self.exact:
            with _Float64():
                logits, new = getattr(self.model, form)(tokens, dict(state))
                return logits, new
        ids, inputs, copies = tokens.clone(), dict(state), {name: value.clone() for name, value in state.items()}
        try:
            logits, new = getattr(self.model, form)(ids, inputs)
            size, names = (tuple(logits.shape), logits.dtype), set(new)
        except ExportError:
            raise
        except Exception as error:
            problem = f"tokens of shape {tuple(tokens.shape)} raise {type(error).__name__} ({first_line(error)})"
            raise self.error(form, problem, CALLED) from error
        shape = (*tokens.shape, self.n_token)
        if size != (shape, torch.float32):
            problem = f"the logits are {tuple(logits.shape)} {_dtype(logits)}, expected {shape} float32"
            raise self.error(form, problem, "Return float32 logits of all n_token tokens for every token that is read.")
        written = [f"state[{name!r}]" for name, copy in copies.items() if not torch.equal(state[name], copy)]
        written += [f"state[{name!r}]" for name, value in inputs.items() if state.get(name) is not value]
        if written or not torch.equal(ids, tokens):
            problem = f"the method writes in place into its argument: {listed(written) or 'tokens'}"
            raise self.error(form, problem, 'Compute new tensors, and return a new mapping: {**state, "h": h}.')
        if names != set(state):
            problem = f"the new state has {sorted(names)}, expected {sorted(state)}"
            raise self.error(form, problem, "Return every state of first_state, also one that does not change.")
        self._check_sizes(form, state, new)
        largest = logits.reshape(len(tokens), -1, self.n_token).amax(dim=2)  # not a number if one of them is none
        wrong = (~largest.isfinite()).nonzero()[:, 1]  # the places of tokens
        if len(wrong):
            problem = f"the logits are not finite at token {start + int(wrong.min()):,}"
            hint = "Bound what can overflow, and divide by no zero. A logit may be -inf, but not all of a token."
            raise self.error(form, problem, hint)
        if (
            not self.numbers
            and bool((logits >= 0).all())
            and torch.allclose(logits.sum(dim=-1), torch.ones(()), atol=1e-3)
        ):
            raise self.error(form, "the logits are probabilities", "Return them before softmax, or their logarithms.")
        self._check_finite(form, "new ", new)
        return logits, new

    def _check_sizes(self, form: str, state: State, new: State) -> None:
        """Raise ExportError unless all states keep their shapes and dtypes."""
        for name, old in state.items():
            value, hint = new[name], "Keep the dtype: a division makes integers float, and .half() loses digits."
            if value.shape != old.shape:
                hint = "Let first_state return one row, without the batch axis, in the shape that each call keeps."
            if value.numel() > old.numel():
                hint = "A state must not grow: keep the newest rows of a cache, and count tokens in a state of int64."
            if (value.shape, value.dtype) != (old.shape, old.dtype):
                sizes = f"{tuple(value.shape)} {_dtype(value)}, expected {tuple(old.shape)} {_dtype(old)}"
                raise self.error(form, f"the state {name!r} becomes {sizes}", hint)

    def _check_finite(self, method: str, which: str, state: State) -> None:
        for name, value in state.items():
            if not bool(value.isfinite().all()):
                hint = "Bound what can overflow, and use a large number such as -1e30 in place of -inf."
                raise self.error(method, f"the {which}state {name!r} is not finite", hint)


class _Float64(TorchDispatchMode):
    """Gives each operator of PyTorch float64 in place of float32, and new tensors too."""

    def __enter__(self) -> Any:
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self.default)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def exact(value: Any) -> Any:
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                return value.double()
            return torch.float64 if value is torch.float32 else value

        args, kwargs = tree_map(exact, (args, kwargs or {}))
        return func(*args, **kwargs)


def _in_words(result: Result, expected: Result, tolerance: float) -> str | None:
    """Return the first difference above the tolerance of log-probabilities, or the ten times larger one of states."""
    apart = difference_of(result[0], expected[0]).amax(dim=(0, 2))  # (S,)
    for place in (apart > tolerance).nonzero()[:1].flatten().tolist():
        return f"log-probabilities differ by {float(apart[place]):.2g} nats from token {place:,}"
    for name, value in result[1].items():
        apart = difference_of(value, expected[1][name])
        if bool((apart > tolerance * STATE_TOLERANCE / TOLERANCE).any()):
            return f"the state {name!r} differs by {float(apart.max()):.2g} after the last token"
    return None


def difference_of(value: Tensor, expected: Tensor) -> Tensor:
    """Return absolute differences, divided by the size of the expected number if that is above 1.

    Equal infinities agree; any other infinity, and what is not a number, differs by infinity.
    """
    dtype = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else torch.float64
    value, expected = value.to(dtype), expected.to(dtype)
    apart = (value - expected).abs() / expected.abs().clamp(min=1)
    return apart.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(value == expected, 0)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
