"""RWKV-7 "Goose" (Peng et al. 2025, arXiv:2503.14456), with the names of tensors in its authors' files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xlexport.families.recurrent.rwkv4 import token_shift
from xlexport.families.scan import scan

__all__ = ["RWKV7", "RWKV7Sizes"]

FASTEST = math.exp(-0.5)  # the strongest decay of a token is exp(-FASTEST)
CHUNK = 16  # tokens; their decays multiply to at least exp(-16 FASTEST) = 6e-5, so 1 / product loses no digits
State: TypeAlias = Mapping[str, Tensor]
Rows: TypeAlias = tuple[Tensor, ...]  # of each token: receptance, log of the decay, key, value, erased key, written key
Recurrence: TypeAlias = Callable[[Rows, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RWKV7Sizes:
    """The sizes of a model; `rank_*` are those of the low-rank products behind decay, rate, value and gate.

    Attributes:
        is_tuned: whether each layer has a trained first matrix for each head.
        norm_epsilon, head_epsilon: of the normalizations, and of those of each head.
    """

    n_token: int
    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    rank_w: int
    rank_a: int
    rank_v: int
    rank_g: int
    is_tuned: bool = False
    norm_epsilon: float = 1e-5
    head_epsilon: float = 64e-5

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> RWKV7Sizes:
        """Return the sizes that the shapes of a file's tensors show; other tensors may still contradict them.

        Raises:
            ValueError: tensors that show a size are missing or of an impossible shape; the message names all of them.
        """
        n_layer = next(index for index in itertools.count() if f"blocks.{index}.ln1.weight" not in shapes)
        low_rank = {f"rank_{name}": (f"blocks.0.att.{name}1", 1) for name in "wag"}
        low_rank["rank_v"] = ("blocks.1.att.v1" if n_layer > 1 else "blocks.0.att.w1", 1)  # the first layer has none
        places = {"n_token": ("emb.weight", 0), "d_model": ("emb.weight", 1), "n_head": ("blocks.0.att.r_k", 0)}
        places |= {"d_inner": ("blocks.0.ffn.key.weight", 0), **low_rank}
        wrong = {name for name, _ in places.values() if len(shapes.get(name, ())) != 2 or 0 in shapes[name]}
        if not wrong and shapes["emb.weight"][1] != math.prod(shapes["blocks.0.att.r_k"]):
            wrong.add("blocks.0.att.r_k")
        if wrong or not n_layer:
            raise ValueError(", ".join(sorted(wrong)) or "blocks.0.ln1.weight")
        sizes = {size: shapes[name][axis] for size, (name, axis) in places.items()}
        return cls(n_layer=n_layer, **sizes, is_tuned="blocks.0.att.time_state" in shapes)


class RWKV7(nn.Module):
    """A language model that satisfies `RecurrentModel`. Its state has a row for each of L layers.

    `shift_att` and `shift_ffn` (L, d_model) are the last inputs of both mixes, `wkv` (L, H, N, N) the heads' matrices.
    """

    def __init__(self, sizes: RWKV7Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.emb = nn.Embedding(sizes.n_token, sizes.d_model)
        self.blocks: Any = nn.ModuleList(_Block(sizes, index) for index in range(sizes.n_layer))
        self.ln_out = nn.LayerNorm(sizes.d_model, eps=sizes.norm_epsilon)
        self.head = nn.Linear(sizes.d_model, sizes.n_token, bias=False)

    def first_state(self) -> dict[str, Tensor]:
        """Return zeros, but for matrices that were trained ("state tuning")."""
        L, D, H = self.sizes.n_layer, self.sizes.d_model, self.sizes.n_head
        matrices = torch.zeros(L, H, D // H, D // H)
        if self.sizes.is_tuned:
            matrices = torch.stack([block.att.time_state for block in self.blocks])
        return {"shift_att": torch.zeros(L, D), "shift_ffn": torch.zeros(L, D), "wkv": matrices}

    def segment(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S); return logits (B, S, n_token) and the next state."""
        return self._read(tokens, state, _chunks)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Read a token of each row (B,); return logits (B, n_token) and the next state."""
        logits, after = self._read(token.unsqueeze(1), state, _one_token)
        return logits.squeeze(1), after

    def _read(self, tokens: Tensor, state: State, recurrence: Recurrence) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.blocks[0].ln0(self.emb(tokens))  # (B, S, D)
        layers, first_value = [], None
        for index, block in enumerate(self.blocks):
            layer = {name: value[:, index] for name, value in state.items()}
            x, layer, first_value = block(x, layer, first_value, recurrence)
            layers.append(layer)
        after = {name: torch.stack([layer[name] for layer in layers], dim=1) for name in state}
        return self.head(self.ln_out(x)), after


class _Block(nn.Module):
    def __init__(self, sizes: RWKV7Sizes, index: int) -> None:
        super().__init__()
        if index == 0:
            self.ln0 = nn.LayerNorm(sizes.d_model, eps=sizes.norm_epsilon)
        self.ln1, self.ln2 = (nn.LayerNorm(sizes.d_model, eps=sizes.norm_epsilon) for _ in range(2))
        self.att = _TimeMix(sizes, is_first=index == 0)
        self.ffn = _ChannelMix(sizes)

    def forward(
        self, x: Tensor, state: State, first_value: Tensor | None, recurrence: Recurrence
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        att = self.ln1(x)
        mixed, wkv, first_value = self.att(att, state["shift_att"], state["wkv"], first_value, recurrence)
        x = x + mixed
        ffn = self.ln2(x)
        x = x + self.ffn(ffn, state["shift_ffn"])
        return x, {"shift_att": att[:, -1], "shift_ffn": ffn[:, -1], "wkv": wkv}, first_value


class _TimeMix(nn.Module):
    """Heads with a matrix each: a token decays it, erases what it holds under a key, and writes a value (section 4).

    The parameters have the authors' names: `x_*` mix a token with the one before it. `w*`, `a*`, `v*` and `g*` make
    decay, rate, value and gate.
    """

    def __init__(self, sizes: RWKV7Sizes, is_first: bool) -> None:
        super().__init__()
        D, H = sizes.d_model, sizes.n_head

        def vector() -> nn.Parameter:
            return nn.Parameter(torch.zeros(1, 1, D))

        def low_rank(rank: int) -> tuple[nn.Parameter, nn.Parameter]:
            return nn.Parameter(torch.zeros(D, rank)), nn.Parameter(torch.zeros(rank, D))

        self.n_head, self.epsilon = H, sizes.head_epsilon
        self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g = (vector() for _ in range(6))
        self.w0, (self.w1, self.w2) = vector(), low_rank(sizes.rank_w)
        self.a0, (self.a1, self.a2) = vector(), low_rank(sizes.rank_a)
        if not is_first:
            self.v0, (self.v1, self.v2) = vector(), low_rank(sizes.rank_v)
        self.g1, self.g2 = low_rank(sizes.rank_g)
        self.k_k, self.k_a, self.r_k = vector(), vector(), nn.Parameter(torch.zeros(H, D // H))
        if sizes.is_tuned:
            self.time_state = nn.Parameter(torch.zeros(H, D // H, D // H))
        self.receptance, self.key = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.value, self.output = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.ln_x = nn.GroupNorm(1, D)  # holds weight and bias

    def forward(
        self, x: Tensor, last: Tensor, state: Tensor, first_value: Tensor | None, recurrence: Recurrence
    ) -> tuple[Tensor, Tensor, Tensor]:
        B, S, D = x.shape
        heads = B, S, self.n_head, D // self.n_head
        change = token_shift(x, last) - x
        mixes = self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g
        xr, xw, xk, xv, xa, xg = (x + change * mix for mix in mixes)
        k, v = self.key(xk), self.value(xv)
        log_decay = -FASTEST * torch.sigmoid(self.w0 + torch.tanh(xw @ self.w1) @ self.w2)
        rate = torch.sigmoid(self.a0 + xa @ self.a1 @ self.a2)
        gate = torch.sigmoid(xg @ self.g1) @ self.g2
        if first_value is None:
            first_value = v
        else:
            v = v + (first_value - v) * torch.sigmoid(self.v0 + xv @ self.v1 @ self.v2)
        erased = F.normalize((k * self.k_k).reshape(heads), dim=-1)
        k = k * (1 + (rate - 1) * self.k_a)
        r, k, v, log_decay, rate = (value.reshape(heads) for value in (self.receptance(xr), k, v, log_decay, rate))
        y, state = recurrence((r, log_decay, k, v, -erased, erased * rate), state)
        y = F.layer_norm(y, heads[3:], eps=self.epsilon).reshape(B, S, D) * self.ln_x.weight + self.ln_x.bias
        y = y + ((r * k * self.r_k).sum(dim=-1, keepdim=True) * v).reshape(B, S, D)
        return self.output(y * gate), state, first_value


class _ChannelMix(nn.Module):
    def __init__(self, sizes: RWKV7Sizes) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(1, 1, sizes.d_model))
        self.key = nn.Linear(sizes.d_model, sizes.d_inner, bias=False)
        self.value = nn.Linear(sizes.d_inner, sizes.d_model, bias=False)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        k = self.key(x + (token_shift(x, last) - x) * self.x_k).relu()
        return self.value(k * k)


def _one_token(rows: Rows, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the heads' output and next matrices: rows (B, 1, H, N), state (B, H, N, N).

    A matrix has values in its rows, keys in its columns: S_t = S_{t-1} (diag(w_t) + a_t b_t^T) + v_t k_t^T.
    """
    r, log_decay, k, v, a, b = (value.squeeze(1).unsqueeze(-1) for value in rows)  # columns (B, H, N, 1)
    state = state * log_decay.exp().mT + state @ a @ b.mT + v @ k.mT
    return (state @ r).squeeze(-1).unsqueeze(1), state


