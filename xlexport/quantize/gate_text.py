"""The text on which the cost of quantization is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlexport.errors import QuantizationError
from xlexport.sample import sample_text, sample_text_name
from xlexport.scoring.documents import ids_of_words
from xlexport.verification.walked_text import WalkedText, default_text
from xlruntime.bundle import Tokenizer
from xlruntime.documents import Tokenizer as TextTokenizer
from xlruntime.documents import check_ids
from xlruntime.evaluation import EvaluationSettings
from xlruntime.model import Model

__all__ = ["GateText", "check_texts", "default_tokens", "gate_text", "require_default_text"]

FEWEST_TOKENS = 2_048  # with fewer, a hundredth of a bit may be chance
USUAL_TOKENS = 16_384


@dataclass(frozen=True)
class GateText:
    """Token ids of a real text.

    Attributes:
        ids: (n,), the first ids of the files, which are read as one document.
        files: name, SHA-256 and bytes of each file.
    """

    ids: npt.NDArray[np.int64]
    files: tuple[dict[str, str | int], ...]


def default_tokens(evaluation: EvaluationSettings) -> int:
    """Return how many tokens fill the memory twice, but at least 16,384."""
    return max(USUAL_TOKENS, 0 if evaluation.full_document else 2 * evaluation.capacity())


def check_texts(tokenizer: Tokenizer, texts: Sequence[Path], as_ids: bool = False) -> None:
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
    missing = [f"{path}: {'a folder' if path.is_dir() else 'no such file'}" for path in texts if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"{'; '.join(missing)}. Give text files.")


def require_default_text(tokenizer: Tokenizer, reader: TextTokenizer) -> WalkedText:
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


def gate_text(model: Model, texts: Sequence[Path] = (), as_ids: bool = False, tokens: int | None = None) -> GateText:
    """Read the beginning of `texts`, or without texts of the default text, which also verifies bundles.

    Args:
        as_ids: the files hold token ids separated by white space.
        tokens: the largest number of tokens to use; None: `default_tokens`.

    Raises:
        QuantizationError: as in `check_texts`, or there is too little text.
        TokenError, TextError, OSError: the text does not fit the bundle, or cannot be read.
    """
    check_texts(model.bundle.tokenizer, texts, as_ids)
    if texts:
        contents = {str(path): path.read_bytes() for path in texts}
        pieces = [_ids_of(model, content, name, as_ids) for name, content in contents.items()]
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
    return GateText(ids[: (tokens or default_tokens(model.bundle.settings)) + 1], files)


def _ids_of(model: Model, content: bytes, name: str, as_ids: bool) -> npt.NDArray[np.int64]:
    ids = ids_of_words(content.split(), name) if as_ids else model.tokenizer.encode(content)
    check_ids(ids, model.bundle.vocab_size, name)
    return ids
