"""Modules of users: from `export_module` to scores, streams and saved states."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import xlexport
import xlruntime
from tests.helpers.tiers import thinned
from tests.helpers.tiny import tiny_model
from xlexport.bench import bench
from xlexport.bench.report import report_rows
from xlexport.commands.inspect import bundle_rows
from xlexport.errors import ExportError, ParityError
from xlexport.families.recurrent.source import module_source
from xlexport.page.assemble import bundle_note
from xlexport.verification import verify
from xlruntime.bundle_files import read_bundle

TEXT = b"It was the best of times, it was the worst of times. " * 12


class Decay(nn.Module):
    """h_t = g h_{t-1} + v_t, with a position, a first state that is not zero, and both forms."""

    n_token = 256

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.decay = nn.Parameter(torch.rand(width) * 0.2 + 0.7)

    def first_state(self) -> dict[str, Tensor]:
        return {
            "seen": torch.zeros(1, dtype=torch.int64),
            "hidden": torch.ones(len(self.decay)),
            "odd": torch.zeros(1) > 0,
        }

    def step(self, token: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.decay * state["hidden"] + self.embedding(token) * (state["seen"] * 0.1).cos()
        after = {"odd": ~state["odd"], "seen": state["seen"] + 1, "hidden": hidden}  # in another order
        return self.head(hidden), after


class DecaySegment(Decay):
    """The same, all places at once."""

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        S = tokens.shape[1]
        places = torch.arange(S)
        values = self.embedding(tokens) * ((state["seen"] + places) * 0.1).cos()[:, :, None]  # (B, S, D)
        distance = (places[:, None] - places).clamp(min=0)[:, :, None]  # (S, S, 1)
        weights = torch.where(places[:, None, None] >= places[:, None], self.decay**distance, 0.0)  # (S, S, D)
        hidden = torch.einsum("std,btd->bsd", weights, values)
        hidden = hidden + self.decay ** (places + 1)[:, None] * state["hidden"][:, None]
        odd = state["odd"] ^ (torch.full((1,), S) % 2 > 0)
        return self.head(hidden), {"seen": state["seen"] + S, "hidden": hidden[:, -1], "odd": odd}


class Parity(DecaySegment):
    """Python decides by S, and `torch.export` keeps what it decided for its example."""

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        logits, after = super().segment(tokens, state)
        return logits, {**after, "odd": state["odd"] ^ (tokens.shape[1] % 2 == 1)}


@pytest.fixture(scope="module", params=thinned([Decay, DecaySegment], [Decay], pytest.mark.release))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model, folder = request.param(), tmp_path_factory.mktemp("own") / "own.bundle"
    report = xlexport.export_module(model, folder, tokenizer="bytes", segment_len=7, segments=200, threads=1)
    assert report.passed and report.segments == 200 and report.tokens == 1400
    assert 0 < report.max_abs_log_prob_diff < 1e-5 and report.rounding is None
    return model, folder


@pytest.mark.full
def test_scores_streams_and_saved_states(exported: tuple[Any, Path], tmp_path: Path) -> None:
    module, folder = exported
    state, wanted = {name: value[None] for name, value in module.first_state().items()}, []
    with torch.inference_mode():
        for byte, target in itertools.pairwise(TEXT):
            logits, state = module.step(torch.tensor([byte]), state)
            wanted.append(float(logits.log_softmax(dim=1)[0, target]))
    model = xlruntime.load(folder, threads=1)
    scores = model.score([TEXT, TEXT[:99]], batch_size=2)
    assert [score.nats for score in scores] == pytest.approx([-sum(wanted), -sum(wanted[:98])], rel=1e-5)
    stream = model.stream()
    np.testing.assert_allclose(stream.feed(TEXT[:300]).log_probs, wanted[:299], atol=1e-5)
    stream.save(tmp_path / "saved")
    continued = [one.feed(TEXT[300:]).log_probs for one in (model.restore(tmp_path / "saved"), stream.fork(), stream)]
    assert all(np.array_equal(log_probs, continued[0]) for log_probs in continued)
    np.testing.assert_allclose(continued[0], wanted[299:], atol=1e-5)


def other_weights(kind: type[Decay]) -> Decay:
    model = kind()
    with torch.no_grad():
        model.decay.mul_(0.99)
    return model


@pytest.mark.full
def test_another_model_is_found_out(exported: tuple[Any, Path]) -> None:
    model, folder = exported
    assert xlexport.assert_parity(folder, model, segments=3).max_abs_memory_diff is not None
    other = module_source(Decay() if isinstance(model, DecaySegment) else DecaySegment(), n_token=256)
    with pytest.raises(ParityError, match=r"model is DecaySegment in the bundle|model is Decay in the bundle"):
        verify(xlruntime.load(folder, threads=1), other.build_model, np.arange(50), segments=2)
    for wrong, message in (
        (tiny_model, "the bundle holds a recurrent model, the checkpoint a transformer_xl model"),
        (module_source(other_weights(type(model))).build_model, "the graphs differ from the trained model"),
    ):
        with pytest.raises(ParityError, match=message):
            verify(xlruntime.load(folder, threads=1), wrong, np.arange(50), segments=2).require_passed()
    speed = bench(folder, threads=1, repeats=1, rounds=1)
    assert dict(report_rows(speed))["arithmetic"].startswith("not counted") and speed.floor is None
    bundle = read_bundle(folder)
    note = bundle_note(bundle, folder, bundle.settings)
    assert note.startswith(f"recurrent model {type(model).__name__}, ") and ", state of 0." in note
    rows = dict(bundle_rows(bundle, folder))
    assert (
        rows["memory of a stream"].endswith("in 3 tensors")
        and rows["architecture"] == f"recurrent ({type(model).__name__})"
    )


@pytest.mark.release
def test_decision_by_the_length_of_the_example_is_found_out(tmp_path: Path) -> None:
    message = "Parity.segment: the graph differs from the module first in the state 'odd', by 1 within 300 tokens"
    with pytest.raises(ParityError, match=message):
        xlexport.export_module(Parity(), tmp_path / "bundle", segment_len=7, segments=9, threads=1)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"seen": torch.ones(1, dtype=torch.int64)}, r"'seen' is int64 and does not begin with zeros\. Begin integers"),
        ({"logits": torch.zeros(1)}, r"'logits' has the name of another tensor"),
        ({"new_hidden": torch.zeros(1)}, r"'new_hidden' has the name of another tensor"),
    ],
)
@pytest.mark.full
def test_states_that_no_bundle_can_hold(state: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    class Other(Decay):
        def first_state(self) -> dict[str, Tensor]:
            return super().first_state() | state

        def step(self, token: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            logits, after = super().step(token, state)
            last = logits.sum(dim=1, keepdim=True)
            more = {name: state[name] + last for name in state if name not in after}
            return logits + sum(more.values()), after | more

    with pytest.raises(ExportError, match=message):
        xlexport.export_module(Other(), tmp_path / "bundle")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (object(), r"object is not a torch\.nn\.Module"),
        (nn.Linear(2, 2), r"Linear has no method first_state"),
        (type("Half", (nn.Module,), {"first_state": lambda self: {}})(), r"Half has neither a method segment nor"),
    ],
)
def test_what_is_no_model(module: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=rf"{message}.*docs/own_models\.md"):
        xlexport.export_module(module, tmp_path / "bundle")


@pytest.mark.release
def test_formats_of_pytorch(tmp_path: Path) -> None:
    for to in ("torchscript", "exported-program"):
        options: dict[str, Any] = {"tokenizer": "bytes", "to": to, "segments": 9, "segment_len": 7, "threads": 1}
        report = xlexport.export_module(DecaySegment(), tmp_path / to, **options)
        assert report.passed and report.max_abs_log_prob_diff < 1e-5
        with pytest.raises(ExportError, match=f"--to {to} needs a module with a method segment"):
            xlexport.export_module(Decay(), tmp_path / "step", **options)
