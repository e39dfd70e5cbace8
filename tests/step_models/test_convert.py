"""Step models of many kinds convert, and their bundles compute what PyTorch does, however a series is cut."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xlexport
import xlruntime
from tests.helpers.invoking import Invoke, invoke  # noqa: F401
from tests.step_models import modules
from tests.step_models.modules import RIGHT, Leaky, Limited, Policy
from xlexport.errors import ParityError
from xlexport.families.recurrent.eager import batched
from xlexport.families.step_model.inputs import input_specs
from xlruntime import StepModel
from xlruntime.known_answers import KnownSteps

pytestmark = pytest.mark.full
ROWS, STEPS = 3, 40


def eager(module: Any, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the module's outputs (B, N, …), from its first state on."""
    state, parts, each = batched(module.first_state(), ROWS), [], callable(getattr(module, "step", None))
    with torch.no_grad():
        for place in range(STEPS):
            part = {name: value[:, place] if each else value[:, place : place + 1] for name, value in inputs.items()}
            outputs, state = (module.step if each else module.segment)(part, state)
            parts.append({name: value if each else value[:, 0] for name, value in outputs.items()})
    return {name: torch.stack([part[name] for part in parts], dim=1).numpy() for name in parts[0]}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_bundle_computes_what_the_module_does_in_every_cut(
    kind: type[Leaky], tmp_path: Path, cached_exports: None
) -> None:
    module = kind()
    report = xlexport.convert(module, tmp_path / "bundle", segments=60).report
    assert report.passed
    assert xlexport.verify(tmp_path / "bundle", module, segments=20).passed
    random = torch.Generator().manual_seed(5)
    inputs = {name: spec.random(ROWS, STEPS, random) for name, spec in input_specs(kind.inputs).items()}
    expected, model = eager(module.eval(), inputs), xlruntime.load_step_model(tmp_path / "bundle")
    for cuts in ([40], [1] * 40, [7, 33], [3, 1, 36]):
        stream, begin, parts = model.stream(ROWS), 0, []
        for length in cuts:
            parts.append(stream.run({name: value[:, begin : begin + length] for name, value in inputs.items()}))
            begin += length
        for name, array in expected.items():
            found = np.concatenate([part[name] for part in parts], axis=1)
            assert found.dtype == array.dtype
            scale = 1e-5 * np.abs(array).max() if array.dtype.kind == "f" else 0
            np.testing.assert_allclose(found, array, rtol=0, atol=scale)
    check_answers(model, report)


def check_answers(model: StepModel, report: Any) -> None:
    """Check that a bundle reproduces its known answers, and that their bounds follow from the verified error."""
    answers, result = KnownSteps.read(model), model.check()
    assert answers is not None and result.passed and result.certain
    assert 3 < result.tokens == answers.steps <= min(64, model.bundle.settings.longest_part or 64)
    assert answers.settings["segment_len"] < answers.steps  # the state is carried
    for name, one in report.outputs.items():
        if not one.is_float:
            assert answers.bounds[name] == 0.5
            continue
        largest = np.abs(answers.outputs[name]).max()
        error = max(one.difference, result.largest * answers.bounds[name], float(np.spacing(np.float32(largest))))
        assert 10 * one.difference <= answers.bounds[name] <= 20 * error and answers.bounds[name] < 0.01 * largest


def test_a_limit_of_positions_is_that_of_the_bundle(tmp_path: Path, cached_exports: None) -> None:
    bundle = xlexport.convert(Limited(), tmp_path / "bundle", segments=60).bundle
    assert (bundle.evaluation.max_positions, bundle.evaluation.segment_len) == (40, 8)


def test_another_module_or_other_weights_differ(tmp_path: Path, cached_exports: None) -> None:
    module = Policy()
    xlexport.convert(module, tmp_path / "bundle", segments=60)
    with torch.no_grad():
        module.head.bias[0] += 1e-3
    report = xlexport.verify(tmp_path / "bundle", module, segments=60)
    assert (report.first_segment_over_limit, report.states["h"].first_over) == (0, None)
    with pytest.raises(ParityError, match=r"output action by up to 1\.00e-03"):
        report.require_passed()


def test_the_commands_convert_verify_inspect_and_run(
    tmp_path: Path,
    invoke: Invoke,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(inspect.getsource(modules))
    np.savez(tmp_path / "in.npz", x=np.linspace(-1, 1, 4 * 20).reshape(20, 4))
    own = ("own.py:Policy", "--trust", "--text", "in.npz")
    figures = invoke("convert", *own, "-o", "own.bundle", "--fixed", "batch=1,segment=4", "--json").succeeded().object
    assert (figures["verified_on"], figures["steps"], figures["passed"]) == ("in.npz", 20, True)
    assert invoke("verify", "own.bundle", *own, "--segments", "all").succeeded().table["equal"] == "yes"
    table = invoke("inspect", "own.bundle").succeeded().table
    assert (table["inputs"], table["outputs"]) == ("x float32 (4,)", "action float32 (2,)")
    for state in (["--save-state", "a.state"], ["--from", "a.state"]):
        invoke("run", "own.bundle", "in.npz", "-o", "out.npz", "--force", *state).succeeded()
    assert np.load(tmp_path / "out.npz")["action"].shape == (20, 2)
