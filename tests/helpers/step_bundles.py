"""A step model without a converter: a bundle of the purpose `run`, written by hand, and the same model in NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from tests.helpers.manifests import seal, write_answers
from xlruntime.bundle_files import digest_file
from xlruntime.known_answers import KnownSteps

__all__ = ["FIRST_HIDDEN", "LONGEST", "give_step_answers", "run_steps", "write_step_bundle"]

Array = npt.NDArray[Any]

LONGEST = 4  # steps of one call
FIRST_HIDDEN = np.array([0.25, -0.5], np.float32)
WEIGHT = np.array([[0.5, -1.0], [0.25, 0.75], [-0.5, 0.125]], np.float32)
RECURRENT = np.array([[0.5, 0.25], [-0.25, 0.5]], np.float32)
GAINS = (1 / (1 + np.arange(100))).astype(np.float32)  # by the size of an observation; of 100 or more, the graph fails
FREE = ["batch", "segment"]


def write_step_bundle(folder: Path, *, fixed: dict[str, int] | None = None, max_positions: int | None = None) -> Path:
    """Write a bundle of a small recurrent step model; return its folder.

    Args:
        fixed: sizes of the axes `batch` and `segment` that the graph `run` has; a graph `run_1` then takes one step.
    """
    folder.mkdir(parents=True)
    (folder / "run.onnx").write_bytes(_graph())
    save_file({"hidden": FIRST_HIDDEN}, folder / "first_memory.safetensors")
    inputs = {"observation": _tensor("float32", *FREE, 3), "active": _tensor("bool", *FREE)}
    graph = {
        "file": "run.onnx",
        "format": "onnx",
        "inputs": {name: {"feed": "input", **tensor} for name, tensor in inputs.items()}
        | {"hidden": {"feed": "memory"}, "count": {"feed": "memory"}},
        "outputs": {"action": _tensor("float32", *FREE, 2), "counts": _tensor("int64", *FREE)},
        "fixed": fixed or {},
    }
    graphs = {"run": graph} | ({"run_1": {**graph, "fixed": {**fixed, "segment": 1}}} if fixed else {})
    memory = [("hidden", "hidden", _tensor("float32", "batch", 2)), ("count", None, _tensor("int64", "batch", 1))]
    manifest = {
        "format": 5,
        "requires": {"onnxruntime": "1.24.1", "opset": 20, "domains": {}},
        "model": {"architecture": "artificial", "config": {}, "vocab_size": 0, "precision": "float32"},
        "tokenizer": {"kind": "none", "file": None, "first_id": 0},
        "document": {
            **{"segment_len": LONGEST, "max_positions": max_positions, "restart": False, "full_document": False},
            **{"bidirectional": False, "fresh_memory": "empty", "encoder": None},
        },
        **{"settings": {}, "rings": {}},
        "memory": [
            {"input": name, "output": f"new_{name}", "layout": "state", "first_value": first, **tensor}
            for name, first, tensor in memory
        ],
        "graphs": graphs,
        "steps": {"run": [{"graph": name, "max_segment": None, "kernels": [], "device": None} for name in graphs]},
        **{"meaning": {}, "provenance": {"licence": None, "data": None, "intended_use": None}, "fingerprint": "5" * 64},
        "files": {
            file.name: {"sha256": digest_file(file).sha256, "size": file.stat().st_size}
            for file in sorted(folder.iterdir())
        },
    }
    seal(folder, json.dumps(manifest, indent=1).encode())
    return folder


def give_step_answers(folder: Path, change: Callable[[dict[str, Any]], object] = lambda answers: None) -> Path:
    """Write what NumPy computes of 10 steps as a bundle's known answers, changed; return the folder."""
    random = np.random.default_rng(3)
    observation, active = random.uniform(-1, 1, (1, 10, 3)).astype(np.float32), random.random((1, 10)) < 0.7
    action, counts, hidden, count = run_steps(observation, active, FIRST_HIDDEN[None], np.zeros((1, 1), np.int64))
    answers = KnownSteps(
        settings={"segment_len": 3},
        steps=10,
        inputs={"observation": tuple(observation.ravel().tolist()), "active": tuple(map(int, active.ravel()))},
        outputs={"action": tuple(action.ravel().tolist()), "counts": tuple(counts.ravel().tolist())},
        bounds={"action": 1e-5, "counts": 0.5},
        memory={"hidden": hidden.shape, "count": count.shape},
        certain=True,
    )
    write_answers(folder, answers, change)
    return folder


