"""What a proof of a graph found. Importing this module is quick."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Check", "GraphReport", "Pair"]


@dataclass(frozen=True)
class Pair:
    """A carried state: an input of the graph, the output that feeds it in the next step, and why both are a pair."""

    input: str
    output: str
    why: str


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: one word or two, such as `cuts`.
        passed: None if the check does not apply; `detail` then has the reason.
        detail: what was compared or seen.
        place: the first place that fails, or of the largest value: a result or a state, and its step.
        value: the number that decided, such as the largest difference; None if there is none.
    """

    name: str
    passed: bool | None
    detail: str
    place: str | None = None
    value: float | None = None

    def row(self) -> tuple[str, str]:
        """Return name and result for a table."""
        verdict = "–" if self.passed is None else "ok" if self.passed else "FAILED"
        value = self.value
        number = "" if value is None else f"{value:,.0f}" if value == round(value, 0) else f"{value:.2e}"
        place = f" [{self.place}]" if self.place else ""
        return self.name, f"{verdict:<6}  {number:>8}  {self.detail}{place}"


@dataclass(frozen=True)
class GraphReport:
    """The proof of a graph.

    Attributes:
        graph, other: names of the files, or of the module.
        pairs: the carried states.
        inputs: how each other input was fed, in words.
        steps: how many steps the long walk took.
        checks: the results, in the order of the table.
    """

    graph: str
    other: str | None
    pairs: tuple[Pair, ...]
    inputs: tuple[str, ...]
    steps: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values for a table."""
        rows = [("graph", self.graph), *([("other", self.other)] if self.other else [])]
        rows += [("state", f"{pair.input} → {pair.output} ({pair.why})") for pair in self.pairs]
        rows += [("input", line) for line in self.inputs]
        rows += [check.row() for check in self.checks]
        return [*rows, ("steps", f"{self.steps:,}"), ("passed", "yes" if self.passed else "NO")]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**dataclasses.asdict(self), "passed": self.passed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the report of plain values; KeyError and TypeError if they are no report's."""
        pairs, checks = tuple(Pair(**one) for one in values["pairs"]), tuple(Check(**one) for one in values["checks"])
        names = ("graph", "other", "steps")
        return cls(**{name: values[name] for name in names}, pairs=pairs, inputs=tuple(values["inputs"]), checks=checks)
