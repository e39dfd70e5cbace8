"""The report of `verify`: figures over all segments, judged by the tolerance of the bundle's precision."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import ParityError
from xlexport.families.recurrent.source import MODULE_FORMAT
from xlexport.verification.differences import (
    LSHDifference,
    LSHTotals,
    RoundingErrors,
    SegmentDifference,
    all_errors,
    largest,
    ratios,
)
from xlexport.verification.tolerances import LONG_TEXT, MOST_ROUNDING, OWN_ERRORS, Tolerance
from xlruntime.evaluation import EvaluationSettings
from xlruntime.messages import named

__all__ = ["ParityReport", "is_hopeless", "make_report", "trained_model"]

_TRAINED_MODEL = "xlexport's PyTorch code with the checkpoint's weights; `xlexport verify --against` takes yours"
HOPELESS = 10  # times the limits, after which a conversion reads no further
IMPRECISE = "The weights agree, but the graphs round too much. If kernels ran, use --set ops=none; otherwise report it."


def trained_model(provenance: Mapping[str, Any]) -> str:
    """Return what a bundle is compared with, for people."""
    return "the module itself, in PyTorch" if provenance.get("format") == MODULE_FORMAT else _TRAINED_MODEL


@dataclass(frozen=True)
class ParityReport:
    """The result of `verify`, whose text is a table. docs/parity_tests.md has the units of all fields.

    The LSH fields are None for an architecture without LSH attention. Rule `chunk` has no overflow: it is None. A
    comparison with a reference knows only log-probabilities of targets: all else is None.
    """

    segments: int
    tokens: int
    max_abs_log_prob_diff: float
    mean_abs_log_prob_diff: float
    max_abs_memory_diff: float | None
    top1_agreement: float | None
    delta_bits_per_token: float
    detail_segments: int  # the first segments, which the detail and generate graphs read too
    max_distribution_diff: float | None  # of any token in other graphs than score, over max(1, |log-probability|)
    drift: float | None  # mean difference in the last third of the segments over that in the first third
    first_segment_over_tolerance: int | None
    bucket_flips: int | None
    largest_flip_margin: float | None
    overflow_fraction: float | None  # share of (query, head, round) that could see more keys than the rule allows
    tolerance: dict[str, float]
    limits_of_model: list[str]  # names in `tolerance` whose limits the float32 model's own errors set
    passed: bool
    segment_len: int
    mem_len: int  # rows in the ring that keeps the most; 0 without rings
    full_document: bool  # whether each segment is a document and no memory is carried
    settings: dict[str, int | bool]  # under which both were compared
    bits_per_token: float
    flip_effect_bits_per_token: float | None
    overflow_fraction_per_layer: list[float] | None  # of the LSH layers
    overflow_mismatches: int | None  # tokens and layers whose overflow differs between graph and eager model
    kernels: str  # for custom operators
    rounding: RoundingErrors | None  # against the model in float64; None: the bundle is not compared with it
    rms_ratio: float | None  # the graph's rms error over the float32 model's, or over a unit in the last place
    largest_ratio: float | None
    per_segment: list[SegmentDifference]
    cuts_compared: int | None = None  # tokens of a document of a user's module within which `convert` compared cuts
    state_ranges: dict[str, float] | None = None  # the largest absolute value of each state at the end of a segment

    def to_dict(self, per_segment: bool = True) -> dict[str, Any]:
        """Return all figures for JSON; `per_segment` includes the figures of each segment."""
        fields = dataclasses.asdict(self)
        if not per_segment:
            del fields["per_segment"]
        return fields

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table for people."""
        limit, others = self._limit, self.max_distribution_diff
        behind = "" if self.detail_segments == self.segments else f", first {self.detail_segments} segments"
        memory = None if self.full_document else self.max_abs_memory_diff
        if not self.full_document:
            rows = f", memory {self.mem_len}" if self.mem_len else ""
            if self.tokens <= self.mem_len:
                rows += ", never full: the text is short"
            short = self.tokens <= (self.segments - 1) * self.segment_len  # not only the last one
            length = f", of {self.tokens:,} tokens together" if short else f" of {self.segment_len} tokens"
            walked = ("segments", f"{self.segments}{length}{rows}")
        else:
            walked = ("documents", f"{self.segments}, of {self.tokens:,} tokens together")
        return [
            walked,
            ("largest log-probability difference", f"{self.max_abs_log_prob_diff:.2e} nats{limit('log_prob')}"),
            *_row("for tokens not in the text, relative", others, ".2e", f"{limit('distribution')}{behind}"),
            *_rounding_rows(self),
            *_row("largest memory difference", memory, ".2e", limit("memory")),
            (
                "bits per token",
                f"{self.bits_per_token:.4f}, bundle minus {self._other} {self.delta_bits_per_token:+.1e}",
            ),
            *_row("same best token", self.top1_agreement, ".2%", behind),
            ("growth of the difference along the text", "-" if self.drift is None else f"{self.drift:.2f} (1 = none)"),
            *_lsh_rows(self),
            *([("largest values of states", _ranges(self.state_ranges))] if self.state_ranges else []),
            *_row("cuts compared", self.cuts_compared, ",", " tokens into a document"),
            ("kernels", self.kernels),
            ("equal", "yes" if self.passed else "NO"),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def problem(self) -> ParityError | None:
        """Return an error with the differences and the first segment over tolerance; None: the bundle passed."""
        if self.passed:
            return None
        others, memory = "", ""
        if self.max_distribution_diff is not None:
            distribution = self._limit("distribution")
            others = f", those of other tokens by {self.max_distribution_diff:.3g} of their size{distribution}"
        if self.max_abs_memory_diff is not None:
            memory = f", memories by up to {self.max_abs_memory_diff:.3g}{self._limit('memory')}"
        return ParityError(
            f"the graphs differ from the {self._other}: log-probabilities by up to {self.max_abs_log_prob_diff:.3g} "
            f"nats{self._limit('log_prob')}{others}{memory}, {self.delta_bits_per_token:+.3g} bits per token"
            f"{self._limit('delta_bits_per_token')}{self._lsh_failure()}{self._rounding_failure()}; "
            f"first segment over tolerance: {self.first_segment_over_tolerance}.",
            hint=self._hint(),
        )

    def require_passed(self) -> None:
        """Raise the error of `problem`, unless the bundle passed."""
        if (error := self.problem()) is not None:
            raise error

    def _limit(self, name: str) -> str:
        """Return a limit in words, and where it comes from."""
        if name not in self.tolerance:
            return ""
        origin = f", {OWN_ERRORS} times the model's own float32 error" if name in self.limits_of_model else ""
        return f" (≤ {self.tolerance[name]:.3g}{origin})"

    @property
    def _other(self) -> str:
        return "reference" if self.max_distribution_diff is None else "trained model"

    def _hint(self) -> str:
        if self.max_distribution_diff is None:
            settings = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.settings.items())
            return f"Make sure that the reference has the same weights and settings: {settings}."
        if self.rounding is not None and self.rounding.model_rms > MOST_ROUNDING:
            return f"Float32 cannot compute this model: by itself it errs by {self.rounding.model_rms:.2g} nats (rms)."
        close = abs(self.delta_bits_per_token) <= self.tolerance["delta_bits_per_token"]
        if self.first_segment_over_tolerance is None and close and "rms_ratio" in self.tolerance:
            return IMPRECISE
        return "Make sure that bundle and checkpoint belong together."

    def _rounding_failure(self) -> str:
        if "rms_ratio" not in self.tolerance or self.rounding is None:
            return ""
        return (
            f", rms error against float64 {self.rms_ratio:.3g} times the trained model's "
            f"({self.tolerance['rms_ratio']:g}), largest {self.largest_ratio:.3g} times "
            f"({self.tolerance['largest_ratio']:g})"
        )

    def _lsh_failure(self) -> str:
        if self.bucket_flips is None:
            return ""
        return (
            f", {self.bucket_flips:,} buckets by a margin of up to {self.largest_flip_margin:.3g} "
            f"({self.tolerance['flip_margin']:g}), overflow counts in {self.overflow_mismatches or 0:,} places"
        )


