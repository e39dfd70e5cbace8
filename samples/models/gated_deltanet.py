"""A Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), with the linear-attention layers of Qwen3-Next.

    xlexport convert samples/models/gated_deltanet.py:model --trust --tokenizer bytes -o bundle

A head keeps a matrix. A token decays it, corrects it at its key, and reads it by its query (equation 10). The operator
`Scan` runs only this for each token; projections, convolution and gates are computed for whole segments.
The parameters of `DeltaRule` have the names of Qwen3NextGatedDeltaNet in Hugging Face's transformers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

__all__ = ["GatedDeltaNet", "model"]


def read_token(memory: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Read a token's query, key and value (B, H, 1, K), and its decay and rate (B, H, 1, 1)."""
    q, k, v, decay, rate = token
    memory = memory * decay
    memory = memory + k.transpose(2, 3) @ ((v - k @ memory) * rate)
    return memory, q @ memory


def read_segment(memory: Tensor, tokens: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Read tokens, the first axis of each tensor: by an operator `Scan` in a bundle, by a loop in PyTorch."""
    if torch.compiler.is_exporting():
        return scan(read_token, memory.contiguous(), tokens)
    rows = []
    for token in zip(*tokens, strict=True):
        memory, row = read_token(memory, token)
        rows.append(row)
    return memory, torch.stack(rows)


class DeltaRule(nn.Module):
    """A layer with G heads of keys and H of values, all of width K, after a convolution over `width` tokens."""

    def __init__(self, D: int, G: int, H: int, K: int, width: int = 4) -> None:
        super().__init__()
        self.G, self.H, self.K = G, H, K
        self.in_proj_qkvz, self.in_proj_ba = (nn.Linear(D, N, bias=False) for N in (2 * (G + H) * K, 2 * H))
        channels = (2 * G + H) * K
        self.conv1d = nn.Conv1d(channels, channels, width, groups=channels, bias=False)
        self.dt_bias, self.A_log = nn.Parameter(torch.ones(H)), nn.Parameter(torch.linspace(0, 2, H))
        self.norm, self.out_proj = nn.RMSNorm(K, eps=1e-6), nn.Linear(H * K, D, bias=False)
        self.first = {"memory": torch.zeros(H, K, K), "inputs": torch.zeros(channels, width - 1)}

    def forward(self, x: Tensor, memory: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, S, D); return what to add to it, and the new state."""
        B, S, _ = x.shape
        G, H, K, R = self.G, self.H, self.K, self.H // self.G
        *qkv, z = self.in_proj_qkvz(x).view(B, S, G, 2 * (1 + R) * K).split([K, K, R * K, R * K], dim=3)
        inputs = torch.cat([inputs, torch.cat([part.flatten(2) for part in qkv], dim=2).transpose(1, 2)], dim=2)
        q, k, v = F.silu(self.conv1d(inputs)).transpose(1, 2).split([G * K, G * K, H * K], dim=2)
        q, k = (part.view(B, S, G, K).repeat_interleave(R, dim=2) for part in (q, k))  # (B, S, H, K)
        q, k = (part * (part.square().sum(dim=3, keepdim=True) + 1e-6).rsqrt() for part in (q, k))
        b, a = (part.reshape(B, S, H, 1) for part in self.in_proj_ba(x).view(B, S, G, 2 * R).chunk(2, dim=3))
        decay = torch.exp(-self.A_log.exp()[:, None] * F.softplus(a + self.dt_bias[:, None]))
        rows = q / K**0.5, k, v.view(B, S, H, K), decay, b.sigmoid()
        memory, x = read_segment(memory, tuple(part[:, :, :, None].transpose(0, 1) for part in rows))
        x = self.norm(x[:, :, :, 0].transpose(0, 1)) * F.silu(z.reshape(B, S, H, K))
        return self.out_proj(x.reshape(B, S, H * K)), memory, inputs[:, :, S:]


class GatedDeltaNet(nn.Module):
    """L layers of width D over V tokens; the state has each layer's matrices, and newest inputs of its convolution."""

    def __init__(self, V: int = 256, D: int = 128, L: int = 2, G: int = 2, H: int = 4, K: int = 32) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.norms = nn.ModuleList(nn.RMSNorm(D, eps=1e-6) for _ in range(L + 1))
        self.layers = nn.ModuleList(DeltaRule(D, G, H, K) for _ in range(L))

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        return {f"{name}_{n}": value for n, layer in enumerate(self.layers) for name, value in layer.first.items()}

    def segment(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        x, new = self.embedding(tokens), {}
        for n, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=False)):
            kept = state[f"memory_{n}"], state[f"inputs_{n}"]
            mixed, new[f"memory_{n}"], new[f"inputs_{n}"] = layer(norm(x), *kept)
            x = x + mixed
        return self.head(self.norms[-1](x)), new


def model() -> GatedDeltaNet:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return GatedDeltaNet()
