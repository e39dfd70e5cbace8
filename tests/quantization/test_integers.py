"""Rounded weights, and products of integers, which are exact on every processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
import torch

from tests.helpers.lone_node import lone_model
from tests.ops.test_relative_attention import Case
from xlexport.ops import relative_attention_int8
from xlexport.quantization.dynamic_int8 import _limit_pairs, quantize_columns, rewrite
from xlexport.quantization.matmuls import WeightStore
from xlexport.quantization.weight_only import BLOCK, block_size, quantize_blocks

Arrays = dict[str, npt.NDArray[Any]]
EMULATED = ["Haswell", "Westmere"]  # AVX2, SSE4.2: pairs saturate in ONNX Runtime
CHILD = """
import sys
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
numpy.save(sys.argv[3], session.run(["y0"], dict(numpy.load(sys.argv[2])))[0])
"""


def weights() -> tuple[bytes, Arrays, npt.NDArray[np.float64], float]:
    """Return a product of extreme rows with extreme weights, its inputs and result, and what it may differ by."""
    random = np.random.default_rng(1)
    weight = random.choice(np.array([-1, 1, 1, 1], np.float32), (64, 48)) * random.choice([0.5, 0.52, 1.0], (64, 48))
    rows = np.concatenate([np.ones((1, 64)), random.choice([-1.0, 1.0], (15, 64))]).astype(np.float32)
    made = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y0"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16, 64])],
        [onnx.helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, [16, 48])],
        [onnx.numpy_helper.from_array(weight.astype(np.float32), "w")],
    )
    imports = [onnx.helper.make_opsetid("", 20)]
    model = ir.serde.deserialize_model(onnx.helper.make_model(made, ir_version=9, opset_imports=imports))
    rewrite(model, frozenset(), WeightStore())
    integers, step = quantize_columns(weight.astype(np.float32))
    assert np.abs(integers[0::2].astype(int) + integers[1::2]).max() == 128  # pairs at the limit
    expected = rows.astype(np.float64) @ integers * step
    return ir.serde.serialize_model(model).SerializeToString(), {"x": rows}, expected, float(step.min() / 2)


def attention() -> tuple[bytes, Arrays, npt.NDArray[np.float64], float]:
    """Return attention whose queries, keys and values all are extreme integers; weights are rounded to 7 bits."""
    case = Case(S=12, C=40, H=2, d=32, near=40, length=(28,))
    qkv, u, v, key, value, position_key, *counters = case.inputs()
    qkv = torch.sign(qkv)
    qkv[:, :, : case.H * case.d] = 0.3  # queries, near all keys of the ring
    rings = [(torch.sign(ring) * 127).to(torch.int8) for ring in (key.abs(), value)]
    scales = [torch.full(ring.shape[:3], 1 / 127) for ring in rings]
    inputs = [qkv, u * 0, v * 0, rings[0], scales[0], rings[1], scales[1], position_key, *counters]
    expected = relative_attention_int8(*inputs)[0].numpy().astype(np.float64)
    arrays = [tensor.numpy() for tensor in inputs]
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    return lone_model("RelativeAttentionInt8", arrays, 5), feeds, expected, 0.03


@pytest.mark.parametrize("product", [weights, attention], ids=["weights", "attention"])
@pytest.mark.parametrize("processor", [None, *(pytest.param(name, marks=pytest.mark.full) for name in EMULATED)])
def test_sums_of_products(
    processor: str | None, product: Callable[[], tuple[bytes, Arrays, npt.NDArray[np.float64], float]], tmp_path: Path
) -> None:
    content, feeds, expected, tolerance = product()
    files = [tmp_path / name for name in ("graph.onnx", "inputs.npz", "result.npy")]
    files[0].write_bytes(content)
    np.savez(files[1], **feeds)  # type: ignore[arg-type]  # of its stub's parameter allow_pickle
    emulator = [] if processor is None else [shutil.which("qemu-x86_64"), "-cpu", processor]
    if None in emulator:
        pytest.skip("needs qemu-x86_64 (Debian's package qemu-user)")
    # OpenBLAS chooses its own code for the emulated processor.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    command = [*emulator, sys.executable, "-c", CHILD, *map(str, files)]
    subprocess.run(command, env=environment, check=True, timeout=600)  # type: ignore[arg-type]  # None was skipped
    assert np.abs(np.load(files[2]) - expected).max() <= tolerance


# Rounded weights: columns of int8 and blocks of 8 and 4 bits.


def random_weights(rows: int, columns: int) -> npt.NDArray[np.float32]:
    made = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    made[:, 0] = 0  # avoids a division by zero
    made[3, 1] = 100  # an outlier coarsens only its own column or block
    return made


@pytest.mark.parametrize("rows", [256, 41])  # of 41 rows, the last has no neighbour
def test_columns_fit_any_processor_and_lose_no_more_than_7_bits(rows: int) -> None:
    exact = random_weights(rows, 24)
    integers, step = quantize_columns(exact)
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max() == 127
    pairs = integers[: rows // 2 * 2].astype(int).reshape(-1, 2, 24)
    for sign in (1, -1):
        assert np.clip(sign * pairs, 0, None).sum(axis=1).max() <= 128
    plain = np.maximum(np.abs(exact).max(axis=0) / 63.5, 1e-30)
    lost = np.square(integers * step - exact).sum(axis=0)
    assert (lost <= np.square(np.rint(exact / plain) * plain - exact).sum(axis=0) * (1 + 1e-5)).all()
    assert step[1] > 10 * step[2]
    assert not integers[:, 0].any()


def test_pairs_that_are_too_large_move_towards_zero_together() -> None:
    column = np.array([127, 127, -127, -30, 127, -127, 1, 127], np.float32)
    _, step = quantize_columns(np.stack([column] * 16, axis=1))
    assert step[0] > 1  # a finer one would lose more
    limited = _limit_pairs(column[:, None])
    assert limited[:, 0].tolist() == [64, 64, -113, -15, 127, -127, 1, 127]


@pytest.mark.parametrize("rows", [256, 200, 16])  # whole blocks, a partial block at the end, less than one block
@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_lose_no_more_than_the_plain_step(bits: int, rows: int) -> None:
    exact, block = random_weights(rows, 24), block_size(rows, bits)
    assert block == min(BLOCK[bits], 2 ** int(np.log2(rows)))
    integers, step = quantize_blocks(exact, bits, block)
    assert step.shape == (-(-rows // block), 24)
    assert integers.min() >= -(2 ** (bits - 1)) and integers.max() < 2 ** (bits - 1)
    found = integers.astype(np.float32) * step.repeat(block, axis=0)[:rows]  # the factors of the graphs
    assert not found[:, 0].any()
    largest = 2 ** (bits - 1) - 1
    for start in range(0, rows, block):
        part = exact[start : start + block]
        plain = np.maximum(np.abs(part).max(axis=0) / largest, 1e-30)
        lost = np.square(found[start : start + block] - part).sum(axis=0)
        assert (lost <= np.square(np.rint(part / plain) * plain - part).sum(axis=0) * (1 + 1e-5) + 1e-9).all()
