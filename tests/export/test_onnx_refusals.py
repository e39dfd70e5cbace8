"""Files that emitters refuse to write: steps that torch cannot trace, and ONNX graphs that do not match their specs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
import torch

from tests.export.test_onnx import run, session
from tests.helpers.lone_step import LoneStep
from xlexport.errors import ExportError
from xlexport.export.exported_program import export_programs
from xlexport.export.onnx import _check_saved, export_onnx
from xlexport.export.torchscript import export_torchscript
from xlexport.export.tracing import USE_ONNX, tracing
from xlexport.families import Step, StepTensor, architecture
from xlruntime.bundle import Choice, Feed, Graph, Tensor

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted

    Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture
def saved_score(bytes_bundle: Converted, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(bytes_bundle.folder / "score.onnx", tmp_path / "score.onnx"))


def fix_an_axis(model: ir.Model) -> None:
    value = next(value for value in model.graph.inputs if value.name == "memory_key_1")
    value.shape = ir.Shape([2, 2, "capacity", 5])


def rename_an_output(model: ir.Model) -> None:
    model.graph.outputs[0].name = "loss"


def lower_the_precision(model: ir.Model) -> None:
    model.graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)


def raise_the_opset(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 24


def raise_the_ir_version(model: ir.Model) -> None:
    model.ir_version = 11


def cast_to_float64(model: ir.Model) -> None:
    wide = ir.Value(name="wide", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape([]))
    to = ir.AttrInt64("to", ir.DataType.DOUBLE)
    model.graph.append(ir.Node("", "Cast", [model.graph.outputs[0]], [to], outputs=[wide], name="wide"))


def draw_at_random(model: ir.Model) -> None:
    model.graph.append(ir.node("RandomNormal", [], {"shape": [2]}))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (fix_an_axis, r"memory_key_1 float32 \(2, 2, 'capacity', 5\), expected .* \('batch', 2, 'capacity', 5\)"),
        (rename_an_output, r"loss float32 .*, expected log_prob"),
        (lower_the_precision, r"log_prob float16 .*, expected log_prob float32"),
        (raise_the_opset, r"opset 24, IR 10; expected 20, 10"),
        (raise_the_ir_version, r"opset 20, IR 11; expected 20, 10"),
        (draw_at_random, r"RandomNormal node: not repeatable"),
        (cast_to_float64, r"Cast node: float64, which GPUs in browsers lack; wide: float64"),
    ],
)
def test_saved_file_that_does_not_match_its_spec_is_refused(
    change: Callable[[ir.Model], None], what: str, saved_score: Path, bytes_bundle: Converted
) -> None:
    step = architecture("transformer_xl").build_step(bytes_bundle.model)
    taken = {value.name for value in ir.load(saved_score).graph.inputs}
    declared = [tensor for tensor in step.inputs if tensor.name in taken], step.purposes["score"]
    _check_saved(saved_score, *declared)
    model = ir.load(saved_score)
    change(model)
    ir.save(model, saved_score)
    with pytest.raises(ExportError, match=f"^score.onnx: the saved graph does not match its spec: {what}") as caught:
        _check_saved(saved_score, *declared)
    assert "\n" not in str(caught.value)


def doubling(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def squeezing(x: torch.Tensor) -> torch.Tensor:
    """Treat one row differently from several; torch then fixes the axis at the example's size."""
    return 2 * x.squeeze(0).unsqueeze(0) if x.shape[0] == 1 else 2 * x


def branching(x: torch.Tensor) -> torch.Tensor:
    """Let control flow depend on values, which a graph cannot represent."""
    return x if x.sum() > 0 else 2 * x


def step_of(compute: Callable[[torch.Tensor], torch.Tensor], batch_size: int = 2) -> LoneStep:
    x = StepTensor("x", "float32", ("batch", "segment"), Feed("tokens"))
    return LoneStep(compute, [x], [StepTensor("y", "float32", ("batch", "segment"))], [torch.zeros(batch_size, 3)])


@pytest.mark.full
def test_smallest_step(tmp_path: Path) -> None:
    written = export_onnx(step_of(doubling), tmp_path)
    outputs = {"y": Tensor("float32", ("batch", "segment"))}
    assert written.graphs == {"score": Graph("score.onnx", "onnx", {"x": Feed("tokens")}, outputs)}
    assert written.steps == {"score": (Choice("score"),)}
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert np.array_equal(run(session(tmp_path / "score.onnx"), {"x": x})["y"], 2 * x)


@pytest.mark.full
def test_axis_that_tracing_has_fixed_is_refused(tmp_path: Path) -> None:
    """Check the error, because torch is silent and the spec's names would hide the fixed axis in the saved file."""
    with pytest.raises(ExportError, match=r"must stay free: x \(1, 'segment'\), expected \('batch', 'segment'\); y"):
        export_onnx(step_of(squeezing, batch_size=1), tmp_path)
    assert not list(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize(
    ("export", "hint"),
    [
        (export_onnx, "Install the version of torch in constraints.txt. If you have it, report this"),
        (export_torchscript, "Convert with --to onnx instead, and report this"),
        (export_programs, "Convert with --to onnx instead, and report this"),
    ],
)
@pytest.mark.full
def test_step_that_torch_cannot_export(export: Callable[[Step, Path], object], hint: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=rf"^torch .* could not [^(]+ step.* \(.+\)\. {hint}") as caught:
        export(step_of(branching), tmp_path)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_interrupt_that_torch_makes_an_error_stays_an_interrupt() -> None:
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("the compiler failed") from error

    with pytest.raises(KeyboardInterrupt), tracing("export the step", USE_ONNX):
        interrupted()
