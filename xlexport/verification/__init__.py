"""Show that a bundle computes the same results as the trained model, over many segments of carried memory.

Both walk the same text. The eager model has its own memory, the paper's hidden states; the graphs have rings of
projected keys and values (`comparison.py`). A user's own eager code may replace the eager model (`reference.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress, no_progress
from xlexport.errors import ExportError, ParityError
from xlexport.families import architecture
from xlexport.families.recurrent.source import MODULE_FORMAT
from xlexport.verification.comparison import Comparison
from xlexport.verification.differences import RoundingErrors
from xlexport.verification.parity import ParityReport, is_hopeless, make_report
from xlexport.verification.reference import Reference, compare_with_reference
from xlexport.verification.spans import cut_text, segments_to_wrap
from xlexport.verification.tolerances import LONG_TEXT, tolerance_of
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings

__all__ = ["Segments", "segments_to_read", "verify"]

Segments = int | Literal["all"] | None
"""How many segments are read; "all": the whole text; None: as many as `segments_to_read` returns."""

FEWEST_SEGMENTS = 20
FEWEST_TOKENS = 32_768  # long segments: as many segments as hold this many tokens are enough
DOCUMENTS = 12  # if each segment is a document


def segments_to_read(model: Engine, ids: npt.NDArray[np.int64], evaluation: EvaluationSettings) -> int:
    """Return how many segments of a text are enough to judge a bundle.

    They write the whole ring twice, are at least 20 if they are short, and hold the 1,000 tokens from which on errors
    of rounding are judged, if the text has as many.
    """
    if evaluation.full_document:
        segments = DOCUMENTS
    else:
        few = min(FEWEST_SEGMENTS, FEWEST_TOKENS // evaluation.segment_len)
        segments = max(few, segments_to_wrap(evaluation, rounds=2))
    before = 0
    while before < (tokens := sum(span.tokens.size for span in cut_text(ids, segments, model, evaluation))) < LONG_TEXT:
        segments, before = -(-segments * LONG_TEXT // tokens), tokens
    return segments


def verify(
    model: Engine,
    eager: Callable[[], Any] | Reference,
    ids: npt.NDArray[np.int64],
    *,
    segments: Segments = None,
    evaluation: EvaluationSettings | None = None,
    progress: Progress = no_progress,
    own_errors: RoundingErrors | None = None,
    stops: bool = False,
) -> ParityReport:
    """Read `ids` with both, up to `segments` segments.

    All limits follow the trained model's own errors of float32 (`tolerances.OWN_ERRORS`). A user's module reads in
    float64 only if it differs by more than the usual limits, and its ratios are not judged: PyTorch computes some
    operators in float64, such as cumsum.

    Args:
        model: the open bundle; its sessions are closed, and open again later.
        eager: returns the trained model in eval mode, and may be called more than once; or a user's own code.
        ids: token ids of a real text.
        evaluation: segment and memory lengths; None: the bundle's own.
        progress: called after every segment with their number and the largest possible number.
        own_errors: of the model, in a longer text; None: they are measured.
        stops: whether to stop at the first segments if these differ by far more than the limits.

    Raises:
        ParityError: there are fewer than two ids, or the sizes of the trained model and the bundle differ.
        OptionError, ReferenceCodeError: as in `compare_with_reference`.
    """
    if len(ids) < 2:
        raise ParityError(
            f"the text has {len(ids)} tokens; at least 2 are needed to compare.", hint="Give a longer text."
        )
    evaluation, tolerance = evaluation or model.bundle.settings, tolerance_of(model.bundle)
    count = len(ids) if segments == "all" else segments or segments_to_read(model, ids, evaluation)
    spans, kernels = cut_text(ids, count, model, evaluation), model.kernels_used(model.main_graph("score"))
    if isinstance(eager, Reference):
        differences = compare_with_reference(model, eager, spans, evaluation, progress)
        return make_report(differences, evaluation, tolerance.of_scores(), kernels=kernels)
    for purpose in model.bundle.graphs:
        model.release(purpose)

    def compare(exactly: bool) -> ParityReport:
        adapter, done = architecture(model.bundle.architecture), itertools.count(1)
        own = 0.0 if own_errors is None else own_errors.model_distribution
        comparison = Comparison(adapter, model, eager, spans, evaluation, exactly and own_errors is None, own)
        differences, totals = comparison.run(
            lambda: progress(next(done), len(spans)),
            (lambda seen: is_hopeless(seen, tolerance, own_errors)) if stops else None,
        )
        report = make_report(differences, evaluation, tolerance, totals, kernels, own_errors)
        return dataclasses.replace(report, state_ranges=comparison.ranges or None)

    if model.bundle.provenance.get("format") != MODULE_FORMAT:
        return compare(exactly=model.bundle.precision == "float32")
    report = compare(exactly=False)
    if not report.passed and model.bundle.precision == "float32":
        with contextlib.suppress(ExportError, ParityError):  # the module cannot compute in float64
            return compare(exactly=True)
    return report
