"""A policy with a Gated Transformer-XL: GTrXL (Parisotto et al. 2020, arXiv:1910.06764, section 3).

    xlexport convert samples/models/gated_transformer_xl_policy.py:model --trust -o policy.bundle

Norms stand before attention and feed-forward networks, whose results pass a ReLU and a gate like that of a GRU. Each
layer keeps the keys and values of the M newest steps, projected once. `xlexport.ops.relative_attention` is one node
of the graph, which the kernels of `xlexport-ops` compute.
"""

import torch
from torch import Tensor, nn

from xlexport.ops import relative_attention

__all__ = ["GatedTransformerXLPolicy", "model"]


class Gate(nn.Module):
    """The gate of section 3.2: how much of y (..., D) comes to x (..., D); its bias lets x pass at first."""

    def __init__(self, D: int, bias: float = 2.0) -> None:
        super().__init__()
        self.of_y, self.of_x = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, 2 * D, bias=False)
        self.of_state, self.bias = nn.Linear(D, D, bias=False), nn.Parameter(torch.full((D,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return g(x, y)."""
        reset_y, update_y, new_y = self.of_y(y).chunk(3, dim=-1)
        reset_x, update_x = self.of_x(x).chunk(2, dim=-1)
        reset, update = (reset_y + reset_x).sigmoid(), (update_y + update_x - self.bias).sigmoid()
        return (1 - update) * x + update * (new_y + self.of_state(reset * x)).tanh()


class Attention(nn.Module):
    """Attention of H heads to the M steps before and the step itself, with relative positions (Dai et al. 2019)."""

    def __init__(self, D: int, H: int, M: int) -> None:
        super().__init__()
        self.H, self.d, self.M = H, D // H, M
        self.qkv, self.position, self.out = (nn.Linear(D, n * D, bias=False) for n in (3, 1, 1))
        self.content_bias, self.position_bias = (nn.Parameter(0.1 * torch.randn(H, 1, D // H)) for _ in range(2))
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, D, 2) / D))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from x (B, S, D) to itself and the kept keys and values (B, H, M, d), of which `seen` (B,) exist."""
        (B, S, D), H, d, M = x.shape, self.H, self.d, self.M
        query, new = self.qkv(x).split((D, 2 * D), dim=2)
        rings = (torch.cat([rows, x.new_zeros(B, H, S, d)], dim=2) for rows in (keys, values))  # (B, H, M + S, d)
        C = M + S
        angles = torch.arange(C - 1, -1, -1.0, device=x.device)[:, None] * self.frequencies  # (C, D / 2)
        positions = self.position(torch.cat([angles.sin(), angles.cos()], dim=1)).view(C, H, d).permute(1, 2, 0)
        sizes = torch.cat([torch.full((1,), size) for size in (H, S, C, C)])
        attended, *rings = relative_attention(
            torch.cat([query / d**0.5, new], dim=2),
            self.content_bias / d**0.5,
            self.position_bias / d**0.5,
            *rings,
            torch.cat([positions.new_zeros(H, d, 1), positions], dim=2),
            torch.full((1,), M),
            seen,
            torch.full((1,), M + 1),
            sizes,
        )
        return self.out(attended), rings[0][:, :, S:], rings[1][:, :, S:]


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a norm, and behind a ReLU and a gate."""

    def __init__(self, D: int, H: int, M: int) -> None:
        super().__init__()
        self.attention, self.norms = Attention(D, H, M), nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.mlp, self.gates = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)), nn.ModuleList()
        self.gates.extend(Gate(D) for _ in range(2))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x (B, S, D) after the layer, and the newest keys and values."""
        y, keys, values = self.attention(self.norms[0](x), keys, values, seen)
        x = self.gates[0](x, y.relu())
        return self.gates[1](x, self.mlp(self.norms[1](x)).relu()), keys, values


class GatedTransformerXLPolicy(nn.Module):
    """L layers of width D over observations of O numbers, with A actions to choose from."""

    def __init__(self, O: int = 8, A: int = 4, D: int = 64, L: int = 2, H: int = 4, M: int = 64) -> None:  # noqa: E741
        super().__init__()
        self.inputs, self.kept = {"observation": (O,)}, (H, M, D // H)
        self.encoder, self.layers = nn.Linear(O, D), nn.ModuleList(Layer(D, H, M) for _ in range(L))
        self.actor, self.critic = nn.Linear(D, A), nn.Linear(D, 1)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first step: one row, without the batch axis."""
        names = [f"{name}_{n}" for n in range(len(self.layers)) for name in ("keys", "values")]
        return {name: torch.zeros(self.kept) for name in names} | {"seen": torch.zeros((), dtype=torch.int64)}

    def segment(
        self, inputs: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read observations (B, S, O); return logits of actions (B, S, A), values (B, S), and the new state."""
        x, seen = self.encoder(inputs["observation"]), state["seen"]
        new = {"seen": (seen + x.shape[1]).clamp(max=self.kept[1])}
        for n, layer in enumerate(self.layers):
            x, new[f"keys_{n}"], new[f"values_{n}"] = layer(x, state[f"keys_{n}"], state[f"values_{n}"], seen)
        return {"logits": self.actor(x), "value": self.critic(x)[..., 0]}, new


def model() -> GatedTransformerXLPolicy:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return GatedTransformerXLPolicy()
