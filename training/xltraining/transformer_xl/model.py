"""Transformer-XL: segment recurrence and relative attention (Dai et al. 2019, arXiv:1901.02860).

Axes: B batch, S tokens of the segment, M memory rows, K = M + S keys, D `d_model`, V vocabulary.

The distance of query i from key j is `i + M - j`. `encodings` has the attention of each encoding of positions.
"""

import copy
import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from xltraining.errors import ConfigError, DataError
from xltraining.language_model import LanguageModel
from xltraining.messages import shown
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.dropout import WordDropout, make_dropout
from xltraining.transformer_xl.encodings import make_attention

__all__ = ["FeedForward", "TransformerXL", "TransformerXLLayer"]

_INIT_STD = 0.02


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, with their residual connection and layer normalisation."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.inner = nn.Linear(config.d_model, config.d_inner)
        self.outer = nn.Linear(config.d_inner, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = make_dropout(config.dropout, config.variational)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D)."""
        normed = self.norm(hidden) if self.pre_lnorm else hidden
        inner = self.dropout(self.inner(normed).relu())  # (B,S,d_inner)
        result = hidden + self.dropout(self.outer(inner))
        return result if self.pre_lnorm else self.norm(result)


class TransformerXLLayer(nn.Module):
    """One attention block and one feed-forward block."""

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        self.attention = make_attention(config, index)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden: Tensor, memory: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the layer's output (B,S,D); see `Attention.forward`."""
        return self.feed_forward(self.attention(hidden, memory, shared, hiding))


