"""Reformer: LSH attention in reversible layers, with carried memory (Kitaev et al. 2020, arXiv:2001.04451).

Axes: B batch, S tokens of the segment, M rows of memory, D `d_model`, H heads, R rounds of hashing, V vocabulary.

Two streams start as the embedding. A layer computes y1 = x1 + attention(norm(x2)) and y2 = x2 + feed_forward(norm(y1)).
`xltraining.reformer.lsh` defines which keys LSH attention covers.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xltraining.errors import ConfigError, DataError
from xltraining.language_model import LanguageModel, placed, plain
from xltraining.layers.swapping import LayerStore
from xltraining.reformer.angles import Angles
from xltraining.reformer.attention import (
    Attended,
    Context,
    LocalAttention,
    ReformerAttention,
    SeparateAttention,
    SharedAttention,
)
from xltraining.reformer.config import ReformerConfig
from xltraining.reformer.reversible import Block, run_blocks
from xltraining.training_config import TrainingConfig

__all__ = ["LSHTrace", "Reformer", "ReformerFeedForward", "ReformerMemory", "ReversibleLayer"]

_INIT_STD = 0.02
_TABLE_STD = 0.1
_LOSS_CHUNK = 1024


@dataclass(frozen=True)
class ReformerMemory:
    """The memory of a document's earlier segments."""

    position: int
    """Tokens so far."""
    layers: list[tuple[Tensor, Tensor | None]]
    """For each layer the attention's normalised input at the latest tokens (B,M,D), oldest first. In LSH layers also
    the rows' bucket ids (B,H,R,M) int64."""


@dataclass(frozen=True)
class LSHTrace:
    """Record of one LSH layer's work on a segment."""

    layer: int
    buckets: Tensor
    """(B,H,R,S) int64: the bucket ids used."""
    own: Tensor
    """(B,H,R,S) int64: the ids that the layer's vectors alone would choose."""
    margin: Tensor
    """(B,H,R,S): (best − value of the used bucket) / best; 0 if both agree."""
    lead: Tensor
    """(B,H,R,S): (best − next) / best."""
    overflow: Tensor
    """(B,S) int64: pairs of head and round with keys in reach that the rule leaves out; 0 under rule `chunk`."""


