"""The graphs of a recurrent model: its `segment`, or a scan over its `step`, and what language models return."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from xlexport.errors import ExportError
from xlexport.families.recurrent.eager import RecurrentEager, batched
from xlexport.families.recurrent.export_errors import AXES, explain, exported
from xlexport.families.scan import scan
from xlexport.families.step import carried_inputs, carried_outputs, traced_outputs
from xlexport.families.step_module import TARGETS, TOKENS, TOP_K, StepModule, describe_softmax, purposes_of
from xlexport.ops import replace_rnns
from xlruntime.bundle import MemoryEntry

__all__ = ["RecurrentStep", "state_entry"]

STATE_NAME = re.compile(r"(?!new_)[A-Za-z_][\w.]{0,79}", re.ASCII)
RESERVED = {"tokens", "targets", *(tensor.name for tensors in purposes_of(TOP_K, ()).values() for tensor in tensors)}


class RecurrentStep(StepModule):
    """One module that computes the outputs of all graphs of a bundle; the exporter cuts it by purpose."""

    traceable = False

    def __init__(self, model: RecurrentEager) -> None:
        super().__init__()
        self.n_token = model.config.n_token
        self.first = dict(model.module.first_state())
        self.memory = tuple(state_entry(name, value, RESERVED) for name, value in self.first.items())
        self.inputs = (TARGETS, TOKENS, *carried_inputs(self.memory))
        self.purposes = purposes_of(self.n_token, carried_outputs(self.memory))
        with torch.no_grad():
            model(torch.zeros(1, 1, dtype=torch.int64))  # hooks and weight drop set what `replace_rnns` takes
        self.model: Any = replace_rnns(model.module.requires_grad_(False))
        self.cell = None
        if model.config.form == "step":
            try:
                self.cell = exported(self.model, "step")
            except Exception as error:
                raise ExportError(*self.explain(error)) from error

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with, each a separate tensor."""
        axes = AXES["segment"] if self.fixed is None else self.fixed.axes
        targets, tokens = (torch.zeros([*axes.values()], dtype=torch.int64) for _ in range(2))
        return targets, tokens, *batched(self.first, len(tokens)).values()

    def explain(self, error: BaseException) -> tuple[str, str]:
        """Return message and hint for an error of an exporter, by the line of the user's module."""
        return explain(error, self.model)

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return the state at the start of a document."""
        return self.first

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute one segment; see `Step.forward`."""
        targets, tokens, *values = inputs
        state = dict(zip(self.first, values, strict=True))
        logits, state = self._scan(tokens, state) if self.cell is not None else self.model.segment(tokens, state)
        B, S = tokens.shape
        if self.fixed is None and type(logits.shape[1]) is int and type(S) is not int:
            raise RuntimeError(f"the logits have {logits.shape[1]} tokens for any segment")
        logits = logits.reshape(B, S, self.n_token)
        log_probs = logits.log_softmax(dim=2)
        outputs = describe_softmax(log_probs, targets, self.n_token)
        for name in ("top_ids", "top_log_probs"):  # torch loses the size of the last axis behind some operators
            outputs[name] = outputs[name].reshape(B, S, min(TOP_K, self.n_token))
        outputs |= {f"new_{name}": state[name] for name in self.first}
        outputs["log_prob"] = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
        outputs["logits"] = logits[:, -1]
        return tuple(outputs[name] for name in traced_outputs(self))

    def _scan(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S) one by one, as one operator of the graph."""

        def body(carry: tuple[Tensor, ...], row: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
            assert self.cell is not None
            logits, *after = self.cell(row[0], [*carry])
            return tuple(value.clone(memory_format=torch.contiguous_format) for value in after), logits

        carry, logits = scan(body, tuple(state.values()), (tokens.transpose(0, 1).contiguous(),))  # (S, B, n_token)
        return logits.transpose(0, 1), dict(zip(self.first, carry, strict=True))


def state_entry(name: str, value: Tensor, reserved: Collection[str] = ()) -> MemoryEntry:
    """Return what the manifest says of a state of a user's module.

    Raises:
        ExportError: it has no name for a tensor of graphs, or a first value that bundles cannot hold.
    """
    if name in reserved or not STATE_NAME.fullmatch(name):
        raise ExportError(
            f"the state {name[:80]!r} has the name of another tensor, or no name that graphs can have.",
            hint="Name it by letters, digits, dots and underscores, without `new_` in front.",
        )
    if not value.numel():
        problem = f"the state {name!r} of shape {tuple(value.shape)} holds no numbers."
        raise ExportError(problem, hint="Leave it out of first_state.")
    dtype, begins_with_zeros = str(value.dtype).removeprefix("torch."), not bool(value.any())
    if not begins_with_zeros and not value.is_floating_point():
        raise ExportError(
            f"the state {name!r} is {dtype} and does not begin with zeros.",
            hint="Begin integers and booleans with zeros, and add their first value inside the module.",
        )
    shape = ("batch", *value.shape)
    return MemoryEntry(name, f"new_{name}", dtype, shape, "state", None if begins_with_zeros else name)
