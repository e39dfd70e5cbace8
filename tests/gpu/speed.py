"""Measure three shapes at three batch sizes: the bundle, PyTorch eager, `torch.compile`, and captures at batch 1.

Of Reformers, the bundle alone is measured at batch 1, and rule `band` also as captures. The largest shape is also
measured in TF32 and float16: the bundle, captures and `torch.compile` at batches of 1 and 32. Both come first.

Every side is a separate process. The sides of one shape prepare at the same time, because compilations take longest,
and then take turns on the device. All sides score the same tokens after the same full memory in every step, and a step
ends with the scores on the CPU. So a step's time includes all work of the device, and the scores can be compared.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from benchmarks.sides import Ready, Side, SideError, measure
from benchmarks.transformer_xl import scoring_module
from tests.gpu.bundles import (
    HALF,
    TF32,
    Shape,
    bundle_of,
    checkpoint_of,
    fixed_batches,
    low_precisions,
    make_low_precisions,
    shapes_of,
)
from tests.gpu.parts import PartError, Record, Settings

BATCHES, TINY_BATCHES = (1, 8, 32), (1,)
FIXED_BATCH = 1  # of the bundles with fixed shapes
BUNDLE, CAPTURED, EAGER, COMPILED = "bundle", "bundle, CUDA graphs", "PyTorch eager", "torch.compile"
WARM = 8  # steps of every side before the first turn; the first two are captured
ROUNDS, REPEATS = 3, 10
TINY_ROUNDS, TINY_REPEATS = 1, 2
READY_AT_ONCE = 8  # processes; each compiles with few threads
# Nats: ten times the largest difference of correct sides on a CPU; `benchmarks` calls more "another computation".
ROUNDING = 1e-3
LOW_ROUNDING = 0.1  # in TF32 and float16, whose 10 bits are 8,192 times as coarse; wrong memory costs whole nats


def by_bundle(folder: Path, device: str, threads: int, work: Mapping[str, int], captured: bool) -> Ready:
    """Return steps of a bundle; `captured`: replayed as CUDA graphs, except on a CPU."""
    import xlruntime
    from xlexport.bench.roofline import step_floor
    from xlexport.bench.sides import GraphSide, StepWork

    on_cuda = device != "cpu"
    options = {"use_tf32": "1"} if on_cuda and work[TF32] else None
    model = xlruntime.load(
        folder, device=device, threads=threads, cuda_graphs=captured and on_cuda, provider_options=options
    )
    evaluation = (
        model.evaluation(work["segment_len"], mem_len=work["mem_len"]) if work["mem_len"] else model.evaluation()
    )
    side = GraphSide(model, StepWork("score", evaluation, work["segment_len"], work["batch_size"]))

    def step() -> npt.NDArray[Any]:
        return cast(Mapping[str, npt.NDArray[Any]], side.step())["log_prob"]

    return Ready(step, {**_facts(work), **asdict(step_floor(side))}, WARM)


def by_pytorch(checkpoint: Path, device: str, threads: int, work: Mapping[str, int], compiled: bool) -> Ready:
    """Return steps of the eager model with the paper's memory of hidden states, or of its `torch.compile` form."""
    import torch
    from torch._inductor import config as inductor

    from xlexport.bench.sides import StepWork
    from xlexport.formats import load
    from xltraining.transformer_xl import TransformerXL

    torch.set_num_threads(threads)
    if work[TF32]:
        torch.set_float32_matmul_precision("high")
    if compiled:
        # With torch 2.13 it overwrites values that models of three or more layers still need: scores are off by nats.
        inductor.inplace_buffers = False
    source = load(checkpoint)
    built = source.build_model()
    assert isinstance(built, TransformerXL)
    numbers = torch.float16 if work[HALF] else torch.float32
    model = built.eval().to(device, numbers).with_evaluation(mem_len=work["mem_len"])
    config = {"n_token": model.config.n_token, "cutoffs": model.config.cutoffs}
    ids = StepWork("score", cast(Any, None), work["segment_len"], work["batch_size"]).ids(config)

    module = scoring_module(model)
    run: Any = torch.compile(module, dynamic=False) if compiled else module
    state = model.first_memory(work["batch_size"])

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        tokens, targets = (torch.from_numpy(each).to(device) for each in ids)
        with torch.autocast(torch.device(device).type, torch.float16, enabled=bool(work[HALF])):
            log_probs, *state[:] = run(tokens, targets, *state)
        scores: npt.NDArray[np.float32] = log_probs.float().cpu().numpy()
        if device != "cpu":
            torch.cuda.synchronize(device)  # the new memory, too
        return scores

    return Ready(step, {**_facts(work), "matmul_precision": torch.get_float32_matmul_precision()}, WARM)


