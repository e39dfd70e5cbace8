"""Reorder the gates of recurrent cells: `docs/own_models.md` has the orders of libraries, and what else differs."""

import torch
from torch import Tensor

__all__ = ["in_torch_order"]

TORCH = ("ifgo", "rzn")  # of `torch.nn.LSTM` and `torch.nn.GRU`; g and n are the candidates, i j c h elsewhere


def in_torch_order(weights: Tensor, order: str) -> Tensor:
    """Return weights whose gates are in the order of `torch.nn.LSTM` or `torch.nn.GRU`.

    Args:
        weights: (G·D, …) of G gates of D rows each: a bias, or a matrix that is multiplied from the left.
        order: the gates' letters as the file has them, such as `igfo` of TensorFlow or `zrn` of Keras.

    Raises:
        ValueError: the letters are of no cell of PyTorch, or the rows are not a multiple of the gates.
    """
    wanted = next((gates for gates in TORCH if sorted(gates) == sorted(order)), None)
    if wanted is None or len(weights) % len(order):
        raise ValueError(f"{len(weights)} rows of the gates {order!r}; expected equal parts of {' or '.join(TORCH)}.")
    parts = dict(zip(order, weights.chunk(len(order)), strict=True))
    return torch.cat([parts[gate] for gate in wanted])
