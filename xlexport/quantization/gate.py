"""The text on which quantization is measured, its cost in bits per token, and the products that limit it in float32."""

from __future__ import annotations

import codecs
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import QuantizationError
from xlexport.sample import sample_text, sample_text_name
from xlexport.scoring.documents import ids_of_words
from xlexport.verification.text import VerificationText, default_text
from xlruntime.bundle import TokenizerEntry
from xlruntime.documents import Document, Tokenizer, check_ids
from xlruntime.model import Model
from xlruntime.translator import Translator

__all__ = [
    "Difference",
    "GateText",
    "LogProbs",
    "check_texts",
    "compare",
    "documents",
    "gate_text",
    "log_probs",
    "pairs",
    "products_to_keep",
    "require_default_text",
    "strangeness",
]

FEWEST_TOKENS = 2_048  # with fewer, a hundredth of a bit may be chance
USUAL_TOKENS = 16_384
LONGEST_DOCUMENT = 4097  # tokens, if each document is one step

# Times the bits of the held-out text. Pieces of 16,384 tokens of a sample's own held-out text have at most 1.05. At
# 1.36 a cost of 0.005 bits looked like a gain; at 1.53 it was 0.008, not 0.011.
STRANGE = 1.25

LogProbs = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GateText:
    """Token ids of a real text.

    Attributes:
        ids: (n,), the first ids of the files, which are read as one document. For an encoder-decoder sources and
            targets by turns, with padding behind each.
        files: name, SHA-256 and bytes of each file.
    """

    ids: npt.NDArray[np.int64]
    files: tuple[dict[str, str | int], ...]


def check_texts(tokenizer: TokenizerEntry, texts: Sequence[Path], as_ids: bool = False, pairs: bool = False) -> None:
    """Raise an error for texts that are missing or cannot be read, before any work is done.

    Raises:
        QuantizationError: a text is required, or the given text does not fit the bundle.
        FileNotFoundError: files are missing.
    """
    if tokenizer.kind == "none" and not (texts and as_ids):
        raise QuantizationError(
            "the bundle takes token ids, so a real text for it must be given as token ids.",
            hint="Use `xlexport quantize` on the float32 bundle with --ids and --text with files of ids.",
        )
    if pairs and (as_ids or not texts):
        raise QuantizationError(
            "an encoder-decoder is measured on pairs.",
            hint="Give --text a file with lines of a source, a tab and a target.",
        )
    missing = [f"{path}: {'a folder' if path.is_dir() else 'no such file'}" for path in texts if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{'; '.join(missing)}. Give text files.")


def require_default_text(tokenizer: TokenizerEntry, reader: Tokenizer) -> VerificationText:
    """Return the default text.

    Raises:
        QuantizationError: the bundle's tokenizer cannot read it.
    """
    text = default_text(tokenizer, reader)
    if text is None:
        raise QuantizationError(
            f"the bundle's vocabulary has too few words of {sample_text_name()}, the default text.",
            hint="Add --text with text files like the model's training text.",
        )
    return text


def gate_text(
    model: Model | Translator, texts: Sequence[Path] = (), as_ids: bool = False, tokens: int | None = None
) -> GateText:
    """Read the beginning of `texts`, or without texts of the default text, which also verifies bundles.

    Args:
        as_ids: the files hold token ids separated by white space.
        tokens: the largest number of tokens to use; None: 16,384, or as many as fill the memory twice.

    Raises:
        QuantizationError: as in `check_texts`, or there is too little text.
        TokenError, TextError, OSError: the text does not fit the bundle, or cannot be read.
    """
    check_texts(model.bundle.tokenizer, texts, as_ids, isinstance(model, Translator))
    if texts:
        contents = {str(path): path.read_bytes() for path in texts}
        pieces = [
            _ids_of(model, content.removeprefix(codecs.BOM_UTF8), name, as_ids) for name, content in contents.items()
        ]
    else:
        default = require_default_text(model.bundle.tokenizer, model.tokenizer)
        contents, pieces = {default.name: sample_text().encode("utf-8")}, [default.ids]
    ids = np.concatenate(pieces)
    if len(ids) < FEWEST_TOKENS:
        raise QuantizationError(
            f"{', '.join(contents)}: {len(ids):,} tokens, at least {FEWEST_TOKENS:,} are needed to measure "
            "the cost of quantization.",
            hint="Give a longer text.",
        )
    files: tuple[dict[str, str | int], ...] = tuple(
        {"name": Path(name).name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in contents.items()
    )
    settings = model.bundle.settings
    twice_the_memory = 0 if settings.full_document else 2 * settings.capacity()
    return GateText(ids[: (tokens or max(USUAL_TOKENS, twice_the_memory)) + 1], files)


def _ids_of(model: Model | Translator, content: bytes, name: str, as_ids: bool) -> npt.NDArray[np.int64]:
    if isinstance(model, Translator):
        lines = [line.split(b"\t") for line in content.splitlines()]
        if any(len(line) != 2 for line in lines):
            raise QuantizationError(f"{name}: not all lines are a source, one tab and a target.", hint="Repair them.")
        sides = (model.tokenizer.encode(side) for line in lines for side in line)
        return np.concatenate([np.append(ids, model.encoder.pad) for ids in sides] or [np.zeros(0, np.int64)])
    ids = ids_of_words(content.split(), name) if as_ids else model.tokenizer.encode(content)
    check_ids(ids, model.bundle.vocab_size, name)
    return ids


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


def pairs(model: Translator, ids: npt.NDArray[np.int64]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return the ids of the sources and targets of a `GateText`, except those that are cut off at its end.

    Raises:
        QuantizationError: the first pair is cut off.
    """
    *sides, _ = np.split(ids, np.flatnonzero(ids == model.encoder.pad) + 1)
    if len(sides) < 2:
        hint = "Begin --text with a shorter pair."
        raise QuantizationError(f"the first pair has more than {len(ids):,} tokens.", hint=hint)
    return [(source[:-1], target[:-1]) for source, target in zip(sides[::2], sides[1::2], strict=False)]


def log_probs(model: Model | Translator, ids: npt.NDArray[np.int64]) -> LogProbs:
    """Return log-probabilities in nats of all tokens of a text but the first; or of all targets with their ends."""
    if isinstance(model, Translator):
        return np.concatenate([model.token_log_probs(*pair) for pair in pairs(model, ids)])
    scores = model.score_tokens([Document("the text", document) for document in documents(model, ids)])
    return np.concatenate([piece.log_probs for piece in scores])


def strangeness(exact: LogProbs, provenance: Mapping[str, Any]) -> str | None:
    """Return a warning if a text, of these nats, is much stranger than the held-out text that the bundle names."""
    usual, bits = provenance.get("held_out_bits_per_token"), -float(exact.mean(dtype=np.float64)) / math.log(2)
    if not isinstance(usual, int | float) or not bits > STRANGE * usual:
        return None
    return (
        f"this text is strange to the model: {bits:.2f} bits per token, {usual:.2f} on its held-out text. "
        "On its own kind of text quantization may cost more; give --text for yours"
    )


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
    worst = sorted(effects, key=lambda name: -math.inf if math.isnan(effects[name]) else -effects[name])
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
                hint="Use a higher precision, or a larger --set max_delta_bits.",
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
