"""Limits in units of the model's own float32 error, token ids to verify on, and tokens that are impossible."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import xlexport
import xlruntime
from xlexport.commands import cli
from xlexport.errors import CheckpointError, ExportError, ParityError
from xlexport.families.recurrent.source import module_source

N_TOKEN, POSSIBLE, D = 30, 27, 64
State = dict[str, Tensor]
Converted = tuple[Path, Path, dict[str, Any]]  # bundle, the ids that it was verified on, and what `convert` printed


class Heavy(nn.Module):
    """Logits of thousands, whose last place is above 1e-4 nats, and a padded vocabulary under a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.word, self.mix, self.head = nn.Embedding(N_TOKEN, D), nn.Linear(2 * D, D), nn.Linear(D, N_TOKEN)
        self.register_buffer("mask", torch.where(torch.arange(N_TOKEN) < POSSIBLE, 0.0, -torch.inf))

    def first_state(self) -> State:
        return {"last": torch.zeros(D)}

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        words = self.word(tokens)
        before = torch.cat([state["last"][:, None], words[:, :-1]], dim=1)  # (B, S, D)
        logits = 3000 * self.head(self.mix(torch.cat([before, words], dim=2)).tanh())
        return logits + self.mask, {"last": words[:, -1]}


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    folder, ids = tmp_path_factory.mktemp("heavy"), np.random.default_rng(0).integers(0, POSSIBLE, 1500)
    ids[700] = N_TOKEN - 1
    bundle, text, code = folder / "bundle", folder / "ids.txt", folder / "heavy.py"
    text.write_text(" ".join(map(str, ids)), "utf-8")
    code.write_text("from tests.verification.test_limits import Heavy", "utf-8")
    line = f"{code}:Heavy --trust --tokenizer none --threads 1 --json --ids --text {text} -o {bundle}"
    run = CliRunner().invoke(cli, ["convert", *line.split()])
    assert run.exit_code == 0, run.output
    return bundle, text, json.loads(run.stdout)


@pytest.mark.release
def test_heavy_model_converts_and_its_limits_are_named(heavy: Converted) -> None:
    bundle, text, report = heavy
    assert report["passed"] and {"log_prob", "distribution"} <= set(report["limits_of_model"])
    assert 1e-4 < report["max_abs_log_prob_diff"] <= 5 * report["rounding"]["model_largest"] < 0.1
    assert np.isfinite([report["bits_per_token"], report["mean_abs_log_prob_diff"]]).all()
    assert set(report["peak_memory"]) == {"reading", "exporting", "float64", "float32 model", "graphs"}
    assert min(report["peak_memory"].values()) > 1 << 20
    again = xlexport.assert_parity(bundle, Heavy(), text=text, as_ids=True)
    assert ", 5 times the model's own float32 error)" in str(again) and again.tokens == 1499
    assert xlexport.verify(bundle, Heavy()).passed  # on random ids, of which none is impossible
    with pytest.raises(ExportError, match="Add --ids"):
        xlexport.verify(bundle, Heavy(), text=text)


@pytest.mark.parametrize(("part", "factor"), [("mix.weight", 1.001), ("head.bias", -1)])
@pytest.mark.release
def test_wrong_heavy_model_is_refused(part: str, factor: float, heavy: Converted) -> None:
    wrong = Heavy().requires_grad_(False)
    wrong.get_parameter(part).mul_(factor)
    with pytest.raises(ParityError, match="first segment over tolerance: 0"):
        xlexport.assert_parity(heavy[0], wrong, text=heavy[1], as_ids=True)


@pytest.mark.release
def test_impossible_tokens_in_the_runtime(heavy: Converted) -> None:
    model, ids = xlruntime.load(heavy[0], threads=1), np.arange(N_TOKEN)
    with pytest.warns(xlruntime.NonFiniteScoreWarning):
        log_probs = model.stream().feed(ids).log_probs
    assert np.isneginf(log_probs[POSSIBLE - 1 :]).all() and np.isfinite(log_probs[: POSSIBLE - 1]).all()
    detail = model.step("detail", model.new_memory(model.bundle.settings, 1), ids[None, :-1], ids[None, 1:])
    assert np.isfinite(detail["entropy"]).all() and (detail["rank"][0, POSSIBLE - 1 :] == POSSIBLE + 1).all()
    drawn = [*model.generate([1, 2], max_tokens=50, sampling=xlruntime.Sampling(temperature=1e6, seed=0))]
    assert len(set(drawn)) > 10 and max(drawn) < POSSIBLE


def test_undefined_weights_of_a_module_are_named() -> None:
    model = Heavy().requires_grad_(False)
    assert module_source(model).parameters
    model.mix.bias[3] = torch.nan
    with pytest.raises(CheckpointError, match=r"Heavy: infinite or undefined weights in mix\.bias"):
        module_source(model)
