"""The eager twin of the Reformer step graphs: flat tensors in, flat tensors out.

It computes the same results as `xltraining.reformer`, with a layout that makes carried memory cheap. LSH and full
attention keep rings of unit-length keys, values and bucket ids; local attention keeps the last chunks. Every step is
computed in two forms of one rule: by sorting and chunks for long segments, and by TopK of matching buckets for a few
tokens. Under the rules `paper` and `chunk` a step is a whole document, and no memory is carried.

Source: Kitaev et al. 2020, section 2 and appendix A (LSH attention), section 3 (reversible layers, here run forwards).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from xlexport.families.reformer.attention import (
    KEY_EPSILON,
    ChunkLSH,
    LocalReach,
    Reach,
    WindowReach,
    attend_by_paper,
    attend_fully,
    hash_buckets,
)
from xlexport.families.ring import RingStep, add_to_window
from xlexport.families.scan import scan
from xlexport.families.step import (
    FixedSizes,
    Form,
    StepTensor,
    carried_inputs,
    carried_outputs,
    example_of,
    traced_outputs,
)
from xlexport.families.step_module import TARGETS, TOKENS, StepModule, describe_softmax, purposes_of
from xlruntime.bundle import Feed, Layout, MemoryEntry
from xltraining.reformer import Reformer, ReformerMemory
from xltraining.reformer.model import ReversibleLayer

__all__ = ["FEW", "AttentionStep", "FeedForwardStep", "ReformerStep", "project_memory"]

FEW = Form("few", max_segment=16)


class AttentionStep(nn.Module):
    """The modules of a layer's attention; the layer's kind decides which of them exist."""

    norm: nn.LayerNorm
    query: nn.Linear
    key: nn.Linear
    query_key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    rotations: Tensor
    whole: ChunkLSH

    def __init__(self, model: Reformer, index: int) -> None:
        super().__init__()
        config = model.config
        attention: Any = model.layers[index].attention
        self.kind = config.attn_layers[index]
        self.index, self.n_head, self.d_head = index, config.n_head, config.d_head
        self.norm, self.value, self.output = attention.norm, attention.value, attention.output
        if self.kind == "local":
            self.query, self.key = attention.query, attention.key
        else:
            self.query_key = attention.query_key
        if self.kind == "lsh":
            self.register_buffer("rotations", attention.rotations.detach())
            self.whole = ChunkLSH(config)
        self.local_scale = 1.0 / math.sqrt(config.d_head)
        self.shared_scale = math.sqrt(config.d_head) * (self.local_scale if config.scale_scores else 1.0)

    def heads(self, rows: Tensor, weight: nn.Module) -> Tensor:
        """Apply a linear map to `rows` (B, S, D) and split the result into heads (B, H, S, d_head)."""
        B, S, _ = rows.shape
        projected: Tensor = weight(rows)
        return projected.view(B, S, self.n_head, self.d_head).transpose(1, 2)

    def turned(self, vectors: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Turn each pair of neighbours in `vectors` (B, H, S, d_head) as `ReformerStep.turns` says."""
        if turns is None:
            return vectors
        sin, cos = turns
        even, odd = vectors[..., 0::2], vectors[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(3)

    def shared(self, query_key: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit-length keys (B, H, S, d_head) and the factors (B, H, S, 1) with query = factor · key."""
        root = (query_key.square().mean(dim=3, keepdim=True) + KEY_EPSILON).sqrt()
        return query_key / (root * math.sqrt(self.d_head)), root * self.shared_scale

    def join(self, attended: Tensor) -> Tensor:
        """Join the heads of `attended` (B, H, S, d_head) and apply the output map: (B, S, D)."""
        B, H, S, d = attended.shape
        joined: Tensor = self.output(attended.transpose(1, 2).reshape(B, S, H * d))  # (B, S, H·d_head)
        return joined


class FeedForwardStep(nn.Module):
    """One feed-forward block with its normalisation.

    An ONNX graph of whole documents computes `ff_chunk` rows at a time, as training does (Kitaev et al. 2020, section
    3): wide activations of a long document take memory.
    """

    norm: nn.LayerNorm
    inner: nn.Linear
    outer: nn.Linear

    def __init__(self, model: Reformer, index: int) -> None:
        super().__init__()
        block: Any = model.layers[index].feed_forward
        self.norm, self.inner, self.outer = block.norm, block.inner, block.outer
        self.activation = model.config.activation
        self.chunk = model.config.ff_chunk if model.config.whole_document else 0

    def forward(self, rows: Tensor) -> Tensor:
        """Return the block's output (B, S, D) for `rows` (B, S, D)."""
        if not (self.chunk and torch.onnx.is_in_onnx_export()):
            return self._mapped(rows)
        B, S, D = rows.shape
        chunks = (B * S + self.chunk - 1) // self.chunk
        padded = nn.functional.pad(rows.reshape(B * S, D), (0, 0, 0, chunks * self.chunk - B * S))
        carry = (rows.new_zeros(1),)
        _, parts = scan(
            lambda carry, part: ((carry[0] + 0,), self._mapped(part[0])), carry, (padded.view(chunks, -1, D),)
        )
        return parts.view(-1, D)[: B * S].view(B, S, D)

    def _mapped(self, rows: Tensor) -> Tensor:
        inner: Tensor = self.inner(self.norm(rows))
        approximate = "tanh" if self.activation == "gelu_tanh" else "none"
        inner = inner.relu() if self.activation == "relu" else nn.functional.gelu(inner, approximate=approximate)
        result: Tensor = self.outer(inner)
        return result


class ReformerStep(StepModule):
    """The step module of a Reformer.

    B, S and C (batch, segment, capacity) are free, unless `fixed` says their sizes; then memories are windows instead
    of rings, and each query is compared with all keys. All other sizes are fixed by the model.

    Args:
        model: the trained model, in eval mode; its weights are shared, not copied.
        fixed: the sizes of all axes; None: they are free.
    """

    traceable = False  # chunks depend on the sizes, and the number of rounds in LSH attention depends on data

    def __init__(self, model: Reformer, fixed: FixedSizes | None = None) -> None:
        super().__init__()
        self.fixed = fixed
        self.config = config = model.config
        self.word_emb, self.positions = model.word_emb, model.positions
        self.attention = nn.ModuleList(AttentionStep(model, index) for index in range(config.n_layer))
        self.feed_forward = nn.ModuleList(FeedForwardStep(model, index) for index in range(config.n_layer))
        self.norm, self.head = model.norm, model.head
        self.angles = cast(ReversibleLayer, model.layers[0]).attention.angles  # those of all layers are equal
        self.whole = config.whole_document
        self.eval()

    @property
    def memory(self) -> tuple[MemoryEntry, ...]:
        """The carried memory; empty if documents are read whole."""
        config, entries = self.config, []
        if self.whole:
            return ()
        for index, kind in enumerate(config.attn_layers):
            layout: Layout = "window" if kind == "local" or self.fixed else "ring"
            rows = self.fixed.rows if self.fixed else "capacity"
            shape = ("batch", config.n_head, config.local_rows if kind == "local" else rows, config.d_head)
            for name in (f"memory_key_{index}", f"memory_value_{index}"):
                entries.append(MemoryEntry(name, f"new_{name}", "float32", shape, layout))
            if kind == "lsh":
                name, ids = f"memory_bucket_{index}", ("batch", config.n_head, config.n_hashes, rows)
                entries.append(MemoryEntry(name, f"new_{name}", "int32", (*ids, 1) if self.fixed else ids, layout))
        return tuple(entries)

    @property
    def inputs(self) -> tuple[StepTensor, ...]:
        """The inputs of `forward`, in order.

        All models have `tokens` and `targets` (the token after each). Rule `band` adds the memories and:

        * `position`: tokens before the segment in the row's own document;
        * `offset`: rows written to the rings so far; windows need none;
        * `window`: the largest number of keys that a query reaches, itself included;
        * `n_hashes`: rounds that count.
        """
        if self.whole:
            return TARGETS, TOKENS
        return (
            TARGETS,
            TOKENS,
            StepTensor("position", "int64", ("batch",), Feed("position")),
            *(() if self.fixed else (StepTensor("offset", "int64", (1,), Feed("offset", ring="capacity")),)),
            StepTensor("window", "int64", (1,), Feed("window", ring="capacity")),
            StepTensor("n_hashes", "int64", (1,), Feed("setting", setting="n_hashes")),
            *carried_inputs(self.memory),
        )

    @property
    def purposes(self) -> dict[str, tuple[StepTensor, ...]]:
        """The graphs that are cut out of `forward`, and the outputs of each.

        In addition to those of `purposes_of`:

        * `overflow`: for each LSH layer, the number of (head, round) pairs in which a token could see more keys than
          the rule allows; not under rule `chunk`;
        * `bucket_i`: bucket ids.
        """
        config = self.config
        lsh = [index for index, kind in enumerate(config.attn_layers) if kind == "lsh"]
        if self.whole:
            ids = ("batch", config.n_head, config.n_hashes, "segment")
            carried = tuple(StepTensor(f"bucket_{index}", "int32", ids) for index in lsh)
        else:
            carried = carried_outputs(self.memory)
        if lsh and config.rule != "chunk":
            carried = (StepTensor("overflow", "int32", ("batch", "segment", len(lsh))), *carried)
        purposes = purposes_of(config.n_token, carried)
        return purposes if self.whole or self.fixed else {**purposes, "score_few": purposes["score"]}

    @property
    def forms(self) -> Mapping[str, Form]:
        """The purposes that are computed in the form for a few tokens, without a sort."""
        return {} if self.whole or self.fixed else {"generate": FEW, "score_few": replace(FEW, variant_of="score")}

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with.

        Every free axis is longer than 1 and several chunks long, because tracing would fix an axis of size 1.
        """
        if self.fixed:
            return example_of(self, self.fixed.axes, {"window": self.fixed.rows, "n_hashes": self.config.n_hashes})
        longest = max(self.config.chunk_length, self.config.local_chunk_length)
        segment = 2 * longest + 5
        sizes = {"batch": 2, "segment": segment, "capacity": segment + 3 * longest + 7}
        return example_of(self, sizes, {"window": sizes["capacity"] - segment, "n_hashes": self.config.n_hashes})

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute one segment: return the outputs of all `purposes`, each once, in the order of `traced_outputs`."""
        tensors = dict(zip((entry.name for entry in self.inputs), inputs, strict=True))
        tokens, targets = tensors["tokens"], tensors["targets"]
        outputs: dict[str, Tensor] = {}
        for prefix in ("", f"{FEW.prefix}.") if self.forms else ("",):
            hidden, carried = self._run(tokens, tensors, few=bool(prefix))
            log_probs = self.head(hidden).log_softmax(dim=2)  # (B, S, n_token)
            outputs |= {f"{prefix}{name}": tensor for name, tensor in carried.items()}
            if not prefix:
                outputs |= describe_softmax(log_probs, targets, self.config.n_token)
            outputs[f"{prefix}log_prob"] = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)
            outputs[f"{prefix}logits"] = self.head(hidden[:, -1])
        return tuple(outputs[name] for name in traced_outputs(self))

    def _run(self, tokens: Tensor, tensors: Mapping[str, Tensor], few: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Run all layers in one of the two forms; return the last hidden states and all other outputs by name."""
        config = self.config
        layers = _Whole(self, tokens) if self.whole else _Carried(self, tokens, tensors, few)
        B, S = tokens.shape
        positions = self.positions(layers.places.reshape(B * S))  # (B*S, D), or zero
        stream_1 = stream_2 = self.word_emb(tokens) + (
            positions if isinstance(positions, float) else positions.view(B, S, -1)
        )
        for attention, feed_forward in zip(self._attention, self.feed_forward, strict=True):
            normed = attention.norm(stream_2)
            stream_1 = stream_1 + attention.join(layers.attend(attention, normed))
            stream_2 = stream_2 + feed_forward(stream_1)
        if config.streams == "mean":
            return self.norm((stream_1 + stream_2) / 2), layers.outputs
        return self.norm(torch.cat([stream_1, stream_2], dim=2)), layers.outputs

    def turns(self, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return sines and cosines (B, 1, S, d_head / 2) of the angles of places (B, S), if positions are rotary."""
        if self.angles is None:
            return None
        angles = self.angles(places.flatten()).view(*places.shape, -1).unsqueeze(1)
        return angles.sin(), angles.cos()

    @property
    def _attention(self) -> list[AttentionStep]:
        return [cast(AttentionStep, layer) for layer in self.attention]


class _Carried:
    """The attention of one step under rule `band`, with memory.

    Attributes:
        places: (B, S), the places of the tokens in their documents.
        turns: the results of `ReformerStep.turns` for them.
        outputs: the outputs that the layers add, by name.
    """

    def __init__(self, step: ReformerStep, tokens: Tensor, tensors: Mapping[str, Tensor], few: bool) -> None:
        config = step.config
        S = tokens.shape[1]
        self.config, self.tensors = config, tensors
        self.places = tensors["position"].unsqueeze(1) + torch.arange(S)
        self.turns = step.turns(self.places)
        self.outputs: dict[str, Tensor] = {}
        self.overflow: list[Tensor] = []
        if "local" in config.attn_layers:
            dense = few or step.fixed is not None
            self.local = LocalReach(config, tokens, tensors["position"], config.local_rows, dense)
        self.reach: Reach | WindowReach
        if step.fixed is not None:
            shared = (tensors[name] for name in ("position", "window", "n_hashes"))
            self.reach = WindowReach(S, step.fixed.rows, *shared)
        rings = [entry.input for entry in step.memory if entry.layout == "ring"]
        if rings:
            C = tensors[rings[0]].shape[2]
            self.ring = RingStep(S, C, tensors["offset"])
            self.reach = Reach(tensors["position"], tensors["window"], tensors["n_hashes"], self.ring, few)

    def attend(self, layer: AttentionStep, normed: Tensor) -> Tensor:
        """Compute a layer's attention (B, H, S, d) from normalised rows (B, S, D); add its new memory to `outputs`."""
        if layer.kind == "local":
            return self._local(layer, normed)
        query_key, own_value = layer.heads(normed, layer.query_key), layer.heads(normed, layer.value)
        turned = layer.turned(query_key, self.turns)
        own_key, length = layer.shared(turned)
        key = self._write(f"memory_key_{layer.index}", own_key, 2)
        value = self._write(f"memory_value_{layer.index}", own_value, 2)
        if layer.kind == "full":
            near = self.reach.near()
            return attend_fully(own_key * length, key, value, own_value, near)
        hashed = turned if self.config.hash_turned else query_key
        own = hash_buckets(hashed, layer.rotations, self.config.n_buckets).to(torch.int32)
        buckets = self._write(f"memory_bucket_{layer.index}", own, 3)
        W, n_buckets = self.config.chunk_length, self.config.buckets
        attended, overflow = self.reach.attend(key, value, buckets, length.squeeze(3), own_value, W, n_buckets)
        self.overflow.append(overflow)
        self.outputs["overflow"] = torch.stack(self.overflow, dim=2).to(torch.int32)
        return attended

    def _local(self, layer: AttentionStep, normed: Tensor) -> Tensor:
        S = normed.shape[1]
        query, key = (layer.turned(layer.heads(normed, part), self.turns) for part in (layer.query, layer.key))
        rows = []
        for kind, own in (("key", key), ("value", layer.heads(normed, layer.value))):
            name = f"memory_{kind}_{layer.index}"
            rows.append(torch.cat([self.tensors[name], own], dim=2))  # (B, H, rows + S, d)
            self.outputs[f"new_{name}"] = rows[-1][:, :, S:]
        return self.local.attend(query * layer.local_scale, rows[0], rows[1])

    def _write(self, name: str, rows: Tensor, axis: int) -> Tensor:
        """Add rows along `axis` to a memory, and return all rows that queries may see."""
        memory = self.tensors[name]
        if isinstance(self.reach, Reach):
            self.outputs[f"new_{name}"] = self.ring.write(memory, rows, axis)
            return self.outputs[f"new_{name}"]
        alone = rows if axis == 2 else rows.unsqueeze(4)  # in windows, rows are along the last axis but one
        seen, self.outputs[f"new_{name}"] = add_to_window(memory, alone)
        return seen if axis == 2 else seen.squeeze(4)


class _Whole:
    """The attention over a whole document under the rules `paper` and `chunk`."""

    def __init__(self, step: ReformerStep, tokens: Tensor) -> None:
        self.config = config = step.config
        B, T = tokens.shape
        self.places = torch.arange(T).expand(B, T)
        self.turns = step.turns(self.places)
        self.outputs: dict[str, Tensor] = {}
        self.overflow: list[Tensor] = []
        if "local" in config.attn_layers:
            self.local = LocalReach(config, tokens, torch.zeros(B, dtype=torch.int64), kept=0, few=False)

    def attend(self, layer: AttentionStep, normed: Tensor) -> Tensor:
        """Compute a layer's attention (B, H, T, d) from normalised rows (B, T, D); add its bucket ids to `outputs`."""
        T = normed.shape[1]
        value = layer.heads(normed, layer.value)
        if layer.kind == "local":
            query, key = (layer.turned(layer.heads(normed, part), self.turns) for part in (layer.query, layer.key))
            return self.local.attend(query * layer.local_scale, key, value)
        query_key = layer.heads(normed, layer.query_key)
        turned = layer.turned(query_key, self.turns)
        if layer.kind == "full":
            key, length = layer.shared(turned)
            steps = torch.arange(T)
            return attend_fully(key * length, key, value, value, (steps < steps.unsqueeze(1)).unsqueeze(0))
        hashed = turned if self.config.hash_turned else query_key
        buckets = hash_buckets(hashed, layer.rotations, self.config.n_buckets)
        self.outputs[f"bucket_{layer.index}"] = buckets.to(torch.int32)
        if self.config.rule == "chunk":
            by_chunks: Tensor = layer.whole(turned, value, buckets)
            return by_chunks
        key, length = layer.shared(turned)
        attended, overflow = attend_by_paper(key, value, length.squeeze(3), buckets, self.config.chunk_length)
        self.overflow.append(overflow)
        self.outputs["overflow"] = torch.stack(self.overflow, dim=2).to(torch.int32)
        return attended


def project_memory(model: Reformer, memory: ReformerMemory) -> Iterator[tuple[str, Tensor]]:
    """Project the eager model's memory, normalised hidden states (B, M, D), to the memories of the graphs.

    Yields:
        The name of each memory with its rows by age: (B, H, M, d_head), or bucket ids (B, H, R, M).
    """
    step = ReformerStep(model)
    for layer, (normed, buckets) in zip(step._attention, memory.layers, strict=True):
        M = normed.shape[1]
        places = torch.arange(memory.position - M, memory.position).expand(normed.shape[:2])
        turns = step.turns(places) if M else None  # nothing to turn
        if layer.kind == "local":
            key = layer.turned(layer.heads(normed, layer.key), turns)
        else:
            key, _ = layer.shared(layer.turned(layer.heads(normed, layer.query_key), turns))
        yield f"memory_key_{layer.index}", key
        yield f"memory_value_{layer.index}", layer.heads(normed, layer.value)
        if buckets is not None:
            yield f"memory_bucket_{layer.index}", buckets
