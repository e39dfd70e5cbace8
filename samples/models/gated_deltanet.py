"""A Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), with the linear-attention layers of Qwen3-Next.

    xlexport convert samples/models/gated_deltanet.py:model --trust --tokenizer bytes -o bundle

A head keeps a matrix. A token decays it, corrects it at its key, and reads it by its query (equation 10). `step` does
this for one token; `segment`, which bundles use, for chunks of tokens by products of matrices (section 3.3).
The parameters of `DeltaRule` have the names of Qwen3NextGatedDeltaNet in Hugging Face's transformers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

__all__ = ["GatedDeltaNet", "model"]


def read_token(memory: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Read q and k (B, H, 1, K), v (B, H, 1, K'), and the log-decay g and rate beta (B, H, 1, 1) of one token."""
    memory = memory * g.exp()
    memory = memory + k.transpose(2, 3) @ ((v - k @ memory) * beta)
    return memory, q @ memory


def read_chunk(memory: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Read a chunk at once: what `read_token` takes, with C tokens instead of one."""
    q, k, v, g, beta = inputs
    places, g = torch.arange(k.shape[2]), g.cumsum(dim=2)
    decay = (g - g.transpose(2, 3)).masked_fill(places[:, None] < places, -torch.inf).exp()  # (B, H, C, C)
    overlap = k @ k.transpose(2, 3) * decay * beta
    inverse = torch.eye(k.shape[2])  # of I + the part of `overlap` below its diagonal
    for size in (1, 2, 4, 8, 16, 32):  # of the blocks on the diagonal that are inverted so far; below joins two
        row, column = places[:, None] // size, places // size
        below = (row == column + 1) & (row % 2 == 1)
        inverse = inverse - inverse @ (overlap * below) @ inverse
    left = g.exp()  # of the memory, at each token
    corrections = inverse @ ((v - left * (k @ memory)) * beta)
    out = left * (q @ memory) + (q @ k.transpose(2, 3) * decay) @ corrections
    memory = left[:, :, -1:] * memory + (k * decay[:, :, -1, :, None]).transpose(2, 3) @ corrections
    return memory, out


def read_segment(memory: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Read any number of tokens, chunk by chunk: by an operator `Scan` in a bundle, by a loop in PyTorch."""
    S = inputs[0].shape[2]
    C = torch.sym_min(S, 64)  # tokens of a chunk
    padded = (F.pad(value, (0, 0, 0, -S % C)) for value in inputs)  # zeros neither decay nor correct
    chunks = tuple(value.unflatten(2, (-1, C)).movedim(2, 0) for value in padded)  # (N, B, H, C, ...)
    if torch.compiler.is_exporting():
        memory, out = scan(read_chunk, memory.contiguous(), chunks)
    else:
        out = []
        for chunk in zip(*chunks, strict=True):
            memory, part = read_chunk(memory, chunk)
            out.append(part)
        out = torch.stack(out)
    return memory, out.movedim(0, 2).flatten(2, 3)[:, :, :S]


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

    def forward(self, x: Tensor, memory: Tensor, inputs: Tensor, one: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Read x (B, S, D), which is `one` token or a segment; return what to add to it, and the new state."""
        (B, S, _), G, H, K, R = x.shape, self.G, self.H, self.K, self.H // self.G
        *qkv, z = self.in_proj_qkvz(x).view(B, S, G, 2 * (1 + R) * K).split([K, K, R * K, R * K], dim=3)
        inputs = torch.cat([inputs, torch.cat([part.flatten(2) for part in qkv], dim=2).transpose(1, 2)], dim=2)
        q, k, v = F.silu(self.conv1d(inputs)).transpose(1, 2).split([G * K, G * K, H * K], dim=2)
        q, k = (part.view(B, S, G, K).repeat_interleave(R, dim=2).transpose(1, 2) for part in (q, k))
        q, k = (part * (part.square().sum(dim=3, keepdim=True) + 1e-6).rsqrt() for part in (q, k))  # (B, H, S, K)
        v = v.view(B, S, H, K).transpose(1, 2)
        b, a = self.in_proj_ba(x).view(B, S, G, 2, R).permute(3, 0, 2, 4, 1).reshape(2, B, H, S, 1)
        g = -self.A_log.exp()[:, None, None] * F.softplus(a + self.dt_bias[:, None, None])
        memory, x = (read_token if one else read_segment)(memory, q / K**0.5, k, v, g, b.sigmoid())
        x = self.norm(x.transpose(1, 2)) * F.silu(z.reshape(B, S, H, K))
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

    def segment(self, tokens: Tensor, state: dict[str, Tensor], one: bool = False) -> tuple[Tensor, dict]:
        """Read tokens (B, S), and return the logits (B, S, V) and the new state."""
        x, new = self.embedding(tokens), {}
        for n, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=False)):
            kept = state[f"memory_{n}"], state[f"inputs_{n}"]
            mixed, new[f"memory_{n}"], new[f"inputs_{n}"] = layer(norm(x), *kept, one)
            x = x + mixed
        return self.head(self.norms[-1](x)), new

    def step(self, token: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read a token (B,), and return the logits (B, V) and the new state."""
        logits, state = self.segment(token[:, None], state, one=True)
        return logits[:, 0], state


def model() -> GatedDeltaNet:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return GatedDeltaNet()