class TransformerXL(LanguageModel):
    """A Transformer-XL language model; `adaptive_softmax.py` holds its embedding and its output layer.

    The model has no state between calls: the caller passes memory in and gets new memory back. With `pre_lnorm`, the
    model lacks a final layer normalisation, and memory holds hidden states before normalisation, as in the authors'
    code.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = AdaptiveEmbedding(config)
        self.layers = nn.ModuleList(TransformerXLLayer(config, index) for index in range(config.n_layer))
        self.head = AdaptiveSoftmax(config)
        self.dropout = make_dropout(config.dropout, config.variational)
        self.dropinp = make_dropout(config.dropout if config.dropinp is None else config.dropinp, config.variational)
        self.dropemb = WordDropout(config.dropemb, config.n_token)
        self.tie()
        self._initialise(self._std)

    def tie(self) -> None:
        """Let tied names share one parameter: when the model is made, and after tensors were assigned to it."""
        for name, source in self.tied_names(self.config).items():
            module, _, attribute = name.rpartition(".")
            setattr(self.get_submodule(module), attribute, self.get_parameter(source))

    @classmethod
    def tied_names(cls, config: TransformerXLConfig) -> dict[str, str]:
        """Return the second names of tied tensors, each with the name that owns the tensor."""
        tied = {}
        for index in range(len(config.cluster_bounds)):
            # Clusters of one width share one projection.
            owner = f"word_emb.clusters.{0 if config.div_val == 1 else index}.projection"
            if config.has_projection(index) and config.div_val == 1 and index:
                tied[f"word_emb.clusters.{index}.projection"] = owner
            if config.tie_weight:
                tied[f"head.clusters.{index}.weight"] = f"word_emb.clusters.{index}.table"
            if config.ties_projection(index):
                tied[f"head.clusters.{index}.projection"] = owner
        if not config.untie_r:
            for layer in range(1, config.n_layer):
                for bias in ("content_bias", "position_bias"):
                    tied[f"layers.{layer}.attention.{bias}"] = f"layers.0.attention.{bias}"
        return tied

    def _std(self, name: str, _parameter: Tensor) -> float:
        """Return that of a fresh weight; maps into the residual stream shrink with depth, to keep its scale."""
        into_residual = name.endswith(("output.weight", "outer.weight"))
        return _INIT_STD / math.sqrt(2 * self.config.n_layer if into_residual else 1)

    def first_memory(self, batch_size: int) -> list[Tensor]:
        """Return a document's first memory: n_layer tensors (B,0,D), or zeros (B,mem_len,D), by `first_memory`."""
        rows = self.config.mem_len if self.config.first_memory == "zeros" else 0
        like = next(self.parameters())
        return [like.new_zeros(batch_size, rows, self.config.d_model) for _ in range(self.config.n_layer)]

    def memory_before(self, memory: list[Tensor] | None, length: int) -> list[Tensor] | None:
        """Return the memory for a segment of `length` tokens, or None if absolute places end before that."""
        limit = self.config.position_limit
        ended = limit is not None and memory is not None and memory[0].shape[1] + length > limit
        return None if ended else memory

    def forward(self, tokens: Tensor, memory: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Run one segment.

        Args:
            tokens: (B,S) int64.
            memory: memory that the previous segment returned, n_layer tensors (B,M,D); None starts a document.

        Returns:
            Last hidden states (B,S,D), and the new memory: the last `kept_rows` inputs of each layer, detached.

        Raises:
            DataError: the tokens exceed the places of an absolute encoding.
        """
        hidden, new_memory = self.forward_layers(tokens, memory)
        return self.dropout(hidden[-1]), new_memory

    def forward_layers(self, tokens: Tensor, memory: list[Tensor] | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Run one segment; return the output (B,S,D) of every layer, before the last dropout, and the new memory."""
        B, S = tokens.shape
        memory = self.first_memory(B) if memory is None else memory
        M = memory[0].shape[1]
        limit = self.config.position_limit
        if limit is not None and limit < M + S:
            raise DataError(
                f"{M + S:,} tokens exceed the {limit:,} places of encoding {self.config.encoding}.",
                hint="Begin again without memory.",
            )
        attentions = [cast(TransformerXLLayer, layer).attention for layer in self.layers]
        shared = attentions[0].shared(self.config, M, S)
        hiding = self._hiding(M, S)

        embedded = self.dropemb(self.word_emb(tokens), tokens)
        hidden = self.dropinp(embedded * math.sqrt(self.config.d_model))
        outputs, new_memory = [], []
        for layer, attention, layer_memory in zip(self.layers, attentions, memory, strict=True):
            hidden = attention.place(hidden, M)
            with torch.no_grad():
                rows = torch.cat([layer_memory, hidden], dim=1)
                new_memory.append(rows[:, max(0, rows.shape[1] - self.config.kept_rows) :].detach())
            hidden = layer(hidden, layer_memory, shared, hiding)
            outputs.append(hidden)
        return outputs, new_memory

    def _hiding(self, M: int, S: int) -> Tensor:
        """Return the mask (S,K) that is added to scores: minus infinity for keys that a query does not see."""
        K, like = M + S, next(self.parameters())
        device = like.device
        distance = torch.arange(M, K, device=device)[:, None] - torch.arange(K, device=device)  # (S,K)
        masked = distance < 0
        if self.config.window is not None:
            masked = masked | (distance >= self.config.window)
        return like.new_zeros(S, K).masked_fill_(masked, -math.inf)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V), with cutoffs log-probabilities, from the hidden states (B,S,D) of `forward`."""
        return self.head.logits(hidden)

    def all_log_probs(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every token in nats, (B,S,V), from the hidden states (B,S,D) of `forward`."""
        return torch.cat(list(self.head.log_probs_by_cluster(hidden.flatten(0, 1))), dim=1).view(*hidden.shape[:2], -1)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target in nats, (B,S), from hidden (B,S,D) and targets (B,S) int64."""
        return self.head.log_probs(hidden, targets)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the mean negative log-probability of the targets in nats; see `AdaptiveSoftmax.loss`."""
        return super().loss(hidden, targets, smoothing) if smoothing else self.head.loss(hidden, targets)

    def prepare_training(self, training: TrainingConfig) -> None:
        """Check that the loss can be smoothed.

        Raises:
            ConfigError: it cannot: an adaptive softmax computes a cluster for its own targets only.
        """
        if training.label_smoothing and self.config.cutoffs:
            raise ConfigError(
                f"label_smoothing needs the logits of all tokens, but cutoffs {shown(list(self.config.cutoffs))} leave "
                "most clusters out.",
                hint="Train without cutoffs or without label_smoothing.",
            )

    def with_evaluation(
        self, mem_len: int | None = None, clamp_len: int | None = None, same_length: bool | None = None
    ) -> "TransformerXL":
        """Return this model with other evaluation settings; None keeps one. Weights and layers are shared, not copied.

        Raises:
            ConfigError: the settings are incompatible.
        """
        settings = {"mem_len": mem_len, "clamp_len": clamp_len, "same_length": same_length}
        twin = copy.copy(self)
        twin.config = replace(self.config, **{name: value for name, value in settings.items() if value is not None})
        return twin
