"""LSTM, GRU and RNN as operators, which export to the ONNX operators of the same names at any batch and segment length.

`torch.export` unrolls `torch.nn.LSTM` and fixes the segment's length. So the export replaces such modules by
`replace_rnns`. Their weights have the layout of ONNX: gates in another order, and both biases in one tensor.

Sources: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000; Cho et al. 2014; Elman 1990. The
equations are those of `torch.nn.LSTM`, `torch.nn.GRU` and `torch.nn.RNN`.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
from onnxscript import opset20 as op
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.ops.operator import operator, shapes_of

__all__ = ["gru", "lstm", "replace_rnns", "rnn", "translate_gru", "translate_lstm", "translate_rnn"]

# Places of the gates of ONNX (iofg, zrn) in torch's order (ifgo, rzn).
ONNX_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}
TORCH_CLASSES = nn.LSTM, nn.GRU, nn.RNN


def _in_torch_order(weight: Tensor, recurrent: Tensor, bias: Tensor, places: list[int]) -> list[Tensor]:
    """Return the weights of a layer as torch has them; `places` are those of torch's gates in the order of ONNX."""
    inner, outer = bias[0].chunk(2)
    return [torch.cat([one.chunk(len(places))[k] for k in places]) for one in (weight[0], recurrent[0], inner, outer)]


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
    weights = _in_torch_order(weight, recurrent, bias, [0, 2, 3, 1])
    return torch.lstm(x, [hidden, cell], weights, True, 1, 0.0, False, False, False)


@shapes_of("lstm")
def _(x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    return x.new_empty(*x.shape[:2], hidden.shape[2]), hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


@operator("gru")
def gru(x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one layer of a GRU, as `lstm` does, from 3H and 6H rows, with the gates update, reset and new."""
    weights = _in_torch_order(weight, recurrent, bias, [1, 0, 2])
    return torch.gru(x, hidden, weights, True, 1, 0.0, False, False, False)


@operator("rnn")
def rnn(
    x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor, has_relu: bool
) -> tuple[Tensor, Tensor]:
    """Compute one layer of a plain RNN, as `gru` does, from H and 2H rows, with tanh or ReLU."""
    weights = _in_torch_order(weight, recurrent, bias, [0])
    if has_relu:
        return torch.rnn_relu(x, hidden, weights, True, 1, 0.0, False, False, False)
    return torch.rnn_tanh(x, hidden, weights, True, 1, 0.0, False, False, False)


@shapes_of("rnn")
@shapes_of("gru")
def _(x: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor, *_: bool) -> tuple[Tensor, Tensor]:
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


@no_type_check
def translate_rnn(x: Any, weight: Any, recurrent: Any, bias: Any, hidden: Any, has_relu: bool) -> Any:
    """Record an ONNX `RNN` of the arguments of `rnn`."""
    size, kind = recurrent.shape[2], "Relu" if has_relu else "Tanh"
    rows, last = op.RNN(x, weight, recurrent, bias, None, hidden, hidden_size=size, activations=[kind])
    return op.Squeeze(rows, [1]), last


class _ExportedRNN(nn.Module):
    """What `replace_rnns` makes of a `torch.nn.LSTM`, `GRU` or `RNN`, with the same settings and results."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Leave out weights, which hooks and weight drop set at each call: `replace_rnns` has taken them."""
        if name not in vars(self).get("_flat_weights_names", ()):
            super().__setattr__(name, value)

    def flatten_parameters(self) -> None:
        """Do nothing: modules call this for CUDA."""

    def forward(self: Any, x: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Compute all layers; arguments and results are those of the original.

        Raises:
            ExportError: `x` is packed, or has no axis of documents.
        """
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise ExportError(
                f"torch.nn.{_name(self)}: cannot export a call with packed sequences or without a batch axis.",
                hint="Give it a tensor with the axes batch, segment and features.",
            )
        rows = x.transpose(0, 1) if self.batch_first else x  # (S, B, I)
        compute, count = (lstm, 2) if self.mode == "LSTM" else (gru if self.mode == "GRU" else rnn, 1)
        settings = [self.mode == "RNN_RELU"] if compute is rnn else []
        if state is None:
            states = [x.new_zeros(self.num_layers, rows.shape[1], self.hidden_size)] * count
        else:
            states = [*state] if count == 2 else [state]
        last = []
        for layer in range(self.num_layers):
            weights = [getattr(self, f"{name}_{layer}") for name in ("weight", "recurrent", "bias")]
            rows, *new = compute(rows, *weights, *(one[layer : layer + 1] for one in states), *settings)
            last.append(new)
        carried = tuple(torch.cat(layers) for layers in zip(*last, strict=True))  # each (layers, B, H)
        return rows.transpose(0, 1) if self.batch_first else rows, carried if count == 2 else carried[0]


def _name(rnn: Any) -> str:
    return str(rnn.mode).partition("_")[0]  # RNN_TANH


def _onnx_weights(rnn: nn.RNNBase, layer: int) -> dict[str, Tensor]:
    """Return the weights of a layer as ONNX has them: (1, gates · H, …)."""
    gates, names = ONNX_GATES[rnn.mode], ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * rnn.bias
    parts = [getattr(rnn, f"{name}_l{layer}").detach().chunk(len(gates)) for name in names]
    weight, recurrent, *biases = [torch.cat([part[gate] for gate in gates])[None] for part in parts]
    bias = torch.cat(biases, dim=1) if biases else weight.new_zeros(1, 2 * weight.shape[1])
    return {"weight": weight, "recurrent": recurrent, "bias": bias}


def replace_rnns(module: nn.Module) -> nn.Module:
    """Replace each `torch.nn.LSTM`, `GRU` and `RNN` within `module`, or it itself, in place; return the module.

    A class that overrides `forward` keeps it, and `super().forward` becomes the operator.

    Raises:
        ExportError: one is bidirectional, or has projections; nothing is replaced.
    """
    rnns = {path: rnn for path, rnn in module.named_modules() if isinstance(rnn, TORCH_CLASSES)}
    for path, rnn in rnns.items():
        if rnn.bidirectional or rnn.proj_size:
            fault = "is bidirectional" if rnn.bidirectional else "has proj_size"
            raise ExportError(
                f"{path or 'model'} (torch.nn.{_name(rnn)}) {fault}: no step graph can hold such a network.",
                hint="A carried state needs one direction. Write projections by their equations, in `step`.",
            )
    for rnn in rnns.values():
        for layer in range(rnn.num_layers):
            for name, weight in _onnx_weights(rnn, layer).items():
                rnn.register_buffer(f"{name}_{layer}", weight)
        own, torchs = type(rnn), next(each for each in TORCH_CLASSES if isinstance(rnn, each))
        exported = type(own.__name__, (_ExportedRNN, torchs), {})
        # Another class keeps all attributes, and all places of the module.
        rnn.__class__ = exported if own is torchs else type(own.__name__, (own, exported), {})
    return module
