"""An architecture that only `tests/helpers/gated.py` knows: from training to a saved stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import xlruntime
import xltraining.architectures
from tests.helpers.gated import Gated, GatedConfig
from xlexport import checkpoints
from xlexport.architectures import ARCHITECTURES
from xlexport.bench import bench
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ParityError
from xlexport.verification import verify
from xltraining.train import TrainingConfig, train

TEXT = b"It was the best of times, it was the worst of times. " * 12


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ARCHITECTURES, "gated", "tests.helpers.gated")
    xltraining.architectures.register("gated", GatedConfig, Gated)
    yield
    xltraining.architectures.unregister("gated")


def test_it_trains_converts_verifies_scores_streams_and_is_saved(gated: None, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    training = TrainingConfig(steps=2, batch_size=2, threads=1, warmup_steps=1)
    trained = train(GatedConfig(), training, [tmp_path / "text"], [], tmp_path / "run")
    source = checkpoints.load(trained.checkpoint)
    report = convert(source, tmp_path / "bundle", ConversionOptions(threads=1, verify_segments=6))
    assert (report.passed, report.segments, report.top1_agreement) == (True, 6, 1.0)
    assert 0 < report.max_abs_log_prob_diff < 1e-5 and 0 < report.max_abs_memory_diff < 1e-5
    assert report.rounding is not None and 0 < report.rounding.model_rms < 1e-6

    model, ids, eager = (
        xlruntime.load(tmp_path / "bundle", threads=1),
        torch.tensor([*TEXT])[None],
        source.build_model(),
    )
    with torch.inference_mode():
        wanted = eager.log_probs(eager(ids[:, :-1])[0], ids[:, 1:])[0].numpy()  # the whole text at once
    assert [score.nats for score in model.score([TEXT, TEXT[:99]], batch_size=2)] == pytest.approx(
        [-wanted.sum(), -wanted[:98].sum()], rel=1e-5
    )
    stream = model.stream()
    np.testing.assert_allclose(stream.feed(TEXT[:300]).log_probs, wanted[:299], atol=1e-5)
    stream.save(tmp_path / "saved")
    restored, fork, tried = model.restore(tmp_path / "saved"), stream.fork(), stream.score_continuation(TEXT[300:305])
    rest = [one.feed(TEXT[300:]) for one in (stream, restored, fork)]
    np.testing.assert_allclose(tried.log_probs, rest[0].log_probs[:5], atol=1e-5)  # steps of other lengths
    assert all(np.array_equal(one.log_probs, rest[0].log_probs) for one in rest)
    assert rest[0].context.tolist() == list(range(300, len(TEXT)))  # a state may depend on every token
    np.testing.assert_allclose(rest[0].log_probs, wanted[299:], atol=1e-5)
    stream.reset()
    np.testing.assert_allclose(stream.feed(TEXT[:50]).log_probs, wanted[:49], atol=1e-5)
    speed = bench(tmp_path / "bundle", against=trained.checkpoint, threads=1, repeats=1, rounds=1)
    assert speed.eager_tokens_per_second is not None
    with torch.no_grad():
        eager.get_parameter("gate.weight").add_(0.01)
    with pytest.raises(ParityError, match="the graphs differ from the trained model"):
        verify(model, lambda: eager, ids[0].numpy(), segments=3).require_passed()
