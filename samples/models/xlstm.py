"""An xLSTM of mLSTM blocks, as in xLSTM-7B (Beck et al. 2025, arXiv:2503.13427; the cell is of arXiv:2405.04517).

    xlexport convert samples/models/xlstm.py:model --trust --tokenizer bytes -o bundle

Each head keeps a matrix C, a normaliser n and a stabiliser m (section 2.3 of arXiv:2405.04517). A segment is
one chunk of the chunkwise form: a matrix (S, S) of decays between its tokens, and what they read from the state before.
That matrix makes long segments slower than those of about 64 tokens.
Parameters have the names of xLSTMForCausalLM in Hugging Face's transformers, so `--weights` takes its files.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["XLSTM", "model"]


def soft_cap(x: Tensor, limit: float) -> Tensor:
    """Limit x smoothly to (-limit, limit)."""
    return limit * torch.tanh(x / limit)


class MLSTM(nn.Module):
    """The mLSTM layer with H heads, whose keys have half the width of their values."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H = H
        self.q, self.k = (nn.Linear(D, D // 2, bias=False) for _ in range(2))
        self.v, self.ogate_preact, self.out_proj = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.igate_preact, self.fgate_preact = (nn.Linear(D, H) for _ in range(2))
        self.multihead_norm = nn.ParameterDict({"weight": torch.ones(D)})

    def forward(self, x: Tensor, C: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Read x (B, S, D) from the state C (B, H, K, K'), n (B, H, K) and m (B, H)."""
        B, S, D = x.shape
        q, k, v = (part(x).view(B, S, self.H, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        q = q / k.shape[3] ** 0.5
        i = soft_cap(self.igate_preact(x), 15.0).transpose(1, 2)  # (B, H, S)
        f = F.logsigmoid(soft_cap(self.fgate_preact(x), 15.0)).transpose(1, 2).cumsum(dim=2)

        # Logarithms of the weight that a token gives to each token of the segment, and to the state.
        later = torch.ones(S, S, dtype=torch.bool).triu(diagonal=1)
        own = (f[:, :, :, None] - f[:, :, None] + i[:, :, None]).masked_fill(later, -torch.inf)  # (B, H, S, S)
        carried = f + m[:, :, None]  # (B, H, S)
        top = torch.maximum(own.amax(dim=3), carried)  # the stabiliser
        own, carried = (own - top[:, :, :, None]).exp(), (carried - top).exp()[:, :, :, None]

        weights = q @ k.transpose(2, 3) * own
        size = weights.sum(dim=3, keepdim=True) + carried * (q @ n[:, :, :, None])
        h = weights @ v + carried * (q @ C)  # (B, H, S, K')
        h = h / (torch.maximum(size.abs(), torch.exp(-top)[:, :, :, None]) + 1e-6)

        k = k * own[:, :, -1, :, None]
        C = carried[:, :, -1:] * C + k.transpose(2, 3) @ v
        n = carried[:, :, -1] * n + k.sum(dim=2)
        h = F.layer_norm(h, h.shape[3:], eps=1e-6).transpose(1, 2).reshape(B, S, D) * self.multihead_norm["weight"]
        return self.out_proj(self.ogate_preact(x).sigmoid() * h), C, n, top[:, :, -1]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202, equation 6)."""

    def __init__(self, D: int, inner: int) -> None:
        super().__init__()
        self.proj_up_gate, self.proj_up = (nn.Linear(D, inner, bias=False) for _ in range(2))
        self.proj_down = nn.Linear(inner, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each row of x (B, S, D)."""
        return self.proj_down(F.silu(self.proj_up_gate(x)) * self.proj_up(x))


class Block(nn.Module):
    """An mLSTM and a feed-forward network, each after a norm and added to its input."""

    def __init__(self, D: int, H: int, inner: int) -> None:
        super().__init__()
        self.norm_mlstm, self.mlstm_layer = nn.RMSNorm(D, eps=1e-6), MLSTM(D, H)
        self.norm_ffn, self.ffn = nn.RMSNorm(D, eps=1e-6), FeedForward(D, inner)


class XLSTM(nn.Module):
    """L blocks of width D over V tokens; the state has C, n and m of each."""

    def __init__(self, V: int = 256, D: int = 128, L: int = 2, H: int = 4, inner: int = 384) -> None:
        super().__init__()
        blocks = nn.ModuleList(Block(D, H, inner) for _ in range(L))
        self.backbone = nn.ModuleDict(
            {"embeddings": nn.Embedding(V, D), "blocks": blocks, "out_norm": nn.RMSNorm(D, eps=1e-6)}
        )
        self.lm_head = nn.Linear(D, V, bias=False)
        self.shapes = {"C": (H, D // H // 2, D // H), "n": (H, D // H // 2), "m": (H,)}

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        layers = range(len(self.backbone["blocks"]))
        return {f"{name}_{n}": torch.zeros(shape) for n in layers for name, shape in self.shapes.items()}

    def segment(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        x, new = self.backbone["embeddings"](tokens), {}
        for n, block in enumerate(self.backbone["blocks"]):
            mixed, *left = block.mlstm_layer(block.norm_mlstm(x), *(state[f"{name}_{n}"] for name in self.shapes))
            new |= {f"{name}_{n}": value for name, value in zip(self.shapes, left, strict=True)}
            x = x + mixed
            x = x + block.ffn(block.norm_ffn(x))
        return soft_cap(self.lm_head(self.backbone["out_norm"](x)), 30.0), new


def model() -> XLSTM:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return XLSTM()
