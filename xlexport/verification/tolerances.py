"""How far a bundle may be from its model, by precision."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from xlexport.errors import ParityError
from xlruntime.spec import Bundle

__all__ = ["TOLERANCES", "Tolerance", "tolerance_of"]


@dataclass(frozen=True)
class Tolerance:
    """How far a bundle may be from its model."""

    log_prob: float  # nats, the largest of any target; for all other tokens relative, see _scaled
    memory: float  # the largest of any number in any memory
    delta_bits_per_token: float  # of the whole text
    flip_margin: float  # where the eager model would choose another bucket: how much better, relative


# Of float32, what two orders of adding up may differ by. Of the others, three to five times what rounding came to on
# the two samples (docs/quantization.md): single tokens, unlikely ones above all, differ by far more than the mean. That
# may differ by twice the limit of the quantization: another text, or a shorter one, costs more or less by chance.
TOLERANCES = {
    "float32": Tolerance(log_prob=1e-4, memory=1e-3, delta_bits_per_token=1e-6, flip_margin=1e-4),
    "float16": Tolerance(log_prob=0.15, memory=0.1, delta_bits_per_token=0.02, flip_margin=0.02),
    "int8": Tolerance(log_prob=1.5, memory=1.5, delta_bits_per_token=0.02, flip_margin=0.2),
    "weight-int8": Tolerance(log_prob=1.5, memory=1.5, delta_bits_per_token=0.02, flip_margin=0.2),
    "weight-int4": Tolerance(log_prob=5.0, memory=2.5, delta_bits_per_token=0.02, flip_margin=1.0),
}


def tolerance_of(bundle: Bundle) -> Tolerance:
    """Return what holds for a bundle of its precision, and for the limit that it was quantized with.

    Raises:
        ParityError: its precision is unknown.
    """
    if bundle.precision not in TOLERANCES:
        raise ParityError(
            f"precision {bundle.precision!r} is not one of {', '.join(TOLERANCES)}.", repair="Upgrade xlexport."
        )
    tolerance, quantization = TOLERANCES[bundle.precision], bundle.provenance.get("quantization")
    if quantization is None:
        return tolerance
    return dataclasses.replace(tolerance, delta_bits_per_token=2 * quantization["max_delta_bits"])
