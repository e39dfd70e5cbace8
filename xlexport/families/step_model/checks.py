"""All checks of recurrent modules for step models: an id stands for a row of random inputs, and outputs for logits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.families.recurrent.checks import check_module
from xlexport.families.recurrent.horizon import Horizon
from xlexport.families.step_model.eager import StepEager, Tensors
from xlruntime.bundle import RUN
from xlruntime.engine import Engine
from xlruntime.memory import Memory
from xlruntime.messages import listed, named

__all__ = ["check_step_graph", "check_step_model", "own_words"]

Ids = npt.NDArray[np.int64]

PRIME = 61  # to whose remainders integers are reduced
ROWS = 64  # of the table of inputs: enough that no two series are equal by chance
QUOTED = re.compile(r"('[^']*'|\w+\.py:\d+)")  # names of the user
WORDS = (
    (r"tokens of shape \(.*?\)", "inputs"),
    (r"tokens\.shape\[1\]", "the length of a segment"),
    (r"\bany tokens?\b", "any inputs in their ranges"),
    (r"\bA logit\b", "An output"),
    (r"\blog-probabilit(y|ies)\b|\blogits\b", "outputs"),
    (r" nats\b", ""),
    (r"\btoken(s?)\b", r"step\1"),
    (r"\bDocuments have\b", "A series has"),
    (r"\bdocuments?\b", "series"),
)
"""What the checks of language models call things, and what they are in step models."""


def check_step_model(eager: StepEager, limit: int | None) -> Horizon:
    """Refuse a module in evaluation mode that breaks a rule of `StatefulModule`, at its first state or far from it.

    Raises:
        ExportError: the first broken rule, with the place, the difference and the likely cause.
    """
    table = _table(eager)
    with own_words():
        return _told(check_module(table, table.n_token, (), limit))


def check_step_graph(horizon: Horizon, eager: StepEager, engine: Engine, within: float, seconds: float) -> None:
    """Compare the graph with the module far from the first state; see `Horizon.check_graph`."""
    table = _table(eager)
    with own_words():
        horizon.check_graph(table, table.n_token, _as_language_model(engine, table), within, seconds)
        _told(horizon)


def _told(horizon: Horizon) -> Horizon:
    horizon.note = horizon.note and _in_own_words(horizon.note)
    return horizon


@contextlib.contextmanager
def own_words() -> Iterator[None]:
    """Say of a step model what the checks say of language models."""
    try:
        yield
    except ExportError as error:
        raise ExportError(_in_own_words(error.message), _in_own_words(error.hint or "")) from error


def _in_own_words(text: str) -> str:
    """Return what a check says of a language model, said of a step model; names of the user stay."""
    parts = QUOTED.split(text.replace("attribute 'module.", "attribute '"))
    for place in range(0, len(parts), 2):
        for pattern, word in WORDS:
            parts[place] = re.sub(pattern, word, parts[place])
    return "".join(parts)


def _table(eager: StepEager) -> Any:
    """Return a `RecurrentModel` that reads ids of rows of random inputs, and returns all outputs as logits."""
    methods = {form: vars(_Table)[form] for form in ("segment", "step") if callable(getattr(eager.module, form, None))}
    kind = type(type(eager.module).__name__, (_Table,), {form: None for form in ("segment", "step")} | methods)
    return kind(eager)


class _Table(nn.Module):
    NUMBERS = True

    def __init__(self, eager: StepEager) -> None:
        super().__init__()
        self.module, self.outputs = eager.module, eager.outputs
        random = torch.Generator().manual_seed(0)
        for name, spec in eager.inputs.items():
            rows = spec.random(ROWS, 1, random)[:, 0]
            for row, value in enumerate((spec.low, spec.high)):  # and the ends of the range
                rows[row] = value
            if spec.dtype == "bool":  # rarely true: a flag that resets a state would hide what comes late
                rows[2:] = False
            self.register_buffer(f"table_{name.replace('.', '/')}", rows)
        self.names = list(eager.inputs)
        self.widths = [int(np.prod(spec.shape)) for spec in eager.outputs.values()]
        self.n_token = max(ROWS, sum(self.widths))
        self.register_buffer("unit", torch.ones(sum(self.widths)))
        with contextlib.suppress(Exception), torch.no_grad():  # the checks say what is wrong with the call
            outputs, _ = eager(self.inputs(torch.arange(ROWS)[None]), eager.first_memory(1))
            self.unit = self._unit(outputs)

    def _unit(self, outputs: Tensors) -> Tensor:
        """Return the size (V,) of each number, at least a thousandth of the largest one of its output, or 1."""
        sizes = []
        for name in self.outputs:
            size = _numbers(outputs[name]).abs().nan_to_num(0, 0, 0).flatten(0, 1).amax(dim=0).flatten()
            sizes.append(torch.maximum(size, 1e-3 * size.max()))
        return torch.cat([torch.where(size > 0, size, 1.0).float() for size in sizes])

    def inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the inputs for which ids stand."""
        return {name: self.get_buffer(f"table_{name.replace('.', '/')}")[ids % ROWS] for name in self.names}

    def logits(self, form: str, outputs: Tensors, axes: tuple[int, ...]) -> Tensor:
        """Return outputs of the axes (B, S) or (B,) side by side, in their units, again and again up to `n_token`."""
        if [*outputs] != [*self.outputs] and {*outputs} != {*self.outputs}:
            problem = f"the outputs are {listed(map(named, outputs))}, expected {listed(self.outputs)}"
            raise self.error(form, problem, "Return the same outputs from every call, and from segment and step.")
        exact = self.unit.dtype == torch.float64
        for name, spec in self.outputs.items():
            dtype = "float64" if exact and spec.dtype == "float32" else spec.dtype
            found = tuple(outputs[name].shape), str(outputs[name].dtype).removeprefix("torch.")
            if found != ((*axes, *spec.shape), dtype):
                problem = f"the output {name!r} is {found[0]} {found[1]}, expected {(*axes, *spec.shape)} {dtype}"
                hint = (
                    "Return each output for every row and step that is read, of the same shape and dtype in every call."
                )
                raise self.error(form, problem, hint)
        values = [_numbers(outputs[name]).to(self.unit.dtype).reshape(*axes, -1) for name in self.outputs]
        numbers = torch.cat(values, dim=-1) / self.unit
        return numbers.repeat(*[1] * len(axes), -(-self.n_token // len(self.unit)))[..., : self.n_token]

    def error(self, form: str, problem: str, hint: str) -> ExportError:
        """Return the error that names the module's class and method."""
        return ExportError(f"{type(self.module).__name__}.{form}: {problem}.", hint)

    def first_state(self) -> Tensors:
        """Return the module's own."""
        return self.module.first_state()

    def segment(self, tokens: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Read ids (B, S)."""
        return self._call("segment", tokens, state)

    def step(self, token: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Read ids (B,)."""
        return self._call("step", token, state)

    def _call(self, form: str, ids: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        inputs = self.inputs(ids)
        copies = {name: value.clone() for name, value in inputs.items()}
        outputs, new = getattr(self.module, form)(dict(inputs), state)
        if written := [name for name, value in copies.items() if not torch.equal(value, inputs[name])]:
            problem = f"the method writes in place into its input {written[0]!r}"
            raise self.error(form, problem, "Compute new tensors.")
        return self.logits(form, outputs, tuple(ids.shape)), new


def _numbers(output: Tensor) -> Tensor:
    """Return an output in float64: of integers the remainders, among which neighbours differ by much."""
    return (output if output.is_floating_point() else output.to(torch.int64) % PRIME).double()


def _as_language_model(engine: Engine, table: Any) -> SimpleNamespace:
    """Return the graphs of a step model as the checks of a language model's graphs see them."""

    def step(purpose: str, memory: Memory, tokens: Ids, targets: Ids) -> dict[str, npt.NDArray[Any]]:
        """Run the inputs for which tokens (B, S) stand; return the numbers (B, S) of the targets as `log_prob`."""
        inputs = {name: value.numpy() for name, value in table.inputs(torch.from_numpy(tokens)).items()}
        outputs = engine.run(RUN, memory, inputs)
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in outputs.items()}
        numbers = table.logits("run", tensors, tokens.shape)
        return {"log_prob": numbers.gather(2, torch.from_numpy(targets)[..., None])[..., 0].numpy()}

    return SimpleNamespace(bundle=engine.bundle, new_memory=engine.new_memory, step=step)
