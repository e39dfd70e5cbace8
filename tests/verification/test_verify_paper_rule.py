"""`verify` for Reformers of rule `paper`: equality under the graphs' buckets, and failures for a broken bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.verification.test_verify_reformer import Arrays, check, on_step
from xlruntime.memory import Memory

if TYPE_CHECKING:
    from tests.helpers.bundles import ConvertedReformer


@pytest.mark.full
def test_whole_documents_by_the_papers_rule(paper: ConvertedReformer) -> None:
    report = check(paper, segments=12)
    report.require_passed()
    assert {one.tokens for one in report.per_segment} == {128, 125, 2, 4, 5}
    assert report.max_abs_log_prob_diff <= 2e-5
    assert (report.mem_len, report.overflow_mismatches) == (0, 0)
    assert report.overflow_fraction is not None and 0 < report.overflow_fraction < 1


@pytest.mark.full
def test_wrong_overflow_and_bucket_of_the_papers_rule_are_found(paper: ConvertedReformer) -> None:
    def one_more(memory: Memory, outputs: Arrays, S: int) -> None:
        outputs["overflow"] = outputs["overflow"] + (np.arange(S) == 7)[:, None].astype(np.int32)

    def other(memory: Memory, outputs: Arrays, S: int) -> None:
        outputs["bucket_0"] = (outputs["bucket_0"] + (np.arange(S) == S - 1)).astype(np.int32) % 8

    for change in (one_more, other):
        model = paper.open()
        on_step(model, "score", change, number=0)
        report = check(paper, model)
        assert report.first_segment_over_tolerance == 0
        assert (report.overflow_mismatches == 1) == (change is one_more)
