"""The custom operators: results in eager mode and as ONNX functions, and their form in exported files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import library

from tests.helpers.lone_node import lone_node
from tests.ops import test_local_attention, test_lsh_attention, test_relative_attention
from xlexport.errors import ExportError
from xlexport.export.onnx import OPSET, _check_saved, export_onnx
from xlexport.families import Form, StepTensor
from xlexport.families.step import StepGraphs
from xlexport.families.step_module import StepModule
from xlexport.ops import DOMAIN, lsh_gather, lsh_sort
from xlruntime.bundle import MemoryEntry

Array = npt.NDArray[Any]


sort_body = lone_node("LSHSort", 1, 2)
gather_body = lone_node("LSHGather", 2, 1)


def random_ids(*shape: int, low: int = 0, high: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def check_sort(buckets: torch.Tensor) -> None:
    """Compare eager results and those of the function's body with NumPy, exactly."""
    order, inverse = (tensor.numpy() for tensor in lsh_sort(buckets))
    wanted = np.argsort(buckets.numpy(), axis=-1, kind="stable")
    assert np.array_equal(order, wanted)
    assert np.array_equal(inverse, np.argsort(wanted, axis=-1))
    found = sort_body(buckets.numpy())
    assert [tensor.dtype for tensor in found] == [np.int64, np.int64]
    assert np.array_equal(found[0], order)
    assert np.array_equal(found[1], inverse)


SHAPES = st.lists(st.integers(0, 3), max_size=3)  # of the leading axes
SIMPLE = settings(deadline=None, max_examples=60)


