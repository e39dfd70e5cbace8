"""Make the golden bundle `late_reader`: an artificial model whose graph reads its memory after writing it.

    python tests/golden/make_late_reader.py

Its memory holds the last three tokens as a `window`. Its graphs write them first, and then "score" the step's first
token by the sum of the rows before it: -(a + b + c + token). If old and new memory share a buffer, the score is wrong.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from xlexport.bundles import digests, requirements, write_manifest
from xlruntime.bundle import Bundle, Feed, Graph, MemoryEntry, Tensor, Tokenizer
from xlruntime.evaluation import EvaluationRules

FOLDER = Path(__file__).resolve().parent / "late_reader" / "bundle"
ROWS = 3
MEMORY = MemoryEntry("memory_rows", "new_memory_rows", "float32", ("batch", 1, ROWS, 1), layout="window")
TOKENS = ("batch", "segment")
GRAPH = Graph(
    "score.onnx",
    "onnx",
    inputs={"tokens": Feed("tokens"), MEMORY.input: Feed("memory")},
    outputs={"log_prob": Tensor("float32", TOKENS)},
)


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

    def rows(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, MEMORY.shape)

    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, TOKENS)
    log_prob = helper.make_tensor_value_info("log_prob", TensorProto.FLOAT, TOKENS)
    initializers = [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in constants.items()]
    graph = helper.make_graph(
        nodes, "score", [tokens, rows(MEMORY.input)], [log_prob, rows(MEMORY.output)], initializers
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def main() -> None:
    """Write the bundle."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    onnx.save(model(), str(FOLDER / GRAPH.file))
    bundle = Bundle(
        architecture="late_reader",
        config={},
        vocab_size=10,
        tokenizer=Tokenizer("none"),
        precision="float32",
        evaluation=EvaluationRules(segment_len=4),
        memory=(MEMORY,),
        graphs={"score": GRAPH},
        provenance=dict.fromkeys(("licence", "data", "intended_use")),
        files=digests(FOLDER),
        requires=requirements(FOLDER, [GRAPH]),
    )
    write_manifest(FOLDER, bundle)


if __name__ == "__main__":
    main()
