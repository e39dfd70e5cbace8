"""Training a Transformer-XL here and in Hugging Face's TransfoXL, in turns: tokens per second and memory.

    python -m benchmarks.training_beside_hugging_face

Both models have the same shape, the same optimizer (Adam, clipped gradients) and carried memory. Each side runs in a
process of its own, and both take turns, so that a slow phase of the machine meets both. The memory is the largest
resident size of each process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

SHAPE: dict[str, Any] = {"n_layer": 6, "d_model": 256, "n_head": 8, "d_head": 32, "d_inner": 1024}
BATCH, SEGMENT, MEMORY, VOCABULARY = 8, 128, 128, 256
RATE, CLIP = 2.5e-4, 0.25


def ours(dropout: float, compiled: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    from xltraining.loop.fast_dropout import use_fast_dropout
    from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

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


def theirs(dropout: float, compiled: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

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


def _updating(
    model: torch.nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)

    def update(tokens: torch.Tensor) -> torch.Tensor:
        loss = loss_of(tokens)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.detach()

    return update


def side(name: str, threads: int, dropout: float, compiled: bool) -> None:
    """Update whenever a line comes, and answer with the seconds that it took."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    update = {"ours": ours, "theirs": theirs}[name](dropout, compiled)
    for line in sys.stdin:
        tokens = torch.randint(VOCABULARY, (BATCH, SEGMENT + 1))
        started = time.perf_counter()
        for _ in range(int(line)):
            update(tokens)
        seconds = (time.perf_counter() - started) / int(line)
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=3, help="updates of a side at a turn")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true", help="translate both models by torch.compile")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given.side, given.threads, given.dropout, given.compile)
        return
    command = [sys.executable, "-m", "benchmarks.training_beside_hugging_face", *sys.argv[1:], "--side"]
    sides = {
        name: subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("ours", "theirs")
    }
    found: dict[str, list[list[float]]] = {name: [] for name in sides}
    for turn in range(given.rounds + 1):
        for name, process in sides.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{given.updates}\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            if turn:  # the first turn warms up
                found[name].append(answer)
    for process in sides.values():
        process.communicate()
    medians = {name: statistics.median(seconds for seconds, _ in answers) for name, answers in found.items()}
    for name, answers in found.items():
        speed, megabytes = BATCH * SEGMENT / medians[name], answers[-1][1]
        print(f"{name:7} {medians[name] * 1e3:7.1f} ms an update, {speed:7,.0f} tokens/s, at most {megabytes:,.0f} MB")
    pairs = zip(found["ours"], found["theirs"], strict=True)
    ratios = sorted(theirs / ours for (ours, _), (theirs, _) in pairs)
    print(f"ours is {statistics.median(ratios):.2f} times as fast (turns: {ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
