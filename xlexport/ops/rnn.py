"""LSTM and GRU as operators, which export to the ONNX operators of the same names at any batch and segment length.

`torch.export` unrolls `torch.nn.LSTM` and fixes the segment's length. So the export replaces such modules by
`replace_rnns`. Their weights have the layout of ONNX: gates in another order, and both biases in one tensor.

Sources: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000; Cho et al. 2014. The equations are
those of `torch.nn.LSTM` and `torch.nn.GRU`.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
from onnxscript import opset20 as op
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.ops.operator import operator, shapes_of

__all__ = ["gru", "lstm", "replace_rnns", "translate_gru", "translate_lstm"]

# Places of the gates of ONNX (iofg, zrn) in torch's order (ifgo, rzn).
ONNX_GATES: dict[type[nn.RNNBase], tuple[int, ...]] = {nn.LSTM: (0, 3, 1, 2), nn.GRU: (1, 0, 2)}


@operator("lstm")
def lstm(
    x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one layer of an LSTM.

    Args:
        x: (S, B, I).
        weight, recurrent: (1, 4H, I), (1, 4H, H), with the gates input, output, forget and cell.
        bias: (1, 8H), that of `weight` first.
        hidden, cell: (1, B, H).

    Returns:
        All hidden states (S, B, H), the last one and the last cell.
    """
    order = [0, 2, 3, 1]  # of torch's gates, in ONNX's order
    w, r = [torch.cat([one[0].chunk(4)[k] for k in order]) for one in (weight, recurrent)]
    b, c = [torch.cat([one.chunk(4)[k] for k in order]) for one in bias[0].chunk(2)]
    return torch.lstm(x, [hidden, cell], [w, r, b, c], True, 1, 0.0, False, False, False)


