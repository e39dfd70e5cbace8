"""RWKV-4 (Peng et al. 2023, arXiv:2305.13048), with the names of tensors in Hugging Face's folders."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from xlexport.families.recurrent.config_values import ConfigValues
from xlexport.families.scan import scan

__all__ = ["RWKV4", "RWKV4Sizes", "token_shift"]

EMPTY = -1e30  # the exponent of a sum of nothing
MOST_LAYERS = 1000
OUTPUT_EPSILON = 1e-5  # of the last normalization, even if config.json has another one
SUMS = ("numerator", "denominator", "exponent")
State: TypeAlias = Mapping[str, Tensor]
Sums: TypeAlias = tuple[Tensor, ...]  # as `SUMS`; the true sums are exp(exponent) times the first two


@dataclass(frozen=True)
class RWKV4Sizes:
    """The sizes of a model.

    Attributes:
        d_attention: width of keys and values.
        rescale_every: transformers halves the hidden states after so many layers; 0 or less: never.
        tied: whether the output layer has the weights of the embedding.
    """

    n_token: int
    n_layer: int
    d_model: int
    d_attention: int
    d_inner: int
    norm_epsilon: float
    rescale_every: int
    tied: bool

    @classmethod
    def shown_by(cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a `config.json` whose values the shapes of a file's tensors show."""
        places = {
            "vocab_size": ("embeddings.weight", 0),
            "hidden_size": ("embeddings.weight", 1),
            "attention_hidden_size": ("blocks.0.attention.key.weight", 0),
            "intermediate_size": ("blocks.0.feed_forward.key.weight", 0),
        }
        if any(len(shapes.get(f"rwkv.{name}", ())) != 2 for name, _ in places.values()):
            return {}
        layers = next(index for index in itertools.count() if f"rwkv.blocks.{index}.ln1.weight" not in shapes)
        sizes = {key: shapes[f"rwkv.{name}"][axis] for key, (name, axis) in places.items()}
        return {**sizes, "num_hidden_layers": layers}

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> RWKV4Sizes:
        """Return the sizes in a `config.json` of `RwkvForCausalLM`.

        Raises:
            CheckpointError: sizes are impossible; the message names all of them.
        """
        values = ConfigValues(config)
        d_model = values.size("hidden_size", 4096)
        sizes = cls(
            n_token=values.size("vocab_size", 50277),
            n_layer=values.size("num_hidden_layers", 32, most=MOST_LAYERS),
            d_model=d_model,
            d_attention=values.size("attention_hidden_size", d_model),
            d_inner=values.size("intermediate_size", 4 * d_model),
            norm_epsilon=values.positive("layer_norm_epsilon", 1e-5),
            rescale_every=values.size("rescale_every", 6, least=-1),
            tied=values.flag("tie_word_embeddings", False),
        )
        values.finish()
        return sizes

    def epsilon_scale(self, layer: int) -> float:
        """Return what multiplies the epsilon of a layer's normalizations.

        transformers halves the hidden states n times before this layer. To normalize h / 2^n is to normalize h with an
        epsilon 4^n times as large.
        """
        return 4.0 ** (layer // self.rescale_every) if self.rescale_every > 0 else 1.0


class RWKV4(nn.Module):
    """A language model that satisfies `RecurrentModel`. Its state has a row for each of L layers.

    `shift_att` and `shift_ffn` (L, d_model) are the last inputs of both mixes, and `SUMS` (L, d_attention) are the
    weighted sums of all values and of their weights.
    """

    def __init__(self, sizes: RWKV4Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        embeddings = nn.Embedding(sizes.n_token, sizes.d_model)
        backbone = {
            "embeddings": embeddings,
            "blocks": nn.ModuleList(_Block(sizes, index) for index in range(sizes.n_layer)),
            "ln_out": nn.LayerNorm(sizes.d_model, eps=OUTPUT_EPSILON * sizes.epsilon_scale(sizes.n_layer)),
        }
        self.rwkv: Any = nn.ModuleDict(backbone)
        self.head = nn.Linear(sizes.d_model, sizes.n_token, bias=False)
        if sizes.tied:
            self.head.weight = embeddings.weight

    def first_state(self) -> dict[str, Tensor]:
        """Return zeros, and exponents of empty sums."""
        shapes = {name: (self.sizes.n_layer, self.sizes.d_attention) for name in SUMS}
        shapes |= {name: (self.sizes.n_layer, self.sizes.d_model) for name in ("shift_att", "shift_ffn")}
        return {name: torch.full(shape, EMPTY if name == "exponent" else 0.0) for name, shape in shapes.items()}

    def segment(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S); return logits (B, S, n_token) and the next state."""
        x = self.rwkv.blocks[0].pre_ln(self.rwkv.embeddings(tokens))  # (B, S, d_model)
        layers = []
        for index, block in enumerate(self.rwkv.blocks):
            x, layer = block(x, {name: value[:, index] for name, value in state.items()})
            layers.append(layer)
        after = {name: torch.stack([layer[name] for layer in layers], dim=1) for name in state}
        return self.head(self.rwkv.ln_out(x)), after

    def step(self, token: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Read a token of each row (B,); return logits (B, n_token) and the next state."""
        logits, after = self.segment(token.unsqueeze(1), state)
        return logits.squeeze(1), after


class _Block(nn.Module):
    def __init__(self, sizes: RWKV4Sizes, index: int) -> None:
        super().__init__()
        D, epsilon = sizes.d_model, sizes.norm_epsilon * sizes.epsilon_scale(index)
        if index == 0:
            self.pre_ln = nn.LayerNorm(D, eps=epsilon)
        self.ln1, self.ln2 = nn.LayerNorm(D, eps=epsilon), nn.LayerNorm(D, eps=epsilon)
        self.attention = _TimeMix(sizes)
        self.feed_forward = _ChannelMix(sizes)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        att = self.ln1(x)
        mixed, sums = self.attention(att, state["shift_att"], tuple(state[name] for name in SUMS))
        x = x + mixed
        ffn = self.ln2(x)
        x = x + self.feed_forward(ffn, state["shift_ffn"])
        return x, {"shift_att": att[:, -1], "shift_ffn": ffn[:, -1], **dict(zip(SUMS, sums, strict=True))}


class _TimeMix(nn.Module):
    """The mean of all values so far. A value's weight is exp(key), and decays with its distance (section 3)."""

    def __init__(self, sizes: RWKV4Sizes) -> None:
        super().__init__()
        D, A = sizes.d_model, sizes.d_attention
        self.time_decay, self.time_first = nn.Parameter(torch.zeros(A)), nn.Parameter(torch.zeros(A))
        mixes = (nn.Parameter(torch.zeros(1, 1, D)) for _ in range(3))
        self.time_mix_key, self.time_mix_value, self.time_mix_receptance = mixes
        self.key, self.value = nn.Linear(D, A, bias=False), nn.Linear(D, A, bias=False)
        self.receptance, self.output = nn.Linear(D, A, bias=False), nn.Linear(A, D, bias=False)

    def forward(self, x: Tensor, last: Tensor, sums: Sums) -> tuple[Tensor, Sums]:
        before = token_shift(x, last)
        change = x - before
        k = self.key(before + change * self.time_mix_key)
        v = self.value(before + change * self.time_mix_value)
        r = self.receptance(before + change * self.time_mix_receptance).sigmoid()
        decay, bonus = -self.time_decay.exp(), self.time_first

        def body(carry: Sums, row: tuple[Tensor, ...]) -> tuple[Sums, Tensor]:
            """Return the next sums and the mean of a token, k and v (B, A): appendix D of the paper."""
            (numerator, denominator, exponent), (k, v) = carry, row
            with_bonus = _add(numerator, denominator, exponent, v, k + bonus)
            return _add(numerator, denominator, exponent + decay, v, k), with_bonus[0] / with_bonus[1]

        # Sums within chunks, by doubling distances, would save 8 % of the time for 512 tokens, but double it for one.
        sums, means = scan(body, sums, (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()))
        return self.output(r * means.transpose(0, 1)), sums


class _ChannelMix(nn.Module):
    def __init__(self, sizes: RWKV4Sizes) -> None:
        super().__init__()
        D = sizes.d_model
        self.time_mix_key = nn.Parameter(torch.zeros(1, 1, D))
        self.time_mix_receptance = nn.Parameter(torch.zeros(1, 1, D))
        self.key, self.value = nn.Linear(D, sizes.d_inner, bias=False), nn.Linear(sizes.d_inner, D, bias=False)
        self.receptance = nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        before = token_shift(x, last)
        change = x - before
        k = self.key(before + change * self.time_mix_key).relu()
        r = self.receptance(before + change * self.time_mix_receptance).sigmoid()
        return r * self.value(k * k)


def token_shift(x: Tensor, last: Tensor) -> Tensor:
    """Return the input before each of x (B, S, D); `last` (B, D) is the one before the segment."""
    return torch.cat([last.unsqueeze(1), x[:, :-1]], dim=1)


def _add(numerator: Tensor, denominator: Tensor, exponent: Tensor, v: Tensor, k: Tensor) -> Sums:
    """Add a value with the weight exp(k). The larger exponent becomes that of the sums, so no exponential overflows."""
    largest = torch.maximum(exponent, k)
    kept, added = torch.exp(exponent - largest), torch.exp(k - largest)
    return kept * numerator + added * v, kept * denominator + added, largest