def _facts(work: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts about a side; the scores of sides with the same batch size are compared."""
    return {"tokens": work["batch_size"] * work["segment_len"], "model": f"batch {work['batch_size']}"}


SIDES: Mapping[str, tuple[Callable[..., Any], bool]] = {
    BUNDLE: (by_bundle, False),
    CAPTURED: (by_bundle, True),
    EAGER: (by_pytorch, False),
    COMPILED: (by_pytorch, True),
}


def side_name(side: str, batch_size: int) -> str:
    """Return the name of a side at one batch size, as in the figures."""
    return f"{side}, batch {batch_size}"


def measure_speed(settings: Settings, record: Record) -> None:
    """Measure shape by shape; a side that cannot run is left out.

    Raises:
        PartError: a side did not run, or its scores differ from the bundle's.
    """
    problems: list[str] = []
    shapes: dict[str, Any] = {}
    exact = shapes_of(settings)
    never_timed = (*(shape for shape in exact if shape.rule), *low_precisions(settings))
    for shape in (*never_timed, *(shape for shape in exact if not shape.rule)):
        try:
            if shape.precision == TF32:
                make_low_precisions(settings)
            figures, failed = _measure_shape(settings, shape)
        except (SideError, PartError, OSError) as error:  # a process ended during its turn, or bundles failed
            figures, failed = {"title": shape.title}, {"a turn": str(error)}
        shapes[shape.name] = figures
        problems += [f"{shape.name}, {side}: {reason}" for side, reason in failed.items()]
        for side, row in figures.get("sides", {}).items():
            most = ROUNDING if shape.precision == "float32" else LOW_ROUNDING
            if not row.get("max_abs_log_prob_diff", float("inf")) <= most:
                problems.append(f"{shape.name}, {side}: its scores are not the bundle's")
        record({"shapes": shapes, "problems": problems})
    if problems:
        raise PartError(f"{len(problems)} problems, first: {problems[0]}")


def _sides_of(shape: Shape, batch_size: int, tiny: bool) -> list[str]:
    """Return the sides of a shape; a rehearsal compiles one shape only, as compilations take longest."""
    if shape.rule:
        return [BUNDLE, *([CAPTURED] if shape.mem_len else [])]
    if shape.precision != "float32":
        return [BUNDLE, CAPTURED, EAGER if tiny else COMPILED]
    left_out = set() if batch_size == FIXED_BATCH else {CAPTURED}
    if tiny and shape.config.get("cutoffs"):
        left_out.add(COMPILED)
    return [side for side in SIDES if side not in left_out]


def _measure_shape(settings: Settings, shape: Shape) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the figures of the sides that were ready, and the reasons why the others were not."""
    threads = os.cpu_count() or 1
    batches: tuple[int, ...] = TINY_BATCHES if settings.tiny or shape.rule else BATCHES
    if shape.precision != "float32":
        batches = fixed_batches(settings)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(min(READY_AT_ONCE, max(2, threads // 2))) as pool:
        starting = {
            side_name(side, batch_size): pool.submit(_start, settings, shape, side, batch_size, scratch)
            for batch_size in batches
            for side in _sides_of(shape, batch_size, settings.tiny)
        }
        ready, failed = _wait(starting)
        figures: dict[str, Any] = {"title": shape.title, "segment_len": shape.segment_len, "mem_len": shape.mem_len}
        if not ready:
            return figures, failed
        rounds, repeats = (TINY_ROUNDS, TINY_REPEATS) if settings.tiny else (ROUNDS, REPEATS)
        makers = {name: (lambda side=side: side) for name, side in ready.items()}
        figures |= measure(makers, rounds, repeats, threads, settings.device)
        return figures, failed


def _wait(starting: Mapping[str, Future[Side]]) -> tuple[dict[str, Side], dict[str, str]]:
    ready, failed = dict[str, Side](), dict[str, str]()
    for name, future in starting.items():
        try:
            ready[name] = future.result()
        except (SideError, OSError) as error:
            failed[name] = str(error)
    return ready, failed


def _start(settings: Settings, shape: Shape, side: str, batch_size: int, scratch: str) -> Side:
    """Start a side and wait until it has run its first steps."""
    function, variant = SIDES[side]
    name = shape.name if shape.precision == HALF else shape.exact
    bundle = bundle_of(settings, name, batch_size if side == CAPTURED else 0)
    source = bundle if function is by_bundle else checkpoint_of(settings, shape)
    work = {"segment_len": shape.segment_len, "mem_len": shape.mem_len, "batch_size": batch_size}
    work |= {precision: int(shape.precision == precision) for precision in (TF32, HALF)}
    # Not a cache of another run, which may have been interrupted. Each side has few compilers, as many sides compile.
    environment = {"TORCHINDUCTOR_CACHE_DIR": scratch, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    return Side(function, source, settings.device, os.cpu_count() or 1, work, variant, environment=environment)
