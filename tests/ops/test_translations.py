"""Single operators at extreme values: graphs compute what PyTorch computes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.lone_step import LoneStep, export_lone
from xlexport.errors import OperatorError
from xlexport.export.onnx import export_onnx
from xlexport.families import StepTensor

FLOATS = [0.0, 1e-30, 1e-8, 1e-4, 0.1, 0.5, 1.5, 2.5, 7.3, 18.0, 40.0, 88.0, 104.0, 1e6, math.inf]
WHOLE = [0, 1, 3, 7, 64, 127, 128, 255, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 7, 2**33 + 5, 2**53 + 1, 2**62]
N = 2 * len(FLOATS)
# x, y: all pairs of FLOATS with both signs; i, j: all pairs of WHOLE; m, n: in int32; u, v: in uint8; k, n, v have no
# zeros; a, b: usual numbers; z: rows that rise and fall by hundreds; p: booleans, with a row and a column of zeros.
CASES = """
torch.abs(y); torch.neg(y); torch.sign(y); torch.exp(y); torch.log(y); torch.log1p(y); torch.log2(y); torch.expm1(y)
torch.erf(y); torch.erfc(y); torch.sqrt(y); torch.rsqrt(y); torch.reciprocal(y); torch.sin(y); torch.cos(y)
torch.tan(y); torch.tanh(y); torch.sinh(y); torch.atan(y); torch.asinh(y); torch.ceil(y); torch.floor(y)
torch.round(y); torch.exp2(y); torch.signbit(y); torch.isinf(y); torch.isnan(y); torch.square(y); torch.relu(y)
F.softplus(y); F.logsigmoid(y); F.elu(y); F.elu(y, 0.5); F.celu(y, 2.0); F.selu(y); F.leaky_relu(y); F.hardtanh(y)
F.hardsigmoid(y); F.relu6(y); F.gelu(a); torch.log(torch.sigmoid(y)); torch.sigmoid(a); F.silu(a); F.mish(a)
torch.sigmoid(y); F.silu(y); F.softmax(z, 1); torch.atan2(x, y); torch.logaddexp(x, y); torch.logaddexp2(x, y)
torch.maximum(x, y); torch.minimum(x, y); x == y; x < y; torch.remainder(x, y); x % 0.3; -x % math.pi; torch.fmod(x, y)
torch.fmod(x, 0.3); x // y; x // 0.3; x / y; x * y; x - y; torch.div(x, 0.3, rounding_mode="floor"); y.clamp(-1, 1)
y.clamp(max=-0.5); y.clamp(x, x + 1); y ** 2; 2.0 ** y; torch.logcumsumexp(z, 1); torch.logcumsumexp(z, -2)
torch.cumprod(a, 1); torch.cumprod(a, 0); torch.cumsum(z.abs(), 1); z.cummax(1)[0]; z.cummax(1)[1]; z.cummin(0)[0]
z.cummin(0)[1]; z.sort(dim=1, stable=True)[1]; z.logsumexp(1); z.amax(1); i // k; i % k; torch.fmod(i, k)
torch.div(i, k, rounding_mode="floor"); torch.div(i, k, rounding_mode="trunc"); i // 64; i % -64; 64 // k; -64 % k
m // n; m % n; torch.fmod(m, n); torch.div(m, n, rounding_mode="trunc"); u // v; u % v; m // -7; torch.maximum(i, j)
torch.minimum(i, j); torch.maximum(m, n); i.clamp(0, 2**40); i.clamp(min=0); i.clamp(max=5); i.relu()
i.clamp(j, j + 9); i.clamp(min=j); i.clamp_min(3); i.clamp_max(j); torch.sign(i); torch.sgn(i); torch.sign(m); i.abs()
-i; m.clamp(-3, 9); u.clamp(3, 9); i < j; i == j; i.amax(1); i.amin(1); i.cumsum(1); i.cumprod(1); i.topk(3, 1)[0]
i.argmax(1); i << 3; i >> 3; m << 3; m >> 3; u << 3; u >> 3; u << v % 8; i >> j.abs() % 60; i & 0xFFFFFFFF
i * 1664525 + 1013904223; i ^ (i >> 13); ~i; ~u; u + v; u - v; u * 3; p & ~p; p | p.T; p ^ p.T; y.bool(); i.bool()
i.int(); i.float(); p.cumsum(1); torch.where(p, i, j); y.masked_fill(p, -math.inf)
b.scatter_reduce(1, i % N, a, "mean"); b.scatter_add(1, i % N, a)
b.scatter_reduce(1, i % N, a, "mean", include_self=False); b.gather(1, i % N); F.one_hot(i % N, N); b.roll(1, 1); a @ b
F.scaled_dot_product_attention(a, b, z); F.scaled_dot_product_attention(a[None], b[None], z[None], attn_mask=p)
F.scaled_dot_product_attention(a[None, None], b[None, None], z[None, None], attn_mask=p, scale=0.3)
F.scaled_dot_product_attention(a[None], b[None], z[None], torch.where(p, 0.0, -math.inf))
F.scaled_dot_product_attention(a[None, None], b[None, None], z[None, None], is_causal=True)
F.embedding(i % N, b + 0, max_norm=1.0); F.embedding(i % N, b + 0, max_norm=2.0, norm_type=1.0)
(torch.complex(a, b) * torch.polar(b, z)).imag; torch.complex(a, b).abs(); torch.round(y, decimals=2); torch.frac(y)
torch.trunc(y); torch.prod(i, 1); torch.fft.rfft(a).real; torch.fft.rfft(a, dim=0).imag; torch.fft.rfft(a, n=7).real
torch.fft.irfft(torch.complex(a, b)); torch.fft.irfft(torch.complex(a, b), n=37, norm="ortho")
torch.fft.fft(torch.complex(a, b), dim=0).imag; torch.fft.ifft(torch.complex(a, b)).real; torch.fft.rfft2(a).imag
F.scaled_dot_product_attention(a.view(1, 6, 5, N), b[None, None, :5], z[None, None, :5], enable_gqa=True)
"""
REASONS = {  # of operators that differ
    "torch.sigmoid(y)": "ONNX Runtime's kernel returns zero below -18",
    "F.silu(y)": "ONNX Runtime's kernel returns zero below -18",
    "torch.frac(y)": "signs of zeros",
    "torch.trunc(y)": "signs of zeros",
    "torch.prod(i, 1)": "ONNX Runtime multiplies int64 in float64",
}
SUMS = ("@", "attention", "cumsum", "complex", "scatter", "embedding", "gelu", "fft")  # equal by the largest number


def pairs(values: list[float] | list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return two tensors (N, N) of all pairs of the values with both signs."""
    column = torch.tensor([*values, *(-value for value in values)]).to(dtype)[:, None].expand(N, N)
    return column.contiguous(), column.T.contiguous()


