"""Make the golden bundle `late_reader`: an artificial model whose graph reads its memory after writing it.

    python tests/golden/make_late_reader.py

Its memory holds the last three tokens as a `window`. Its graphs write them first, and then "score" the step's first
token by the sum of the rows before it: -(a + b + c + token). If old and new memory share a buffer, the score is wrong.
"""

from __future__ import annotations

from pathlib import Path

import onnx.parser

from xlexport.manifest import digests, fingerprint, requirements, write_manifest
from xlexport.meanings import meanings_of
from xlruntime.bundle import Bundle, Choice, Feed, Graph, MemoryEntry, Tensor, TokenizerEntry
from xlruntime.evaluation import EvaluationRules

FOLDER = Path(__file__).resolve().parent / "late_reader" / "bundle"
MEMORY = MemoryEntry("memory_rows", "new_memory_rows", "float32", ("batch", 1, 3, 1), layout="window")
TOKENS = ("batch", "segment")
GRAPH = Graph(
    "score.onnx",
    "onnx",
    inputs={"tokens": Feed("tokens"), MEMORY.input: Feed("memory")},
    outputs={"log_prob": Tensor("float32", TOKENS)},
)


# The new memory does not change the sum, but the sum can only be computed after it.
MODEL = """
<ir_version: 10, opset_import: ["": 20]>
score (int64[batch, segment] tokens, float[batch, 1, 3, 1] memory_rows)
    => (float[batch, segment] log_prob, float[batch, 1, 3, 1] new_memory_rows)
<int64[2] axes = {1, 3}, int64[1] row_axis = {2}, int64[1] first = {-3}, int64[1] end = {2147483648},
 int64[3] row_axes = {1, 2, 3}, int64[1] axis = {1}>
{
    numbers = Cast <to = 1> (tokens)
    rows = Unsqueeze (numbers, axes)
    all = Concat <axis = 2> (memory_rows, rows)
    new_memory_rows = Slice (all, first, end, row_axis)
    nothing = Sub (new_memory_rows, new_memory_rows)
    old = Add (memory_rows, nothing)
    sum = ReduceSum <keepdims = 0> (old, row_axes)
    before = Unsqueeze (sum, axis)
    both = Add (before, numbers)
    log_prob = Neg (both)
}
"""


def main() -> None:
    """Write the bundle."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(MODEL), FOLDER / GRAPH.file)
    bundle = Bundle(
        architecture="late_reader",
        config={},
        vocab_size=10,
        tokenizer=TokenizerEntry("none"),
        precision="float32",
        evaluation=EvaluationRules(segment_len=4),
        memory=(MEMORY,),
        graphs={"score": GRAPH},
        steps={"score": (Choice("score"),)},
        meaning=meanings_of([GRAPH], [MEMORY]),
        provenance=dict.fromkeys(("licence", "data", "intended_use")),
        files=(files := digests(FOLDER)),
        fingerprint=fingerprint(files, [GRAPH]),
        requires=requirements(FOLDER, [GRAPH]),
    )
    write_manifest(FOLDER, bundle)


if __name__ == "__main__":
    main()
