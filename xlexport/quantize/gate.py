"""The cost of quantization in bits per token of a real text, and the products that must stay float32 to limit it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlexport.errors import QuantizationError
from xlruntime.documents import Document
from xlruntime.model import Model

__all__ = ["Difference", "LogProbs", "compare", "documents", "log_probs", "products_to_keep"]

LONGEST_DOCUMENT = 4097  # tokens, if each document is one step

LogProbs = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Difference:
    """The difference of a text's log-probabilities from those of float32."""

    tokens: int
    bits_per_token: float  # of float32
    delta_bits_per_token: float  # positive: the quantized bundle is worse
    standard_error: float  # of delta_bits_per_token, as if tokens were drawn at random
    mean_abs_log_prob_diff: float  # nats
    max_abs_log_prob_diff: float

    def within(self, limit: float) -> bool:
        """Return whether the difference is within `limit`; NaN never is."""
        return abs(self.delta_bits_per_token) <= limit


def documents(model: Model, ids: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Cut a text into documents that the model can read.

    A document begins with the last token of the one before it, so all tokens but the first are scored.
    """
    settings = model.bundle.settings
    longest = settings.longest_document or len(ids) + 1
    if settings.full_document:
        longest = min(longest, LONGEST_DOCUMENT)
    return [ids[start : start + longest] for start in range(0, max(1, len(ids) - 1), max(1, longest - 1))]


def log_probs(model: Model, ids: npt.NDArray[np.int64]) -> LogProbs:
    """Return log-probabilities in nats of all tokens of a text but the first."""
    scores = model.score_tokens([Document("the text", document) for document in documents(model, ids)])
    return np.concatenate([piece.log_probs for piece in scores])


def compare(exact: LogProbs, quantized: LogProbs) -> Difference:
    """Compare the log-probabilities of a text's tokens, in float32 and quantized."""
    bits = (exact.astype(np.float64) - quantized) / math.log(2)
    return Difference(
        tokens=len(exact),
        bits_per_token=-float(exact.mean(dtype=np.float64)) / math.log(2),
        delta_bits_per_token=float(bits.mean()),
        standard_error=float(bits.std() / math.sqrt(len(bits))),
        mean_abs_log_prob_diff=float(np.abs(bits).mean() * math.log(2)),
        max_abs_log_prob_diff=float(np.abs(bits).max() * math.log(2)),
    )


def products_to_keep(
    names: Sequence[str],
    always: frozenset[str],
    limit: float,
    measure: Callable[[frozenset[str]], Difference],
    effect_of: Callable[[str], float],
    tell: Callable[[str], None],
) -> tuple[dict[str, float], Difference]:
    """Find the fewest products, worst first, that must stay float32 so that the difference is within the limit.

    Args:
        names: all products.
        always: products that always stay float32.
        measure: returns the difference of the whole text if these products are kept.
        effect_of: returns how much quantizing one product alone changes the log-probabilities.

    Returns:
        The products to keep in addition to `always`, with their effects, and the remaining difference.

    Raises:
        QuantizationError: more than half of the products would have to stay float32.
    """
    first = measure(always)
    if first.within(limit):
        return {}, first
    tell(f"{first.delta_bits_per_token:+.4f} bits per token, {limit:g} allowed: measuring each weight matrix alone")
    effects = {name: effect_of(name) for name in names if name not in always}
    worst = sorted(effects, key=lambda name: -_rank(effects[name]))
    most = len(names) // 2 - len(always)
    low, high, difference = 0, min(1, most), first
    while not difference.within(limit):  # double the number until it is enough
        if high <= low:
            matrices = ", ".join(worst[: low or 3])
            share = f"keeping {low + len(always)} of {len(names)} weight matrices in float32, {matrices}"
            still = f"still {difference.delta_bits_per_token:+.4f}" if low else "cannot be kept"
            raise QuantizationError(
                f"quantized, the bundle gives {first.delta_bits_per_token:+.4f} bits per token, {limit:g} allowed; "
                f"{share}: {still}.",
                hint="Use a higher precision, or a larger --max-delta-bits.",
            )
        difference = measure(always | set(worst[:high]))
        tell(f"{difference.delta_bits_per_token:+.4f} with {high} in float32: {', '.join(worst[:high])}")
        if not difference.within(limit):
            low, high = high, min(2 * high, most)
    while high - low > 1:  # `low` is too few, `high` is enough
        middle = (low + high) // 2
        attempt = measure(always | set(worst[:middle]))
        tell(f"{attempt.delta_bits_per_token:+.4f} with {middle} in float32")
        if attempt.within(limit):
            high, difference = middle, attempt
        else:
            low = middle
    return {name: effects[name] for name in worst[:high]}, difference


def _rank(effect: float) -> float:
    return math.inf if math.isnan(effect) else effect
