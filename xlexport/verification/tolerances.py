"""The differences that are allowed between a bundle and its model, by precision."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from xlexport.errors import ParityError
from xlexport.families.recurrent.source import MODULE_FORMAT
from xlruntime.bundle import Bundle

__all__ = ["LONG_TEXT", "MOST_ROUNDING", "OWN_ERRORS", "TOLERANCES", "Tolerance", "tolerance_of"]

LONG_TEXT = 1000  # tokens

# A graph may err by `largest_ratio`, 4 times as much as the float32 model, both against the model in float64. Since
# |graph - model| <= |graph - exact| + |model - exact|, both may differ by 1 + 4 times the model's own error.
OWN_ERRORS = 1 + 4
# Nats, root mean square. A model that rounds more has no float32 results from which a wrong graph could be told.
MOST_ROUNDING = 0.1


@dataclass(frozen=True)
class Tolerance:
    """The largest allowed differences between a bundle and its model."""

    log_prob: float  # nats, of any target
    distribution: float  # of any other token, relative, see _scaled
    memory: float  # of any number in any memory
    delta_bits_per_token: float  # of a text of at least LONG_TEXT tokens
    flip_margin: float  # if the eager model would choose another bucket: its relative advantage
    rms_ratio: float = math.inf  # errors of the graph over those of the float32 model, both against float64
    largest_ratio: float = math.inf

    def of_scores(self) -> Tolerance:
        """Return the tolerance for a comparison of the targets' log-probabilities only."""
        return Tolerance(self.log_prob, math.inf, math.inf, self.delta_bits_per_token, math.inf)

    def for_text(self, tokens: int) -> Tolerance:
        """Return the tolerance for a text of `tokens` tokens.

        Errors of single tokens have both signs, so their mean falls with the square root of their number. The limit of
        the mean is therefore larger for a text of fewer than `LONG_TEXT` tokens. There a few tokens can decide the
        ratios of errors too, so these are not judged.
        """
        if tokens >= LONG_TEXT:
            return self
        mean = self.delta_bits_per_token * math.sqrt(LONG_TEXT / tokens)
        return dataclasses.replace(self, delta_bits_per_token=mean, rms_ratio=math.inf, largest_ratio=math.inf)


# float32: two orders of summation may differ by this much. PyTorch adds 256 products in two halves, ONNX Runtime
# those of a constant matrix in one chain. A chain of twice the length rounds at most twice as much: `rms_ratio` is 2.
# Other precisions: three to five times the rounding errors on the two samples (docs/quantization.md), because single
# tokens, especially improbable ones, differ by far more than the mean. The mean may differ by twice the limit of the
# quantization: another or shorter text varies by chance.
TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-4, 1e-3, 1e-6, flip_margin=1e-4, rms_ratio=2.0, largest_ratio=4.0),
    "float16": Tolerance(log_prob=0.15, distribution=0.15, memory=0.1, delta_bits_per_token=0.02, flip_margin=0.02),
    "int8": Tolerance(log_prob=1.5, distribution=1.5, memory=1.5, delta_bits_per_token=0.02, flip_margin=0.2),
    "weight-int8": Tolerance(log_prob=1.5, distribution=1.5, memory=1.5, delta_bits_per_token=0.02, flip_margin=0.2),
    "weight-int4": Tolerance(log_prob=5.0, distribution=5.0, memory=2.5, delta_bits_per_token=0.02, flip_margin=1.0),
}


def tolerance_of(bundle: Bundle) -> Tolerance:
    """Return the tolerance for the bundle's precision and for the limit that it was quantized with.

    Raises:
        ParityError: its precision is unknown.
    """
    if bundle.precision not in TOLERANCES:
        raise ParityError(
            f"precision {bundle.precision!r} is not one of {', '.join(TOLERANCES)}.", hint="Upgrade xlexport."
        )
    tolerance, quantization = TOLERANCES[bundle.precision], bundle.provenance.get("quantization")
    if bundle.provenance.get("format") == MODULE_FORMAT:  # PyTorch computes some operators in float64, such as cumsum
        tolerance = dataclasses.replace(tolerance, rms_ratio=math.inf, largest_ratio=math.inf)
    if quantization is None:
        return tolerance
    return dataclasses.replace(tolerance, delta_bits_per_token=2 * quantization["max_delta_bits"])