def make_report(
    differences: list[SegmentDifference],
    evaluation: EvaluationSettings,
    tolerance: Tolerance,
    totals: LSHTotals | None = None,
    kernels: str = "none",
    own_errors: RoundingErrors | None = None,
) -> ParityReport:
    """Combine and judge the figures of all segments.

    Args:
        totals: of LSH attention, if the model has it.
        own_errors: of the float32 model, if they are known from another walk.
    """
    tokens = sum(segment.tokens for segment in differences)
    tolerance, rounding = tolerance.for_text(tokens), all_errors(differences)
    limits, floors = _limits(differences, tolerance, own_errors), tolerance
    log_prob, distribution, memory = limits[-1].tolist()
    tolerance = dataclasses.replace(tolerance, log_prob=log_prob, distribution=distribution, memory=memory)
    if (own := _judged(rounding or own_errors)) is not None:  # a mean of errors has a bias, and varies
        bits = OWN_ERRORS * (abs(own.model_mean) + own.model_rms / math.sqrt(tokens)) / math.log(2)
        tolerance = dataclasses.replace(tolerance, delta_bits_per_token=max(bits, floors.delta_bits_per_token))
    follows = [name for name, limit in dataclasses.asdict(tolerance).items() if limit > getattr(floors, name)]
    eager_nats = sum(segment.eager_nats for segment in differences)
    graph_nats = sum(segment.graph_nats for segment in differences)
    detailed = [(segment.tokens, one) for segment in differences if (one := segment.top1_agreement) is not None]
    read = sum(n for n, _ in detailed)
    memories = [one for segment in differences if (one := segment.max_abs_memory_diff) is not None]
    relative = [one for segment in differences if (one := segment.max_distribution_diff) is not None]
    delta_bits = (graph_nats - eager_nats) / tokens / math.log(2)
    over = [
        segment.segment
        for segment, figures, allowed in zip(differences, _figures(differences), limits, strict=True)
        if not (
            bool((figures <= allowed).all())
            and (segment.lsh is None or segment.lsh.largest_flip_margin <= tolerance.flip_margin)
            and (segment.lsh is None or segment.lsh.overflow_mismatches == 0)
        )
    ]
    lsh = sum((segment.lsh for segment in differences if segment.lsh is not None), LSHDifference())
    rms_ratio, largest_ratio, precise = None, None, True
    if rounding is not None:
        rms_ratio, largest_ratio = ratios(rounding, eager_nats / tokens)
        precise = rms_ratio <= tolerance.rms_ratio and largest_ratio <= tolerance.largest_ratio
    overflow = None
    if totals is not None and lsh.overflow is not None:
        overflow = [count / (tokens * totals.hashes_per_token) for count in lsh.overflow]
    return ParityReport(
        segments=len(differences),
        tokens=tokens,
        max_abs_log_prob_diff=largest(np.array([segment.max_abs_log_prob_diff for segment in differences])),
        mean_abs_log_prob_diff=sum(segment.mean_abs_log_prob_diff * segment.tokens for segment in differences) / tokens,
        max_abs_memory_diff=largest(memories) if memories else None,
        top1_agreement=sum(n * agreement for n, agreement in detailed) / read if detailed else None,
        delta_bits_per_token=delta_bits,
        max_distribution_diff=largest(relative) if relative else None,
        detail_segments=len(detailed),
        drift=_drift(differences),
        first_segment_over_tolerance=over[0] if over else None,
        bucket_flips=None if totals is None else lsh.bucket_flips,
        largest_flip_margin=None if totals is None else lsh.largest_flip_margin,
        overflow_fraction=None if overflow is None else float(np.mean(overflow)),
        tolerance={name: limit for name, limit in dataclasses.asdict(tolerance).items() if math.isfinite(limit)},
        limits_of_model=follows,
        passed=not over and abs(delta_bits) <= tolerance.delta_bits_per_token and precise,
        segment_len=evaluation.segment_len,
        mem_len=evaluation.most_rows,
        full_document=evaluation.full_document,
        settings=evaluation.to_dict(),
        bits_per_token=eager_nats / tokens / math.log(2),
        flip_effect_bits_per_token=None if totals is None else totals.flip_effect_bits_per_token,
        overflow_fraction_per_layer=overflow,
        overflow_mismatches=None if overflow is None else lsh.overflow_mismatches,
        kernels=kernels,
        rounding=rounding,
        rms_ratio=rms_ratio,
        largest_ratio=largest_ratio,
        per_segment=differences,
    )


