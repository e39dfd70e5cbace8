"""The eager twin of the graphs of an encoder-decoder: flat tensors in, flat tensors out.

It computes the same results as `xltraining.encoder_decoder.model`, with a layout that makes steps of one token cheap:

* the graph `encode` runs the encoder once for a source, and computes the keys and values that each layer of the decoder
  needs of it. They are inputs of all steps, and no step changes them;
* a step carries the keys and values of the target's earlier tokens, the newest `tgt_len` rows of each layer.

Reversible blocks run forwards here: the streams change places after every block. Ordinary blocks have one stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from xlexport.families.step import StepTensor, carried_inputs, carried_outputs, example_of, traced_outputs
from xlexport.families.step_module import TARGETS, TOKENS, StepModule, describe_softmax, purposes_of
from xlruntime.bundle import Feed, MemoryEntry
from xltraining.encoder_decoder import DecoderMemory, EncoderDecoder
from xltraining.encoder_decoder.config import PAD
from xltraining.encoder_decoder.model import (
    CrossAttention,
    DecoderAttention,
    EncoderAttention,
    EncoderDecoderAttention,
    EncoderDecoderFeedForward,
)
from xltraining.layers.sinusoids import sinusoids

__all__ = ["EncoderDecoderStep", "project_memory"]


class EncoderDecoderStep(StepModule):
    """The step module of an encoder-decoder.

    B, S and L (batch, segment, source) are free; all other sizes are fixed by the model.

    Args:
        model: the trained model, in eval mode; its weights are shared, not copied.
    """

    traceable = False

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.config = config = model.config
        self.word_emb, self.source_emb, self.head = model.word_emb, model.source_emb, model.head
        self.encoder, self.decoder = model.encoder, model.decoder
        self.encoder_norm, self.decoder_norm = model.encoder_norm, model.decoder_norm
        longest = max(config.source_len, config.tgt_len)
        self.places: Tensor
        self.register_buffer("places", sinusoids(torch.arange(longest), config.d_model))
        self.eval()

    @property
    def memory(self) -> tuple[MemoryEntry, ...]:
        """The carried memory: keys and values of the target's earlier tokens in each layer."""
        shape = ("batch", self.config.n_head, self.config.tgt_len, self.config.d_head)
        return tuple(
            MemoryEntry(name, f"new_{name}", "float32", shape, layout="window")
            for index in range(self.config.n_decoder_layer)
            for name in (f"memory_key_{index}", f"memory_value_{index}")
        )

    @property
    def encoded(self) -> tuple[StepTensor, ...]:
        """The outputs of the graph `encode`, which all steps take: keys, values, and the bias of padding."""
        return self._encoded("sources", "source_tokens")

    def _encoded(self, rows: str, length: str) -> tuple[StepTensor, ...]:
        """Return the encoded tensors with these names of their free axes.

        As outputs they have others than as inputs of a step: tracing reads a size from any input that has it, and then
        the graph `encode` would need inputs of the steps.
        """
        shape = (rows, self.config.n_head, length, self.config.d_head)
        names = [f"source_{kind}_{index}" for index in range(self.config.n_decoder_layer) for kind in ("key", "value")]
        bias = StepTensor("source_bias", "float32", (rows, 1, 1, length))
        return (*(StepTensor(name, "float32", shape) for name in names), bias)

    @property
    def inputs(self) -> tuple[StepTensor, ...]:
        """The inputs of `forward`, in order.

        * `source`: ids of the source, padded behind its end;
        * `position`: tokens of the target before the segment.
        """
        return (
            TARGETS,
            TOKENS,
            StepTensor("position", "int64", ("batch",), Feed("position")),
            StepTensor("source", "int64", ("sources", "source_tokens"), Feed("source")),
            *(replace(tensor, feed=Feed("constant")) for tensor in self._encoded("batch", "source")),
            *carried_inputs(self.memory),
        )

    @property
    def purposes(self) -> dict[str, tuple[StepTensor, ...]]:
        """The graphs that are cut out of `forward`, and the outputs of each."""
        return {"encode": self.encoded, **purposes_of(self.config.n_token, carried_outputs(self.memory))}

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with; every free axis is longer than 1, because tracing would fix it."""
        sizes = {"batch": 2, "segment": 5, "source": 7, "sources": 3, "source_tokens": 6}
        return example_of(self, sizes, {})

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute one segment: return the outputs of all `purposes`, each once, in the order of `traced_outputs`."""
        tensors = dict(zip((entry.name for entry in self.inputs), inputs, strict=True))
        tokens, targets = tensors["tokens"], tensors["targets"]
        outputs = dict(zip((entry.name for entry in self.encoded), self._encode(tensors["source"]), strict=True))
        hidden, carried = self._decode(tokens, tensors)
        output = (self.word_emb if self.head is None else self.head).weight  # (n_token, D)
        logits = hidden @ output.T  # (B, S, n_token)
        log_probs = logits.log_softmax(dim=2)
        outputs |= carried
        outputs |= describe_softmax(log_probs, targets, self.config.n_token)
        outputs["log_prob"] = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
        outputs["logits"] = hidden[:, -1] @ output.T
        return tuple(outputs[name] for name in traced_outputs(self))

    def _embed(self, tokens: Tensor, places: Tensor, table: nn.Embedding | None = None) -> Tensor:
        """Return embeddings (B, S, D) of tokens (B, S) at places (B, S); without a table, those of a target."""
        embedded: Tensor = (self.word_emb if table is None else table)(tokens) * math.sqrt(self.config.d_model)
        return embedded + nn.functional.embedding(places, self.places)

    def _encode(self, source: Tensor) -> list[Tensor]:
        """Return the tensors of `encoded` for sources (B, L)."""
        places = torch.arange(source.shape[1]).expand_as(source)
        # The first place is always visible, also in a source without tokens: a softmax needs a key.
        bias = torch.where((source == PAD) & (places > 0), -math.inf, 0.0)[:, None, None]  # (B, 1, 1, L)
        first = second = self._embed(source, places, self.source_emb)
        for block in self.encoder:
            if isinstance(block, EncoderAttention):
                normed = block.norm(second)
                output = _attend(block, normed, *_projected(block, normed), bias)
            else:
                output = block(second, second)
            first, second = self._added(first, second, output)
        rows = self.encoder_norm((first + second) / 2)
        crossing = [block for block in self.decoder if isinstance(block, CrossAttention)]
        return [*(tensor for block in crossing for tensor in _projected(block, rows)), bias]

    def _decode(self, tokens: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last hidden states (B, S, D), and the new memories by name."""
        S = tokens.shape[1]
        places = tensors["position"].unsqueeze(1) + torch.arange(S)
        outputs: dict[str, Tensor] = {}
        bias = self._own_bias(tensors["position"], S)
        first = second = self._embed(tokens, places)
        layer = -1
        for block in self.decoder:
            if isinstance(block, DecoderAttention):
                layer += 1
                normed, rows = block.norm(second), []
                for kind, own in zip(("key", "value"), _projected(block, normed), strict=True):
                    name = f"memory_{kind}_{layer}"
                    rows.append(torch.cat([tensors[name], own], dim=2))  # (B, H, tgt_len + S, d)
                    outputs[f"new_{name}"] = rows[-1][:, :, S:]
                output = _attend(block, normed, rows[0], rows[1], bias)
            elif isinstance(block, CrossAttention):
                key, value = tensors[f"source_key_{layer}"], tensors[f"source_value_{layer}"]
                output = _attend(block, block.norm(second), key, value, tensors["source_bias"])
            else:
                assert isinstance(block, EncoderDecoderFeedForward)
                output = block(second, second)
            first, second = self._added(first, second, output)
        return self.decoder_norm((first + second) / 2), outputs

    def _added(self, first: Tensor, second: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams after a block; those of ordinary blocks are the same one."""
        if self.config.residual == "ordinary":
            return second + output, second + output
        return second, first + output

    def _own_bias(self, position: Tensor, S: int) -> Tensor:
        """Return the bias (B, 1, S, tgt_len + S) of a step's tokens on the kept rows and themselves."""
        steps = torch.arange(S)
        distance = steps.unsqueeze(1) + self.config.tgt_len - torch.arange(self.config.tgt_len + S)
        reach = position.view(-1, 1, 1) + steps.view(1, S, 1)  # tokens before each
        seen = (distance >= 0) & (distance <= reach)  # (B, S, tgt_len + S)
        return torch.where(seen, 0.0, -math.inf).unsqueeze(1)


def _projected(block: EncoderDecoderAttention, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and values (B, H, N, d) of rows (B, N, D)."""
    return block.heads(block.key(rows)), block.heads(block.value(rows))


def _attend(block: EncoderDecoderAttention, normed: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Return a block's output (B, S, D) from normalised rows (B, S, D), and keys and values (B, H, K, d)."""
    query = block.heads(block.query(normed)) / math.sqrt(block.d_head)
    weights = (query @ key.transpose(2, 3) + bias).softmax(dim=3)
    joined: Tensor = block.output((weights @ value).transpose(1, 2).flatten(2))
    return joined


def project_memory(model: EncoderDecoder, memory: DecoderMemory) -> Iterator[tuple[str, Tensor]]:
    """Project the eager model's memory, normalised hidden states (B, M, D), to the memories of the graphs.

    Yields:
        The name of each memory with its rows by age (B, H, M, d_head).
    """
    blocks: list[Any] = [block for block in model.decoder if isinstance(block, DecoderAttention)]
    for index, (block, rows) in enumerate(zip(blocks, memory.layers, strict=True)):
        key, value = _projected(block, rows)
        yield f"memory_key_{index}", key
        yield f"memory_value_{index}", value
