"""Measure a bundle's speed, the speed of the machine and that of the eager model in one run.

Machines are shared and noisy. So the measured sides take turns, and only ratios and medians of one run count. There are
no ratios if other programs took the cores. BENCHMARKS.md explains how to read the figures.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from xlexport.bench.measuring import PRECISION, Clock, RateMeter, Rates, disturbance, peak_rss_mb, take_turns
from xlexport.bench.operator_profile import profile_step
from xlexport.bench.report import BenchReport
from xlexport.bench.roofline import step_floor
from xlexport.bench.sides import EagerSide, GraphSide, Purpose, StepWork
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import XlexportError
from xlexport.families import architecture
from xlexport.model_names import load_source
from xlruntime.errors import OptionError
from xlruntime.load_options import LoadOptions
from xlruntime.model import Model, load
from xlruntime.providers import import_onnxruntime

__all__ = ["BenchReport", "SpeedComparison", "bench", "compare_speed", "sweep"]

WHOLE_DOCUMENT = 4096  # tokens of a document that is one step, if the user gives no length
MACHINE_RUNS = 3  # of each rate in a round
ROUNDS, REPEATS, PATIENCE, COARSE = 9, 7, 30.0, 0.1  # of `compare_speed`: rounds, steps in each, seconds, precision


def bench(
    folder: Path,
    *,
    segment_len: int | None = None,
    mem_len: int | None = None,
    batch_size: int = 1,
    threads: int | None = None,
    **options: Any,
) -> BenchReport:
    """Measure one combination; see `sweep` for arguments and errors."""
    (report,) = sweep(
        folder, segment_len=[segment_len], mem_len=[mem_len], batch_size=[batch_size], threads=[threads], **options
    )
    return report


def sweep(
    folder: Path,
    *,
    segment_len: Sequence[int | None] = (None,),
    mem_len: Sequence[int | None] = (None,),
    batch_size: Sequence[int] = (1,),
    threads: Sequence[int | None] = (None,),
    against: str | Path | None = None,
    format: str | None = None,
    config: Mapping[str, Any] | None = None,
    weights: Path | None = None,
    trust: bool = False,
    purpose: Purpose = "score",
    repeats: int = 7,
    rounds: int = 3,
    profile: bool = False,
    precision: float = PRECISION,
    patience: float = math.inf,
    **options: Any,
) -> Iterator[BenchReport]:
    """Measure steps with full memory for every combination, `rounds` times `repeats` of each side, in turns.

    Args:
        segment_len, mem_len, batch_size, threads: the values to combine; None: the bundle's own value, or ONNX
            Runtime's choice of threads.
        against: a checkpoint, or the name of a model, whose eager model is measured too.
        format, config, weights, trust: of that model, as in `load_source`; None: what `convert` was given.
        purpose: `score`, or `generate` (one token after the other, without the time to draw a token).
        profile: also measure the time of each operator.
        precision: of ratios, see `measuring.disturbance`.
        patience: seconds after which no further round of a combination begins.
        options: of `xlruntime.load`, such as `device`, and other settings of the evaluation, see `Model.evaluation`.

    Yields:
        Each report as soon as it is complete; all reports of the first number of threads come first.

    Raises:
        BundleError, ProviderError: as in `xlruntime.load`.
        OptionError: combinations are impossible; the message lists all of them, before any measurement.
        CheckpointError, TrustError: as in `load_source`.
        XlexportError: the checkpoint and the bundle have different sizes.
    """
    loading = {entry.name: options.pop(entry.name) for entry in fields(LoadOptions) if entry.name in options}
    sizes = list(dict.fromkeys(itertools.product(segment_len, mem_len, batch_size)))
    eager: EagerSide | None = None
    for number, count in enumerate(dict.fromkeys(threads)):
        import_onnxruntime()  # once for each process, so it is not part of loading
        started = time.perf_counter()
        model = load(folder, threads=count, **loading)
        load_seconds = time.perf_counter() - started
        works = _works(model, purpose, sizes, options)
        peak = None
        if number == 0:
            GraphSide(model, works[0]).step()  # the first step allocates
            peak = peak_rss_mb()
            if against is not None:
                source = load_source(against, format, config, weights=weights, trust=trust, bundle=model.bundle)
                eager = _eager(against, source, model)
        machine = RateMeter(model.device, count)
        for work in works:
            side = GraphSide(model, work)
            eager_step = None if eager is None else eager.step(model.bundle.config, work, model.threads)
            steps = [side.step, *([eager_step] if eager_step else [])]
            clocks, rates = _measure(steps, rounds, repeats, machine, patience)
            yield _report(side, clocks, Rates.best(rates), precision, load_seconds, peak, profile)
            peak = None  # later peaks would include earlier combinations


@dataclass(frozen=True)
class SpeedComparison:
    """The speeds of two bundles of one model, whose steps took turns.

    Attributes:
        before, after: tokens per second, from the median time of a step.
        disturbance: why they cannot be compared, or None.
    """

    before: float
    after: float
    disturbance: str | None


def compare_speed(before: Path, after: Path, threads: int | None = None) -> SpeedComparison:
    """Measure how fast two bundles score, such as a bundle and its quantized copy.

    Raises:
        BundleError, ProviderError: as in `xlruntime.load`.
    """
    models = [load(folder, threads=threads) for folder in (before, after)]
    sides = [GraphSide(model, _work(model, "score", None, {}, 1)) for model in models]
    clocks, _ = _measure([side.step for side in sides], ROUNDS, REPEATS, patience=PATIENCE)
    first, second = (side.work.tokens / clock.quantile(0.5) for side, clock in zip(sides, clocks, strict=True))
    return SpeedComparison(first, second, disturbance(*clocks, precision=COARSE))


def _works(
    model: Model,
    purpose: Purpose,
    sizes: Sequence[tuple[int | None, int | None, int]],
    evaluation: Mapping[str, Any],
) -> list[StepWork]:
    """Return the steps of all combinations.

    Raises:
        OptionError: the message names all impossible combinations.
    """
    works: list[StepWork] = []
    problems: dict[str, None] = {}
    for segment_len, mem_len, batch_size in sizes:
        try:
            works.append(_work(model, purpose, segment_len, {**evaluation, "mem_len": mem_len}, batch_size))
        except OptionError as error:
            problems[str(error)] = None
    if problems:
        raise OptionError(" ".join(problems) + (" Nothing was measured." if len(sizes) > 1 else ""))
    return works


def _work(
    model: Model, purpose: Purpose, segment_len: int | None, settings: Mapping[str, Any], batch_size: int
) -> StepWork:
    own = model.bundle.settings
    generates = purpose == "generate" and not own.full_document
    if generates and segment_len not in (None, 1):
        raise OptionError(f"segment_len is {segment_len}, but tokens are generated one by one.", hint="Leave it out.")
    if own.full_document and segment_len is None:
        segment_len = min(own.segment_len, WHOLE_DOCUMENT)
    # A generating stream keeps room for segments of the model's own length, because it reads its prompt in them.
    evaluation = model.evaluation(None if generates else segment_len, **settings)
    if segment_len is not None and segment_len > evaluation.segment_len:
        raise OptionError(
            f"segment_len is {segment_len}, but the model reads at most {evaluation.segment_len} tokens of a document."
        )
    return StepWork(purpose, evaluation, 1 if generates else evaluation.segment_len, batch_size)


def _eager(against: str | Path, source: SourceCheckpoint, model: Model) -> EagerSide:
    bundle, config = model.bundle, source.config
    # A conversion may change some fields.
    names = {*config, *bundle.config} - {*architecture(bundle.architecture).converted_fields}
    same = all(config.get(name) == bundle.config.get(name) for name in names)
    if source.architecture != bundle.architecture or not same:
        raise XlexportError(
            f"{model.folder} was converted from another model than {against}.", hint="Give its own checkpoint."
        )
    return EagerSide(source)


def _measure(
    steps: Sequence[Callable[[], object]],
    rounds: int,
    repeats: int,
    machine: RateMeter | None = None,
    patience: float = math.inf,
) -> tuple[list[Clock], list[Rates]]:
    """Run each step once; then measure them in turns, and return their clocks and the machine's rates."""
    for step in steps:
        step()
    clocks, rates = [Clock() for _ in steps], list[Rates]()
    turns = [partial(clock.round, step, repeats) for clock, step in zip(clocks, steps, strict=True)]
    take_turns(turns, rounds, lambda: rates.extend([machine.rates(MACHINE_RUNS)] if machine else []), patience)
    return clocks, rates


