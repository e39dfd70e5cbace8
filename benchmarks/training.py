"""Compare training of a Transformer-XL with that of Hugging Face's TransfoXL, in turns: time of an update and memory.

    python -m benchmarks.training

Both models have the same shape, the same optimizer (Adam, clipped gradients) and carried memory. Each side runs in a
process of its own, and both take turns, so that a slow phase of the machine meets both. A step is an update. The memory
is the largest resident size of each process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from benchmarks.sides import Ready, Side, measure, print_table
from benchmarks.transformer_xl import accept_dtype

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["main"]

SHAPE: dict[str, Any] = {"n_layer": 6, "d_model": 256, "n_head": 8, "d_head": 32, "d_inner": 1024}
BATCH, SEGMENT, MEMORY, VOCABULARY = 8, 128, 128, 256
RATE, CLIP = 2.5e-4, 0.25


def our_training(threads: int, dropout: float, compiled: bool) -> Ready:
    """Return the side of this project's training."""
    from xltraining.loop.fast_dropout import use_fast_dropout
    from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

    config = TransformerXLConfig(**SHAPE, n_token=VOCABULARY, tgt_len=SEGMENT, mem_len=MEMORY, dropout=dropout)
    model = TransformerXL(config)
    use_fast_dropout(model)
    memory: Any = None

    def loss(tokens: Tensor) -> Tensor:
        nonlocal memory
        hidden, memory = model(tokens[:, :-1], memory)
        return model.loss(hidden, tokens[:, 1:])

    return _update_side(model, loss, threads, compiled)


def hugging_face(threads: int, dropout: float, compiled: bool) -> Ready:
    """Return the side of Hugging Face's model."""
    from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    accept_dtype()
    settings = {"vocab_size": VOCABULARY, "cutoffs": [], "d_embed": SHAPE["d_model"], "div_val": 1, "clamp_len": -1}
    settings |= {"mem_len": MEMORY, "dropout": dropout, "same_length": False, "adaptive": True}
    model = TransfoXLLMHeadModel(TransfoXLConfig(**SHAPE, **settings))
    memory: Any = None

    def loss(tokens: Tensor) -> Tensor:
        nonlocal memory
        output = model(tokens[:, :-1], mems=memory, labels=tokens[:, :-1], return_dict=True)
        memory = output.mems
        mean: Tensor = output.losses.mean()
        return mean

    return _update_side(model, loss, threads, compiled)


def _update_side(model: nn.Module, loss_of: Callable[[Tensor], Tensor], threads: int, compiled: bool) -> Ready:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model.train()
    if compiled:
        model.compile()
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)

    def update() -> None:
        loss = loss_of(torch.randint(VOCABULARY, (BATCH, SEGMENT + 1)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return Ready(update, {"tokens": BATCH * SEGMENT})


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1))
@click.option("--updates", default=3, show_default=True, type=click.IntRange(1), help="Updates of a side in a round.")
@click.option("--dropout", default=0.1, show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Translate both models by torch.compile.")
def main(threads: int, rounds: int, updates: int, dropout: float, compiled: bool) -> None:
    """Measure both sides, and print them."""
    sides = {"ours": our_training, "Hugging Face": hugging_face}
    makers = {name: partial(Side, function, threads, dropout, compiled) for name, function in sides.items()}
    print_table(f"dropout {dropout}", measure(makers, rounds, updates, threads))


if __name__ == "__main__":
    main()
