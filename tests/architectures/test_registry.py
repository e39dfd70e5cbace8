"""The registry of architectures, and one that only `tests/helpers/gated.py` knows: from training to a saved stream."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xlruntime
import xltraining.architectures
from tests.helpers.gated import Gated, GatedArchitecture, GatedConfig
from tests.helpers.paths import GOLDEN, ZEROS
from tests.helpers.tiny import tiny_model
from xlexport import checkpoints
from xlexport.architectures import ARCHITECTURES, Option, architecture, architectures, find, title_of
from xlexport.architectures.choices import check_choices, collected
from xlexport.bench import bench
from xlexport.bench.report import report_rows, table_line
from xlexport.commands.inspect import bundle_rows, checkpoint_rows
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ExportError, ParityError
from xlexport.verification import verify
from xlruntime.bundle_files import read_bundle
from xltraining.loop.train import TrainingConfig, train

NAMES = ["transformer_xl", "encoder_decoder", "reformer", "recurrent"]
LEAP = Option("leap", "integer", "How far to leap.", minimum=1)
TEXT = b"It was the best of times, it was the worst of times. " * 12


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the architecture in both packages, with an option of its own."""
    monkeypatch.setitem(ARCHITECTURES, "gated", "tests.helpers.gated")
    monkeypatch.setattr(GatedArchitecture, "conversion_options", (LEAP,))
    xltraining.architectures.register("gated", GatedConfig, Gated)
    yield
    xltraining.architectures.unregister("gated")


def test_architectures_are_found_by_name() -> None:
    assert [one.name for one in architectures()] == NAMES
    assert [title_of(name) for name in ("reformer", "rnn")] == ["Reformer", "rnn"]
    assert architecture("reformer") is find("reformer")
    assert find("base") is None
    with pytest.raises(ExportError, match=rf"'rnn' is unknown, expected one of {', '.join(NAMES)}\. Add it to"):
        architecture("rnn")


def test_one_line_adds_an_architecture_and_options_name_theirs(gated: None) -> None:
    assert [one.name for one in architectures()] == [*NAMES, "gated"]
    titles_of = {option.name: titles for option, titles in collected("conversion_options").items()}
    assert titles_of == {
        "cuda_graphs": ("Transformer-XL",),
        "rule": ("Reformer",),
        "n_hashes": ("Reformer",),
        "leap": ("gated recurrence",),
    }
    plotted = {option.name for option in collected("evaluation_options", only=["transformer_xl"])}
    assert plotted == {"clamp_len", "same_length"}


LSH = "Reformers with LSH attention only; this model is a"


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        (
            "transformer_xl",
            {"rule": "band", "n_hashes": 2, "mem_len": 3},
            f"--rule and --set n_hashes apply to {LSH} Transformer-XL. Remove them.",
        ),
        ("gated", {"rule": "band"}, f"--rule applies to {LSH} gated recurrence. Remove it."),
        ("encoder_decoder", {"rule": "band"}, f"--rule applies to {LSH}n encoder-decoder. Remove it."),
        (
            "transformer_xl",
            {"leap": 1, "typo": True},
            "--set leap applies to gated recurrence models only, --set typo belongs to no registered architecture; "
            "this model is a Transformer-XL. Remove them.",
        ),
    ],
)
def test_choices_that_a_model_does_not_have(gated: None, name: str, choices: dict[str, Any], message: str) -> None:
    config = tiny_model().config.to_dict()
    with pytest.raises(ExportError) as error:
        check_choices(name, config, choices)
    assert str(error.value) == message
    check_choices(name, config, dict.fromkeys(choices))


def test_manifest_of_an_architecture_that_is_not_registered() -> None:
    """Check that `inspect` works, because the bundle holds everything that it needs."""
    folder = GOLDEN / ZEROS / "bundle"
    rows = bundle_rows(replace(read_bundle(folder), architecture="rnn"), folder)
    assert ("architecture", "rnn") in rows
    assert "memory of a stream" in dict(rows)


def test_it_trains_converts_verifies_scores_streams_and_is_saved(gated: None, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    training = TrainingConfig(steps=2, batch_size=2, threads=1, warmup_steps=1)
    trained = train(GatedConfig(), training, [tmp_path / "text"], [], tmp_path / "run")
    source = checkpoints.load(trained.checkpoint)
    assert dict(checkpoint_rows(source))["checkpoint"] == "xltraining, gated"
    report = convert(source, tmp_path / "bundle", ConversionOptions.of(threads=1, verify_segments=6, leap=2))
    assert (report.passed, report.segments, report.detail_segments, report.top1_agreement) == (True, 6, 6, 1.0)
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
    assert speed.eager_tokens_per_second is not None and speed.bytes_per_segment > 0
    assert (speed.flops_per_segment, speed.floor_ms, speed.floor, speed.fraction_of_floor) == (None,) * 4
    rows = dict(report_rows(speed))
    assert rows["arithmetic"].startswith("not counted") and "floor" not in rows
    assert table_line(speed).split()[6:9] == ["-", "-", "-"]

    for other, said in (
        (tiny_model(), "the bundle holds a gated model, the checkpoint a transformer_xl model"),
        (Gated(GatedConfig(d_model=7)), r"d_model is .* in the bundle, 7 in the trained model"),
    ):
        with pytest.raises(ParityError, match=said):
            verify(model, partial(copy, other), ids[0].numpy(), segments=2)
    with torch.no_grad():
        eager.get_parameter("gate.weight").add_(0.01)
    with pytest.raises(ParityError, match="the graphs differ from the trained model"):
        verify(model, lambda: eager, ids[0].numpy(), segments=3).require_passed()
