"""Every node of a Reformer's graphs has a kernel on CUDA, by the table of ONNX Runtime's kernels."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, defs, helper

from tests.helpers.bundles import ConvertedReformer
from tests.helpers.cuda_kernels import KERNELS, OPSET, UNTIL_THEN, missing_kernels
from tests.helpers.paths import GOLDEN


@pytest.mark.parametrize("rule", ["band", "paper", "chunk"])
def test_graphs_of_free_shapes_have_cuda_kernels_only(rule: str, request: pytest.FixtureRequest) -> None:
    bundle: ConvertedReformer = request.getfixturevalue(rule)
    files = sorted(bundle.folder.glob("*.onnx"))
    assert {"detail", "generate", "score"} <= {file.stem for file in files}
    assert {file.stem: missing_kernels(onnx.load(file, load_external_data=False)) for file in files} == {
        file.stem: [] for file in files
    }


def pad_of(kind: int) -> onnx.ModelProto:
    """Return a graph that pads a tensor of this type in both branches of an `If`."""
    inner = [
        helper.make_graph([helper.make_node("Pad", ["x", "pads"], [name])], name, [], [onnx.ValueInfoProto(name=name)])
        for name in ("then", "else")
    ]
    node = helper.make_node("If", ["some"], ["y"], then_branch=inner[0], else_branch=inner[1])
    shapes = (("x", kind, [3]), ("pads", TensorProto.INT64, [2]), ("some", TensorProto.BOOL, []))
    inputs = [helper.make_tensor_value_info(*each) for each in shapes]
    graph = helper.make_graph([node], "pad", inputs, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


def test_pads_of_integers_are_found() -> None:
    assert missing_kernels(pad_of(TensorProto.INT64)) == ["Pad of int64", "Pad of int64"]
    assert missing_kernels(pad_of(TensorProto.FLOAT)) == []
    before = missing_kernels(onnx.load(GOLDEN / "reformer_chunk" / "bundle" / "score.onnx", load_external_data=False))
    assert set(before) == {"Pad of int64", "ReduceProd of int64"}  # as this bundle was written


def test_the_table_names_operators_and_parameters_of_onnx() -> None:
    assert set(UNTIL_THEN) <= set(KERNELS)
    for name, types in KERNELS.items():
        schema = defs.get_schema(name, OPSET)
        assert set(types) == {constraint.type_param_str for constraint in schema.type_constraints}, name
        newer = schema.since_version > UNTIL_THEN.get(name, OPSET)
        assert newer == (name in UNTIL_THEN), name
