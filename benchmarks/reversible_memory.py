"""Measure the memory of activations in one training step, by number of layers, for reversible and ordinary layers.

python -m benchmarks.reversible_memory [--device cuda] [--layers 2 8 24] [--segment 2048]

A step also holds tensors that always grow with the number of layers: weights, gradients, and the rows and bucket ids
that are carried to the next segment. The allocator's peak includes all of them, so they are subtracted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from xltraining.reformer import Reformer, ReformerConfig, ReformerMemory

LAYERS = ("local", "lsh")  # in turn


def carried_bytes(memory: ReformerMemory) -> int:
    """Return the bytes of the rows and bucket ids of a memory."""
    return sum(tensor.nbytes for layer in memory.layers for tensor in layer if tensor is not None)


def peak_on_cpu(trace: Path) -> int:
    """Return the peak of bytes in a profiled step, minus the bytes at its start."""
    held, peak = 0, 0
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def activation_bytes(config: ReformerConfig, reversible: bool, batch_size: int, device: torch.device) -> int:
    """Return the peak of activation bytes in the second of two training steps."""
    torch.manual_seed(0)
    model = Reformer(config).to(device).train()
    model.reversible = reversible
    tokens = torch.randint(0, config.n_token, (batch_size, config.tgt_len), device=device)

    def step() -> ReformerMemory:
        model.zero_grad(set_to_none=True)
        hidden, memory = model(tokens)
        model.loss(hidden, tokens).backward()
        return memory

    step()  # tensors that are created once do not count
    model.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        memory = step()
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            memory = step()
        with tempfile.TemporaryDirectory() as folder:
            profiled.export_chrome_trace(str(Path(folder) / "trace.json"))
            peak = peak_on_cpu(Path(folder) / "trace.json")
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    return peak - gradients - carried_bytes(memory)


def main() -> None:
    """Print a line for each number of layers, and the growth of memory from the first to the last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 24])
    parser.add_argument("--segment", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=1)
    arguments = parser.parse_args()
    sizes: dict[bool, list[float]] = {True: [], False: []}
    print("layers  reversible MB  ordinary MB")
    for layers in arguments.layers:
        config = replace(
            ReformerConfig(tgt_len=arguments.segment), attn_layers=tuple(LAYERS[n % len(LAYERS)] for n in range(layers))
        )
        for reversible, column in sizes.items():
            bytes_held = activation_bytes(config, reversible, arguments.batch_size, torch.device(arguments.device))
            column.append(bytes_held / 1e6)
        print(f"{layers:6}  {sizes[True][-1]:13,.1f}  {sizes[False][-1]:11,.1f}", flush=True)
    growth = {reversible: column[-1] / column[0] - 1 for reversible, column in sizes.items()}
    print(f"growth  {growth[True]:13.1%}  {growth[False]:11.1%}")


if __name__ == "__main__":
    main()
