"""Show that a bundle computes the same results as the trained model, over many segments of carried memory.

Both walk the same text. The eager model has its own memory, the paper's hidden states; the graphs have rings of
projected keys and values (`comparison.py`). A user's own eager code may replace the eager model (`reference.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress, no_progress
from xlexport.errors import ParityError
from xlexport.families import architecture
from xlexport.verification.comparison import Comparison
from xlexport.verification.parity import ParityReport, make_report
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
) -> ParityReport:
    """Read `ids` with both, up to `segments` segments.

    Args:
        model: the open bundle; its sessions are closed, and open again later.
        eager: returns the trained model in eval mode, and may be called more than once; or a user's own code.
        ids: token ids of a real text.
        evaluation: segment and memory lengths; None: the bundle's own.
        progress: called after every segment with their number and the largest possible number.

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
    comparison = Comparison(architecture(model.bundle.architecture), model, eager, spans, evaluation)
    done = itertools.count(1)
    differences, totals = comparison.run(lambda: progress(next(done), len(spans)))
    return make_report(differences, evaluation, tolerance, totals, kernels)