@shapes_of("lstm")
def _(x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    return x.new_empty(*x.shape[:2], hidden.shape[2]), hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


@operator("gru")
def gru(x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one layer of a GRU.

    Args:
        x: (S, B, I).
        weight, recurrent: (1, 3H, I), (1, 3H, H), with the gates update, reset and new.
        bias: (1, 6H), that of `weight` first.
        hidden: (1, B, H).

    Returns:
        All hidden states (S, B, H), and the last one.
    """
    order = [1, 0, 2]
    w, r = [torch.cat([one[0].chunk(3)[k] for k in order]) for one in (weight, recurrent)]
    b, c = [torch.cat([one.chunk(3)[k] for k in order]) for one in bias[0].chunk(2)]
    return torch.gru(x, hidden, [w, r, b, c], True, 1, 0.0, False, False, False)


@shapes_of("gru")
def _(x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    return x.new_empty(*x.shape[:2], hidden.shape[2]), hidden.new_empty(hidden.shape)


@no_type_check  # onnxscript's operators take lists, too
def translate_lstm(x: Any, weight: Any, recurrent: Any, bias: Any, hidden: Any, cell: Any) -> Any:
    """Record an ONNX `LSTM` of the arguments of `lstm`."""
    rows, *last = op.LSTM(x, weight, recurrent, bias, None, hidden, cell, hidden_size=recurrent.shape[2])
    return op.Squeeze(rows, [1]), *last  # ONNX has an axis of directions


@no_type_check
def translate_gru(x: Any, weight: Any, recurrent: Any, bias: Any, hidden: Any) -> Any:
    """Record an ONNX `GRU` of the arguments of `gru`."""
    size = recurrent.shape[2]
    rows, last = op.GRU(x, weight, recurrent, bias, None, hidden, hidden_size=size, linear_before_reset=1)
    return op.Squeeze(rows, [1]), last


class _ExportedRNN(nn.Module):
    """A `torch.nn.LSTM` or `torch.nn.GRU` in evaluation, with the same results and settings."""

    def __init__(self, rnn: nn.RNNBase, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.is_lstm, self.bidirectional, self.proj_size = kind is nn.LSTM, False, 0
        self.input_size, self.hidden_size, self.num_layers = rnn.input_size, rnn.hidden_size, rnn.num_layers
        self.batch_first, self.bias, self.dropout, self.mode = rnn.batch_first, rnn.bias, rnn.dropout, rnn.mode
        for name, parameter in rnn.named_parameters():  # for modules that read them
            self.register_parameter(name, parameter)
        for layer in range(rnn.num_layers):
            for name, weight in _onnx_weights(rnn, layer, ONNX_GATES[kind]).items():
                self.register_buffer(f"{name}_{layer}", weight)

    def flatten_parameters(self) -> None:
        """Do nothing: modules call this for CUDA."""

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Compute all layers; arguments and results are those of the original.

        Raises:
            ExportError: `x` is packed, or has no axis of documents.
        """
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise ExportError(
                f"torch.nn.{self.mode}: cannot export a call with packed sequences or without a batch axis.",
                hint="Give it a tensor with the axes batch, segment and features.",
            )
        rows = x.transpose(0, 1) if self.batch_first else x  # (S, B, I)
        if state is None:
            zeros = x.new_zeros(self.num_layers, rows.shape[1], self.hidden_size)
            state = (zeros, zeros) if self.is_lstm else zeros
        states = tuple(state) if self.is_lstm else (state,)
        last = []
        for layer in range(self.num_layers):
            weights = [getattr(self, f"{name}_{layer}") for name in ("weight", "recurrent", "bias")]
            rows, *new = (lstm if self.is_lstm else gru)(rows, *weights, *(one[layer : layer + 1] for one in states))
            last.append(new)
        carried = tuple(torch.cat(layers) for layers in zip(*last, strict=True))  # each (layers, B, H)
        return rows.transpose(0, 1) if self.batch_first else rows, carried if self.is_lstm else carried[0]


def _onnx_weights(rnn: nn.RNNBase, layer: int, gates: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the weights of a layer as ONNX has them: (1, gates · H, …)."""

    def reordered(name: str) -> Tensor:
        parts = getattr(rnn, f"{name}_l{layer}").detach().chunk(len(gates))
        return torch.cat([parts[gate] for gate in gates])

    weight, recurrent = reordered("weight_ih"), reordered("weight_hh")
    no_bias = weight.new_zeros(len(weight))
    bias = torch.cat([reordered(name) if rnn.bias else no_bias for name in ("bias_ih", "bias_hh")])
    return {"weight": weight[None], "recurrent": recurrent[None], "bias": bias[None]}


def replace_rnns(module: nn.Module) -> nn.Module:
    """Replace each `torch.nn.LSTM` and `torch.nn.GRU` within `module`, in place; return the module.

    If `module` itself is one, the result is its replacement. Classes that override `forward` stay.

    Raises:
        ExportError: one is bidirectional, or has projections. The message names all of them; nothing is replaced.
    """
    rnns = [(path, rnn) for path, rnn in module.named_modules(remove_duplicate=False) if isinstance(rnn, nn.RNNBase)]
    problems, replacements = [], dict[nn.Module, nn.Module]()
    for path, rnn in rnns:
        kind = next((kind for kind in ONNX_GATES if type(rnn).forward is kind.forward), None)
        if kind and (rnn.bidirectional or rnn.proj_size):
            name = f"{path or 'model'} (torch.nn.{kind.__name__})"
            problems.append(f"{name} {'is bidirectional' if rnn.bidirectional else 'has proj_size'}")
        elif kind and rnn not in replacements:
            replacements[rnn] = _ExportedRNN(rnn, kind).train(rnn.training)
    if problems:
        raise ExportError(
            f"{'; '.join(problems)}: a step graph cannot hold such a recurrent network.",
            hint="A carried state needs one direction. Write a network with projections by its equations, in `step`.",
        )
    for path, rnn in rnns:
        if path and rnn in replacements:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, replacements[rnn])
    return replacements.get(module, module)