def inputs() -> dict[str, Tensor]:
    (x, y), (i, j) = pairs(FLOATS), pairs(WHOLE, torch.int64)
    m, n = pairs([value % 1000003 if value >= 2**31 else value for value in WHOLE], torch.int32)
    u, v = pairs([value % 256 for value in WHOLE], torch.uint8)
    a, b = torch.randn(2, N, N, generator=torch.Generator().manual_seed(1))
    z, p = torch.linspace(-300, 300, N) * b, (a > 0) & (torch.arange(N) > 0) & (torch.arange(N)[:, None] > 0)
    whole = {"i": i, "j": j, "k": j.where(j != 0, 3), "m": m, "n": n.where(n != 0, 3), "u": u, "v": v.where(v != 0, 3)}
    return {"x": x, "y": y, **whole, "a": a, "b": b, "z": z, "p": p}


def specs(tensors: dict[str, Tensor]) -> list[StepTensor]:
    return [StepTensor(name, str(one.dtype)[6:], tuple(one.shape)) for name, one in tensors.items()]


def is_equal(case: str, result: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> bool:
    if expected.dtype.kind != "f":
        return np.array_equal(result, expected)
    size = np.abs(expected).max() if any(name in case for name in SUMS) else np.abs(expected)
    with np.errstate(invalid="ignore"):
        is_close = (np.abs(result - expected) <= 2e-6 * size + 1e-35) | (result == expected)
    has_sign = (np.signbit(result) == np.signbit(expected)) | (expected != 0) | any(name in case for name in SUMS)
    return bool(np.all((is_close & has_sign) | (np.isnan(result) & np.isnan(expected))))


@pytest.mark.full
def test_operators_equal_those_of_torch(tmp_path: Path) -> None:
    cases = [case.strip() for case in CASES.replace("\n", ";").split(";") if case.strip()]
    values = inputs()
    compute = eval(f"lambda {', '.join(values)}: ({', '.join(cases)},)", {"torch": torch, "F": F, "math": math, "N": N})
    expected = dict(zip([f"case{n}" for n in range(len(cases))], compute(**values), strict=True))
    step = LoneStep(compute, specs(values), specs(expected), [one.clone() for one in values.values()])
    _, run = export_lone(step, tmp_path)
    results = zip(cases, run(*values.values()), expected.values(), strict=True)
    different = {case for case, result, wanted in results if not is_equal(case, result, wanted.numpy())}
    assert different == REASONS.keys()


@pytest.mark.parametrize(
    ("compute", "what"),
    [
        (
            lambda x: x.double().sin().float(),
            r"aten\.to\.dtype computes in float64, which GPUs in browsers lack\. Compute",
        ),
        (
            lambda x: (-x.to(torch.uint8)).float(),
            r"aten\.neg becomes Neg of uint8, which ONNX Runtime cannot compute\.",
        ),
        (
            lambda x: torch.linalg.det(x[:, :3]) + x,
            r"aten\.\w+ becomes the operator Det, which graphs of bundles",
        ),
    ],
)
@pytest.mark.full
def test_operators_that_graphs_cannot_have_are_refused(compute: object, what: str, tmp_path: Path) -> None:
    tensors = {"x": torch.zeros(3, 4)}
    with pytest.raises(OperatorError, match=what):
        export_onnx(LoneStep(compute, specs(tensors), specs({"y": tensors["x"]}), [tensors["x"]]), tmp_path)  # type: ignore[arg-type]