def _chunks(rows: Rows, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same as `_one_token` for all S tokens, by products of matrices within chunks and a scan over these.

    Let P_t be the product of the chunk's decays up to token t, and u_t = S_{t-1} a_t. Both u_t and the output
    y_t = S_t r_t are sums over tokens i of the chunk, plus what the state S before the chunk gives:

        u_t = S P_{t-1} a_t + sum over i < t of (u_i b_i^T + v_i k_i^T) P_{t-1}/P_i a_t
        y_t = S P_t r_t + sum over i <= t of (u_i b_i^T + v_i k_i^T) P_t/P_i r_t

    The first is a triangular system of equations, and its solution does not need S.
    """
    if rows[0].shape[2] == 1:
        # An empty second head: torch.export cannot know whether the chunks of a single one are contiguous.
        y, state = _chunks(tuple(F.pad(row, (0, 0, 0, 1)) for row in rows), F.pad(state, (0, 0, 0, 0, 0, 1)))
        return y[:, :, :1], state[:, :1]
    B, S, H, N = rows[0].shape
    C, n = CHUNK, (S + CHUNK - 1) // CHUNK
    padded = F.pad(torch.cat(rows, dim=-1), (0, 0, 0, 0, 0, n * C - S))  # changes no state
    chunks = padded.reshape(B, n, C, H, len(rows) * N).permute(1, 0, 3, 2, 4)  # (n, B, H, C, 6N)
    r, log_decay, k, v, a, b = chunks.split(N, dim=-1)
    decays = log_decay.cumsum(dim=-2)  # log P_t
    queries = torch.cat([a * torch.exp(decays - log_decay), r * torch.exp(decays)], dim=-2)  # (n, B, H, 2C, N)
    keys = torch.cat([b, k], dim=-2) * torch.exp(-decays).repeat(1, 1, 1, 2, 1)
    t = torch.arange(C)
    earlier = torch.cat([t.unsqueeze(1) > t, t.unsqueeze(1) >= t]).repeat(1, 2)  # (2C, 2C)
    of_u, of_v = (queries @ keys.mT * earlier.to(r.dtype)).split(C, dim=-1)
    of_u_in_u, of_u_in_y = of_u.split(C, dim=-2)
    known_u, known_y = torch.cat([queries, of_v @ v], dim=-1).split(C, dim=-2)  # what multiplies S, and the rest
    solved_u = _inverse(of_u_in_u) @ known_u
    of_state, rest = torch.cat([solved_u, known_y + of_u_in_y @ solved_u], dim=-2).split(N, dim=-1)

    def advance(carry: tuple[Tensor, ...], row: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        (state,), (of_state, rest, v, keys, decay) = carry, row
        u, y = (of_state @ state.mT + rest).split(C, dim=-2)
        return ((state + torch.cat([u, v], dim=-2).mT @ keys) * decay,), y.clone()

    of_chunks = of_state, rest, v, keys, torch.exp(decays[..., -1:, :])
    (state,), y = scan(advance, (state,), tuple(value.contiguous() for value in of_chunks))
    return y.permute(1, 0, 3, 2, 4).reshape(B, n * C, H, N)[:, :S], state


def _inverse(lower: Tensor) -> Tensor:
    """Return (I - lower)^-1; `lower` has zeros on its diagonal and above. It loses no digits, as powers of it would.

    Inverses A and D of two blocks on the diagonal, and C below A, give the inverse of both: A, D, and D C A below A.
    """
    t, size = torch.arange(CHUNK), 1
    inverse = torch.eye(CHUNK, dtype=lower.dtype)
    while size < CHUNK:
        pair, half = t // (2 * size), t // size
        below = (pair.unsqueeze(1) == pair) & (half.unsqueeze(1) > half)
        corner = lower * below.to(lower.dtype)
        inverse = inverse + (corner if size == 1 else inverse @ corner @ inverse)
        size *= 2
    return inverse
