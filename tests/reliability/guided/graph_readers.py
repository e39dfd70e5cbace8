"""Target: the check of a graph file before ONNX Runtime opens it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.helpers.paths import GOLDEN
from tests.reliability.guided.target import Target
from xlruntime.bundle import DOMAIN
from xlruntime.errors import BundleError
from xlruntime.graph_gate import check_graph

__all__ = ["GraphFile"]

DATA = "weights.data"


class GraphFile(Target):
    """An ONNX file, walked as protocol buffers."""

    errors = (BundleError,)
    words = (*(b"Loop", b"MatMul", b"location", b"offset", b"length", b"../x", DATA.encode(), DOMAIN.encode()),
             *(b"\x0a\x04", b"\x3a\x10", b"\xca\x01", b"\x32\x02", b"\x6a\x08"))  # fmt: skip

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        yield (GOLDEN / "late_reader" / "bundle" / "score.onnx").read_bytes()
        yield _model([helper.make_node("Add", ["x", "w"], ["y"])]).SerializeToString()
        inner = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "inner", [], [])
        yield _model([helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)]).SerializeToString()
        for called in ("second", "first"):  # the latter calls itself
            model = _model([helper.make_node("first", ["x"], ["y"], domain=DOMAIN)])
            imports = [helper.make_opsetid("", 21)]
            model.functions.extend(
                [
                    helper.make_function(DOMAIN, "first", ["x"], ["y"],
                                         [helper.make_node(called, ["x"], ["y"], domain=DOMAIN)], imports),
                    helper.make_function(DOMAIN, "second", ["x"], ["y"],
                                         [helper.make_node("Neg", ["x"], ["y"])], imports),
                ]
            )  # fmt: skip
            yield model.SerializeToString()
        yield _model([helper.make_node("AttnLSTM", ["x"], ["y"], domain="com.microsoft")]).SerializeToString()

    def read(self, raw: bytes) -> object:
        check_graph(raw, "score.onnx", (DATA,))
        return None


def _model(nodes: list[NodeProto]) -> ModelProto:
    """Return a model whose weight `w` is in another file of the same folder."""
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": DATA, "offset": "0", "length": "8"}.items():
        weight.external_data.add(key=key, value=value)
    return helper.make_model(helper.make_graph(nodes, "graph", sizes[:1], sizes[1:], [weight]))
