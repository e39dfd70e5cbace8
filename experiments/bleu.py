"""BLEU of translations, by sacreBLEU (Post 2018, arXiv:1804.08771)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bleu"]


def bleu(translations: Sequence[str], references: Sequence[str], *, lower_case: bool = False) -> tuple[float, str]:
    """Return BLEU, from 0 to 100, with one reference for each translation, and sacreBLEU's signature.

    The signature describes the computation: do not compare scores that have different ones.
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(lowercase=lower_case)
    score = metric.corpus_score(list(translations), [list(references)]).score
    return float(score), str(metric.get_signature())