class _Positions(nn.Module):
    """Position embeddings; `sinusoid` and `rotary` ones do not have weights."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.config = config
        sizes: list[tuple[int, int]] = []
        if config.position in ("axial", "axial_sum"):
            sizes = list(zip(config.axial_shape, config.axial_dims, strict=True))
        elif config.position == "absolute":
            sizes = [(config.max_positions, config.d_model)]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(rows, width)) for rows, width in sizes)
        self.angles = Angles(config.d_model) if config.position == "sinusoid" else None

    def forward(self, positions: Tensor) -> Tensor | float:
        """Return embeddings (S,D) of positions (S,) int64."""
        kind = self.config.position
        if kind == "rotary":
            return 0.0
        if self.angles is not None:
            turn = self.angles(positions)
            return torch.cat([turn.sin(), turn.cos()], dim=-1)
        if kind == "absolute":
            return F.embedding(positions, self.weights[0])
        # Positions are the cells of a table, row by row.
        parts, shape = [], self.config.axial_shape
        for axis, weight in enumerate(self.weights):
            parts.append(F.embedding(positions // math.prod(shape[axis + 1 :]) % shape[axis], weight))
        return torch.cat(parts, dim=-1) if kind == "axial" else torch.stack(parts).sum(dim=0)


class ReformerFeedForward(nn.Module):
    """Normalisation, and two linear maps with an activation between them."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.chunk, self.activation = config.ff_chunk, config.activation
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.inner = nn.Linear(config.d_model, config.d_inner)
        self.outer = nn.Linear(config.d_inner, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D)."""
        if not (self.training and 0 < self.chunk < hidden.shape[1]):
            return self._mapped(hidden)
        parts = hidden.split(self.chunk, dim=1)
        if not torch.is_grad_enabled():
            return torch.cat([self._mapped(part) for part in parts], dim=1)
        # Only one part's inner activations exist at a time, also in the backward pass.
        return torch.cat([checkpoint(self._mapped, part, use_reentrant=False) for part in parts], dim=1)

    def _mapped(self, hidden: Tensor) -> Tensor:
        inner = self.inner(self.norm(hidden))
        if self.activation == "relu":
            inner = inner.relu()
        else:
            inner = F.gelu(inner, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return self.dropout(self.outer(self.dropout(inner)))


class ReversibleLayer(nn.Module):
    """A layer's two blocks, F and G."""

    def __init__(self, attention: ReformerAttention, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.in_store = False
        """Whether a store keeps the weights: they do not move with the model to another device."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if not self.in_store:
            return super()._apply(fn, recurse)
        for buffer in self.buffers():
            buffer.data = fn(buffer.data)
        return self


class Reformer(LanguageModel):
    """A Reformer language model.

    The model has no state between calls: the caller passes memory in and gets new memory back. Under the rules `paper`
    and `chunk` each call is a whole document, and no memory is carried.
    """

    SWAPS: ClassVar[bool] = True

    def __init__(self, config: ReformerConfig, store: LayerStore | None = None) -> None:
        """Make a model with fresh weights.

        Args:
            store: takes each layer as soon as it is made.
        """
        super().__init__()
        self.config = config
        self.store = store
        self.word_emb = nn.Embedding(config.n_token, config.d_model)
        self.positions = _Positions(config)
        self.layers = nn.ModuleList()
        for layer, kind in enumerate(config.attn_layers):
            attention: ReformerAttention
            if kind in ("local", "separate"):
                attention = (LocalAttention if kind == "local" else SeparateAttention)(config)
            else:
                attention = SharedAttention(config, layer)
            self.layers.append(ReversibleLayer(attention, ReformerFeedForward(config)))
            if store is not None:
                self._keep(self._layers()[-1], store)
        self.norm = nn.LayerNorm(config.d_output, eps=config.layer_norm_epsilon)
        self.head = nn.Linear(config.d_output, config.n_token)
        self.dropout = nn.Dropout(config.dropout)
        self.reversible = True
        """Whether training recomputes activations in the backward pass; the gradients are the same."""
        self._initialise(self._std)

    def _std(self, name: str, _parameter: Tensor) -> float:
        """Return that of a fresh weight; maps into the residual streams shrink with depth, to keep their scale."""
        if name.startswith(("positions.", "word_emb.")) and self.positions.weights:
            # Differences between positions must not drown in the first updates. In the duplication task, attention
            # depends on positions alone: with 0.02 it was not learned.
            return _TABLE_STD
        into_residual = name.endswith(("output.weight", "outer.weight"))
        return _INIT_STD / math.sqrt(2 * self.config.n_layer if into_residual else 1)

    def swap_layers(self, store: LayerStore) -> None:
        """Move all layers into a store, from where each comes while it computes.

        Raises:
            CheckpointWriteError: the disk has no room for them.
        """
        self.store = store
        for layer in self._layers():
            self._keep(layer, store)

    @staticmethod
    def _keep(layer: ReversibleLayer, store: LayerStore) -> None:
        store.take(layer)
        layer.in_store = True

    def first_memory(self, batch_size: int) -> ReformerMemory:
        """Return the memory at the start of a document: position 0 and no rows."""
        config, like = self.config, self.word_emb.weight
        rows = like.new_zeros(batch_size, 0, config.d_model)
        buckets = rows.new_zeros(batch_size, config.n_head, config.n_hashes, 0, dtype=torch.int64)
        return ReformerMemory(0, [(rows, buckets if kind == "lsh" else None) for kind in config.attn_layers])

    def forward(
        self,
        tokens: Tensor,
        memory: ReformerMemory | None = None,
        *,
        buckets: list[Tensor | None] | None = None,
        trace: list[LSHTrace] | None = None,
    ) -> tuple[Tensor, ReformerMemory]:
        """Run one segment.

        Args:
            tokens: (B,S) int64.
            memory: memory that the previous segment returned; None starts a document.
            buckets: for each layer the segment's bucket ids (B,H,R,S) int64 to use instead of its own, or None.
            trace: list to which one entry for each LSH layer is appended.

        Returns:
            Normalised last hidden states (B,S,d_output), and the new memory, detached. Under the rules `paper` and
            `chunk` it is the first memory again.

        Raises:
            ConfigError: memory was given under a rule that carries none.
            DataError: the segment has positions without an embedding.
        """
        config = self.config
        B, S = tokens.shape
        memory = self.first_memory(B) if memory is None else memory
        self._check(memory, S)
        positions = torch.arange(memory.position, memory.position + S, device=tokens.device)
        hidden = self.word_emb(tokens)
        hidden = self.dropout(hidden + self.positions(positions))

        new_memory = []

        def observe(layer: int, attended: Attended) -> None:
            new_memory.append(attended.memory)
            if trace is not None and attended.hashed is not None and attended.overflow is not None:
                hashed = attended.hashed
                trace.append(LSHTrace(layer, hashed.used, hashed.own, hashed.margin, hashed.lead, attended.overflow))

        forced = [None] * config.n_layer if buckets is None else buckets
        one_stream = config.residual == "ordinary"
        reversible = self.reversible and self.training and torch.is_grad_enabled() and not one_stream
        each = enumerate(zip(self._layers(), self._contexts(memory), forced, strict=True))
        layers = [
            [
                _attention_block(layer.attention, context, ids, partial(observe, index), reversible),
                _feed_forward_block(layer.feed_forward),
            ]
            for index, (layer, context, ids) in each
        ]
        first, second = run_blocks(layers, hidden, reversible=reversible, store=self.store, one_stream=one_stream)

        hidden = torch.cat([first, second], dim=-1) if config.streams == "concat" else (first + second) / 2
        position = 0 if config.whole_document else memory.position + S
        return self.dropout(self.norm(hidden)), ReformerMemory(position, new_memory)

    def _layers(self) -> list[ReversibleLayer]:
        return [layer for layer in self.layers if isinstance(layer, ReversibleLayer)]

    def _check(self, memory: ReformerMemory, segment: int) -> None:
        config = self.config
        if config.whole_document and memory.position:
            raise ConfigError(
                f"rule {config.rule} carries no memory between segments, found one of {memory.position:,} tokens.",
                hint="Pass a document as one segment.",
            )
        if config.max_positions and memory.position + segment > config.max_positions:
            raise DataError(
                f"the model has {config.max_positions:,} positions, but this document has "
                f"{memory.position + segment:,} tokens.",
                hint="Start a new document before the last position.",
            )

    def _contexts(self, memory: ReformerMemory) -> list[Context]:
        """Return each layer's context; in training with `redraw_hashes`, with rotations for this call only."""
        contexts = []
        for layer, (rows, buckets) in zip(self._layers(), memory.layers, strict=True):
            rotations = None
            if self.training and self.config.redraw_hashes and isinstance(layer.attention, SharedAttention):
                rotations = layer.attention.fresh_rotations()
            contexts.append(Context(memory.position, rows, buckets, rotations))
        return contexts

    def prepare_training(self, training: TrainingConfig) -> None:
        """Apply the setting whether the backward pass computes activations again.

        Raises:
            ConfigError: layers are in a store, but they are not reversible.
        """
        if self.store is not None and self.config.residual != "reversible":
            raise ConfigError(f"swap_layers needs reversible layers, found residual {self.config.residual!r}.")
        self.reversible = training.reversible

    def memory_before(self, memory: ReformerMemory | None, length: int) -> ReformerMemory | None:
        """Return `memory`, or None if the segment would pass the last position or the rule carries no memory."""
        limit = self.config.position_limit
        if memory is None or self.config.whole_document:
            return None
        return None if limit is not None and memory.position + length > limit else memory

    def plain_memory(self, memory: ReformerMemory | None) -> Any:
        """Return a memory as a dict of `position` and `layers`, with copied tensors."""
        return None if memory is None else plain({"position": memory.position, "layers": memory.layers})

    def memory_from_plain(self, plain: Any, device: torch.device) -> ReformerMemory | None:
        """Return the memory that `plain_memory` made plain, on a device."""
        if plain is None:
            return None
        return ReformerMemory(plain["position"], [(rows, ids) for rows, ids in placed(plain["layers"], device)])

    @classmethod
    def is_drawn(cls, name: str) -> bool:
        """Return whether a tensor holds hash rotations: rounds that are drawn later must continue the stored ones."""
        return name.endswith(".rotations")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V) from the hidden states (B,S,d_output) that `forward` returns."""
        return self.head(hidden)

    def all_log_probs(self, hidden: Tensor) -> Tensor:
        """Return the log-probability of every token in nats, (B,S,V), from hidden (B,S,d_output)."""
        return self.head(hidden).log_softmax(dim=-1)

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target in nats, (B,S), from hidden (B,S,d_output), targets (B,S) int64."""
        parts = zip(hidden.flatten(0, 1).split(_LOSS_CHUNK), targets.flatten().split(_LOSS_CHUNK), strict=True)
        losses = [F.cross_entropy(self.head(rows), expected, reduction="none") for rows, expected in parts]
        return -torch.cat(losses).view_as(targets)

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0, chunk: int = _LOSS_CHUNK) -> Tensor:
        """Return the mean negative log-probability of the targets in nats, computed `chunk` positions at a time.

        A chunk's logits exist only while its loss is computed, and once more in its backward pass.

        Args:
            hidden: (B,S,d_output), as `forward` returns it.
            targets: (B,S) int64; targets of -100 do not count.
            smoothing: as in `LanguageModel.loss`.
        """
        parts = zip(hidden.flatten(0, 1).split(chunk), targets.flatten().split(chunk), strict=True)
        losses = [checkpoint(self._loss, rows, expected, smoothing, use_reentrant=False) for rows, expected in parts]
        return torch.stack(losses).sum() / (targets != -100).sum()

    def _loss(self, rows: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        return F.cross_entropy(self.head(rows), targets, reduction="sum", label_smoothing=smoothing)

    def with_evaluation(self, mem_len: int | None = None, n_hashes: int | None = None) -> "Reformer":
        """Return this model with other evaluation settings; None keeps one. Weights are shared, not copied.

        Raises:
            ConfigError: a number is below 1, or `n_hashes` exceeds the model's rounds and its rotations were not drawn
                from its seed.
        """
        settings = {"mem_len": mem_len, "n_hashes": n_hashes}
        config = replace(self.config, **{name: value for name, value in settings.items() if value is not None})
        shared = {id(one): one for one in (*self.parameters(), self.store)}
        twin = copy.deepcopy(self, shared)
        twin.config = config
        for layer in twin._layers():
            attention = layer.attention
            attention.config = config
            if isinstance(attention, SharedAttention) and attention.hashes:
                attention.rotations = _rounds(attention, config.n_hashes)
        return twin


def _rounds(attention: SharedAttention, n_hashes: int) -> Tensor:
    """Return a layer's rotations for this number of rounds, and draw missing ones."""
    rotations = attention.rotations
    R = rotations.shape[1]
    if n_hashes <= R:
        return rotations[:, :n_hashes]
    drawn = attention.drawn_rotations(n_hashes).to(rotations)
    if not torch.allclose(drawn[:, :R], rotations, atol=1e-6):
        raise ConfigError(
            f"n_hashes must be at most {R}, found {n_hashes}: the model's rotations were not drawn from its hash_seed, "
            "so no more can be drawn."
        )
    return torch.cat([rotations, drawn[:, R:]], dim=1)


def _attention_block(
    attention: ReformerAttention,
    context: Context,
    forced: Tensor | None,
    observe: Callable[[Attended], None],
    reversible: bool,
) -> Block:
    """Return the block of an attention; `observe` gets its other results.

    If it is reversible, its second run has the buckets of the first.
    """
    buckets: Tensor | None = None

    def run(hidden: Tensor, source: Tensor | None, again: bool) -> Tensor:
        nonlocal buckets
        if again:
            output: Tensor = attention(hidden, context, None, None if buckets is None else buckets.long())[0]
            return output
        output, attended = attention(hidden, context, forced)
        if reversible and attended.buckets is not None:
            buckets = _small(attended.buckets)
        observe(attended)
        return output

    return Block(attention, run)


def _feed_forward_block(feed_forward: nn.Module) -> Block:
    return Block(feed_forward, lambda hidden, source, again: feed_forward(hidden))


def _small(buckets: Tensor) -> Tensor:
    """Return the same numbers in the smallest integer type that holds them."""
    largest = int(buckets.max()) if buckets.numel() else 0
    return buckets.to(torch.int16 if largest < 1 << 15 else torch.int32 if largest < 1 << 31 else torch.int64)
