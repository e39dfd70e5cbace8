"""Reversible layers: activations are recomputed in the backward pass (Gomez et al. 2017; Reformer, section 3).

A layer's outputs y1 = x1 + F(x2) and y2 = x2 + G(y1) determine its inputs: x2 = y2 − G(y1) and x1 = y1 − F(x2). So
training keeps only the last two streams, for any number of layers, and runs every block twice. The second time has the
same random numbers and the same buckets.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xltraining.layers.random_state import RandomState
from xltraining.layers.swapping import LayerStore, present
from xltraining.reformer.attention import Attended, Attention, Context

__all__ = ["ReversibleLayer", "run_layers"]

_Observe = Callable[[int, Attended], None]


class ReversibleLayer(nn.Module):
    """A layer's two blocks, F and G."""

    def __init__(self, attention: Attention, feed_forward: nn.Module) -> None:
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


def run_layers(
    layers: Sequence[ReversibleLayer],
    hidden: Tensor,
    contexts: Sequence[Context],
    forced: Sequence[Tensor | None],
    observe: _Observe,
    reversible: bool,
    store: LayerStore | None = None,
    one_stream: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return both streams (B,S,D) after all layers; both start as hidden (B,S,D).

    Args:
        contexts: the other inputs of each layer's attention. They are constants: no gradient reaches them.
        forced: bucket ids for each layer's attention, or None.
        observe: called with each layer's index and its attention's other results.
        reversible: whether to recompute activations in the backward pass instead of keeping them.
        store: where the layers' weights are, if not on the device; it takes their gradients, too.
        one_stream: whether residual connections are ordinary: every block reads the sum of all before it. Both streams
            of the result are this sum. It cannot be reversible.
    """
    if reversible:
        run = _Run(layers, contexts, forced, observe, store)
        return _Reversible.apply(run, hidden, hidden, *(run.parameters() if store is None else []))
    first, second = hidden, hidden
    for index, layer in enumerate(layers):
        with present(store, index, index + 1):
            output, attended = layer.attention(second, contexts[index], forced[index])
            first = first + output
            second = (first if one_stream else second) + layer.feed_forward(first)
            first = second if one_stream else first
        observe(index, attended)
    return first, second


class _Run:
    """One forward pass, and the values that its backward pass needs in addition to the last streams."""

    def __init__(
        self,
        layers: Sequence[ReversibleLayer],
        contexts: Sequence[Context],
        forced: Sequence[Tensor | None],
        observe: _Observe,
        store: LayerStore | None,
    ) -> None:
        self.layers, self.contexts, self.forced, self.observe = layers, contexts, forced, observe
        self.store = store
        self.buckets: list[Tensor | None] = []
        self.states: list[tuple[RandomState, RandomState]] = []

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that need a gradient, in the order of `backward`'s gradients."""
        return [parameter for layer in self.layers for block in _blocks(layer) for parameter in _trained(block)]

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams after all layers."""
        device = first.device
        dtype, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
        self.autocast = torch.autocast(device.type, dtype, enabled)
        if self.store is not None:  # the cache would hold all weights in bfloat16 until the forward pass ends
            with torch.autocast(device.type, dtype, enabled, cache_enabled=False):
                return self._through(first, second, device)
        return self._through(first, second, device)

    def _through(self, first: Tensor, second: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        for index, layer in enumerate(self.layers):
            before_attention = RandomState(device)
            with present(self.store, index, index + 1):
                output, attended = layer.attention(second, self.contexts[index], self.forced[index])
                first = first + output
                before_feed_forward = RandomState(device)
                second = second + layer.feed_forward(first)
            self.states.append((before_attention, before_feed_forward))
            self.buckets.append(None if attended.buckets is None else _small(attended.buckets))
            self.observe(index, attended)
        return first, second

    def backward(
        self, first: Tensor, second: Tensor, grad_first: Tensor, grad_second: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Return gradients of the streams before all layers, and of `parameters`, from the streams after them.

        A store takes the gradients of parameters instead, as soon as they are known.
        """
        gradients: list[Tensor | None] = []
        for index in reversed(range(len(self.layers))):
            layer, context, buckets = self.layers[index], self.contexts[index], self.buckets[index]
            before_attention, before_feed_forward = self.states[index]
            known = None if buckets is None else buckets.long()
            with present(self.store, index, index - 1):
                output, grad, of_feed_forward = self._again(layer.feed_forward, first, grad_second, before_feed_forward)
                second, grad_first = second - output, grad_first + grad
                output, grad, of_attention = self._again(
                    layer.attention, second, grad_first, before_attention, context, None, known
                )
                first, grad_second = first - output, grad_second + grad
            own = [*of_attention, *of_feed_forward]
            if self.store is None:
                gradients = [*own, *gradients]
            else:
                self.store.add_gradients(index, own)
        return grad_first, grad_second, gradients

    def _again(
        self, block: nn.Module, hidden: Tensor, grad: Tensor, state: RandomState, *arguments: Any
    ) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        """Run a block again; return its output, and the gradients of its input and its parameters."""
        hidden = hidden.detach().requires_grad_()
        with torch.enable_grad(), state.restored(), self.autocast:
            output = block(hidden, *arguments)
            if isinstance(output, tuple):
                output, _ = output  # attention also returns other results
        of_input, *of_parameters = torch.autograd.grad(
            output, [hidden, *_trained(block)], grad.to(output.dtype), allow_unused=True
        )
        return output.detach(), of_input, tuple(of_parameters)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, first: Tensor, second: Tensor, *_parameters: Tensor) -> tuple[Tensor, Tensor]:
        first, second = run.forward(first, second)
        ctx.run = run
        ctx.save_for_backward(first, second)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_first: Tensor, grad_second: Tensor) -> tuple[Tensor | None, ...]:
        first, second, gradients = ctx.run.backward(*ctx.saved_tensors, grad_first, grad_second)
        return None, first, second, *gradients


def _blocks(layer: ReversibleLayer) -> tuple[nn.Module, nn.Module]:
    return layer.attention, layer.feed_forward


def _trained(block: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in block.parameters() if parameter.requires_grad]


def _small(buckets: Tensor) -> Tensor:
    """Return the same numbers in the smallest integer type that holds them."""
    largest = int(buckets.max()) if buckets.numel() else 0
    return buckets.to(torch.int16 if largest < 1 << 15 else torch.int32 if largest < 1 << 31 else torch.int64)
