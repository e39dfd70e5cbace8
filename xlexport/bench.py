"""Measure a bundle's speed beside what the machine can do, and beside the eager model, in one run.

Machines are shared and noisy: the sides take turns, and only ratios and medians of one run count.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xlexport.arithmetic import step_flops
from xlexport.checkpoints import SourceCheckpoint
from xlexport.checkpoints import load as load_checkpoint
from xlexport.errors import XlexportError
from xlexport.settings import as_converted, same_model
from xlruntime.model import Model, load
from xlruntime.providers import open_session
from xlruntime.spec import Evaluation

__all__ = ["BenchReport", "bench"]

SGEMM_SIZE = 2048
WHOLE_DOCUMENT = 4096  # tokens of a document that is one step, unless the user gives a length


@dataclass(frozen=True)
class BenchReport:
    """Figures of one run; times are wall time. `speedup` = eager time over ours, medians, None without `against`."""

    segment_len: int
    mem_len: int
    batch_size: int
    threads: int | None
    device: str
    dtype: str
    tokens_per_second: float
    ms_per_segment_p50: float
    ms_per_segment_p95: float
    gflops: float  # arithmetic of a step over its median time
    sgemm_gflops: float  # the best of a 2048-cubed matrix product in this run, by the same runtime and threads
    fraction_of_sgemm: float
    load_seconds: float
    peak_rss_mb: float  # of the process, before PyTorch and the checkpoint are loaded
    eager_tokens_per_second: float | None
    speedup: float | None


def bench(
    folder: Path,
    *,
    against: Path | None = None,
    format: str | None = None,
    config: Mapping[str, Any] | None = None,
    segment_len: int | None = None,
    mem_len: int | None = None,
    clamp_len: int | None = None,
    n_hashes: int | None = None,
    batch_size: int = 1,
    threads: int | None = None,
    device: str = "cpu",
    repeats: int = 7,
    rounds: int = 3,
) -> BenchReport:
    """Time the `score` graph with full memory; `rounds` times `repeats` segments of each side, in turns.

    Args:
        against: a checkpoint whose eager model runs beside it.
        format, config: of that checkpoint, as `checkpoints.load` takes them.

    Raises:
        BundleError, ProviderError, OptionError: as `xlruntime.load`.
        CheckpointError: the checkpoint cannot be read.
        XlexportError: the checkpoint is not of this bundle's shape.
    """
    started = time.perf_counter()
    model = load(folder, device=device, threads=threads)
    load_seconds = time.perf_counter() - started
    own = model.bundle.evaluation
    if own.whole and segment_len is None:
        segment_len = min(own.segment_len, WHOLE_DOCUMENT)
    evaluation = model.evaluation(segment_len, mem_len, clamp_len, n_hashes=n_hashes)
    step = _graph_step(model, evaluation, batch_size)
    step()  # the first run allocates
    peak_rss_mb = _peak_rss_mb()
    eager_step = None
    if against is not None:
        source = load_checkpoint(against, format, config)
        if not same_model(source.architecture, source.config, model.bundle.config):
            raise XlexportError(f"{folder} was converted from another model than {against}. Give its own checkpoint.")
        eager_step = _eager_step(source, model.bundle.config, evaluation, batch_size, threads)
        eager_step()

    graph_seconds: list[float] = []
    eager_seconds: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        sgemm = _sgemm(Path(scratch), threads, model)
        sgemm_seconds = [_seconds(sgemm)]
        for _ in range(rounds):
            graph_seconds += [_seconds(step) for _ in range(repeats)]
            sgemm_seconds += [_seconds(sgemm) for _ in range(3)]
            if eager_step is not None:
                eager_seconds += [_seconds(eager_step) for _ in range(repeats)]

    median, tokens = float(np.median(graph_seconds)), batch_size * evaluation.segment_len
    few = model.bundle.graphs.get("score_few")
    rounds_run = {} if evaluation.n_hashes is None else {"n_hashes": evaluation.n_hashes}
    flops = step_flops(
        model.bundle.architecture,
        {**model.bundle.config, **rounds_run},
        batch_size,
        evaluation.segment_len,
        evaluation.capacity(),
        few=few is not None and evaluation.segment_len <= (few.max_segment or 0),
    )
    sgemm_gflops = 2 * SGEMM_SIZE**3 / min(sgemm_seconds) / 1e9
    eager_median = float(np.median(eager_seconds)) if eager_seconds else None
    return BenchReport(
        segment_len=evaluation.segment_len,
        mem_len=evaluation.mem_len,
        batch_size=batch_size,
        threads=threads,
        device=str(model.device),
        dtype=model.bundle.precision,
        tokens_per_second=tokens / median,
        ms_per_segment_p50=median * 1e3,
        ms_per_segment_p95=float(np.quantile(graph_seconds, 0.95)) * 1e3,
        gflops=flops / median / 1e9,
        sgemm_gflops=sgemm_gflops,
        fraction_of_sgemm=flops / median / 1e9 / sgemm_gflops,
        load_seconds=load_seconds,
        peak_rss_mb=peak_rss_mb,
        eager_tokens_per_second=tokens / eager_median if eager_median else None,
        speedup=eager_median / median if eager_median else None,
    )


def _graph_step(model: Model, evaluation: Evaluation, batch_size: int) -> Callable[[], object]:
    """One step on full memory, at ever new places of the ring."""
    memory = model.new_memory(evaluation, batch_size)
    memory.memory_length[:] = evaluation.mem_len
    random = np.random.default_rng(0)
    for entry in memory.entries:
        if entry.dtype == "int32":  # bucket ids: all alike, they would make other work of it
            ids = memory.array(entry)
            ids[:] = random.integers(0, math.prod(model.bundle.config["n_buckets"]), ids.shape)
    tokens, targets = _random_tokens(model.bundle.vocab_size, batch_size, evaluation.segment_len)

    def step() -> object:
        # Positions end in some models, and the next of these steps shall be as good as this one.
        memory.position[:] = _position(evaluation)
        return model.step("score", memory, tokens, targets)

    return step


def _position(evaluation: Evaluation) -> int:
    """Where a step with full memory stands in its document, or as far on as positions allow."""
    if evaluation.whole:
        return 0
    last = evaluation.longest_part
    return evaluation.mem_len if last is None else min(evaluation.mem_len, max(0, last - evaluation.segment_len))


def _eager_step(
    source: SourceCheckpoint,
    config: Mapping[str, Any],
    evaluation: Evaluation,
    batch_size: int,
    threads: int | None,
) -> Callable[[], object]:
    """The same work by the eager model, with the paper's memory of hidden states."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    tokens, targets = map(torch.from_numpy, _random_tokens(config["n_token"], batch_size, evaluation.segment_len))
    model = source.build_model()
    if source.architecture == "reformer":
        eager = as_converted(model, config).with_evaluation(
            mem_len=evaluation.mem_len or None, n_hashes=evaluation.n_hashes
        )
        state = {"memory": _random_memory(eager, _position(evaluation), batch_size)}
        carries = False  # positions may end
    else:
        eager = model.with_evaluation(
            mem_len=evaluation.mem_len, clamp_len=evaluation.clamp_len, same_length=evaluation.same_length
        )
        state = {"memory": [torch.zeros(batch_size, evaluation.mem_len, config["d_model"])] * config["n_layer"]}
        carries = True

    @torch.inference_mode()
    def step() -> object:
        hidden, memory = eager(tokens, state["memory"])
        if carries:
            state["memory"] = memory
        return eager.log_probs(hidden, targets)

    return step


