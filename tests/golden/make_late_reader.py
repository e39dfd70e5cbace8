"""Make the golden bundle `late_reader`: an artificial model whose graph reads its memory after writing it.

    python tests/golden/make_late_reader.py

Its memory holds the last three tokens as a `window`. Its graphs write them first, and then "score" the step's first
token by the sum of the rows before it: -(a + b + c + token). If old and new memory share a buffer, the score is wrong.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from xlexport.bundles import digests, write_manifest
from xlruntime import spec
from xlruntime.evaluation import EvaluationRules

FOLDER = Path(__file__).resolve().parent / "late_reader" / "bundle"
ROWS = 3
MEMORY = spec.Memory("memory_rows", "new_memory_rows", "float32", ("batch", 1, ROWS, 1), layout="window")
TOKENS = ("batch", "segment")
GRAPH = spec.Graph(
    "score.onnx",
    (spec.Tensor("tokens", "int64", TOKENS), spec.Tensor(MEMORY.input, MEMORY.dtype, MEMORY.shape)),
    (spec.Tensor("log_prob", "float32", TOKENS), spec.Tensor(MEMORY.output, MEMORY.dtype, MEMORY.shape)),
)
KINDS = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}


def model() -> onnx.ModelProto:
    """Build the graph."""
    constants = {
        "axes": [1, 3],  # tokens (B, S) to rows (B, 1, S, 1)
        "row_axis": [2],
        "first": [-ROWS],
        "end": [2**31],
        "row_axes": [1, 2, 3],
        "axis": [1],
    }
    nodes = [
        helper.make_node("Cast", ["tokens"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "axes"], ["rows"]),
        helper.make_node("Concat", [MEMORY.input, "rows"], ["all"], axis=2),
        helper.make_node("Slice", ["all", "first", "end", "row_axis"], [MEMORY.output]),
        # The new memory does not change the sum, but the sum can only be computed after it.
        helper.make_node("Sub", [MEMORY.output, MEMORY.output], ["nothing"]),
        helper.make_node("Add", [MEMORY.input, "nothing"], ["old"]),
        helper.make_node("ReduceSum", ["old", "row_axes"], ["sum"], keepdims=0),
        helper.make_node("Unsqueeze", ["sum", "axis"], ["before"]),
        helper.make_node("Add", ["before", "numbers"], ["both"]),
        helper.make_node("Neg", ["both"], ["log_prob"]),
    ]

    def values(tensors: tuple[spec.Tensor, ...]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(one.name, KINDS[one.dtype], one.shape) for one in tensors]

    initializers = [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "score", values(GRAPH.inputs), values(GRAPH.outputs), initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(made, {spec.METADATA_KEY: GRAPH.metadata((MEMORY,))})
    onnx.checker.check_model(made, full_check=True)
    return made


def main() -> None:
    """Write the bundle."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    onnx.save(model(), str(FOLDER / GRAPH.file))
    bundle = spec.Bundle(
        architecture="late_reader",
        config={},
        vocab_size=10,
        tokenizer=spec.Tokenizer("none"),
        precision="float32",
        evaluation=EvaluationRules(segment_len=4),
        memory=(MEMORY,),
        graphs={"score": GRAPH},
        provenance={},
        files=digests(FOLDER),
    )
    write_manifest(FOLDER, bundle)


if __name__ == "__main__":
    main()
