"""Quantized graphs of recurrent models: weights within the body of a scan, and those of LSTM and GRU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import xlexport
from tests.helpers.ids import random_ids
from xlexport.errors import QuantizationError
from xlexport.quantization.gate import log_probs
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlruntime import load

D = 32
LSTM_WEIGHTS = ("cell.model.rnn.weight_0", "cell.model.rnn.recurrent_0")


class Gated(nn.Module):
    """A gated recurrence behind a network that becomes the operator LSTM.

    Two products share their input, one enters an addition, and `head` gives an output.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embedding, self.rnn = nn.Embedding(256, D), nn.LSTM(D, D)
        self.gate, self.value, self.out = nn.Linear(D, 2 * D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D, bias=False)
        self.head = nn.Linear(D, 256)

    def first_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros(D) for name in ("hidden", "h", "c")}

    def step(self, token: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        _, (h, c) = self.rnn(self.embedding(token)[None], (state["h"][None], state["c"][None]))
        x = h[0] + state["hidden"]
        hidden = (self.out(self.gate(x).sigmoid() * self.value(x)) + 0.5 * x).tanh()
        return self.head(hidden), {"hidden": hidden, "h": h[0], "c": c[0]}


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scanned") / "bundle"
    xlexport.export_module(Gated(), folder, n_token=256, tokenizer="bytes", segment_len=16, segments=4, threads=1)
    return folder


def options(dtype: str) -> QuantizeOptions:
    return QuantizeOptions(dtype, max_delta_bits=1.0, tokens=2048, threads=1)


def operators(path: Path, tmp_path: Path) -> set[str]:
    """Return the operators that ONNX Runtime runs in the graph of a file, and in bodies."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    return {node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph.all_nodes()}


@pytest.mark.parametrize(
    ("dtype", "product", "near"),
    [("int8", "MatMulIntegerToFloat", 0.05), ("weight-int8", "MatMulNBits", 0.02), ("weight-int4", "MatMulNBits", 0.3)],
)
@pytest.mark.release
def test_weights_within_a_scan(
    dtype: str, product: str, near: float, scanned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / dtype
    report = quantize(scanned, folder, options(dtype))
    few, whole = report.changed_bytes, report.float32_weights_bytes
    assert few == 4 * (3 * D * 2 * D + D * 256)  # gate, value and out, and the head
    line = f"{dtype} changes only {few:,} of {whole:,} bytes of weights ({few / whole:.0%}): the rest stays float32; "
    assert caplog.messages == [f"{line}the operator LSTM needs float32"]
    assert report.products == 6 and report.kept == dict.fromkeys(LSTM_WEIGHTS, "the operator LSTM needs float32")
    ids = random_ids(90, seed=3, vocab_size=256)
    difference = np.abs(log_probs(load(folder, threads=1), ids) - log_probs(load(scanned, threads=1), ids)).max()
    assert 0 < difference < near
    for purpose in ("score", "generate", "detail"):
        fused = operators(folder / f"{purpose}.onnx", tmp_path)
        assert {"Scan", product} <= fused and not fused & {"MatMul", "Gemm", "FusedGemm", "DequantizeLinear"}
    for path in folder.glob("*.onnx"):  # in JavaScript, ONNX Runtime reads no other file for tensors of a body
        (body,) = ir.load(path).graph.subgraphs()
        assert not any(isinstance(value.const_value, ir.ExternalTensor) for value in body.initializers.values())
    scanned_weights = report.float32_weights_bytes - 256 * D * 4  # without the embedding, which stays
    assert report.weights_bytes < 256 * D * 4 + 3 * 0.3 * scanned_weights  # copies of three graphs


@pytest.mark.release
def test_files_hold_nothing_of_this_machine_and_share_weights(scanned: Path) -> None:
    for path in scanned.glob("*.onnx"):
        assert not re.search(rb"\.py\b|site-packages|stack_trace", path.read_bytes())  # notes of torch's exporter
        (body,) = ir.load(path).graph.subgraphs()
        assert not body.initializers and not any(node.op_type == "Constant" for node in body)


@pytest.mark.release
def test_float16_ends_at_a_scan(scanned: Path, tmp_path: Path) -> None:
    why = "recurrent_0: the operator LSTM needs float32; .*head: float16 ends at a scan"
    with pytest.raises(QuantizationError, match=f"no weight matrices that can be float16; .*{why}"):
        quantize(scanned, tmp_path / "half", options("float16"))
