"""Show that a bundle computes the same results as the trained model, over many segments of carried memory.

Both walk the same text. The eager model has its own memory, the paper's hidden states; the graphs have rings of
projected keys and values (`comparison.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress, no_progress
from xlexport.errors import ParityError
from xlexport.families import architecture
from xlexport.verification.comparison import Comparison
from xlexport.verification.parity import ParityReport, make_report
from xlexport.verification.spans import segments_to_wrap
from xlexport.verification.tolerances import tolerance_of
from xlruntime.engine import Engine
from xlruntime.evaluation import EvaluationSettings

__all__ = ["default_segments", "verify"]

FEWEST_SEGMENTS = 20
FEWEST_TOKENS = 32_768  # long segments: as many segments as hold this many tokens are enough
DOCUMENTS = 12  # if each segment is a document


def default_segments(evaluation: EvaluationSettings) -> int:
    """Return how many segments write the whole ring twice, but at least 20 if segments are short."""
    if evaluation.full_document:
        return DOCUMENTS
    few = min(FEWEST_SEGMENTS, FEWEST_TOKENS // evaluation.segment_len)
    return max(few, segments_to_wrap(evaluation, rounds=2))


def verify(
    model: Engine,
    build_eager: Callable[[], Any],
    ids: npt.NDArray[np.int64],
    *,
    segments: int,
    evaluation: EvaluationSettings | None = None,
    progress: Progress = no_progress,
) -> ParityReport:
    """Read `ids` with both, up to `segments` segments.

    Args:
        model: the open bundle; its sessions are closed, and open again later.
        build_eager: returns the trained model in eval mode; may be called more than once.
        ids: token ids of a real text.
        evaluation: segment and memory lengths; None: the bundle's own.
        progress: called after every segment with their number and the largest possible number.

    Raises:
        ParityError: there are fewer than two ids, or the sizes of the trained model and the bundle differ.
    """
    if len(ids) < 2:
        raise ParityError(
            f"the text has {len(ids)} tokens; at least 2 are needed to compare.", hint="Give a longer text."
        )
    evaluation = evaluation or model.bundle.settings
    kernels = model.kernels_used(model.main_graph("score"))
    for purpose in model.bundle.graphs:
        model.release(purpose)
    comparison = Comparison(architecture(model.bundle.architecture), model, build_eager, ids, segments, evaluation)
    done = itertools.count(1)
    differences, totals = comparison.run(lambda: progress(next(done), segments))
    return make_report(differences, evaluation, tolerance_of(model.bundle), totals, kernels)
