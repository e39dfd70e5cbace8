"""An LSTM language model: `torch.nn.LSTM` between an embedding and a linear head.

    xlexport convert samples/models/lstm.py:model --trust --tokenizer bytes -o bundle

The cell is that of Hochreiter and Schmidhuber (1997) with forget gates, as the page of `torch.nn.LSTM` defines it.
With `--weights FILE`, the command converts trained weights, else random ones.
"""

import torch
from torch import Tensor, nn

__all__ = ["LSTM", "model"]


class LSTM(nn.Module):
    """An LSTM of L layers of width D over V tokens, embedded in D or `inputs`; its state is `h` and `c`, (B, L, D)."""

    def __init__(self, V: int = 256, D: int = 128, L: int = 2, inputs: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, inputs or D)
        self.rnn = nn.LSTM(inputs or D, D, num_layers=L, batch_first=True)
        self.head = nn.Linear(D, V)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        zeros = torch.zeros(self.rnn.num_layers, self.rnn.hidden_size)
        return {"h": zeros, "c": zeros.clone()}

    def segment(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))  # torch wants (L, B, D)
        x, (h, c) = self.rnn(self.embedding(tokens), (h, c))
        return self.head(x), {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}


def model() -> LSTM:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return LSTM()
