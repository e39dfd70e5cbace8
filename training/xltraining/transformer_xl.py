"""Transformer-XL: segment recurrence and relative attention (Dai et al. 2019, arXiv:1901.02860).

Axes: B batch, S tokens of the segment, M memory rows, K = M + S keys, D `d_model`, H heads, h `d_head`, V vocabulary.

The distance of query i from key j is `i + M - j`. The attention score of Section 3.3 has four terms,

    (q_i + u) . k_j  +  (q_i + v) . W_kR R[distance],      both scaled by 1/sqrt(h),

with u = `content_bias`, v = `position_bias` and R the sinusoids of `sinusoids`.
"""

import copy
import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from xltraining.language_model import LanguageModel
from xltraining.transformer_xl_config import TransformerXLConfig

__all__ = [
    "FeedForward",
    "RelativeAttention",
    "TransformerXL",
    "TransformerXLLayer",
    "relative_shift",
    "sinusoids",
]

_INIT_STD = 0.02


def sinusoids(distances: Tensor, d_model: int) -> Tensor:
    """Return position encodings (N, D) of distances (N,): D/2 sines, then D/2 cosines, always computed in float32."""
    exponents = torch.arange(0, d_model, 2, dtype=torch.float32, device=distances.device) / d_model
    angles = distances.float()[:, None] / 10000**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def relative_shift(scores: Tensor) -> Tensor:
    """Align scores by distance with the keys they belong to, without copying (Appendix B).

    Args:
        scores: (..., S, K+1), contiguous; column c of every row belongs to distance K - c.

    Returns:
        A view (..., S, K): column j of row i belongs to distance i + M - j with M = K - S. Columns j > i + M are in the
        future: they hold scores of other rows and must be masked.
    """
    *lead, S, columns = scores.shape
    rotated = scores.view(*lead, columns, S)
    return rotated[..., 1:, :].view(*lead, S, columns - 1)


class RelativeAttention(nn.Module):
    """Multi-head attention over memory and segment, with its residual connection and layer normalisation."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        D, H, h = config.d_model, config.n_head, config.d_head
        self.n_head, self.d_head, self.pre_lnorm = H, h, config.pre_lnorm
        self.qkv = nn.Linear(D, 3 * H * h, bias=False)
        self.position = nn.Linear(D, H * h, bias=False)
        self.output = nn.Linear(H * h, D, bias=False)
        self.content_bias = nn.Parameter(torch.empty(H, h))
        self.position_bias = nn.Parameter(torch.empty(H, h))
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.dropatt = nn.Dropout(config.dropatt)

    def forward(self, hidden: Tensor, memory: Tensor, positions: Tensor, masked: Tensor) -> Tensor:
        """Return the block's output (B,S,D).

        Args:
            hidden: (B,S,D).
            memory: (B,M,D).
            positions: encodings (K+1,D) of the distances K..0.
            masked: (S,K) bool, true for keys that a query does not see.
        """
        B, S, _ = hidden.shape
        H, h = self.n_head, self.d_head
        context = torch.cat([memory, hidden], dim=1)
        K = context.shape[1]
        normed = self.norm(context) if self.pre_lnorm else context

        # Memory rows need no query, so the rows of the single weight are used separately.
        query_weight, key_value_weight = self.qkv.weight.split([H * h, 2 * H * h])
        query = F.linear(normed[:, K - S :], query_weight).view(B, S, H, h)
        key, value = F.linear(normed, key_value_weight).view(B, K, 2, H, h).permute(2, 0, 3, 1, 4)  # 2 x (B,H,K,h)
        position_key = self.position(positions).view(K + 1, H, h).permute(1, 2, 0)  # (H,h,K+1)

        scale = h**-0.5
        by_content = ((query + self.content_bias) * scale).transpose(1, 2)  # (B,H,S,h)
        by_position = ((query + self.position_bias) * scale).transpose(1, 2)  # (B,H,S,h)
        scores = torch.baddbmm(
            relative_shift(by_position @ position_key).flatten(0, 1),  # (B*H,S,K)
            by_content.flatten(0, 1),
            key.flatten(0, 1).transpose(1, 2),
        )
        attention = self.dropatt(scores.masked_fill_(masked, -math.inf).softmax(dim=-1))
        mixed = torch.bmm(attention, value.flatten(0, 1))  # (B*H,S,h)
        mixed = mixed.view(B, H, S, h).transpose(1, 2).flatten(2)  # (B,S,H*h)

        result = hidden + self.dropout(self.output(mixed))
        return result if self.pre_lnorm else self.norm(result)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, with their residual connection and layer normalisation."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_lnorm = config.pre_lnorm
        self.inner = nn.Linear(config.d_model, config.d_inner)
        self.outer = nn.Linear(config.d_inner, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D)."""
        normed = self.norm(hidden) if self.pre_lnorm else hidden
        inner = self.dropout(self.inner(normed).relu())  # (B,S,d_inner)
        result = hidden + self.dropout(self.outer(inner))
        return result if self.pre_lnorm else self.norm(result)


