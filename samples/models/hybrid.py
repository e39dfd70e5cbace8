"""A hybrid of recurrent layers and local attention, as in Griffin (De et al. 2024, arXiv:2402.19427).

    xlexport convert samples/models/hybrid.py:model --trust --tokenizer bytes -o bundle

Two of three layers hold an RG-LRU (equations 1 to 4), and the third attends to the W newest tokens, by heads that share
their keys and values. `Scan` runs only the two operations of the recurrence; all else is computed for whole segments.
Half of each key is rotated by its position, which is counted within the window, as only differences matter.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

__all__ = ["Hybrid", "model"]

State = dict[str, Tensor]


def add_token(h: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Decay h (B, D) and add a token's input; return the result as the state and as the output."""
    h = inputs[0] * h + inputs[1]
    return h, h.clone()  # `scan` refuses the same tensor twice


class Recurrent(nn.Module):
    """A convolution over `width` tokens and an RG-LRU, times a gate."""

    def __init__(self, D: int, width: int = 4) -> None:
        super().__init__()
        self.linear_x, self.linear_y, self.linear_out = (nn.Linear(D, D) for _ in range(3))
        self.conv_1d = nn.Conv1d(D, D, width, groups=D)
        self.input_gate, self.decay_gate = nn.Linear(D, D), nn.Linear(D, D)
        self.decay = nn.Parameter(torch.linspace(-7, -3, D))
        self.first = {"h": torch.zeros(D), "inputs": torch.zeros(D, width - 1)}

    def forward(self, x: Tensor, state: State, seen: Tensor) -> tuple[Tensor, State]:
        """Read x (B, S, D); the first token of a document, before which none was seen, is not scaled."""
        inputs = torch.cat([state["inputs"], self.linear_x(x).transpose(1, 2)], dim=2)  # (B, D, width - 1 + S)
        u = self.conv_1d(inputs).transpose(1, 2)
        log_decay = -8.0 * self.decay_gate(u).sigmoid() * F.softplus(self.decay)
        scale = torch.where(seen[:, :, None] == 0, 1.0, (1 - (2 * log_decay).exp()).sqrt())
        pairs = log_decay.exp().transpose(0, 1), (scale * self.input_gate(u).sigmoid() * u).transpose(0, 1)  # (S, B, D)
        if torch.compiler.is_exporting():
            h, out = scan(add_token, state["h"].clone(), pairs)
        else:
            h, rows = state["h"], []
            for token in zip(*pairs, strict=True):
                h, row = add_token(h, token)
                rows.append(row)
            out = torch.stack(rows)
        gated = out.transpose(0, 1) * F.gelu(self.linear_y(x), approximate="tanh")
        return self.linear_out(gated), {"h": h, "inputs": inputs[:, :, x.shape[1] :]}


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate the first half of x (..., S, K) by its positions (S,)."""
    K = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, K, 2) / K)  # (S, K / 2)
    cos, sin = angles.cos(), angles.sin()
    left, right, rest = x.split([K // 2, K // 2, K], dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], dim=-1)


class Attention(nn.Module):
    """Attention of H heads, which share keys and values, to the W newest tokens."""

    def __init__(self, D: int, H: int, W: int) -> None:
        super().__init__()
        self.H, self.kept, self.K = H, W - 1, D // H
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D)
        self.k_proj, self.v_proj = (nn.Linear(D, self.K, bias=False) for _ in range(2))
        self.first = {"keys": torch.zeros(W - 1, self.K), "values": torch.zeros(W - 1, self.K)}

    def forward(self, x: Tensor, state: State, seen: Tensor) -> tuple[Tensor, State]:
        """Attend from x (B, S, D) to itself and to the kept keys and values, both (B, W - 1, K)."""
        B, S, D = x.shape
        queries = self.q_proj(x).view(B, S, self.H, self.K).transpose(1, 2)
        keys = torch.cat([state["keys"], self.k_proj(x)], dim=1)
        values = torch.cat([state["values"], self.v_proj(x)], dim=1)
        positions = torch.arange(self.kept + S)
        distance = positions[self.kept :, None] - positions  # (S, W - 1 + S)
        visible = (distance >= 0) & (distance <= seen.clamp(max=self.kept)[:, :, None])  # (B, S, W - 1 + S)
        rotated = rotate(keys, positions)[:, None].transpose(2, 3)  # (B, 1, K, W - 1 + S)
        scores = rotate(queries, positions[self.kept :]) @ rotated / self.K**0.5
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(dim=-1)
        x = (weights @ values[:, None]).transpose(1, 2).reshape(B, S, D)
        return self.o_proj(x), {"keys": keys[:, S:], "values": values[:, S:]}


class Hybrid(nn.Module):
    """L layers of width D over V tokens; the state has the tensors of each layer, and a count of tokens, at most W."""

    def __init__(self, V: int = 256, D: int = 128, L: int = 3, H: int = 4, W: int = 64) -> None:
        super().__init__()
        self.W, self.embedding, self.head = W, nn.Embedding(V, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(Attention(D, H, W) if n % 3 == 2 else Recurrent(D) for n in range(L))
        self.norms = nn.ModuleList(nn.RMSNorm(D, eps=1e-6) for _ in range(L + 1))

    def first_state(self) -> State:
        """Return the state before the first token: one row, without the batch axis."""
        kept = {f"{name}_{n}": value for n, layer in enumerate(self.layers) for name, value in layer.first.items()}
        return {"seen": torch.zeros(1, dtype=torch.int64)} | kept

    def segment(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        x, S = self.embedding(tokens), tokens.shape[1]
        seen = state["seen"] + torch.arange(S)  # (B, S): the number of tokens before each
        new = {"seen": (state["seen"] + S).clamp(max=self.W)}
        for n, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=False)):
            mixed, kept = layer(norm(x), {name: state[f"{name}_{n}"] for name in layer.first}, seen)
            new |= {f"{name}_{n}": value for name, value in kept.items()}
            x = x + mixed
        return self.head(self.norms[-1](x)), new


def model() -> Hybrid:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return Hybrid()
