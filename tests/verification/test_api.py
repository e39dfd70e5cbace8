"""`xlexport.verify` and `assert_parity`: all kinds of models, texts and references, and what is refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import xlexport
from tests.helpers.bundles import Converted
from tests.helpers.definitions import Ours, log_probs_by_definition
from tests.helpers.paths import GOLDEN
from xlexport.bundles import open_any_bundle
from xlexport.errors import ParityError, ReferenceCodeError
from xlexport.verification import segments_to_read
from xlexport.verification.spans import cut_text
from xlruntime import OptionError, TokenError

IDS = np.random.default_rng(5).integers(0, 20, 400)


class Mine(nn.Module):
    """A user's code, which keeps the hidden states of the trained model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def segment(self, tokens: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, state = self.model(tokens, state)
        return self.model.log_probs(hidden, targets), state


def by_definition(tokens: Tensor, targets: Tensor, state: Any, model: Any) -> tuple[Tensor, Any]:
    """Read the text again from its beginning by the formulas of section 3.3, in loops over tokens and keys."""
    ids, lengths = (torch.empty(0, dtype=torch.int64), ()) if state is None else state
    ids, lengths = torch.cat([ids, tokens[0]]), (*lengths, tokens.shape[1])
    text = torch.cat([ids, targets[0, -1:]])
    found = log_probs_by_definition(Ours(model.config, model.state_dict()), text, lengths)
    return torch.from_numpy(found)[None, -tokens.shape[1] :], (ids, lengths)


@pytest.mark.parametrize("name", ["bytes_bundle", "ids_bundle"])
@pytest.mark.full
def test_formulas_of_the_paper_as_reference(name: str, request: pytest.FixtureRequest) -> None:
    converted: Converted = request.getfixturevalue(name)
    code = functools.partial(by_definition, model=converted.model)
    report = xlexport.assert_parity(converted.folder, reference=code, text=IDS, segments=9)
    assert (report.segments, report.tokens, sorted(report.tolerance)) == (9, 72, ["delta_bits_per_token", "log_prob"])
    assert report.max_abs_log_prob_diff <= 2e-5
    unknown = ("max_abs_memory_diff", "top1_agreement", "max_distribution_diff", "rms_ratio", "bucket_flips")
    assert {getattr(report, field) for field in unknown} == {None} and "bundle minus reference" in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["chunk", "paper", "ids_bundle"])
@pytest.mark.full
def test_each_document_begins_without_a_state(name: str, request: pytest.FixtureRequest) -> None:
    converted, states = request.getfixturevalue(name), []

    def reference(tokens: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        states.append(state)
        return Mine(converted.model).segment(tokens, targets, state)

    report = xlexport.assert_parity(converted.folder, reference=reference)
    assert report.tokens >= 1000 and states.count(None) == (report.segments if report.full_document else 1)


@pytest.mark.parametrize(("fault", "first"), [("no memory", 1), ("bits", 0)])
def test_faults_of_a_reference_are_found(fault: str, first: int, bytes_bundle: Converted) -> None:
    def code(tokens: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        log_probs, state = Mine(bytes_bundle.model).segment(tokens, targets, state)
        return (log_probs, None) if fault == "no memory" else (log_probs / np.log(2), state)

    message = r"differ from the reference: .* same weights and settings: segment_len"
    with pytest.raises(ParityError, match=message) as caught:
        xlexport.assert_parity(bytes_bundle.folder, reference=code, text=IDS, segments=6)
    report = xlexport.verify(bytes_bundle.folder, reference=code, text=IDS, segments=6)
    assert report.first_segment_over_tolerance == first
    assert caught.value.__notes__ == [str(report)] and str(report).splitlines()[-1].split() == ["equal", "NO"]


@pytest.mark.full
def test_checkpoint_file_or_open_bundle(bytes_bundle: Converted) -> None:
    path = str(bytes_bundle.checkpoint)
    report = xlexport.assert_parity(str(bytes_bundle.folder), path, segments=3, mem_len=11)
    assert (report.tokens, report.settings["mem_len"], report.max_abs_memory_diff is None) == (24, 11, False)
    again = xlexport.verify(bytes_bundle.open(), Path(path), text=IDS.tolist(), segments="all")
    assert (again.segments, again.tokens, again.passed) == (50, 399, True)
    assert "not judged: fewer than 1,000 tokens" in str(again)
    short = xlexport.verify(bytes_bundle.folder, path, text=IDS[:12])
    assert "2 of 8 tokens, memory 20, never full: the text is short" in str(short)


@pytest.mark.parametrize("folder", sorted(GOLDEN.glob("*/bundle")), ids=lambda folder: folder.parent.name)
def test_enough_is_read_to_judge_rounding(folder: Path) -> None:
    model = open_any_bundle(folder, threads=1)
    ids = np.random.default_rng(0).integers(0, model.bundle.vocab_size, 9000)
    for settings in (model.evaluation(), model.evaluation(segment_len=3)):
        spans = cut_text(ids, segments_to_read(model, ids, settings), model, settings)
        assert 1000 <= sum(span.tokens.size for span in spans) < 9000 or settings.full_document


def returning(result: Callable[[Tensor], Any]) -> Callable[[Tensor, Tensor, Any], Any]:
    return lambda tokens, targets, state: result(torch.full(targets.shape, -3.0))


WRONG: list[tuple[Any, str]] = [
    (nn.Linear(2, 2), "Linear is not a function, and has no method segment"),
    (Mine(None), "Mine.segment is of a module in training mode"),
    (lambda tokens, targets: None, "raises TypeError from token 0 ("),
    (returning(lambda good: good), "returns a Tensor without a tensor and a state"),
    (returning(lambda good: (good.sum(), None)), "returns torch.float32 of shape (), expected"),
    (returning(lambda good: (good.half(), None)), "returns torch.float16 of shape (1, 8), expected"),
    (returning(lambda good: (-good, None)), "returns 3 for token 0, which is not the logarithm of a probability"),
    (returning(lambda good: (good * torch.inf, None)), "returns -inf for token 0"),
    (returning(lambda good: (good @ good, None)), "raises RuntimeError from token 0, test_api.py line"),
]


@pytest.mark.parametrize(("code", "message"), WRONG, ids=[message for _, message in WRONG])
def test_results_that_are_no_log_probabilities(code: Any, message: str, bytes_bundle: Converted) -> None:
    with pytest.raises(ReferenceCodeError) as caught:
        xlexport.verify(bytes_bundle.folder, reference=code, text=IDS, segments=2)
    assert message in str(caught.value) and "(log_probs (B, S) in nats, state)" in str(caught.value.hint)


def test_arguments_that_are_refused(bytes_bundle: Converted) -> None:
    verify = functools.partial(xlexport.verify, bytes_bundle.folder, reference=Mine(bytes_bundle.model).eval())
    for wrong, given, message in (
        (OptionError, {"reference": None}, "needs a model or a reference"),
        (OptionError, {"model": "model.pt"}, "needs a model or a reference"),
        (OptionError, {"format": "nvidia", "weights": "w.pt"}, "format, weights: for a model that is read by its name"),
        (OptionError, {"text": [0.5]}, r"text is float64 of shape \(1,\)"),
        (TokenError, {"text": [1, 256]}, "text: token 1 has id 256"),
    ):
        with pytest.raises(wrong, match=message):
            verify(**given)
