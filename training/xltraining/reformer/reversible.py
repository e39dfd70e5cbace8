"""Reversible blocks: activations are recomputed (Gomez et al. 2017; Kitaev et al. 2020, sections 3 and 5).

A block f turns two streams (a, b) into (b, a + f(b)), so the streams change places after every block. From (b, c) the
backward pass computes a = c − f(b). Training therefore keeps only the last two streams, for any number of blocks, and
runs each of them twice, with the same random numbers. A Reformer's layer is two blocks, F and G: y1 = x1 + F(x2) and
y2 = x2 + G(y1). Blocks may also read a third input, the encoder's output: its gradient is the sum over them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xltraining.layers.swapping import LayerStore, present

__all__ = ["Block", "run_blocks"]


@dataclass(frozen=True)
class Block:
    """A block of one forward pass.

    Attributes:
        module: the parameters that get gradients.
        run: returns the block's output (B,S,D) from the stream (B,S,D) that it reads, the third input, and whether the
            backward pass runs it again. No gradient reaches other tensors that it reads.
    """

    module: nn.Module
    run: Callable[[Tensor, Tensor | None, bool], Tensor]

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that need a gradient."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]


def run_blocks(
    layers: Sequence[Sequence[Block]],
    hidden: Tensor,
    source: Tensor | None = None,
    *,
    reversible: bool = True,
    store: LayerStore | None = None,
    one_stream: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return both streams (B,S,D) after all blocks; both start as hidden (B,S,D).

    Args:
        layers: the blocks of each layer, in order.
        source: the third input, to which gradients flow; None if no block reads it.
        reversible: whether to recompute activations in the backward pass instead of keeping them.
        store: where the layers' weights are, if not on the device; it takes their gradients, too.
        one_stream: whether residual connections are ordinary: every block reads the sum of all before it. Both streams
            of the result are this sum. It cannot be reversible.
    """
    if reversible:
        run = _Run(layers, store)
        return _Reversible.apply(run, hidden, hidden, source, *(run.parameters() if store is None else []))
    first, second = hidden, hidden
    for index, blocks in enumerate(layers):
        with present(store, index, index + 1):
            for block in blocks:
                first, second = second, first + block.run(second, source, False)
                first = second if one_stream else first
    return first, second


class _RandomState:
    """State of the random number generators at one moment, so that a block that runs twice draws the same numbers."""

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

    def __init__(self, layers: Sequence[Sequence[Block]], store: LayerStore | None) -> None:
        self.layers, self.store = layers, store
        self.states: list[list[_RandomState]] = [[] for _ in layers]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that need a gradient, in the order of `backward`'s gradients."""
        return [parameter for blocks in self.layers for block in blocks for parameter in block.trained()]

    def forward(self, first: Tensor, second: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return both streams after all blocks."""
        kind = first.device.type
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self.autocast = torch.autocast(kind, dtype, enabled)
        # With a store, the cache would hold all weights in bfloat16 until the forward pass ends.
        uncached = torch.autocast(kind, dtype, enabled, cache_enabled=False)
        with nullcontext() if self.store is None else uncached:
            for index, blocks in enumerate(self.layers):
                with present(self.store, index, index + 1):
                    for block in blocks:
                        self.states[index].append(_RandomState(first.device))
                        first, second = second, first + block.run(second, source, False)
        return first, second

    def backward(
        self, first: Tensor, second: Tensor, source: Tensor | None, grad_first: Tensor, grad_second: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor | None]]:
        """Return gradients of the streams before all blocks, of `source`, and of `parameters`.

        A store takes the gradients of parameters instead, as soon as they are known.
        """
        gradients: list[Tensor | None] = []
        of_source = None if source is None else torch.zeros_like(source)
        for index in reversed(range(len(self.layers))):
            of_layer: list[Tensor | None] = []
            with present(self.store, index, index - 1):
                for block, state in zip(reversed(self.layers[index]), reversed(self.states[index]), strict=True):
                    # Here (first, second) = (b, a + f(b)). Its gradients are those of b without f, and of a.
                    inputs = [first.detach().requires_grad_()]
                    if source is not None:
                        inputs.append(source.detach().requires_grad_())
                    with torch.enable_grad(), state.restored(), self.autocast:
                        output = block.run(inputs[0], inputs[1] if source is not None else None, True)
                    of_inputs = torch.autograd.grad(
                        output, [*inputs, *block.trained()], grad_second.to(output.dtype), allow_unused=True
                    )
                    first, second = second - output.detach(), first
                    grad_first, grad_second = grad_second, grad_first + of_inputs[0]
                    if of_source is not None and of_inputs[1] is not None:
                        of_source += of_inputs[1]
                    of_layer = [*of_inputs[len(inputs) :], *of_layer]
            if self.store is None:
                gradients = [*of_layer, *gradients]
            else:
                self.store.add_gradients(index, of_layer)
        return grad_first, grad_second, of_source, gradients


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: _Run, first: Tensor, second: Tensor, source: Tensor | None, *_parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, second = run.forward(first, second, source)
        ctx.run = run
        ctx.save_for_backward(first, second, source)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_first: Tensor, grad_second: Tensor) -> tuple[Tensor | None, ...]:
        first, second, of_source, gradients = ctx.run.backward(*ctx.saved_tensors, grad_first, grad_second)
        return None, first, second, of_source, *gradients
