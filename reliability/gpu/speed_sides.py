"""The sides that `speed.py` measures: steps of one model by the bundle and by PyTorch, on one device.

All sides score the same tokens after the same full memory in every step, and a step ends with the scores on the CPU. So
a step's time includes all work of the device, and the scores can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from benchmarks.sides import Ready
from benchmarks.transformer_xl_sides import scoring_module

__all__ = ["WARM", "by_bundle", "by_pytorch"]

WARM = 8  # steps of every side before the first turn; a shape gets a captured session with its fifth step


def by_bundle(folder: str, device: str, threads: int, work: Mapping[str, int], captured: bool) -> Ready:
    """Return steps of the bundle; `captured`: replayed as CUDA graphs (on a CPU: in sessions of fixed sizes)."""
    import xlruntime
    from xlexport.bench.roofline import step_floor
    from xlexport.bench.sides import GraphSide, Work

    model = xlruntime.load(folder, device=device, threads=threads, cuda_graphs=captured and device != "cpu")
    if captured and device == "cpu":
        model.use_fixed()
    evaluation = model.evaluation(work["segment_len"], mem_len=work["mem_len"])
    side = GraphSide(model, Work("score", evaluation, work["segment_len"], work["batch_size"]))

    def step() -> npt.NDArray[Any]:
        return cast(Mapping[str, npt.NDArray[Any]], side.step())["log_prob"]

    floor = step_floor(side)
    return Ready(step, {**_facts(work), "flops": floor.flops, "bytes": floor.bytes}, WARM)


def by_pytorch(checkpoint: str, device: str, threads: int, work: Mapping[str, int], compiled: bool) -> Ready:
    """Return steps of the eager model with the paper's memory of hidden states, or of its `torch.compile` form."""
    import torch
    from torch._inductor import config as inductor

    from xlexport.bench.sides import Work
    from xlexport.checkpoints import load
    from xltraining.transformer_xl import TransformerXL

    torch.set_num_threads(threads)
    if compiled:
        # With torch 2.13 it overwrites values that models of three or more layers still need: scores are off by nats.
        inductor.inplace_buffers = False
    source = load(Path(checkpoint))
    built = source.build_model()
    assert isinstance(built, TransformerXL)
    model = built.eval().to(device).with_evaluation(mem_len=work["mem_len"])
    config = {"n_token": model.config.n_token, "cutoffs": model.config.cutoffs}
    ids = Work("score", cast(Any, None), work["segment_len"], work["batch_size"]).ids(config)

    module = scoring_module(model)
    run: Any = torch.compile(module, dynamic=False) if compiled else module
    state = model.first_memory(work["batch_size"])

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        tokens, targets = (torch.from_numpy(each).to(device) for each in ids)
        log_probs, *state[:] = run(tokens, targets, *state)
        found: npt.NDArray[np.float32] = log_probs.cpu().numpy()
        if device != "cpu":
            torch.cuda.synchronize(device)  # the new memory, too
        return found

    return Ready(step, {**_facts(work), "matmul_precision": torch.get_float32_matmul_precision()}, WARM)


def _facts(work: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts about a side; the scores of sides with the same batch size are compared."""
    return {"tokens": work["batch_size"] * work["segment_len"], "model": f"batch {work['batch_size']}"}
