"""Findings: results that no input may have, each with a file that holds the smallest input."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.judging import Outcome

__all__ = ["Finding", "Findings"]


@dataclass(frozen=True)
class Finding:
    """A forbidden result of an input of `target`, and how often it occurred in this search."""

    target: str
    kind: str
    said: str
    times: int
    file: Path


class Findings:
    """The findings of one search, in a folder that may hold earlier findings; several processes add to it.

    Args:
        search: a unique mark of this search.
    """

    def __init__(self, folder: Path, search: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._search = folder, search

    def keep(self, target: str, outcome: Outcome, raw: bytes) -> None:
        """Count a finding, and keep its input if it is the smallest.

        Findings are the same if target and kind are equal, and for errors of a wrong class also class and place.
        """
        name, place = outcome.said.partition(":")[0], outcome.said.rpartition(" at ")[2]
        mark = f"{outcome.kind} {name} {place}" if outcome.kind == "wrong error" else outcome.kind
        label = f"{target}-{outcome.kind.replace(' ', '-')}-{hashlib.sha256(mark.encode()).hexdigest()[:8]}"
        file, about = self._folder / label, self._folder / f"{label}.json"
        before = json.loads(about.read_text("utf-8")) if about.exists() else {}
        times = before["times"] if before.get("search") == self._search else 0
        said = before.get("said", outcome.said)
        if not times or len(raw) < file.stat().st_size:
            file.write_bytes(raw)
            said = outcome.said
        fields = {"search": self._search, "target": target, "kind": outcome.kind, "said": said, "times": times + 1}
        about.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")

    def found(self) -> list[Finding]:
        """Return the findings of this search."""
        every = ((about, json.loads(about.read_text("utf-8"))) for about in sorted(self._folder.glob("*.json")))
        return [
            Finding(fields["target"], fields["kind"], fields["said"], fields["times"], about.with_suffix(""))
            for about, fields in every
            if fields["search"] == self._search
        ]