class TransformerXLLayer(nn.Module):
    """One attention block and one feed-forward block."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden: Tensor, memory: Tensor, positions: Tensor, masked: Tensor) -> Tensor:
        """Return the layer's output (B,S,D); see `RelativeAttention.forward`."""
        return self.feed_forward(self.attention(hidden, memory, positions, masked))


class TransformerXL(LanguageModel):
    """A Transformer-XL language model; `xltraining.adaptive` holds its embedding and its output layer.

    The model has no state between calls: the caller passes memory in and gets new memory back. With `pre_lnorm`, the
    model lacks a final layer normalisation, and memory holds hidden states before normalisation, as in the authors'
    code.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = AdaptiveEmbedding(config)
        self.layers = nn.ModuleList(TransformerXLLayer(config) for _ in range(config.n_layer))
        self.head = AdaptiveSoftmax(config)
        self.dropout = nn.Dropout(config.dropout)
        self.tie()
        self._initialise()

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

    def _initialise(self) -> None:
        """Set normal weights and zero biases; maps into the residual stream shrink with depth, to keep its scale."""
        for name, parameter in self.named_parameters():
            if "norm" in name:
                nn.init.constant_(parameter, float(name.endswith("weight")))
            elif name.endswith((".bias", "cluster_bias")):
                nn.init.zeros_(parameter)
            else:
                into_residual = name.endswith(("output.weight", "outer.weight"))
                nn.init.normal_(parameter, std=_INIT_STD / math.sqrt(2 * self.config.n_layer if into_residual else 1))

    def first_memory(self, batch_size: int) -> list[Tensor]:
        """Return a document's first memory: n_layer tensors (B,0,D), or zeros (B,mem_len,D), by `first_memory`."""
        rows = self.config.mem_len if self.config.first_memory == "zeros" else 0
        like = next(self.parameters())
        return [like.new_zeros(batch_size, rows, self.config.d_model) for _ in range(self.config.n_layer)]

    def forward(self, tokens: Tensor, memory: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Run one segment.

        Args:
            tokens: (B,S) int64.
            memory: memory that the previous segment returned, n_layer tensors (B,M,D); None starts a document.

        Returns:
            Last hidden states (B,S,D), and the new memory: the last `mem_len` inputs of each layer, detached.
        """
        B, S = tokens.shape
        memory = self.first_memory(B) if memory is None else memory
        M = memory[0].shape[1]
        positions, masked = self._positions_and_mask(M, S, tokens.device)

        hidden = self.dropout(self.word_emb(tokens) * math.sqrt(self.config.d_model))
        new_memory = []
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            new_memory.append(self._remember(layer_memory, hidden))
            hidden = layer(hidden, layer_memory, positions, masked)
        return self.dropout(hidden), new_memory

    def _positions_and_mask(self, M: int, S: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return encodings (K+1,D) of the distances K..0 (the first one only pads the shift), and the mask (S,K)."""
        K = M + S
        distances = torch.arange(K, -1, -1, device=device)
        if self.config.clamp_len > 0:
            distances = distances.clamp(max=self.config.clamp_len)
        positions = self.dropout(sinusoids(distances, self.config.d_model))

        distance = torch.arange(M, K, device=device)[:, None] - torch.arange(K, device=device)  # (S,K)
        masked = distance < 0
        if self.config.window is not None:
            masked = masked | (distance >= self.config.window)
        return positions, masked

    def _remember(self, memory: Tensor, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            rows = torch.cat([memory, hidden], dim=1)
            return rows[:, max(0, rows.shape[1] - self.config.mem_len) :].detach()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V), with cutoffs log-probabilities, from the hidden states (B,S,D) of `forward`."""
        return self.head.logits(hidden)

    def all_log_probs(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every token in nats, (B,S,V), from the hidden states (B,S,D) of `forward`."""
        return torch.cat(list(self.head.log_probs_by_cluster(hidden.flatten(0, 1))), dim=1).view(*hidden.shape[:2], -1)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target in nats, (B,S), from hidden (B,S,D) and targets (B,S) int64."""
        return self.head.log_probs(hidden, targets)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of the targets in nats; see `AdaptiveSoftmax.loss`."""
        return self.head.loss(hidden, targets)

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
