"""The known answers that `convert` writes for step models: what they hold, and which faults they notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import xlexport
import xlruntime
from tests.conformance.step_models import POLICIES, write_policy
from tests.step_models.modules import Leaky
from xlexport.fixed_shapes import FixedShapes
from xlruntime.known_answers import ANSWERS_FILE, KnownSteps

pytestmark = pytest.mark.full


def answers_of(folder: Path) -> KnownSteps:
    answers = KnownSteps.read(xlruntime.load_step_model(folder))
    assert answers is not None
    return answers


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.full(cases=1)
def test_a_user_s_inputs_are_not_in_the_bundle(fixed: bool, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.full((90, 4), 0.123456, np.float32))
    options: dict[str, Any] = {"fixed": FixedShapes.parse("batch=2,segment=24")} if fixed else {}
    xlexport.convert(Leaky(), tmp_path / "a", text=tmp_path / "in.npz", **options)
    assert 0.123456 not in answers_of(tmp_path / "a").inputs["x"]
    assert xlruntime.load_step_model(tmp_path / "a").check().passed


class Wide(Leaky):
    """Steps of many numbers."""

    inputs = {"x": (20_000,)}  # noqa: RUF012

    def step(self, inputs: Any, state: Any) -> Any:
        h = 0.5 * state["h"] + inputs["x"][:, :4]
        return {"y": inputs["x"].mean(-1) + h.sum(-1)}, {"h": h}


class Masked(Leaky):
    """Outputs that are not finite."""

    def step(self, inputs: Any, state: Any) -> Any:
        h = 0.5 * state["h"] + inputs["x"]
        return {"y": torch.cat([h, torch.where(h > 0, h, -torch.inf)], dim=-1)}, {"h": h}


@pytest.mark.parametrize("kind", [Wide, Masked])
@pytest.mark.full(cases=1)
def test_steps_that_do_not_suit_give_no_answers_and_a_line(kind: type[Leaky], tmp_path: Path) -> None:
    lines: list[str] = []
    xlexport.convert(kind(), tmp_path / "bundle", segments=20, tell=lines.append)
    assert "no known answers: the numbers of a step are too many, too large or not finite" in lines
    assert not (tmp_path / "bundle" / ANSWERS_FILE).exists()


class Camera(Leaky):
    """Steps of which fewer than 64 fit."""

    inputs = {"x": (400,)}  # noqa: RUF012

    def build(self) -> None:
        self.linear = nn.Linear(400, 4)

    def step(self, inputs: Any, state: Any) -> Any:
        h = 0.5 * state["h"] + self.linear(inputs["x"])
        return {"y": h}, {"h": h}


def test_fewer_steps_are_kept_of_large_inputs(tmp_path: Path) -> None:
    xlexport.convert(Camera(), tmp_path / "bundle", segments=20)
    size = (tmp_path / "bundle" / ANSWERS_FILE).stat().st_size
    assert 4 <= answers_of(tmp_path / "bundle").steps < 64 and 10_000 < size <= 40_000


@pytest.mark.parametrize("name", POLICIES[::-1])
@pytest.mark.full(cases=1)
def test_one_percent_in_a_weight_of_a_policy_is_noticed(name: str, tmp_path: Path) -> None:
    write_policy(tmp_path, name)
    folder = tmp_path / name
    graph = onnx.load(folder / "run.onnx")
    right, noticed = xlruntime.load_step_model(folder, threads=1).check(), {}
    assert right.passed
    for weight in graph.graph.initializer:
        if weight.data_type != onnx.TensorProto.FLOAT or not weight.dims:
            continue
        before, array = weight.raw_data, numpy_helper.to_array(weight)
        weight.raw_data = (array * np.float32(1.01)).tobytes()
        onnx.save(graph, folder / "run.onnx")
        weight.raw_data = before
        result = xlruntime.load_step_model(folder, check_files=False, threads=1).check()
        if result.largest != right.largest:  # zeros stay zeros
            noticed[weight.name] = not result.passed and result.certain
    assert len(noticed) >= 10 and sum(noticed.values()) >= 0.95 * len(noticed), noticed
    assert all(found for weight, found in noticed.items() if ".weight" in weight)
