"""Reversible layers: activations are recomputed in the backward pass (Gomez et al. 2017; Reformer, section 3).

A layer's outputs y1 = x1 + F(x2) and y2 = x2 + G(y1) determine its inputs: x2 = y2 − G(y1) and x1 = y1 − F(x2). So
training keeps only the last two streams, for any number of layers, and runs every block twice. The second time has the
same random numbers and the same buckets.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xltraining.reformer.attention import Attended, Attention, Context

__all__ = ["ReversibleLayer", "run_layers"]

_Observe = Callable[[int, Attended], None]


class ReversibleLayer(nn.Module):
    """A layer's two blocks, F and G."""

    def __init__(self, attention: Attention, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward


def run_layers(
    layers: Sequence[ReversibleLayer],
    hidden: Tensor,
    contexts: Sequence[Context],
    forced: Sequence[Tensor | None],
    observe: _Observe,
    reversible: bool,
) -> tuple[Tensor, Tensor]:
    """Return both streams (B,S,D) after all layers; both start as hidden (B,S,D).

    Args:
        contexts: the other inputs of each layer's attention. They are constants: no gradient reaches them.
        forced: bucket ids for each layer's attention, or None.
        observe: called with each layer's index and its attention's other results.
        reversible: whether to recompute activations in the backward pass instead of keeping them.
    """
    if reversible:
        run = _Run(layers, contexts, forced, observe)
        return _Reversible.apply(run, hidden, hidden, *run.parameters())
    first, second = hidden, hidden
    for index, layer in enumerate(layers):
        output, attended = layer.attention(second, contexts[index], forced[index])
        first = first + output
        second = second + layer.feed_forward(first)
        observe(index, attended)
    return first, second


class _RandomState:
    """The generators' state at one moment, on the CPU and on the tensors' own device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore this state in the block; afterwards the current random numbers continue."""
        with torch.random.fork_rng([self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


class _Run:
    """One forward pass, and the values that its backward pass needs in addition to the last streams."""

    def __init__(
        self,
        layers: Sequence[ReversibleLayer],
        contexts: Sequence[Context],
        forced: Sequence[Tensor | None],
        observe: _Observe,
    ) -> None:
        self.layers, self.contexts, self.forced, self.observe = layers, contexts, forced, observe
        self.buckets: list[Tensor | None] = []
        self.states: list[tuple[_RandomState, _RandomState]] = []

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that need a gradient, in the order of `backward`'s gradients."""
        return [parameter for layer in self.layers for block in _blocks(layer) for parameter in _trained(block)]

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams after all layers."""
        device = first.device
        self.autocast = torch.autocast(
            device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
        )
        for index, layer in enumerate(self.layers):
            before_attention = _RandomState(device)
            output, attended = layer.attention(second, self.contexts[index], self.forced[index])
            first = first + output
            before_feed_forward = _RandomState(device)
            second = second + layer.feed_forward(first)
            self.states.append((before_attention, before_feed_forward))
            self.buckets.append(None if attended.buckets is None else _small(attended.buckets))
            self.observe(index, attended)
        return first, second

    def backward(
        self, first: Tensor, second: Tensor, grad_first: Tensor, grad_second: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Return gradients of the streams before all layers, and of `parameters`, from the streams after them."""
        gradients: list[Tensor | None] = []
        for layer, context, buckets, states in zip(
            reversed(self.layers), reversed(self.contexts), reversed(self.buckets), reversed(self.states), strict=True
        ):
            before_attention, before_feed_forward = states
            known = None if buckets is None else buckets.long()
            output, grad, of_feed_forward = self._again(layer.feed_forward, first, grad_second, before_feed_forward)
            second, grad_first = second - output, grad_first + grad
            output, grad, of_attention = self._again(
                layer.attention, second, grad_first, before_attention, context, None, known
            )
            first, grad_second = first - output, grad_second + grad
            gradients = [*of_attention, *of_feed_forward, *gradients]
        return grad_first, grad_second, gradients

    def _again(
        self, block: nn.Module, hidden: Tensor, grad: Tensor, state: _RandomState, *arguments: Any
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