def _random_memory(eager: Any, position: int, batch_size: int) -> Any:
    """A Reformer's memory behind `position` tokens, in buckets of about one size."""
    import torch

    from xltraining.reformer import ReformerMemory

    config = eager.config
    generator = torch.Generator().manual_seed(0)
    layers: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for kind in config.attn_layers:
        rows = min(position, config.local_rows if kind == "local" else config.mem_len)
        buckets = None
        if kind == "lsh":
            shape = (batch_size, config.n_head, config.n_hashes, rows)
            buckets = torch.randint(config.buckets, shape, generator=generator)
        layers.append((torch.randn(batch_size, rows, config.d_model, generator=generator), buckets))
    return ReformerMemory(position, layers)


def _random_tokens(vocab_size: int, batch_size: int, segment_len: int) -> Any:
    return np.random.default_rng(0).integers(0, vocab_size, (2, batch_size, segment_len))


def _sgemm(scratch: Path, threads: int | None, model: Model) -> Callable[[], object]:
    """A large matrix product in the same runtime with the same threads: the most that arithmetic can go at."""
    import onnx_ir as ir

    a, b = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([SGEMM_SIZE, SGEMM_SIZE]))
        for name in "ab"
    )
    product = ir.node("MatMul", [a, b])
    graph = ir.Graph([a, b], product.outputs, nodes=[product], opset_imports={"": 20}, name="sgemm")
    product.outputs[0].name = "c"
    product.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    ir.save(ir.Model(graph, ir_version=10), scratch / "sgemm.onnx")
    session = open_session(scratch / "sgemm.onnx", model.device, threads)
    feeds = dict.fromkeys("ab", np.random.default_rng(0).random((SGEMM_SIZE, SGEMM_SIZE), np.float32))
    return lambda: session.run(None, feeds)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes, but bytes on macOS
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
