"""The eager twin of the Transformer-XL step graph: flat tensors in, flat tensors out.

It computes the same results as `xltraining.transformer_xl`, in a layout that makes carried memory cheap. With encoding
`relative`:

* memory holds projected keys and values, so no hidden state is projected twice;
* memory is a ring, written at slot `offset` modulo its capacity C, in place if input and output share a buffer;
* positional keys W_kR·R depend only on distance, so `positions` computes them once for a capacity;
* the key of the largest distance is subtracted from all positional keys. This shifts all scores of a query by the same
  amount, so the softmax does not change. Distances beyond `clamp_len` share one key, so they need no keys or products;
* 1/sqrt(d_head) is folded into the query weights and into u and v.

Source: Dai et al. 2019, section 3.3 (four-term relative attention) and Appendix B (relative shift at linear cost).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlexport.families.step import (
    FixedSizes,
    StepTensor,
    carried_inputs,
    carried_outputs,
    example_of,
    traced_outputs,
)
from xlexport.families.step_module import TARGETS, TOKENS, StepModule, describe, log_prob_last, purposes_of
from xlexport.families.transformer_xl.attention import (
    BiasedAttention,
    BiasedWindowAttention,
    GatheredAttention,
    OperatorAttention,
    PartAttention,
    SlicedAttention,
    SlotAttention,
    StepInputs,
    WindowAttention,
    size_of,
)
from xlruntime.bundle import Feed, Layout, MemoryEntry
from xltraining.transformer_xl import TransformerXL, TransformerXLLayer
from xltraining.transformer_xl.encodings import (
    AttentionByContent,
    AttentionByDistance,
    LearnedAttention,
    RelativeAttention,
    ShawAttention,
    SinusoidalAttention,
)

if TYPE_CHECKING:
    from xltraining.transformer_xl import TransformerXLConfig
    from xltraining.transformer_xl.encodings import Attention

__all__ = [
    "STEPS",
    "AbsoluteLayer",
    "AbsoluteStep",
    "ShawLayer",
    "ShawStep",
    "StepLayer",
    "TransformerXLStep",
    "make_step",
    "project_memory",
]


class StepLayer(nn.Module):
    """One decoder layer on ring memories."""

    def __init__(self, model: TransformerXL, index: int) -> None:
        super().__init__()
        config, layer = model.config, cast(TransformerXLLayer, model.layers[index])
        self.pre_lnorm = config.pre_lnorm
        self.scale = 1.0 / math.sqrt(config.d_head)
        attention = layer.attention
        self._take(attention, config)
        self.output = attention.output
        self.attention_norm = attention.norm
        self.inner = layer.feed_forward.inner
        self.outer = layer.feed_forward.outer
        self.feed_forward_norm = layer.feed_forward.norm

    def _take(self, attention: Attention, config: TransformerXLConfig) -> None:
        """Take the weights that make queries, keys and values, and those of positions."""
        assert isinstance(attention, RelativeAttention)
        self._take_projections(attention, config)
        # v, scaled like the query, in a shape that can be added to (B, H, S, d_head).
        self.position_bias = nn.Parameter(
            (attention.position_bias.detach() * self.scale).unsqueeze(1)
        )  # (H, 1, d_head)
        self.position = attention.position

    def _take_projections(self, attention: RelativeAttention | ShawAttention, config: TransformerXLConfig) -> None:
        query, key, value = attention.qkv.weight.detach().chunk(3)
        self.qkv = nn.Linear(config.d_model, 3 * config.n_head * config.d_head, bias=False)
        self.qkv.weight = nn.Parameter(torch.cat([query * self.scale, key, value]))
        bias = attention.content_bias
        u = torch.zeros(config.n_head, config.d_head) if bias is None else bias.detach()
        self.content_bias = nn.Parameter((u * self.scale).unsqueeze(1))  # scaled and shaped like v

    def forward(
        self,
        hidden: Tensor,
        memory_key: Tensor,
        memory_value: Tensor,
        position_key: Tensor,
        attention: SlotAttention | OperatorAttention,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the next hidden states from `hidden` (B, S, D) and the layer's two rings (B, H, C, d_head).

        Returns:
            hidden states (B, S, D), and the two rings with this step's rows.
        """
        normed = self.attention_norm(hidden) if self.pre_lnorm else hidden
        layer = self.content_bias, self.position_bias, memory_key, memory_value, position_key
        attended, memory_key, memory_value = attention.attend(self.qkv(normed), *layer)
        return self.after_attention(hidden, attended), memory_key, memory_value

    def after_attention(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output (B, S, D) from its input and the attended values (B, S, H·d_head)."""
        hidden = hidden + self.output(attended)
        if not self.pre_lnorm:
            hidden = self.attention_norm(hidden)

        normed = self.feed_forward_norm(hidden) if self.pre_lnorm else hidden
        hidden = hidden + self.outer(F.relu(self.inner(normed)))
        if not self.pre_lnorm:
            hidden = self.feed_forward_norm(hidden)
        return hidden


class TransformerXLStep(StepModule):
    """The step module of a Transformer-XL with encoding `relative`, and the base of the others.

    B, S and C (batch, segment, capacity) are free, unless `fixed` says their sizes; then memories are windows instead
    of rings. H, d_head and n_token are fixed by the model.

    Args:
        model: the trained model, in eval mode; its weights are shared, not copied.
        fixed: the sizes of all axes; None: they are free.
    """

    traceable = True
    layer_class: type[StepLayer] = StepLayer
    inverse_frequency: Tensor

    def __init__(self, model: TransformerXL, fixed: FixedSizes | None = None) -> None:
        super().__init__()
        self.fixed = fixed
        self.config = model.config
        self.word_emb = model.word_emb
        self.embedding_scale = math.sqrt(model.config.d_model)
        self.layers = nn.ModuleList(self.layer_class(model, index) for index in range(model.config.n_layer))
        self.head = model.head
        self._add_constants()
        zero = [torch.zeros(1, 1, model.config.d_model)] * model.config.n_layer
        self._first_rows = {name: row.detach()[0, :, 0].contiguous() for name, row in project_memory(model, zero)}
        self.eval()

    def _add_constants(self) -> None:
        """Add the buffers that positions need."""
        even = torch.arange(0, self.config.d_model, 2, dtype=torch.float32)
        self.register_buffer("inverse_frequency", 1.0 / 10000.0 ** (even / self.config.d_model))

    @property
    def memory(self) -> tuple[MemoryEntry, ...]:
        """The carried rows: projected keys and values of every layer."""
        config = self.config
        layout: Layout = "window" if self.fixed else "ring"
        shape = ("batch", config.n_head, self.fixed.rows if self.fixed else "capacity", config.d_head)
        starts_with_rows = config.first_memory == "zeros" and config.pre_lnorm  # else first rows are zero or absent
        return tuple(
            MemoryEntry(name, f"new_{name}", "float32", shape, layout, name if starts_with_rows else None)
            for index in range(config.n_layer)
            for name in (f"memory_key_{index}", f"memory_value_{index}")
        )

    @property
    def inputs(self) -> tuple[StepTensor, ...]:
        """The inputs of `forward`, in order.

        * `targets` and `tokens`;
        * `offset`: rows written to the ring so far; windows need none;
        * `memory_length`: rows of memory that each batch row may see (at most mem_len);
        * `window`: the largest number of keys that a query sees, itself included;
        * the rings or windows;
        * positional keys: a zero column, then the distances near - 1 … 0;
        * for `positions`, which computes `near` from them: `capacity` (slots of the ring), `mem_len` (rows of memory),
          and `clamp_len` (no clamp unless positive). With fixed sizes `clamp_len` is enough.
        """
        return (
            TARGETS,
            TOKENS,
            *self._offset,
            StepTensor("memory_length", "int64", ("batch",), Feed("length", ring="capacity")),
            StepTensor("window", "int64", (1,), Feed("window", ring="capacity")),
            *carried_inputs(self.memory),
            *(replace(key, feed=Feed("constant")) for key in self._position_keys),
            *(
                ()
                if self.fixed
                else (
                    StepTensor("capacity", "int64", (1,), Feed("slots", ring="capacity")),
                    StepTensor("mem_len", "int64", (1,), Feed("setting", setting="mem_len")),
                )
            ),
            StepTensor("clamp_len", "int64", (1,), Feed("setting", setting="clamp_len")),
        )

    @property
    def _offset(self) -> tuple[StepTensor, ...]:
        return () if self.fixed else (StepTensor("offset", "int64", (1,), Feed("offset", ring="capacity")),)

    @property
    def purposes(self) -> dict[str, tuple[StepTensor, ...]]:
        """The graphs that are cut out of `forward`, and the outputs of each."""
        return {**purposes_of(self.config.n_token, carried_outputs(self.memory)), "positions": self._position_keys}

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with. No free axis has size 1, because tracing would fix it."""
        if self.fixed:
            return example_of(self, self.fixed.axes, {"window": self.fixed.rows, "clamp_len": 7})
        sizes = {"batch": 2, "segment": 5, "capacity": 19, "near + 1": 14}
        return example_of(self, sizes, {"window": 19, "capacity": 19, "mem_len": 13, "clamp_len": 7})  # near is 13

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute one segment: return the outputs of all `purposes`, each once, in the order of `traced_outputs`."""
        tensors = dict(zip((entry.name for entry in self.inputs), inputs, strict=True))
        targets = tensors["targets"]
        hidden, outputs = self._run_layers(tensors)
        B, S, D = hidden.shape
        outputs["logits"] = self.head.logits(hidden[:, -1])
        clusters = self.head.log_probs_within_clusters(hidden.reshape(B * S, D))
        outputs |= describe(list(zip(self.config.cluster_bounds, clusters, strict=True)), targets)
        if self.fixed is None:
            outputs["log_prob"] = self.head.log_probs(hidden, targets)
        elif not self.config.cutoffs:  # with clusters, the number of targets in each depends on data
            outputs["log_prob"] = log_prob_last(self.head.logits(hidden), targets)
        outputs |= self._constants(tensors)
        return tuple(outputs[name] for name in traced_outputs(self))

    def _constants(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of the graph `positions`, by name."""
        keys = self.positions(tensors.get("capacity"), tensors.get("mem_len"), tensors["clamp_len"])
        return {f"position_key_{index}": position_key for index, position_key in enumerate(keys)}

    @property
    def _attention_class(self) -> Callable[[StepInputs], SlotAttention | OperatorAttention]:
        """The attention to compute with.

        ONNX graphs have custom operators. Other formats, fixed sizes and PyTorch itself compute without them. So do
        graphs that are `inline`, where sizes follow from those of inputs, because tract knows no others.
        """
        if self.fixed:
            return WindowAttention
        if self.inline:
            return GatheredAttention
        if torch.onnx.is_in_onnx_export():
            return OperatorAttention
        return SlicedAttention

    def _run_layers(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Run all layers; return the last hidden states (B, S, D) and the written memories by output name."""
        tokens, outputs = tensors["tokens"], {}
        shared = ("memory_key_0", "position_key_0", "memory_length", "window")
        key, position, length, window = (tensors[name] for name in shared)
        attention = self._attention_class(StepInputs(tokens, key, position, length, window, tensors.get("offset")))
        hidden = self.word_emb(tokens) * self.embedding_scale
        for index, layer in enumerate(self._layers):
            key_name, value_name = f"memory_key_{index}", f"memory_value_{index}"
            hidden, outputs[f"new_{key_name}"], outputs[f"new_{value_name}"] = layer(
                hidden, tensors[key_name], tensors[value_name], tensors[f"position_key_{index}"], attention
            )
        return hidden, outputs

    @property
    def _layers(self) -> list[StepLayer]:
        return [cast(StepLayer, layer) for layer in self.layers]

    @property
    def _position_keys(self) -> tuple[StepTensor, ...]:
        names = (f"position_key_{index}" for index in range(self.config.n_layer))
        return tuple(StepTensor(name, "float32", self._position_shape) for name in names)

    @property
    def _position_shape(self) -> tuple[int | str, ...]:
        return (self.config.n_head, self.config.d_head, self.fixed.keys + 1 if self.fixed else "near + 1")

    def positions(self, capacity: Tensor | None, mem_len: Tensor | None, clamp_len: Tensor) -> list[Tensor]:
        """Compute positional keys W_kR·R for distances below `near`, minus the key of the largest distance.

        All distances beyond clamp_len share one key. So the last query of a step needs clamp_len keys, and the first
        query one more for each token of the step: near = min(capacity, clamp_len + capacity - mem_len).

        Args:
            capacity: (1,) int64, slots of the ring; None with fixed sizes, which have keys for all distances.
            mem_len: (1,) int64, rows of memory.
            clamp_len: (1,) int64; if it is not positive, distances are not clamped and near = capacity.

        Returns:
            n_layer tensors (H, d_head, 1 + near): a zero column, then the distances near - 1 … 0.
        """
        config = self.config
        near, count = self._count(capacity, mem_len, clamp_len)
        distance = torch.arange(count, -1, -1)  # the first entry becomes the zero column
        clamped = torch.where(clamp_len > 0, torch.minimum(distance, clamp_len), distance).to(torch.float32)
        angle = clamped.unsqueeze(1) * self.inverse_frequency  # (1 + near, D / 2)
        encoding = torch.cat([angle.sin(), angle.cos()], dim=1)  # (1 + near, D)
        encoding = torch.where((distance < near).unsqueeze(1), encoding - encoding[1], 0.0)
        return [
            layer.position(encoding).t().reshape(config.n_head, config.d_head, count + 1)  # (H, d_head, 1 + near)
            for layer in self._layers
        ]

    def _count(
        self, capacity: Tensor | None, mem_len: Tensor | None, last: Tensor, unlimited: bool = True
    ) -> tuple[Tensor | int, int]:
        """Return `near`, the number of distances that have keys, as a tensor and as a size.

        Args:
            last: (1,) the largest distance with a key of its own; with `unlimited`, any if it is not positive.
        """
        if self.fixed:
            return self.fixed.keys, self.fixed.keys
        assert capacity is not None and mem_len is not None
        near = torch.minimum(capacity, last + capacity - mem_len)
        if unlimited:
            near = torch.where(last > 0, near, capacity)
        return near, size_of(near, smallest=1)

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return the content of a slot for a zero hidden state: (H, d_head) for each memory, by input name.

        With pre-LayerNorm it is W·LN(0) = W·bias, not zero.
        """
        return self._first_rows


class ShawLayer(StepLayer):
    """One decoder layer with encoding `shaw`: positional keys are learned and have a bias.

    A bias of a distance is one more row of its key, which every query multiplies with the same number. So the keys of
    `positions` have d_head + 1 rows.
    """

    def _take(self, attention: Attention, config: TransformerXLConfig) -> None:
        assert isinstance(attention, ShawAttention)
        self._take_projections(attention, config)
        # Queries are scaled already, biases are not.
        self.position_bias = nn.Parameter(torch.full((config.n_head, 1, 1), self.scale))
        self.distance_key, bias = attention.distance_key, attention.distance_bias
        self.distance_bias = nn.Parameter(torch.zeros_like(self.distance_key[..., 0]) if bias is None else bias)
        self.distances = len(self.distance_key)

    def keys(self) -> Tensor:
        """Return the keys of all distances with their biases, (max_klen, H, d_head + 1), largest distance first."""
        return torch.cat([self.distance_key, self.distance_bias.unsqueeze(2)], dim=2)


class ShawStep(TransformerXLStep):
    """The step of a model with encoding `shaw`. Only ordinary operators are used."""

    layer_class = ShawLayer

    def _add_constants(self) -> None:
        """Add nothing: keys are learned."""

    @property
    def _attention_class(self) -> Callable[[StepInputs], SlotAttention]:
        return BiasedWindowAttention if self.fixed else BiasedAttention

    @property
    def _position_shape(self) -> tuple[int | str, ...]:
        n_head, d_head, count = super()._position_shape
        return (n_head, d_head + 1, count)  # type: ignore[operator]

    def positions(self, capacity: Tensor | None, mem_len: Tensor | None, clamp_len: Tensor) -> list[Tensor]:
        """Return positional keys for distances below `near`, minus the key of the largest distance.

        The model distinguishes at most `max_klen` distances, or `clamp_len` if that is fewer. Arguments and results are
        those of `TransformerXLStep.positions`.
        """
        n = cast(ShawLayer, self.layers[0]).distances
        last = torch.where(clamp_len > 0, clamp_len.clamp(max=n), n) - 1
        near, count = self._count(capacity, mem_len, last, unlimited=False)
        distance = torch.arange(count, -1, -1)  # the first entry becomes the zero column
        row = n - 1 - torch.minimum(distance, last)
        keys_of_layers = []
        for layer in self.layers:
            assert isinstance(layer, ShawLayer)
            keys = layer.keys().index_select(0, row)  # (1 + near, H, d_head + 1)
            keys = torch.where((distance < near).view(-1, 1, 1), keys - keys[1], 0.0)
            keys_of_layers.append(keys.permute(1, 2, 0).contiguous())
        return keys_of_layers


class AbsoluteLayer(StepLayer):
    """One decoder layer with absolute places, which it adds to its input if `encodings` is a table."""

    encodings: Tensor | None

    def _take(self, attention: Attention, config: TransformerXLConfig) -> None:
        assert isinstance(attention, AttentionByContent)
        self.n_head, self.d_head = config.n_head, config.d_head
        self.query = nn.Linear(config.d_model, config.n_head * config.d_head, bias=False)
        self.query.weight = nn.Parameter(attention.query.weight.detach() * self.scale)
        self.key_value = attention.key_value
        assert isinstance(attention, SinusoidalAttention | LearnedAttention)
        table = attention.encodings()
        self.register_buffer("encodings", None if table is None else table.detach().clone())  # (tgt_len, D)

    def placed(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Return the layer's input (B, S, D) with its places (B, S)."""
        return hidden if self.encodings is None else hidden + F.embedding(places, self.encodings)

    def run(
        self, hidden: Tensor, memory_key: Tensor, memory_value: Tensor, attention: PartAttention
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the next hidden states from `hidden` (B, S, D), with places, and the layer's two rings."""
        B, S, _ = hidden.shape
        normed = self.attention_norm(hidden) if self.pre_lnorm else hidden
        query, key, value = (
            part.view(B, S, self.n_head, self.d_head).transpose(1, 2)  # (B, H, S, d_head)
            for part in (self.query(hidden), *self.key_value(normed).chunk(2, dim=-1))
        )
        attended, memory_key, memory_value = attention.attend(query, key, value, memory_key, memory_value)
        return self.after_attention(hidden, attended), memory_key, memory_value


class AbsoluteStep(TransformerXLStep):
    """The step of a model with absolute places (encodings `sinusoidal` and `learned`).

    A document is read in parts of `tgt_len` tokens, after each of which the runtime begins again (`max_positions`). The
    input `position` counts the tokens read of a part, and is the place of the step's first token. Rings hold the part's
    earlier keys and values, so a part may be read in steps of any length. Only ordinary operators are used.
    """

    layer_class = AbsoluteLayer

    def _add_constants(self) -> None:
        """Add nothing: every layer has its table."""

    @property
    def inputs(self) -> tuple[StepTensor, ...]:
        """The inputs of `forward`, in order: see `TransformerXLStep.inputs`, and `position`."""
        return (
            TARGETS,
            TOKENS,
            *self._offset,
            StepTensor("memory_length", "int64", ("batch",), Feed("length", ring="capacity")),
            StepTensor("position", "int64", ("batch",), Feed("position")),
            *carried_inputs(self.memory),
        )

    @property
    def purposes(self) -> dict[str, tuple[StepTensor, ...]]:
        """The graphs of `TransformerXLStep`, except `positions`: places have no constants that depend on settings."""
        return {purpose: outputs for purpose, outputs in super().purposes.items() if purpose != "positions"}

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with. No free axis has size 1, because tracing would fix it."""
        return example_of(self, self.fixed.axes if self.fixed else {"batch": 2, "segment": 5, "capacity": 19}, {})

    def _constants(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def _run_layers(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Run all layers; return the last hidden states (B, S, D) and the written memories by output name."""
        tokens, outputs = tensors["tokens"], {}
        S, limit = tokens.shape[1], self.config.tgt_len
        attention = PartAttention(tokens, tensors["memory_key_0"], tensors.get("offset"), tensors["memory_length"])
        # Padding may follow a part's last token.
        places = (tensors["position"].unsqueeze(1) + torch.arange(S)).clamp(max=limit - 1)  # (B, S)
        hidden = self.word_emb(tokens) * self.embedding_scale
        for index, module in enumerate(self.layers):
            layer, key, value = cast(AbsoluteLayer, module), f"memory_key_{index}", f"memory_value_{index}"
            hidden = layer.placed(hidden, places)
            hidden, outputs[f"new_{key}"], outputs[f"new_{value}"] = layer.run(
                hidden, tensors[key], tensors[value], attention
            )
        return hidden, outputs

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return an empty mapping, because a part starts with no memory."""
        return {}


STEPS: dict[str, type[TransformerXLStep]] = {
    "relative": TransformerXLStep,
    "shaw": ShawStep,
    "sinusoidal": AbsoluteStep,
    "learned": AbsoluteStep,
}


def make_step(model: TransformerXL, fixed: FixedSizes | None = None) -> TransformerXLStep:
    """Return the step module of a trained model; see `TransformerXLStep`."""
    return STEPS[model.config.encoding](model, fixed)


def project_memory(model: TransformerXL, memory: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Project the eager model's memory, n_layer hidden states (B, M, D), to the rows that the rings hold.

    Yields:
        The name of each memory and its rows (B, H, M, d_head).
    """
    H, d_head = model.config.n_head, model.config.d_head
    for index, hidden in enumerate(memory):
        B, M, _ = hidden.shape
        attention = cast(TransformerXLLayer, model.layers[index]).attention
        normed = attention.norm(hidden) if model.config.pre_lnorm else hidden
        if isinstance(attention, AttentionByDistance):
            _, *weights = attention.qkv.weight.chunk(3)
        else:
            weights = [*cast(AttentionByContent, attention).key_value.weight.chunk(2)]
        for kind, weight in zip(("key", "value"), weights, strict=True):
            heads = F.linear(normed, weight).view(B, M, H, d_head)
            yield f"memory_{kind}_{index}", heads.transpose(1, 2)  # (B, H, M, d_head)
