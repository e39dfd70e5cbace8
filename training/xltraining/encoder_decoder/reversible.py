"""Reversible blocks on two streams, with a third input that all blocks may read (Kitaev et al. 2020, section 5).

A block f turns the streams (a, b) into (b, a + f(b)), so the streams change places after every block. From (b, c) the
backward pass computes a = c − f(b). Training therefore keeps only the last two streams, for any number of blocks of any
kind: the two of an encoder's layer, or the three of a decoder's layer. The third input, the encoder's output, is the
same for all blocks. Its gradient is the sum over them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xltraining.layers.random_state import RandomState

__all__ = ["Block", "run_blocks"]


class Block(Protocol):
    """A block: a module whose output is added to a stream."""

    def __call__(self, hidden: Tensor, source: Tensor, context: Any) -> Tensor:
        """Return the block's output (B,S,D) from one stream (B,S,D), the encoder's output, and constants."""


def run_blocks(
    blocks: Sequence[nn.Module],
    hidden: Tensor,
    source: Tensor,
    contexts: Sequence[Any],
    observe: Callable[[int, Tensor], None] = lambda index, hidden: None,
    reversible: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return both streams (B,S,D) after all blocks; both start as hidden (B,S,D).

    Args:
        blocks: modules that follow `Block`.
        source: the third input, to which gradients flow. An encoder, whose blocks do not read it, passes any tensor.
        contexts: the other inputs of each block. They are constants: no gradient reaches them.
        observe: called with each block's index and the stream that it reads.
        reversible: whether to recompute activations in the backward pass instead of keeping them.
    """
    run = _Run(blocks, contexts)
    if reversible:
        return _Reversible.apply(run, hidden, hidden, source, *run.parameters())
    first, second = hidden, hidden
    for index, (block, context) in enumerate(zip(blocks, contexts, strict=True)):
        observe(index, second)
        first, second = second, first + block(second, source, context)
    return first, second


class _Run:
    """One forward pass, and the values that its backward pass needs in addition to the last streams."""

    def __init__(self, blocks: Sequence[nn.Module], contexts: Sequence[Any]) -> None:
        self.blocks, self.contexts = blocks, contexts
        self.states: list[RandomState] = []

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that need a gradient, in the order of `backward`'s gradients."""
        return [parameter for block in self.blocks for parameter in _trained(block)]

    def forward(self, first: Tensor, second: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams after all blocks."""
        kind = first.device.type
        self.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for block, context in zip(self.blocks, self.contexts, strict=True):
            self.states.append(RandomState(first.device))
            first, second = second, first + block(second, source, context)
        return first, second

    def backward(
        self, first: Tensor, second: Tensor, source: Tensor, grad_first: Tensor, grad_second: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None]]:
        """Return gradients of the streams before all blocks, of `source`, and of `parameters`."""
        gradients: list[Tensor | None] = []
        of_source = torch.zeros_like(source)
        for block, context, state in zip(
            reversed(self.blocks), reversed(self.contexts), reversed(self.states), strict=True
        ):
            # Here (first, second) = (b, a + f(b)). Its gradients are those of b without f, and of a.
            read, given = first.detach().requires_grad_(), source.detach().requires_grad_()
            with torch.enable_grad(), state.restored(), self.autocast:
                output = block(read, given, context)
            found = torch.autograd.grad(
                output, [read, given, *_trained(block)], grad_second.to(output.dtype), allow_unused=True
            )
            first, second = second - output.detach(), first
            grad_first, grad_second = grad_second, grad_first + found[0]
            if found[1] is not None:
                of_source += found[1]
            gradients = [*found[2:], *gradients]
        return grad_first, grad_second, of_source, gradients


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: _Run, first: Tensor, second: Tensor, source: Tensor, *_parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, second = run.forward(first, second, source)
        ctx.run = run
        ctx.save_for_backward(first, second, source)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_first: Tensor, grad_second: Tensor) -> tuple[Tensor | None, ...]:
        first, second, source, gradients = ctx.run.backward(*ctx.saved_tensors, grad_first, grad_second)
        return None, first, second, source, *gradients


def _trained(block: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in block.parameters() if parameter.requires_grad]