def is_hopeless(differences: list[SegmentDifference], tolerance: Tolerance, own_errors: RoundingErrors | None) -> bool:
    """Return whether a segment differs by far more than the limits that the text so far gives."""
    limits = _limits(differences, tolerance, own_errors)
    return not bool((_figures(differences) <= HOPELESS * limits).all())


def _figures(differences: list[SegmentDifference]) -> npt.NDArray[np.float64]:
    """Return the differences of each segment in log-probabilities, distributions and memories, (n, 3)."""
    rows = ((one.max_abs_log_prob_diff, one.max_distribution_diff, one.max_abs_memory_diff) for one in differences)
    return np.array([[figure or 0.0 for figure in row] for row in rows])


def _limits(
    differences: list[SegmentDifference], tolerance: Tolerance, own_errors: RoundingErrors | None
) -> npt.NDArray[np.float64]:
    """Return the limits of `_figures`, (n, 3): by the float32 model's largest errors in the text up to each segment.

    With few tokens chance decides, so they are those of the first `LONG_TEXT` tokens at least.
    """
    floors = np.array([(tolerance.log_prob, tolerance.distribution, tolerance.memory)] * len(differences))
    if _judged(all_errors(differences) or own_errors) is None:
        return floors
    errors = [one.rounding or own_errors for one in differences]
    table = [(one.model_largest, one.model_distribution, one.model_memory) if one else (0.0,) * 3 for one in errors]
    so_far = np.maximum.accumulate(np.nan_to_num(table, posinf=0.0))
    enough = int(np.searchsorted(np.cumsum([one.tokens for one in differences]), LONG_TEXT))
    so_far[:enough] = so_far[min(enough, len(table) - 1)]
    so_far[:, 2] = so_far[-1, 2]  # known at some segments only
    return np.maximum(floors, OWN_ERRORS * so_far)