def run_steps(observation: Array, active: Array, hidden: Array, count: Array) -> tuple[Array, Array, Array, Array]:
    """Return actions (B, S, 2), counts (B, S), and the states after the steps, computed step by step."""
    actions, counts = [], []
    for each, on in zip(observation.swapaxes(0, 1), active.swapaxes(0, 1), strict=True):
        moved = np.tanh(each @ WEIGHT + hidden @ RECURRENT)
        hidden = np.where(on[:, None], moved, hidden)
        count = count + on[:, None]
        actions.append(hidden * GAINS[np.abs(each[:, :1]).astype(np.int64)])
        counts.append(count[:, 0])
    return np.stack(actions, 1), np.stack(counts, 1), hidden, count


def _tensor(dtype: str, *shape: str | int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape)}


def _graph() -> bytes:
    """Return the graph: a Scan over the steps, and gains of the actions."""
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("MatMul", ["x", "weight"], ["driven"]),
            node("MatMul", ["h", "recurrent"], ["carried"]),
            node("Add", ["driven", "carried"], ["sum"]),
            node("Tanh", ["sum"], ["moved"]),
            node("Unsqueeze", ["on", "last"], ["column"]),
            node("Where", ["column", "moved", "h"], ["h_next"]),
            node("Cast", ["column"], ["one"], to=TensorProto.INT64),
            node("Add", ["n", "one"], ["n_next"]),
            node("Identity", ["h_next"], ["h_step"]),
            node("Squeeze", ["n_next", "last"], ["n_step"]),
        ],
        "body",
        [value(name, kind, None) for name, kind in (("h", TensorProto.FLOAT), ("n", TensorProto.INT64))]
        + [value(name, kind, None) for name, kind in (("x", TensorProto.FLOAT), ("on", TensorProto.BOOL))],
        [value(name, kind, None) for name, kind in (("h_next", TensorProto.FLOAT), ("n_next", TensorProto.INT64))]
        + [value(name, kind, None) for name, kind in (("h_step", TensorProto.FLOAT), ("n_step", TensorProto.INT64))],
    )
    scan = node(
        "Scan",
        ["hidden", "count", "observation", "active"],
        ["new_hidden", "new_count", "hiddens", "counts"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[1, 1],
        scan_output_axes=[1, 1],
    )
    nodes = [
        scan,
        node("Slice", ["observation", "zero", "first", "axis"], ["part"]),
        node("Abs", ["part"], ["size"]),
        node("Cast", ["size"], ["index"], to=TensorProto.INT64),
        node("Gather", ["gains", "index"], ["gain"]),
        node("Mul", ["hiddens", "gain"], ["action"]),
    ]
    numbers = {"weight": WEIGHT, "recurrent": RECURRENT, "gains": GAINS, "last": np.array([-1])}
    numbers |= {"zero": np.array([0]), "first": np.array([1]), "axis": np.array([2])}
    graph = helper.make_graph(
        nodes,
        "run",
        [
            value("observation", TensorProto.FLOAT, [*FREE, 3]),
            value("active", TensorProto.BOOL, FREE),
            value("hidden", TensorProto.FLOAT, ["batch", 2]),
            value("count", TensorProto.INT64, ["batch", 1]),
        ],
        [
            value("action", TensorProto.FLOAT, [*FREE, 2]),
            value("counts", TensorProto.INT64, FREE),
            value("new_hidden", TensorProto.FLOAT, ["batch", 2]),
            value("new_count", TensorProto.INT64, ["batch", 1]),
        ],
        initializer=[numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())
