"""A sliding-window decoder: Mistral (Jiang et al. 2023, arXiv:2310.06825, section 2).

    xlexport convert samples/models/sliding_window.py:model --trust --tokenizer bytes -o bundle

Each layer keeps the keys and values of the W - 1 newest tokens, so a document of any length needs the same memory.
Rotary positions (Su et al. 2021, arXiv:2104.09864, equation 34) matter by their differences only. So keys are kept
without rotation, and positions are counted within the window: they stay small, and exact, in an endless stream.
Parameters have the names of MistralForCausalLM in Hugging Face's transformers, so `--weights` takes its files.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SlidingWindow", "model"]


class Attention(nn.Module):
    """Attention of H heads to the W newest tokens; each group of H / G heads shares its keys and values."""

    def __init__(self, D: int, H: int, G: int, W: int, theta: float = 10000.0) -> None:
        super().__init__()
        self.H, self.G, self.W, self.K, self.theta = H, G, W, D // H, theta
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(D, G * self.K, bias=False) for _ in range(2))

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x (..., S, K) by its positions (S,)."""
        angles = positions[:, None] * self.theta ** (-torch.arange(0, self.K, 2) / self.K)  # (S, K / 2)
        cos, sin = angles.cos(), angles.sin()
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from x (B, S, D) to itself and to the kept keys and values, both (B, G, W - 1, K)."""
        B, S, D = x.shape
        H, G, K, kept = self.H, self.G, self.K, self.W - 1
        queries = self.q_proj(x).view(B, S, G, H // G, K).permute(0, 2, 3, 1, 4)  # (B, G, H / G, S, K)
        keys = torch.cat([keys, self.k_proj(x).view(B, S, G, K).transpose(1, 2)], dim=2)  # (B, G, W - 1 + S, K)
        values = torch.cat([values, self.v_proj(x).view(B, S, G, K).transpose(1, 2)], dim=2)

        positions = torch.arange(kept + S)
        distance = positions[kept:, None] - positions  # (S, W - 1 + S)
        reach = (seen + torch.arange(S)).clamp(max=kept)  # (B, S): the number of tokens that each sees before itself
        visible = (distance >= 0) & (distance <= reach[:, :, None])  # (B, S, W - 1 + S)

        rotated = self.rotate(keys, positions)[:, :, None]  # (B, G, 1, W - 1 + S, K)
        scores = self.rotate(queries, positions[kept:]) @ rotated.transpose(3, 4) / K**0.5
        weights = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(dim=-1)
        x = (weights @ values[:, :, None]).permute(0, 3, 1, 2, 4).reshape(B, S, D)
        return self.o_proj(x), keys[:, :, S:], values[:, :, S:]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202, equation 6)."""

    def __init__(self, D: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(D, inner, bias=False), nn.Linear(D, inner, bias=False)
        self.down_proj = nn.Linear(inner, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each row of x (B, S, D)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input."""

    def __init__(self, D: int, attention: Attention, mlp: FeedForward) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(D, eps=1e-5), attention
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(D, eps=1e-5), mlp


class SlidingWindow(nn.Module):
    """L layers of width D over V tokens; the state has keys and values, and a count of tokens, at most W - 1."""

    def __init__(
        self, V: int = 256, D: int = 128, L: int = 2, H: int = 4, G: int = 2, W: int = 64, inner: int = 384
    ) -> None:
        super().__init__()
        layers = nn.ModuleList(Layer(D, Attention(D, H, G, W), FeedForward(D, inner)) for _ in range(L))
        embedding, norm = nn.Embedding(V, D), nn.RMSNorm(D, eps=1e-5)
        self.model = nn.ModuleDict({"embed_tokens": embedding, "layers": layers, "norm": norm})
        self.lm_head = nn.Linear(D, V, bias=False)
        self.kept = (G, W - 1, D // H)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        names = [f"{name}_{n}" for n in range(len(self.model["layers"])) for name in ("keys", "values")]
        return {name: torch.zeros(self.kept) for name in names} | {"seen": torch.zeros(1, dtype=torch.int64)}

    def segment(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        x, seen = self.model["embed_tokens"](tokens), state["seen"]
        new = {"seen": (seen + tokens.shape[1]).clamp(max=self.kept[1])}
        for n, layer in enumerate(self.model["layers"]):
            kept = state[f"keys_{n}"], state[f"values_{n}"]
            mixed, new[f"keys_{n}"], new[f"values_{n}"] = layer.self_attn(layer.input_layernorm(x), *kept, seen)
            x = x + mixed
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.lm_head(self.model["norm"](x)), new


def model() -> SlidingWindow:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return SlidingWindow()