@SIMPLE
@given(leading=SHAPES, N=st.sampled_from((0, 1, 2, 33, 77, 4096)), largest=st.sampled_from((1, 2, 8, 32)))
@example(leading=[2], N=65536, largest=32)
@example(leading=[], N=1 << 19, largest=8192)  # as in the Crime and Punishment model: keys are beyond 32 bits
@example(leading=[], N=1 << 20, largest=8192)
@pytest.mark.full
def test_sort_against_numpy(leading: list[int], N: int, largest: int) -> None:
    """Sort ids of both signs, many of them equal, in any layout in memory."""
    buckets = random_ids(*leading, N, low=-largest // 2, high=largest)
    check_sort(buckets)
    if leading:
        check_sort(buckets.transpose(0, -1))
        assert lsh_sort(buckets.transpose(0, -1))[1].is_contiguous()


@SIMPLE
@given(leading=SHAPES, N=st.integers(1, 9), M=st.integers(0, 20))
def test_gather_against_numpy(leading: list[int], N: int, M: int) -> None:
    rows, index = torch.randn(*leading, N, 6), random_ids(*leading, M, high=N)
    gathered = lsh_gather(rows, index)
    assert gathered.shape == (*leading, M, 6)
    wanted = np.take_along_axis(rows.numpy(), index.numpy()[..., None], axis=-2)
    assert np.array_equal(gathered.numpy(), wanted)
    assert np.array_equal(gather_body(rows.numpy(), index.numpy())[0], wanted)


def test_gather_from_nothing() -> None:
    rows, index = torch.zeros(2, 0, 6), torch.zeros(2, 0, dtype=torch.int64)
    assert lsh_gather(rows, index).shape == gather_body(rows.numpy(), index.numpy())[0].shape == (2, 0, 6)


@pytest.mark.parametrize("wrong", [-1, 5, 7, 1 << 40])
def test_gather_out_of_range_is_an_error(wrong: int) -> None:
    """Check also indices that would point to a neighbour's row, because all groups share one axis."""
    rows, index = torch.randn(3, 5, 2), random_ids(3, 4, high=5)
    index[1, 2] = wrong
    with pytest.raises(IndexError, match=r"^lsh_gather: indices must be in \[0, 5\), found "):
        lsh_gather(rows, index)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of data bounds"):
        gather_body(rows.numpy(), index.numpy())


CHECKED: dict[str, tuple[Any, ...]] = {
    **{f"lsh_sort of {sample.ndim} axes": (sample,) for sample in (random_ids(7), random_ids(2, 3, 4))},
    "lsh_sort of zeros": (torch.zeros(2, 5, dtype=torch.int64),),
    "lsh_gather": (torch.randn(2, 3, 4, 3), lsh_sort(random_ids(2, 3, 4))[0]),
    "lsh_attention": (*test_lsh_attention.CASES[4].inputs(), 3, 4),
    "lsh_few_attention": (*test_lsh_attention.CASES[4].inputs(), 3, 4),
    "local_attention": (*test_local_attention.CASES[2].inputs(), 4, 1),
    "relative_attention": test_relative_attention.CASES[6].inputs(),
    "relative_attention_int8": test_relative_attention.int8_inputs(test_relative_attention.CASES[6]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_operators_are_what_torch_expects(name: str) -> None:
    """Check that operators have no aliases or mutations, and right shapes for tensors without content."""
    operator = getattr(torch.ops.xlexport, name.partition(" ")[0]).default
    library.opcheck(operator, CHECKED[name], test_utils=("test_schema", "test_faketensor"))


class Reordering(StepModule):
    """A step with both operators in one graph, one in another, and none in a third, which has its own form."""

    inputs = (
        StepTensor("buckets", "int64", ("batch", "segment")),
        StepTensor("rows", "float32", ("batch", "segment", 3)),
    )
    memory: tuple[MemoryEntry, ...] = ()
    _rows = StepTensor("out", "float32", ("batch", "segment", 3))
    purposes: ClassVar[dict[str, tuple[StepTensor, ...]]] = {
        "score": (_rows,),
        "detail": (StepTensor("order", "int64", ("batch", "segment")),),
        "generate": (_rows,),
    }
    traceable = True

    @property
    def forms(self) -> Mapping[str, Form]:
        return {"generate": Form("plain", max_segment=4)}

    def example(self) -> tuple[torch.Tensor, ...]:
        return torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5, 3)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        buckets, rows = inputs
        order, _ = lsh_sort(buckets)
        return lsh_gather(rows, order), order, 2 * rows


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StepGraphs]:
    folder = tmp_path_factory.mktemp("reordering")
    return folder, export_onnx(Reordering(), folder)


@pytest.mark.parametrize(
    ("purpose", "used"), [("score", ["LSHGather", "LSHSort"]), ("detail", ["LSHSort"]), ("generate", [])]
)
@pytest.mark.full
def test_file_has_nodes_and_bodies(purpose: str, used: list[str], exported: tuple[Path, StepGraphs]) -> None:
    folder, _ = exported
    model = onnx.load(folder / f"{purpose}.onnx")
    assert sorted(node.op_type for node in model.graph.node if node.domain == DOMAIN) == used
    assert sorted(function.name for function in model.functions) == used
    assert {function.domain for function in model.functions} <= {DOMAIN}
    assert all(entry.version == OPSET for function in model.functions for entry in function.opset_import)
    imports = {entry.domain: entry.version for entry in model.opset_import}
    assert imports == ({"": OPSET, DOMAIN: 1} if used else {"": OPSET})
    onnx.checker.check_model(model, full_check=True)


def run(folder: Path, purpose: str, feeds: dict[str, Array]) -> Array:
    session = ort.InferenceSession(str(folder / f"{purpose}.onnx"), providers=["CPUExecutionProvider"])
    made: list[Array] = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
    return made[0]


@pytest.mark.parametrize(("B", "S"), [(1, 1), (3, 1), (1, 40), (2, 1000)])
def test_exported_against_torch(B: int, S: int, exported: tuple[Path, StepGraphs]) -> None:
    buckets, rows = random_ids(B, S, low=-3), torch.randn(B, S, 3)
    wanted = Reordering()(buckets, rows)
    feeds = {"buckets": buckets.numpy(), "rows": rows.numpy()}
    for purpose, tensor in zip(("score", "detail", "generate"), wanted, strict=True):
        assert np.array_equal(run(exported[0], purpose, feeds), tensor.numpy()), purpose


def test_form_says_how_long_its_steps_are(exported: tuple[Path, StepGraphs]) -> None:
    _, written = exported
    limits = {purpose: [choice.max_segment for choice in choices] for purpose, choices in written.steps.items()}
    assert limits == {"score": [None], "detail": [None], "generate": [4]}
    assert written.graphs["generate"].outputs == written.graphs["score"].outputs


def lose_a_body(model: ir.Model) -> None:
    del model.functions[DOMAIN, "LSHGather", ""]


def add_a_body(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "LSHGather")
    node.outputs[0].replace_all_uses_with(model.graph.inputs[1], replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


def forget_the_domain(model: ir.Model) -> None:
    del model.opset_imports[DOMAIN]


def draw_in_a_body(model: ir.Model) -> None:
    model.functions[DOMAIN, "LSHGather", ""].append(ir.node("RandomNormal", [], {"shape": [2]}))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lose_a_body, "ai.xlexport::LSHGather has no function body"),
        (add_a_body, "a function body of ai.xlexport::LSHGather without a node"),
        (forget_the_domain, "ai.xlexport None imported, expected 1"),
        (draw_in_a_body, "RandomNormal node: not repeatable"),
    ],
)
def test_saved_file_with_other_operators_is_refused(
    change: Callable[[ir.Model], None], what: str, exported: tuple[Path, StepGraphs], tmp_path: Path
) -> None:
    folder, _ = exported
    model = ir.load(folder / "score.onnx")
    change(model)
    ir.save(model, tmp_path / "score.onnx")
    with pytest.raises(ExportError, match=f"^score.onnx: the saved graph does not match its spec: .*{what}"):
        _check_saved(tmp_path / "score.onnx", Reordering.inputs, Reordering.purposes["score"])
