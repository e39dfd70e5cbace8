"""The probabilities of word ends.

They need each prediction's full distribution, so a segment runs a second time, in steps that end where words do, on a
memory that is rewound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .errors import OptionError
from .evaluation import EvaluationSettings
from .memory import Memory

__all__ = ["WordEnds"]


class WordEnds:
    """A source of the probabilities of word ends, for one row.

    Args:
        starts_word: (n_token,) whether a token begins with white space.

    Raises:
        OptionError: the model reads each document in one step, or the bundle has no graph `generate`.
    """

    def __init__(self, engine: Engine, evaluation: EvaluationSettings, starts_word: npt.NDArray[np.bool_]) -> None:
        if evaluation.full_document:
            raise OptionError(
                "the ends of words need one step for each, but this model reads each document in one step.",
                hint="Leave out the correction.",
            )
        engine.session("generate")
        self._engine = engine
        self._starts_word = starts_word
        self._whole_segments = evaluation.segmentation_matters
        self._longest = engine.longest_step("generate", evaluation.segment_len)

    def before(
        self, memory: Memory, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the natural logarithm of the probability before each target that begins with white space, else NaN.

        Args:
            tokens: (S,) the next segment, which the memory has not read yet; targets: (S,) the token after each.
        """
        log_ends = np.full(len(targets), np.nan)
        mark, begun, finite = memory.mark(), 0, True
        for at in np.flatnonzero(self._starts_word[targets]).tolist():
            if self._whole_segments and begun:  # predictions depend on where their segment began
                memory.rewind(mark)
                begun = 0
            log_ends[at] = self._log_mass(memory, tokens[begun : at + 1])
            begun, finite = at + 1, finite and bool(np.isfinite(log_ends[at]))
        memory.rewind(mark, wipe=not finite)
        return log_ends

    def after(self, memory: Memory, token: int) -> float | None:
        """Return the natural logarithm after a document's last token; None if the model has no position for it."""
        if not memory.room[0]:
            return None
        mark = memory.mark()
        log_end = self._log_mass(memory, np.array([token], np.int64))
        memory.rewind(mark, wipe=not np.isfinite(log_end))
        return log_end

    def _log_mass(self, memory: Memory, tokens: npt.NDArray[np.int64]) -> float:
        """Run tokens (n,); return the logarithm of the mass of all tokens that begin with white space after them."""
        for begin in range(0, len(tokens), self._longest):
            part = tokens[None, begin : begin + self._longest]
            outputs = self._engine.step("generate", memory, part, part)  # which has no targets: any value will do
        logits = outputs["logits"][0].astype(np.float64)
        return float(np.logaddexp.reduce(logits[self._starts_word]) - np.logaddexp.reduce(logits))
