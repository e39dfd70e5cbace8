"""A step module that computes one function, and its exported graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from torch import Tensor

from xlexport.export.onnx import export_onnx
from xlexport.families import StepTensor
from xlexport.families.step_module import StepModule
from xlruntime.bundle import MemoryEntry


class LoneStep(StepModule):
    """A step without memory, whose graph `score` computes `compute(*inputs, *buffers)`."""

    traceable = True
    memory: tuple[MemoryEntry, ...] = ()

    def __init__(
        self,
        compute: Callable[..., Tensor | tuple[Tensor, ...]],
        inputs: Sequence[StepTensor],
        outputs: Sequence[StepTensor],
        example: Sequence[Tensor],
        *buffers: Tensor,
    ) -> None:
        super().__init__()
        self.compute, self.inputs, self._example = compute, tuple(inputs), tuple(example)
        self.purposes = {"score": tuple(outputs)}
        for index, buffer in enumerate(buffers):
            self.register_buffer(f"buffer_{index}", buffer)

    def example(self) -> tuple[Tensor, ...]:
        return self._example

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results = self.compute(*inputs, *self.buffers())
        return results if isinstance(results, tuple) else (results,)


def export_lone(step: LoneStep, folder: Path) -> tuple[onnx.ModelProto, Callable[..., list[npt.NDArray[Any]]]]:
    """Export a step; return the checked graph, and a function that runs it in plain ONNX Runtime on tensors."""
    export_onnx(step, folder)
    model = onnx.load(folder / "score.onnx")
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(str(folder / "score.onnx"), providers=["CPUExecutionProvider"])

    def run(*tensors: Tensor) -> list[npt.NDArray[Any]]:
        feeds = {tensor.name: np.asarray(value) for tensor, value in zip(step.inputs, tensors, strict=True)}
        results: list[npt.NDArray[Any]] = session.run(None, feeds)
        return results

    return model, run
