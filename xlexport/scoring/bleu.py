"""BLEU of translations, by sacreBLEU (Post 2018, arXiv:1804.08771)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xlexport.errors import XlexportError
from xlexport.extras import require

__all__ = ["Bleu", "bleu"]


@dataclass(frozen=True)
class Bleu:
    """The BLEU of a text.

    Attributes:
        score: from 0 to 100.
        signature: sacreBLEU's description of how it was computed; scores of different ones are not comparable.
    """

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str], *, lower_case: bool = False) -> Bleu:
    """Compare translations with one reference each.

    Raises:
        MissingDependencyError: sacrebleu is not installed.
        XlexportError: there are more of one kind than of the other, or none.
    """
    require(None, "sacrebleu")
    if len(translations) != len(references) or not references:
        raise XlexportError(
            f"{len(translations):,} translations, but {len(references):,} references.", hint="Give one line for each."
        )
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=lower_case)
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(float(score), str(metric.get_signature()))
