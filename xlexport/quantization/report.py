"""The report of a quantization, with its cost in bits, and the README of the quantized bundle."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from xlexport.bundle_readme import how_to_run, model_card
from xlexport.bundles import REPORT_FILE
from xlruntime.bundle import Bundle

__all__ = ["QuantizationReport", "quantized_readme"]


@dataclass(frozen=True)
class QuantizationReport:
    """The result of quantizing a bundle; the manifest has it as `quantization` of the provenance."""

    dtype: str
    memory_dtype: str
    products: int  # products of weights in a step
    kept: dict[str, str]  # products that stay float32, with the reason
    tokens: int  # of the text
    bits_per_token: float  # of float32
    delta_bits_per_token: float  # positive: the quantized bundle is worse
    standard_error: float
    max_delta_bits: float
    mean_abs_log_prob_diff: float  # nats
    max_abs_log_prob_diff: float
    text: tuple[dict[str, str | int], ...]
    weights_bytes: int
    float32_weights_bytes: int
    changed_bytes: int  # of them, in weights that do not stay float32
    float32_fingerprint: str
    version: str  # of xlexport
    memory_kept: str | None = None  # why memories stay float32 although int8 was asked for

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return dataclasses.asdict(self)


def quantized_readme(bundle: Bundle, report: QuantizationReport) -> str:
    """Return the README of a bundle that was quantized and compared with the float32 bundle."""
    sources = ", ".join(f"`{name}`" for name in bundle.provenance["sources"])
    kept = "".join(f"- `{name}`: {why}\n" for name, why in report.kept.items())
    stayed = f"\nWeight matrices that stayed float32:\n\n{kept}" if kept else ""
    device = "For CUDA: on a CPU the scores are right but slow.\n\n" if report.dtype == "float16" else ""
    text = ", ".join(f"{file['name']} (SHA-256 `{file['sha256']}`)" for file in report.text)
    return f"""# A {bundle.architecture} bundle of xlexport, quantized

Precision {bundle.precision}, memories {report.memory_dtype}; \
{report.products - len(report.kept)} of {report.products} \
weight matrices quantized by xlexport {report.version}. Converted from {sources}; `parity.json` compares the \
float32 graphs with that model.

{device}{model_card(bundle)}

## Run it

{how_to_run(bundle)}

## Cost

Against the float32 graphs, {report.tokens:,} tokens of {text}: \
{report.delta_bits_per_token:+.4f} bits per token (limit {report.max_delta_bits:g}) of {report.bits_per_token:.4f}; \
largest difference of a log-probability {report.max_abs_log_prob_diff:.2g} nats. All figures: `{REPORT_FILE}`.
{stayed}"""
