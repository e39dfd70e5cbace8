"""Recurrent language models that carry a state from segment to segment, in training by truncated backpropagation."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.language_model import LanguageModel
from xltraining.recurrent.config import LSTMConfig, MambaConfig, RecurrentModelConfig
from xltraining.recurrent.selective_scan import selective_scan

__all__ = ["LSTM", "Mamba", "MambaBlock", "RecurrentLanguageModel", "State"]

State = Mapping[str, Tensor]
_STEP_SIZES = (0.001, 0.1)  # the range of Mamba's first step sizes (Gu and Dao 2023, section 3.6)


class RecurrentLanguageModel(LanguageModel):
    """Embeddings, a recurrent network and an output layer; the memory is a state of named tensors.

    A subclass makes its network, and defines `first_state` and `read`. How a document is cut into segments changes
    results only by rounding.
    """

    INIT_RANGE: ClassVar[float]
    """Largest of the first embeddings and output weights."""
    config: RecurrentModelConfig

    def __init__(self, config: RecurrentModelConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = nn.Embedding(config.n_token, config.d_model)
        self.head = nn.Linear(config.d_model, config.n_token)
        self.dropout = nn.Dropout(config.dropout)
        self.tie()
        for weight in (self.word_emb.weight, self.head.weight):
            nn.init.uniform_(weight, -self.INIT_RANGE, self.INIT_RANGE)
        nn.init.zeros_(self.head.bias)

    @abstractmethod
    def first_state(self) -> dict[str, Tensor]:
        """Return the state at the start of a document: of one row, without the batch axis."""

    @abstractmethod
    def read(self, embedded: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return hidden states (B,S,D) and the next state, from embeddings (B,S,D) and the state before them."""

    def first_memory(self, batch_size: int) -> dict[str, Tensor]:
        """Return the state at the start of a document, for each row."""
        return {name: value.repeat(batch_size, *[1] * value.dim()) for name, value in self.first_state().items()}

    def forward(self, tokens: Tensor, memory: State | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one segment: see `LanguageModel`. The memory is float32 also under autocast."""
        state = self.first_memory(len(tokens)) if memory is None else memory
        hidden, new = self.read(self.dropout(self.word_emb(tokens)), state)
        return self.dropout(hidden), {name: value.detach().to(state[name].dtype) for name, value in new.items()}

    def segment(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits (B,S,V) of tokens (B,S) int64 and the next state, as exporters of recurrent models ask."""
        hidden, new = self(tokens, state)
        return self.head(hidden), new

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V) from hidden states (B,S,D)."""
        return self.head(hidden)

    def tie(self) -> None:
        """Let the output layer use the embeddings, if the configuration says so."""
        if self.config.tie_weight:
            self.head.weight = self.word_emb.weight

    @classmethod
    def tied_names(cls, config: RecurrentModelConfig) -> dict[str, str]:
        """Return the second name of the embeddings if the output layer uses them."""
        return {"head.weight": "word_emb.weight"} if config.tie_weight else {}


class LSTM(RecurrentLanguageModel):
    """Layers of `torch.nn.LSTM`, with dropout between them (Zaremba et al. 2014)."""

    INIT_RANGE = 1.0  # with smaller ones, training stays long at the frequencies of tokens

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        D, between = config.d_model, config.dropout if config.n_layer > 1 else 0.0
        self.lstm = nn.LSTM(D, D, config.n_layer, batch_first=True, dropout=between)

    def first_state(self) -> dict[str, Tensor]:
        """Return hidden states `h` and cells `c` of all layers, both (L,D)."""
        shape = (self.config.n_layer, self.config.d_model)
        return {name: self.word_emb.weight.new_zeros(shape) for name in ("h", "c")}

    def read(self, embedded: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return hidden states (B,S,D) and the next state."""
        h, c = (state[name].transpose(0, 1).contiguous() for name in ("h", "c"))  # (L,B,D)
        hidden, (h, c) = self.lstm(embedded, (h, c))
        return hidden, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}


class MambaBlock(nn.Module):
    """A layer: a short convolution and a selective state space, gated (Gu and Dao 2023, algorithm 2 and figure 3).

    Parameters have the names of the authors' code.
    """

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        D, E, N, R = config.d_model, config.d_inner, config.d_state, config.rank
        self.sizes = (R, N, N)
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self.in_proj = nn.Linear(D, 2 * E, bias=False)
        self.conv1d = nn.Conv1d(E, E, config.d_conv, groups=E)
        self.x_proj = nn.Linear(E, R + 2 * N, bias=False)
        self.dt_proj = nn.Linear(R, E)
        self.A_log = nn.Parameter(torch.arange(1.0, N + 1).log().repeat(E, 1))
        self.D = nn.Parameter(torch.ones(E))
        self.out_proj = nn.Linear(E, D, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(R**-0.5), R**-0.5)
        low, high = map(math.log, _STEP_SIZES)
        with torch.no_grad():
            sizes = torch.empty_like(self.dt_proj.bias).uniform_(low, high).exp()
            self.dt_proj.bias.copy_(sizes.expm1().log())  # whose softplus they are
            self.out_proj.weight /= math.sqrt(config.n_layer)  # keeps the scale of the residual stream

    def forward(self, hidden: Tensor, conv: Tensor, ssm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the layer adds to hidden states (B,S,D), and its state after the segment.

        Args:
            conv: the last inputs of the convolution, (B,K-1,E).
            ssm: the state of the recurrence, (B,E,N).
        """
        S = hidden.shape[1]
        x, gate = self.in_proj(self.norm(hidden)).chunk(2, dim=-1)  # (B,S,E)
        rows = torch.cat([conv, x.to(conv.dtype)], dim=1)  # (B,K-1+S,E)
        x = F.silu(self.conv1d(rows.transpose(1, 2)).transpose(1, 2))  # (B,S,E)
        dt, B, C = self.x_proj(x).split(self.sizes, dim=-1)
        dt = F.softplus(self.dt_proj(dt)).to(ssm.dtype)  # (B,S,E)
        y, ssm = selective_scan(dt, x, -self.A_log.exp(), B.to(ssm.dtype), C.to(ssm.dtype), ssm)
        return self.out_proj((y + self.D * x) * F.silu(gate)), rows[:, S:], ssm


class Mamba(RecurrentLanguageModel):
    """Layers of selective state spaces (Gu and Dao 2023)."""

    INIT_RANGE = 0.1
    config: MambaConfig

    def __init__(self, config: MambaConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(MambaBlock(config) for _ in range(config.n_layer))
        self.norm_f = nn.RMSNorm(config.d_model, eps=1e-5)

    def first_state(self) -> dict[str, Tensor]:
        """Return the inputs of the convolutions (L,K-1,E), and the states of the recurrences (L,E,N)."""
        config, like = self.config, self.word_emb.weight
        L, E = config.n_layer, config.d_inner
        return {"conv": like.new_zeros(L, config.d_conv - 1, E), "ssm": like.new_zeros(L, E, config.d_state)}

    def read(self, embedded: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return normalised hidden states (B,S,D) and the next state."""
        hidden, convs, ssms = embedded, [], []
        for layer, conv, ssm in zip(self.layers, state["conv"].unbind(1), state["ssm"].unbind(1), strict=True):
            added, new_conv, new_ssm = layer(hidden, conv, ssm)
            hidden = hidden + self.dropout(added)
            convs.append(new_conv)
            ssms.append(new_ssm)
        return self.norm_f(hidden), {"conv": torch.stack(convs, dim=1), "ssm": torch.stack(ssms, dim=1)}
