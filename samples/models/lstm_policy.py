"""The policy of an agent with a memory: an LSTM between linear layers (Hausknecht and Stone 2015, arXiv:1507.06527).

    xlexport convert samples/models/lstm_policy.py:model --trust -o policy.bundle

Each step takes an observation, and whether it begins an episode: then the state of the row is forgotten, as in the
recurrent policies of Stable-Baselines3. It gives the mean of a Gaussian action in -1 to 1, and the state's value.
"""

import torch
from torch import Tensor, nn

__all__ = ["LSTMPolicy", "model"]


class LSTMPolicy(nn.Module):
    """A policy over observations of O numbers, with actions of A numbers and a hidden state of D; state (B, D)."""

    def __init__(self, O: int = 8, A: int = 2, D: int = 64) -> None:  # noqa: E741 - the letter of the paper
        super().__init__()
        self.inputs = {"observation": (O,), "begins": {"shape": (), "dtype": "bool"}}
        self.encoder, self.cell = nn.Linear(O, D), nn.LSTMCell(D, D)
        self.actor, self.critic = nn.Linear(D, A), nn.Linear(D, 1)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first step: one row, without the batch axis."""
        return {"h": torch.zeros(self.cell.hidden_size), "c": torch.zeros(self.cell.hidden_size)}

    def step(self, inputs: dict[str, Tensor], state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read observations (B, O) and flags (B,); return actions (B, A) and values (B,), and the new state."""
        goes_on = (~inputs["begins"]).float()[:, None]  # (B, 1)
        x = self.encoder(inputs["observation"]).tanh()  # (B, D)
        h, c = self.cell(x, (state["h"] * goes_on, state["c"] * goes_on))
        return {"action": self.actor(h).tanh(), "value": self.critic(h)[:, 0]}, {"h": h, "c": c}


def model() -> LSTMPolicy:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return LSTMPolicy()
