"""Fixed shapes of a bundle's graphs: `convert --fixed batch=1,segment=32,mem_len=384`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from xlexport.families.step import FixedSizes
from xlruntime.errors import OptionError
from xlruntime.evaluation import MEM_LEN, UNBOUNDED_WINDOW, EvaluationRules

__all__ = ["FixedShapes"]

SIZE = re.compile(r"([a-z_]+)=([1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True)
class FixedShapes:
    """The shapes that all graphs of a bundle fix.

    A bundle has graphs for `segment` tokens, and graphs for one token, which read what is left of a document.

    Attributes:
        batch: rows of a batch.
        segment: tokens of a step.
        settings: evaluation settings that were named with them, such as `mem_len`.
    """

    batch: int
    segment: int
    settings: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> FixedShapes:
        """Read `batch=1,segment=32,mem_len=384`; `batch` may be left out.

        Raises:
            OptionError: the text has another form, or no segment.
        """
        sizes: dict[str, int] = {}
        problem = None
        for part in text.split(","):
            pair = SIZE.fullmatch(part.strip())
            if pair is None:
                problem = f"{part.strip()!r} is not NAME=SIZE with a size of 1 or more"
            elif pair[1] in sizes:
                problem = f"{pair[1]} is there twice"
            else:
                sizes[pair[1]] = int(pair[2])
        if problem is None and "segment" not in sizes:
            problem = "segment is missing"
        if problem is not None:
            raise OptionError(
                f"--fixed {text!r}: {problem}.", hint="For example: --fixed batch=1,segment=32,mem_len=384"
            )
        return cls(sizes.pop("batch", 1), sizes.pop("segment"), sizes)

    def rules(self, rules: EvaluationRules) -> EvaluationRules:
        """Return the rules of evaluation without the choices that would change a shape.

        Raises:
            OptionError: a document is one step, of any length.
        """
        if rules.full_document:
            raise OptionError(
                "--fixed needs a model that reads documents in segments, but this one reads each in one step.",
                hint="Leave --fixed out.",
            )
        evaluation, settings = rules.choose(), dict(rules.settings)
        if MEM_LEN in settings:
            length = int(evaluation[MEM_LEN])
            settings[MEM_LEN] = replace(settings[MEM_LEN], minimum=length, maximum=length, off=None)
        rings = {}
        for symbol, ring in rules.rings.items():
            unlimited = evaluation.window(symbol) == UNBOUNDED_WINDOW
            if ring.window_if is not None:
                settings.pop(ring.window_if, None)
            rings[symbol] = replace(ring, window=None if unlimited else ring.window, window_if=None)
        return replace(rules, segment_len=self.segment, settings=settings, rings=rings)

    def sizes(self, rules: EvaluationRules) -> Iterator[FixedSizes]:
        """Yield the sizes of each length of steps, the longest first, under the rules that `rules` returned.

        If nothing limits what a query sees, the last query of a segment sees more rows than are kept between segments.
        So steps of one token need as many rows more.
        """
        evaluation = rules.choose()
        more = self.segment - 1 if evaluation.segmentation_matters else 0
        for segment in sorted({self.segment, 1}, reverse=True):
            rows = max(evaluation.most_rows + more, self.segment)
            yield FixedSizes(self.batch, segment, self.segment, rows)
