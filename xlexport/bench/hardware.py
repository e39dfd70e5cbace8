"""The limits of the machine: the rates of arithmetic and of memory that no step can exceed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xlexport.bench.timing import seconds
from xlruntime.devices import Device
from xlruntime.providers import device_value, open_session

__all__ = ["Machine", "Rates"]

SGEMM_SIZE = 2048
COPY_BYTES = 128 << 20  # of each array, larger than caches


@dataclass(frozen=True)
class Rates:
    """The best measured rates, in 10^9 per second.

    Attributes:
        sgemm: multiplications and additions of a float32 matrix product.
        copy: bytes read and written while copying a large array.
        read: bytes read while summing a large array.
    """

    sgemm: float
    copy: float
    read: float

    @property
    def memory(self) -> float:
        """The faster of the two rates of memory, so that the floor of a step is never too high."""
        return max(self.copy, self.read)


class Machine:
    """Measures rates with the same runtime, device and threads as the steps."""

    def __init__(self, device: Device, threads: int | None) -> None:
        square, count = (SGEMM_SIZE, SGEMM_SIZE), COPY_BYTES // 4
        numbers = np.random.default_rng(0).random(square, np.float32)
        long = np.ones(count, np.float32)
        with tempfile.TemporaryDirectory() as scratch:

            def operator(name: str, inputs: Sequence[Any], shape: tuple[int, ...]) -> Callable[[], object]:
                return _operator(Path(scratch, f"{name}.onnx"), name, inputs, shape, device, threads)

            self._sgemm = operator("MatMul", [numbers, numbers], square)
            self._copy = operator("Neg", [long], (count,))  # a plain copy would get only one thread
            self._read = operator("ReduceSum", [long], (1,))
        self.rates()  # the first run allocates

    def rates(self, times: int = 1) -> Rates:
        """Measure each rate `times` times and return the best."""

        def best(run: Callable[[], object]) -> float:
            return min(seconds(run) for _ in range(times))

        return Rates(
            sgemm=2 * SGEMM_SIZE**3 / best(self._sgemm) / 1e9,
            copy=2 * COPY_BYTES / best(self._copy) / 1e9,
            read=COPY_BYTES / best(self._read) / 1e9,
        )


def _operator(
    path: Path, name: str, arrays: Sequence[Any], shape: tuple[int, ...], device: Device, threads: int | None
) -> Callable[[], object]:
    """Return a function that runs one float32 operator, whose inputs and output stay on the device."""
    import onnx_ir as ir

    def value(label: str, axes: Sequence[int]) -> ir.Value:
        return ir.Value(name=label, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(axes))

    inputs = [value(f"x{index}", array.shape) for index, array in enumerate(arrays)]
    result = value("y", shape)
    node = ir.Node("", name, inputs, outputs=[result])
    graph = ir.Graph(inputs, [result], nodes=[node], opset_imports={"": 20}, name=name)
    ir.save(ir.Model(graph, ir_version=10), path)
    session = open_session(path, device, threads)
    binding = session.io_binding()
    made = np.zeros(shape, np.float32)
    # Bound values, and on the CPU their arrays, must stay alive until the run ends.
    kept = [*arrays, made, *(device_value(array, device) for array in (*arrays, made))]
    for label, bound in zip((entry.name for entry in inputs), kept[len(arrays) + 1 : -1], strict=True):
        binding.bind_ortvalue_input(label, bound)
    binding.bind_ortvalue_output("y", kept[-1])

    def run() -> object:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return kept

    return run
