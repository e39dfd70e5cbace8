"""A GRU language model: `torch.nn.GRU` between an embedding and a linear head.

    xlexport convert samples/models/gru.py:model --trust --tokenizer bytes -o bundle

The cell is that of Cho et al. (2014, arXiv:1406.1078, equations 5 to 8), as the page of `torch.nn.GRU` defines it.
With `--weights FILE`, the command converts trained weights, else random ones.
"""

import torch
from torch import Tensor, nn

__all__ = ["GRU", "model"]


class GRU(nn.Module):
    """A GRU of L layers of width D over V tokens; its state has `h`, (B, L, D)."""

    def __init__(self, V: int = 256, D: int = 128, L: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.rnn = nn.GRU(D, D, num_layers=L, batch_first=True)
        self.head = nn.Linear(D, V)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        return {"h": torch.zeros(self.rnn.num_layers, self.rnn.hidden_size)}

    def segment(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        h = state["h"].transpose(0, 1).contiguous()  # torch wants (L, B, D)
        x, h = self.rnn(self.embedding(tokens), h)
        return self.head(x), {"h": h.transpose(0, 1)}


def model() -> GRU:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return GRU()
