"""A graph of one custom node, which runs the body of its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from xlexport.export.onnx import IR_VERSION, OPSET
from xlexport.ops import DOMAIN, add_functions

__all__ = ["lone_node"]

Array = npt.NDArray[Any]
KINDS = {np.dtype("float32"): onnx.TensorProto.FLOAT, np.dtype("int64"): onnx.TensorProto.INT64}


def lone_node(name: str, n_inputs: int, n_outputs: int, **attributes: Any) -> Callable[..., list[Array]]:
    """Open a graph of one custom node with inputs of any shape in plain ONNX Runtime, without registered operators."""

    def run(*given: Array) -> list[Array]:
        assert len(given) == n_inputs
        taken = [onnx.helper.make_tensor_value_info(f"x{i}", KINDS[x.dtype], None) for i, x in enumerate(given)]
        outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(n_outputs)]
        node = onnx.helper.make_node(
            name, [value.name for value in taken], [value.name for value in outputs], domain=DOMAIN, **attributes
        )
        graph = onnx.helper.make_graph([node], "lone", taken, outputs)
        imports = [onnx.helper.make_opsetid("", OPSET)]
        model = ir.serde.deserialize_model(onnx.helper.make_model(graph, ir_version=IR_VERSION, opset_imports=imports))
        add_functions(model)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4  # errors reach the test as exceptions
        content = ir.serde.serialize_model(model).SerializeToString()
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        made: list[Array] = session.run(None, {f"x{i}": x for i, x in enumerate(given)})
        return made

    return run
