"""The frame of language models with state-space layers, with the names of tensors in Hugging Face's folders."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xlexport.families.recurrent.config_values import ConfigValues
from xlexport.families.scan import Chunks, chunk_sizes

__all__ = ["StateSpaceModel", "StateSpaceSizes", "convolution"]

SHOWING = (  # tensors of a mixer whose shapes show sizes
    *("conv1d.weight", "out_proj.weight", "A_log", "dt_proj.weight", "in_proj.bias", "conv1d.bias"),
)
MOST_LAYERS, MOST_CONVOLVED = 1000, 64
MOST_TOKENS = 1 << 24
MOST_STATE = 1 << 28  # numbers of a row, all layers together; the largest models have a quarter of it
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class StateSpaceSizes(ABC):
    """The sizes that all these models have.

    Attributes:
        d_inner: width of the inputs of the recurrence.
        d_state: numbers of the state for each of these inputs.
        d_conv: tokens that a convolution reads.
        tied: whether the output layer has the weights of the embedding.
        DEFAULTS, IS_TIED: of transformers, which differ between the families.
    """

    n_token: int
    n_layer: int
    d_model: int
    d_inner: int
    d_state: int
    d_conv: int
    bias: bool
    conv_bias: bool
    norm_epsilon: float
    tied: bool
    DEFAULTS: ClassVar[Mapping[str, int]]
    IS_TIED: ClassVar[bool]

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> Self:
        """Return the sizes in a `config.json`.

        Raises:
            CheckpointError: sizes are impossible or unsupported; the message names all of them.
        """
        values, defaults = ConfigValues(config), cls.DEFAULTS
        values.value("hidden_act", "silu", "'silu'", lambda value: value in ("silu", "swish"))
        L = values.size("num_hidden_layers", defaults["num_hidden_layers"], most=MOST_LAYERS)
        d_model = values.size("hidden_size", defaults["hidden_size"])
        D = values.size("intermediate_size", int(values.positive("expand", 2) * d_model))
        N = values.size("state_size", defaults["state_size"])
        if not values.problems and L * D * N > MOST_STATE:
            values.problems.append(f"a state of {L * D * N:,} numbers, expected at most {MOST_STATE:,}")
        sizes = cls(
            n_token=values.size("vocab_size", defaults["vocab_size"], most=MOST_TOKENS),
            n_layer=L,
            d_model=d_model,
            d_inner=D,
            d_state=N,
            d_conv=values.size("conv_kernel", 4, least=2, most=MOST_CONVOLVED),
            bias=values.flag("use_bias", False),
            conv_bias=values.flag("use_conv_bias", True),
            norm_epsilon=values.positive("layer_norm_epsilon", 1e-5),
            tied=values.flag("tie_word_embeddings", cls.IS_TIED),
            **cls.further(values, d_model, D),
        )
        values.finish()
        return sizes

    @classmethod
    def shown_by(cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a `config.json` whose values the shapes of a file's tensors show."""
        embeddings = shapes.get("backbone.embeddings.weight", shapes.get("backbone.embedding.weight", ()))
        mixer = {name: shapes.get(f"backbone.layers.0.mixer.{name}", ()) for name in SHOWING}
        if len(embeddings) != 2 or [len(mixer[name]) for name in SHOWING[:2]] != [3, 2]:
            return {}
        (vocabulary, width), (channels, _, kernel) = embeddings, mixer["conv1d.weight"]
        layers = next(index for index in itertools.count() if f"backbone.layers.{index}.norm.weight" not in shapes)
        sizes = {"vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "conv_kernel": kernel}
        flags = {"use_bias": bool(mixer["in_proj.bias"]), "use_conv_bias": bool(mixer["conv1d.bias"])}
        inner = mixer["out_proj.weight"][1]
        return {**sizes, **flags, "intermediate_size": inner, **cls.further_shown(mixer, channels - inner, config)}

    @classmethod
    @abstractmethod
    def further_shown(
        cls, mixer: Mapping[str, tuple[int, ...]], channels: int, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the keys of one family that shapes of a mixer show; `channels` are convolved beside the inputs."""

    @classmethod
    @abstractmethod
    def further(cls, values: ConfigValues, d_model: int, d_inner: int) -> dict[str, Any]:
        """Return the fields that only one family has."""


class StateSpaceModel(nn.Module):
    """A language model that satisfies `RecurrentModel`: layers of x + mixer(norm(x)).

    `mixer(x, conv, ssm, chunks)` maps x (B, S, d_model) and the layer's state to outputs and the next state. Without
    `chunks`, S is 1. The mixer's `shapes` are those of the convolution's last inputs and of the recurrence's state.

    Attributes:
        mixer: the class of the layers' mixers, which are made of the sizes.
        chunk: the most tokens whose outputs a mixer computes together.
    """

    mixer: ClassVar[Any]
    chunk: ClassVar[int] = 1

    def __init__(self, sizes: StateSpaceSizes) -> None:
        super().__init__()
        D, epsilon = sizes.d_model, sizes.norm_epsilon
        layers = [{"norm": nn.RMSNorm(D, eps=epsilon), "mixer": self.mixer(sizes)} for _ in range(sizes.n_layer)]
        embeddings = nn.Embedding(sizes.n_token, D)
        backbone = {
            "embeddings": embeddings,
            "layers": nn.ModuleList(map(nn.ModuleDict, layers)),
            "norm_f": nn.RMSNorm(D, eps=epsilon),
        }
        self.backbone: Any = nn.ModuleDict(backbone)
        self.lm_head = nn.Linear(D, sizes.n_token, bias=False)
        if sizes.tied:
            self.lm_head.weight = embeddings.weight

    def first_state(self) -> dict[str, Tensor]:
        """Return zeros: the last inputs of each layer's convolution, and the states of the layers' recurrences."""
        layers = self.backbone.layers
        conv, ssm = layers[0].mixer.shapes
        return {"conv": torch.zeros(len(layers), *conv), "ssm": torch.zeros(len(layers), *ssm)}

    def segment(self, tokens: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Read tokens (B, S); return logits (B, S, n_token) and the next state."""
        return self._read(tokens, state, chunk_sizes(tokens.shape[1], self.chunk))

    def step(self, token: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Read a token of each row (B,); return logits (B, n_token) and the next state."""
        logits, after = self._read(token.unsqueeze(1), state, None)
        return logits.squeeze(1), after

    def _read(self, tokens: Tensor, state: State, chunks: Chunks | None) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.backbone.embeddings(tokens)  # (B, S, d_model)
        convs, ssms = [], []
        for index, layer in enumerate(self.backbone.layers):
            mixed, conv, ssm = layer.mixer(layer.norm(x), state["conv"][:, index], state["ssm"][:, index], chunks)
            x = x + mixed
            convs.append(conv)
            ssms.append(ssm)
        after = {"conv": torch.stack(convs, dim=1), "ssm": torch.stack(ssms, dim=1)}
        return self.lm_head(self.backbone.norm_f(x)), after


def convolution(layer: nn.Conv1d, inputs: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Compute SiLU of a causal convolution of each channel.

    Sums of shifted products take a third of the time of ONNX Runtime's `Conv`, which treats each channel as a group.

    Args:
        layer: its weights (C, 1, K) and bias.
        inputs: (B, S, C).
        before: the inputs of the K - 1 tokens before them (B, K - 1, C).

    Returns:
        The outputs (B, S, C), and the inputs of the last K - 1 tokens.
    """
    S, last = inputs.shape[1], before.shape[1]
    rows = torch.cat([before, inputs], dim=1)  # (B, K - 1 + S, C)
    weights = layer.weight.squeeze(1).unbind(dim=1)  # K of (C,)
    total = torch.zeros_like(weights[0]) if layer.bias is None else layer.bias
    for k, weight in enumerate(weights):
        total = total + rows[:, k : k + S] * weight
    return F.silu(total), rows[:, -last:]