def _judged(own: RoundingErrors | None) -> RoundingErrors | None:
    """Return the float32 model's own errors, unless they are too large to tell a wrong graph."""
    return own if own is not None and own.model_rms <= MOST_ROUNDING else None


def _drift(differences: list[SegmentDifference]) -> float | None:
    """Return the growth of differences over the segments, about 1 if there is none; None for too few segments."""
    third = len(differences) // 3
    if not third:
        return None
    first, last = (
        float(np.mean([segment.mean_abs_log_prob_diff for segment in part]))
        for part in (differences[:third], differences[-third:])
    )
    return last / first if first > 0 else None


def _row(name: str, value: float | None, form: str, more: str) -> list[tuple[str, str]]:
    """Return a row, or none for a figure that a comparison does not have."""
    return [] if value is None else [(name, f"{value:{form}}{more}")]


def _ranges(ranges: Mapping[str, float]) -> str:
    """Return the largest values of states, largest first; a model may have hundreds of states."""
    first = sorted(ranges, key=lambda name: -ranges[name])[:3]
    more = f", and {len(ranges) - 3} below" if len(ranges) > 3 else ""
    return ", ".join(f"{ranges[name]:.4g} ({named(name)})" for name in first) + more


def _rounding_rows(report: ParityReport) -> list[tuple[str, str]]:
    errors = report.rounding
    if errors is None:
        return []
    figures = (
        ("rms", errors.graph_rms, errors.model_rms, report.rms_ratio),
        ("largest", errors.graph_largest, errors.model_largest, report.largest_ratio),
    )
    rows = []
    for kind, graph, model, ratio in figures:
        limit = report.tolerance.get(f"{kind}_ratio")
        judged = f"not judged: fewer than {LONG_TEXT:,} tokens" if limit is None else f"≤ {limit:g}"
        text = f"{graph:.2e} nats, trained model {model:.2e}, ratio {ratio:.2f} ({judged})"
        rows.append((f"{kind} error against float64", text))
    return rows


def _lsh_rows(report: ParityReport) -> list[tuple[str, str]]:
    if report.bucket_flips is None:
        return []
    flips = f"{report.bucket_flips:,}"
    if report.bucket_flips:
        flips += (
            f", margin {report.largest_flip_margin:.1e} (≤ {report.tolerance['flip_margin']:g}), "
            f"{report.flip_effect_bits_per_token:+.1e} bits per token"
        )
    rows = [("buckets the model alone would change", flips)]
    if report.overflow_fraction_per_layer is not None:
        layers = ", ".join(f"{fraction:.2%}" for fraction in report.overflow_fraction_per_layer)
        keys = "keys of two chunks" if report.full_document else "the latest keys"
        rows.append(("overflow, by LSH layer", f"{layers} (not an error: only {keys} count)"))
    if report.overflow_mismatches:
        rows.append(("overflow counted otherwise", f"in {report.overflow_mismatches:,} places (= 0)"))
    return rows