def _report(
    side: GraphSide,
    clocks: Sequence[Clock],
    rates: Rates,
    precision: float,
    load_seconds: float,
    peak: float | None,
    profile: bool,
) -> BenchReport:
    """Return the figures of one combination; `clocks` are of the bundle and, if it was measured, of the eager model."""
    clock, *others = clocks
    model, work, floor = side.model, side.work, step_floor(side)
    median, best_round, steps = clock.quantile(0.5), min(clock.medians), len(clock.runs)
    eager_median = eager_best_round = None
    for eager_clock in others:
        eager_median = eager_clock.quantile(0.5)
        eager_best_round = eager_clock.medians[clock.medians.index(best_round)]
    disturbed = disturbance(*clocks, precision=precision)
    compared = disturbed is None
    least, gflops = floor.seconds(rates), None if floor.flops is None else floor.flops / median / 1e9
    return BenchReport(
        segment_len=work.segment_len,
        mem_len=work.evaluation.most_rows,
        batch_size=work.batch_size,
        threads=model.threads,
        device=model.device.description,
        dtype=model.bundle.precision,
        tokens_per_second=work.tokens / median,
        ms_per_segment_p50=median * 1e3,
        ms_per_segment_p95=clock.quantile(0.95) * 1e3,
        gflops=gflops,
        sgemm_gflops=rates.sgemm,
        fraction_of_sgemm=gflops / rates.sgemm if gflops is not None and compared else None,
        load_seconds=load_seconds,
        peak_rss_mb=peak,
        eager_tokens_per_second=work.tokens / eager_median if eager_median else None,
        speedup=eager_median / median if eager_median and compared else None,
        purpose=work.purpose,
        ms_per_segment_best_round=best_round * 1e3,
        speedup_best_round=eager_best_round / best_round if eager_best_round and compared else None,
        user_ms_per_segment=clock.user / steps * 1e3,
        system_ms_per_segment=clock.system / steps * 1e3,
        flops_per_segment=floor.flops,
        bytes_per_segment=floor.bytes,
        copy_gb_per_second=rates.copy,
        read_gb_per_second=rates.read,
        arithmetic_floor_ms=_ms(floor.arithmetic_seconds(rates)),
        bytes_floor_ms=floor.bytes_seconds(rates) * 1e3,
        floor_ms=_ms(least),
        floor=floor.bound(rates),
        fraction_of_floor=least / median if least is not None and compared else None,
        kernels=model.kernels_used(side.graph),
        disturbance=disturbed,
        profile=profile_step(side) if profile else None,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
