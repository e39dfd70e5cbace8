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


def compare(exact: LogProbs, found: LogProbs) -> Difference:
    """Compare the log-probabilities of a text's tokens, in float32 and quantized."""
    bits = (exact.astype(np.float64) - found) / math.log(2)
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
    found = measure(always)
    if found.within(limit):
        return {}, found
    tell(f"{found.delta_bits_per_token:+.4f} bits per token, {limit:g} allowed: measuring each weight matrix alone")
    effects = {name: effect_of(name) for name in names if name not in always}
    worst = sorted(effects, key=lambda name: -_rank(effects[name]))
    most = len(names) // 2 - len(always)
    first, found_by = found, {}
    few, enough = 0, 1
    while True:  # double the number until it is enough; then search between the last two numbers
        enough = min(enough, most)
        if enough <= few:
            named = ", ".join(worst[: few or 3])
            share = f"keeping {few + len(always)} of {len(names)} weight matrices in float32, {named}"
            still = f"still {found.delta_bits_per_token:+.4f}" if few else "cannot be kept"
            raise QuantizationError(
                f"quantized, the bundle gives {first.delta_bits_per_token:+.4f} bits per token, {limit:g} allowed; "
                f"{share}: {still}.",
                hint="Use a higher precision, or a larger --max-delta-bits.",
            )
        found = found_by[enough] = measure(always | set(worst[:enough]))
        tell(f"{found.delta_bits_per_token:+.4f} with {enough} in float32: {', '.join(worst[:enough])}")
        if found.within(limit):
            break
        few, enough = enough, enough * 2
    while enough - few > 1:
        middle = (few + enough) // 2
        found_by[middle] = measure(always | set(worst[:middle]))
        tell(f"{found_by[middle].delta_bits_per_token:+.4f} with {middle} in float32")
        if found_by[middle].within(limit):
            enough = middle
        else:
            few = middle
    return {name: effects[name] for name in worst[:enough]}, found_by[enough]


def _rank(effect: float) -> float:
    return math.inf if math.isnan(effect) else effect
