"""Updates of a Transformer-XL here and of Hugging Face's: sides for `training_beside_hugging_face.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.sides import Ready

__all__ = ["BATCH", "SEGMENT", "ours", "theirs"]

SHAPE: dict[str, Any] = {"n_layer": 6, "d_model": 256, "n_head": 8, "d_head": 32, "d_inner": 1024}
BATCH, SEGMENT, MEMORY, VOCABULARY = 8, 128, 128, 256
RATE, CLIP = 2.5e-4, 0.25


def ours(threads: int, dropout: float, compiled: bool) -> Ready:
    """Return the side of this project's training."""
    from xltraining.loop.fast_dropout import use_fast_dropout
    from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

    _prepare(threads)
    config = TransformerXLConfig(**SHAPE, n_token=VOCABULARY, tgt_len=SEGMENT, mem_len=MEMORY, dropout=dropout)
    model = TransformerXL(config).train()
    use_fast_dropout(model)
    if compiled:
        model.compile()
    memory: Any = None

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        nonlocal memory
        hidden, memory = model(tokens[:, :-1], memory)
        return model.loss(hidden, tokens[:, 1:])

    return _updating(model, loss)


def theirs(threads: int, dropout: float, compiled: bool) -> Ready:
    """Return the side of Hugging Face's model."""
    from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    _prepare(threads)
    original = torch.Tensor.type_as  # its forward passes `dtype`, which torch never took

    def type_as(x: Any, other: Any = None, dtype: Any = None) -> Any:
        return x.to(dtype) if dtype else original(x, other)

    setattr(torch.Tensor, "type_as", type_as)  # noqa: B010  # mypy forbids an assignment to a method
    settings = {"vocab_size": VOCABULARY, "cutoffs": [], "d_embed": SHAPE["d_model"], "div_val": 1, "clamp_len": -1}
    settings |= {"mem_len": MEMORY, "dropout": dropout, "same_length": False, "adaptive": True}
    model = TransfoXLLMHeadModel(TransfoXLConfig(**SHAPE, **settings)).train()
    if compiled:
        model.compile()
    memory: Any = None

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        nonlocal memory
        output = model(tokens[:, :-1], mems=memory, labels=tokens[:, :-1], return_dict=True)
        memory = output.mems
        return output.losses.mean()

    return _updating(model, loss)


def _prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)


def _updating(model: torch.nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> Ready:
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)

    def update() -> None:
        loss = loss_of(torch.randint(VOCABULARY, (BATCH, SEGMENT + 1)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return Ready(update)
