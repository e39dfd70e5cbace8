"""Bundles of Reformers for PyTorch: results of every rule equal those of ONNX, and scripts need no operators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.test_lsh import random_buckets
from xlexport import ops
from xlexport import torch_runtime as torch_session
from xlexport.convert import ConversionOptions, convert
from xlruntime.bundle import Format

if TYPE_CHECKING:
    from tests.helpers.bundles import ConvertedReformer

FORMATS: tuple[Format, ...] = ("torchscript", "exported-program")
IDS = np.random.default_rng(4).integers(0, 30, 70)


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("rule", ["chunk", "paper"])
def test_whole_documents(
    rule: str, to: Format, chunk: ConvertedReformer, paper: ConvertedReformer, tmp_path: Path
) -> None:
    converted = {"chunk": chunk, "paper": paper}[rule]
    report = convert(converted.source, tmp_path / "bundle", ConversionOptions(tokenizer="none", to=to))
    assert report.passed and report.overflow_mismatches in (0, None)
    documents = [IDS[:count] for count in (2, 3, 5, 6, 70)]  # one token, and lengths around a chunk
    found, expected = (
        [total.nats for total in model.score(documents)]
        for model in (torch_session.load(tmp_path / "bundle"), converted.open())
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("to", FORMATS)
def test_carried_memory(to: Format, band: ConvertedReformer, tmp_path: Path) -> None:
    report = convert(band.source, tmp_path / "bundle", ConversionOptions(tokenizer="none", to=to))
    assert report.passed and report.overflow_mismatches == 0
    for segment_len in (1, 3, 17):
        found, expected = (
            [total.nats for total in model.score([IDS, IDS[:31]], segment_len=segment_len, batch_size=2)]
            for model in (torch_session.load(tmp_path / "bundle"), band.open())
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    if to == "torchscript":
        runs_alone(tmp_path / "bundle" / "graphs.pt")


def runs_alone(file: Path) -> None:
    """Check that a file opens where the operators of this package are not registered, and that loops are in it."""
    program = (
        "import sys, warnings, torch; warnings.simplefilter('ignore'); module = torch.jit.load(sys.argv[1]); "
        "text = str(module.score.graph); assert 'xlexport::' not in text and 'prim::Loop' in text; "
        "assert not any(name.startswith('xlexport') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True, cwd="/")


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_sort(T: int) -> tuple[Tensor, ...]:
    return ops.lsh_sort(random_buckets(2, 2, 3, T, count=5, seed=T))


def of_gather(T: int) -> Tensor:
    return ops.lsh_gather(draw(2, 2, T, 4, seed=T), random_buckets(2, 2, 2 * T, count=T))


def of_local(T: int) -> Tensor:
    position, sizes = torch.tensor([0, 5]), torch.tensor([T, 6])
    key, value = draw(2, 2, 3, 6 + T, 4, seed=T)
    return ops.local_attention(draw(2, 3, T, 4, seed=1), key, value, position, sizes, 3, 1)


@pytest.mark.parametrize("attend", [of_sort, of_gather, of_local])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_scripts_compute_the_operators(attend: Callable[[int], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the body that a trace records with the operator itself, for sizes around a block."""
    expected = [attend(T) for T in (1, 3, 4, 11)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.jit, "is_tracing", lambda: True)
        found = [attend(T) for T in (1, 3, 4, 11)]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
