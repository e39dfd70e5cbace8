"""Encoder-decoder whose layers are reversible (Kitaev et al. 2020, arXiv:2001.04451, section 5) or ordinary.

The layers are those of Vaswani et al. 2017 (arXiv:1706.03762), with the norm before each block. Attention is full, as
in the paper's translation experiment, because sentences are short. Embeddings of source, target and output are one
matrix, unless `tie_weight` is false.

Axes: B batch, L tokens of the source, S tokens of the target's segment, M rows of memory, D `d_model`, H heads,
h `d_head`, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xltraining.encoder_decoder.config import PAD, EncoderDecoderConfig
from xltraining.errors import DataError
from xltraining.language_model import LanguageModel, placed, plain
from xltraining.layers.sinusoids import sinusoids
from xltraining.messages import renamed
from xltraining.reformer.reversible import Block, run_blocks
from xltraining.training_config import TrainingConfig

__all__ = [
    "CrossAttention",
    "DecoderAttention",
    "DecoderMemory",
    "EncoderAttention",
    "EncoderDecoder",
    "EncoderDecoderAttention",
    "EncoderDecoderFeedForward",
]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(
        __name__, {"Attention": "EncoderDecoderAttention", "FeedForward": "EncoderDecoderFeedForward"}
    )


class EncoderDecoderAttention(nn.Module):
    """Softmax attention with separate maps for queries, keys and values, without biases."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        D, heads = config.d_model, config.n_head * config.d_head
        self.n_head, self.d_head = config.n_head, config.d_head
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.query = nn.Linear(D, heads, bias=False)
        self.key = nn.Linear(D, heads, bias=False)
        self.value = nn.Linear(D, heads, bias=False)
        self.output = nn.Linear(heads, D, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.dropatt = nn.Dropout(config.dropatt)

    def heads(self, rows: Tensor) -> Tensor:
        """Split rows (B,N,H*h) into heads (B,H,N,h)."""
        B, N, _ = rows.shape
        return rows.view(B, N, self.n_head, self.d_head).transpose(1, 2)

    def attend(self, normed: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        """Return the output (B,S,D) of normalised queries (B,S,D) over rows (B,K,D).

        Args:
            bias: added to the scores (B,H,S,K): zero for a visible key, minus infinity for any other.
        """
        query = self.heads(self.query(normed)) / math.sqrt(self.d_head)
        key, value = self.heads(self.key(rows)), self.heads(self.value(rows))
        weights = self.dropatt((query @ key.transpose(2, 3) + bias).softmax(dim=3))
        return self.dropout(self.output((weights @ value).transpose(1, 2).flatten(2)))


class EncoderAttention(EncoderDecoderAttention):
    """Attention of the source's tokens to all of them."""

    def forward(self, hidden: Tensor, source: Tensor, context: Tensor) -> Tensor:
        """Return the block's output (B,L,D) from hidden (B,L,D); the context is the bias (B,1,1,L) of padding."""
        normed = self.norm(hidden)
        return self.attend(normed, normed, context)


class DecoderAttention(EncoderDecoderAttention):
    """Causal attention of the target's tokens to themselves and to the rows of earlier segments."""

    def forward(self, hidden: Tensor, source: Tensor, context: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D); the context is the memory: rows (B,M,D)."""
        normed = self.norm(hidden)
        S, M = hidden.shape[1], context.shape[1]
        later = torch.full((S, M + S), -math.inf, dtype=hidden.dtype, device=hidden.device).triu(M + 1)
        return self.attend(normed, torch.cat([context.to(normed), normed], dim=1), later)


class CrossAttention(EncoderDecoderAttention):
    """Attention of the target's tokens to the encoder's output, which is normalised already."""

    def forward(self, hidden: Tensor, source: Tensor, context: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D); the context is the bias (B,1,1,L) of padding."""
        return self.attend(self.norm(hidden), source, context)


class EncoderDecoderFeedForward(nn.Module):
    """Two linear maps with a ReLU between them."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.inner = nn.Linear(config.d_model, config.d_inner)
        self.outer = nn.Linear(config.d_inner, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, source: Tensor, context: None = None) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D)."""
        return self.dropout(self.outer(self.dropout(self.inner(self.norm(hidden)).relu())))


@dataclass(frozen=True)
class DecoderMemory:
    """The source, and the rows that the decoder keeps of the target's earlier segments."""

    position: int
    """Tokens of the target so far."""
    source: Tensor
    """(B,L,D): the encoder's output."""
    source_bias: Tensor
    """(B,1,1,L): zero for a token of the source, minus infinity for padding."""
    layers: list[Tensor]
    """For each layer the attention's normalised input at all earlier tokens (B,M,D), oldest first."""


class EncoderDecoder(LanguageModel):
    """A model of a target text given a source text.

    The model has no state between calls: the caller passes memory in and gets new memory back. The memory holds the
    encoded source, so the encoder runs once.
    """

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = nn.Embedding(config.n_token, config.d_model)
        self.source_emb: nn.Embedding | None = None
        self.head: nn.Linear | None = None
        if not config.tie_weight:
            self.source_emb = nn.Embedding(config.n_token, config.d_model)
            self.head = nn.Linear(config.d_model, config.n_token, bias=False)
        self.encoder = nn.ModuleList()
        for _ in range(config.n_encoder_layer):
            self.encoder.extend([EncoderAttention(config), EncoderDecoderFeedForward(config)])
        self.encoder_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.decoder = nn.ModuleList()
        for _ in range(config.n_decoder_layer):
            self.decoder.extend([DecoderAttention(config), CrossAttention(config), EncoderDecoderFeedForward(config)])
        self.decoder_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.reversible = True
        """Whether training recomputes activations in the backward pass; the gradients are the same."""
        self._initialise(self._std)

    def _std(self, name: str, parameter: Tensor) -> float:
        """Return that of a fresh weight: outputs keep the scale of their inputs.

        Maps into the streams shrink with the number of blocks, to keep the scale of the streams.
        """
        blocks = len(self.encoder if name.startswith("encoder") else self.decoder)
        into_stream = name.endswith(("output.weight", "outer.weight"))
        return 1 / math.sqrt(parameter.shape[1] * (blocks if into_stream else 1))

    def embed(self, tokens: Tensor, first: int = 0, table: nn.Embedding | None = None) -> Tensor:
        """Return embeddings (B,S,D) of tokens (B,S) at the positions from `first` on; without a table, of a target."""
        D = self.config.d_model
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        hidden = (self.word_emb if table is None else table)(tokens) * math.sqrt(D)
        return self.dropout(hidden + sinusoids(positions, D, hidden.dtype))

    def encode(self, source: Tensor) -> DecoderMemory:
        """Return the memory at the start of a target.

        Args:
            source: (B,L) int64; padding is behind the source, and columns with nothing but padding are left out. A
                source without tokens is one padding.
        """
        L = max(1, int((source != PAD).sum(dim=1).max()))
        source = F.pad(source, (0, 1), value=PAD)[:, :L]
        hidden = self.embed(source, table=self.source_emb)
        # The first place is always visible, also in a source without tokens: a softmax needs a key.
        unseen = (source == PAD) & (torch.arange(L, device=source.device) > 0)
        bias = torch.zeros_like(source, dtype=hidden.dtype).masked_fill(unseen, -math.inf)[:, None, None]
        contexts = [bias if isinstance(block, EncoderAttention) else None for block in self.encoder]
        blocks = list(map(_block, self.encoder, contexts))
        streams = run_blocks([blocks], hidden, reversible=self._recomputes, one_stream=self._one_stream)
        encoded = self.encoder_norm(sum(streams) / 2)
        rows = encoded.new_zeros(len(source), 0, self.config.d_model)
        return DecoderMemory(0, encoded, bias, [rows] * self.config.n_decoder_layer)

    def first_memory(self, batch_size: int) -> DecoderMemory:
        """Return the memory at the start of targets whose sources are empty."""
        return self.encode(torch.full((batch_size, 1), PAD, device=self.word_emb.weight.device))

    def forward(self, tokens: Tensor, memory: DecoderMemory | None = None) -> tuple[Tensor, DecoderMemory]:
        """Run one segment of the target.

        Args:
            tokens: (B,S) int64. Without memory, the first `source_len` columns are the source with padding behind it.
            memory: memory that `encode` or the previous segment returned.

        Returns:
            Normalised last hidden states (B,S,D) of the target's tokens, and the new memory, detached.

        Raises:
            DataError: the target is longer than `tgt_len`.
        """
        if memory is None:
            memory = self.encode(tokens[:, : self.config.source_len])
            tokens = tokens[:, self.config.source_len :]
        S = tokens.shape[1]
        if memory.position + S > self.config.tgt_len:
            raise DataError(
                f"the model reads at most {self.config.tgt_len:,} tokens of a target, found {memory.position + S:,}.",
                hint="Give shorter texts, or train with a larger tgt_len.",
            )
        past, new_rows, recomputes = iter(memory.layers), [], self._recomputes

        def block(module: nn.Module) -> Block:
            if not isinstance(module, DecoderAttention):
                return _block(module, memory.source_bias if isinstance(module, CrossAttention) else None)
            rows = next(past)

            def run(hidden: Tensor, source: Tensor | None, again: bool) -> Tensor:
                if not recomputes:
                    new_rows.append(torch.cat([rows, module.norm(hidden).detach()], dim=1))
                output: Tensor = module(hidden, source, rows)
                return output

            return Block(module, run)

        hidden = self.embed(tokens, memory.position)
        streams = run_blocks(
            [list(map(block, self.decoder))], hidden, memory.source, reversible=recomputes, one_stream=self._one_stream
        )
        new_memory = DecoderMemory(
            memory.position + S, memory.source.detach(), memory.source_bias, new_rows or memory.layers
        )
        return self.dropout(self.decoder_norm(sum(streams) / 2)), new_memory

    @property
    def _recomputes(self) -> bool:
        return self.reversible and not self._one_stream and self.training and torch.is_grad_enabled()

    @property
    def _one_stream(self) -> bool:
        return self.config.residual == "ordinary"

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V) from hidden states (B,S,D)."""
        return hidden @ (self.word_emb if self.head is None else self.head).weight.T

    def prepare_training(self, training: TrainingConfig) -> None:
        """Choose whether the backward pass recomputes activations."""
        self.reversible = training.reversible

    def plain_memory(self, memory: DecoderMemory | None) -> Any:
        """Return a memory as a dict of its fields, with copied tensors."""
        return None if memory is None else plain(vars(memory))

    def memory_from_plain(self, plain: Any, device: torch.device) -> DecoderMemory | None:
        """Return the memory that `plain_memory` made plain, on a device."""
        return None if plain is None else DecoderMemory(**placed(plain, device))


def _block(module: nn.Module, context: Tensor | None) -> Block:
    return Block(module, lambda hidden, source, again: module(hidden, source, context))
