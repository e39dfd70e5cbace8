"""All checks of recurrent modules for step models: an id stands for a row of random inputs, and outputs for logits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.families.recurrent.checks import check_module
from xlexport.families.recurrent.horizon import Horizon
from xlexport.families.step_model.eager import StepEager, Tensors
from xlruntime.bundle import RUN, Bundle
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings
from xlruntime.memory import Memory

__all__ = ["check_step_graph", "check_step_model"]

ROWS = 64  # of the table of inputs: enough that no two series are equal by chance
PADDING = -1.0  # beside the outputs in a row of logits: softmax then loses nothing, and no row is a result of softmax
WORDS = (
    (r"tokens of shape \(.*?\)", "inputs"),
    (r"log-probabilit(y|ies)|logits", "outputs"),
    ("logit", "output"),
    (" nats", ""),
    ("all n_token tokens for every token that is read", "their shapes for every step"),
    ("token", "step"),
    ("document", "series"),
)
"""What the checks of language models call things, and what they are in step models."""


def check_step_model(eager: StepEager, limit: int | None) -> Horizon:
    """Refuse a module in evaluation mode that breaks a rule of `StatefulModule`, at its first state or far from it.

    Raises:
        ExportError: the first broken rule, with the place, the difference and the likely cause.
    """
    table = _table(eager)
    with _own_words():
        return check_module(table, table.n_token, (), limit)


def check_step_graph(horizon: Horizon, eager: StepEager, engine: Engine, within: float, seconds: float) -> None:
    """Compare the graph with the module far from the first state; see `Horizon.check_graph`."""
    table = _table(eager)
    with _own_words():
        horizon.check_graph(table, table.n_token, _TableEngine(engine, table), within, seconds)


@contextlib.contextmanager
def _own_words() -> Iterator[None]:
    try:
        yield
    except ExportError as error:
        raise ExportError(in_own_words(error.message), in_own_words(error.hint or "")) from error


def in_own_words(text: str) -> str:
    """Return what a check says of a language model, said of a step model."""
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def _table(eager: StepEager) -> Any:
    """Return a `RecurrentModel` that reads ids of rows of random inputs, and returns all outputs as logits."""
    methods = {form: vars(_Table)[form] for form in ("segment", "step") if callable(getattr(eager.module, form, None))}
    kind = type(type(eager.module).__name__, (_Table,), {form: None for form in ("segment", "step")} | methods)
    return kind(eager)


class _Table(nn.Module):
    def __init__(self, eager: StepEager) -> None:
        super().__init__()
        self.module, self.outputs = eager.module, eager.outputs
        random = torch.Generator().manual_seed(0)
        for name, spec in eager.inputs.items():
            rows = spec.random(ROWS, 1, random)[:, 0]
            for row, value in enumerate((spec.low, spec.high)):  # and the ends of the range
                rows[row] = value
            self.register_buffer(f"table_{name.replace('.', '/')}", rows)
        self.names = list(eager.inputs)
        self.widths = [int(np.prod(spec.shape)) for spec in eager.outputs.values()]
        self.n_token = max(ROWS, sum(self.widths) + 1)

    def inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the inputs for which ids stand."""
        return {name: self.get_buffer(f"table_{name.replace('.', '/')}")[ids % ROWS] for name in self.names}

    def logits(self, outputs: Mapping[str, Any], axes: tuple[int, ...]) -> Tensor:
        """Return outputs of the axes (B, S) or (B,) side by side, padded to `n_token`."""
        for name, spec in self.outputs.items():
            shape, dtype = (*axes, *spec.shape), str(outputs[name].dtype).removeprefix("torch.")
            if tuple(outputs[name].shape) != shape or dtype not in (spec.dtype, "float64"):
                found = f"{tuple(outputs[name].shape)} {dtype}"
                raise ValueError(f"the output {name!r} is {found}, expected {shape} {spec.dtype}")
        floats = next((value.dtype for value in outputs.values() if value.is_floating_point()), torch.float32)
        values = [outputs[name].to(floats).reshape(*axes, -1) for name in self.outputs]
        padding = torch.full((*axes, self.n_token - sum(self.widths)), PADDING, dtype=floats)
        return torch.cat([*values, padding], dim=-1)

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
            raise ValueError(f"the method writes in place into its input {written[0]!r}")
        return self.logits(outputs, tuple(ids.shape)), new


class _TableEngine:
    """The graphs of a step model as the checks of a language model's graphs see them.

    Attributes:
        bundle: of the step model.
    """

    def __init__(self, engine: Engine, table: Any) -> None:
        self._engine, self._table = engine, table

    @property
    def bundle(self) -> Bundle:
        """The bundle of the step model."""
        return self._engine.bundle

    def new_memory(self, evaluation: EvaluationSettings, rows: int, capacity: int) -> Memory:
        """Return fresh memory."""
        return self._engine.new_memory(evaluation, rows, capacity)

    def step(
        self, purpose: str, memory: Memory, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the inputs for which tokens (B, S) stand; return `log_prob` (B, S) of the targets."""
        inputs = {name: value.numpy() for name, value in self._table.inputs(torch.from_numpy(tokens)).items()}
        outputs = self._engine.run(RUN, memory, inputs)
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in outputs.items()}
        log_probs = self._table.logits(tensors, tokens.shape).log_softmax(dim=2)
        return {"log_prob": log_probs.gather(2, torch.from_numpy(targets)[..., None])[..., 0].numpy()}
