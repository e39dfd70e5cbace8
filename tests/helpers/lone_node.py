"""A graph of one custom node, which runs the body of its operator or a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from xlexport.export.onnx import IR_VERSION, OPSET
from xlexport.ops import DOMAIN, add_functions
from xlruntime.placement import RECORD_PLACEMENT

Array = npt.NDArray[Any]
KINDS = {
    np.dtype("float32"): onnx.TensorProto.FLOAT,
    np.dtype("float16"): onnx.TensorProto.FLOAT16,
    np.dtype("float64"): onnx.TensorProto.DOUBLE,
    np.dtype("int32"): onnx.TensorProto.INT32,
    np.dtype("int64"): onnx.TensorProto.INT64,
    np.dtype("int8"): onnx.TensorProto.INT8,
}


def lone_model(name: str, given: Sequence[Array], n_outputs: int, **attributes: Any) -> bytes:
    """Return a graph of one custom node, with its body. Inputs x0, x1, … have the types of `given`, and any shape."""
    taken = [onnx.helper.make_tensor_value_info(f"x{i}", KINDS[x.dtype], None) for i, x in enumerate(given)]
    outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(n_outputs)]
    node = onnx.helper.make_node(
        name, [value.name for value in taken], [value.name for value in outputs], domain=DOMAIN, **attributes
    )
    graph = onnx.helper.make_graph([node], "lone", taken, outputs)
    imports = [onnx.helper.make_opsetid("", OPSET)]
    model = ir.serde.deserialize_model(onnx.helper.make_model(graph, ir_version=IR_VERSION, opset_imports=imports))
    add_functions(model)
    return ir.serde.serialize_model(model).SerializeToString()


def lone_session(
    name: str, given: Sequence[Array], n_outputs: int, library: Path | None = None, threads: int = 1, **attributes: Any
) -> ort.InferenceSession:
    """Return a session of `lone_model`, opened once. With the library of kernels, the operator's kernel runs."""
    return session_of(lone_model(name, given, n_outputs, **attributes), library, threads)


@functools.cache
def session_of(content: bytes, library: Path | None = None, threads: int = 1) -> ort.InferenceSession:
    """Return a session of a graph, opened once, in plain ONNX Runtime or with a library of kernels."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors reach the test as exceptions
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def lone_node(name: str, n_inputs: int, n_outputs: int, **attributes: Any) -> Callable[..., list[Array]]:
    """Return a function that runs the body of one custom node in plain ONNX Runtime, without registered operators."""

    def run(*given: Array) -> list[Array]:
        assert len(given) == n_inputs
        session = lone_session(name, given, n_outputs, **attributes)
        made: list[Array] = session.run(None, {f"x{i}": x for i, x in enumerate(given)})
        return made

    return run
