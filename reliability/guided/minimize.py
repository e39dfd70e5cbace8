"""Reduce the kept corpus to the smallest inputs that reach every pair of successive lines and every message."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from reliability.guided import targets
from reliability.guided.target import Target, judge
from reliability.guided.targets import make_target, read_corpus

__all__ = ["MOST_BYTES", "Kept", "minimize"]

MOST_BYTES = 32_000  # of a target; inputs named by a person are always kept
MADE = re.compile("[0-9a-f]{40}")  # name of an input that a search has found
SAID = re.compile(r"[\d,.'\"]+")


@dataclass
class Kept:
    """The size of a target's corpus."""

    inputs: int
    bytes: int


def minimize(name: str, new: Iterable[bytes], corpus: Path) -> Kept:
    """Write the corpus of a target again, with new inputs and without inputs that reach nothing more."""
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    before = read_corpus(name, corpus)
    named = {file: raw for file, raw in before.items() if not MADE.fullmatch(file.name)}
    candidates = {*new, *(raw for file, raw in before.items() if file not in named)} - set(named.values())
    reached: set[object] = set()
    kept, size = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        target = make_target(name, Path(scratch))
        for raw in (*target.seeds(), *named.values()):
            reached |= reaches(target, raw) or set()
        for raw in sorted(candidates, key=lambda raw: (len(raw), raw)):
            if size + len(raw) <= MOST_BYTES and (more := (reaches(target, raw) or set()) - reached):
                reached |= more
                kept.append(raw)
                size += len(raw)
    for file in before.keys() - named.keys():
        file.unlink()
    for raw in kept:
        (folder / hashlib.sha1(raw).hexdigest()).write_bytes(raw)
    return Kept(len(kept) + len(named), size + sum(map(len, named.values())))


def reaches(target: Target, raw: bytes) -> set[object] | None:
    """Return pairs of successive lines of our modules, and the message without values; None for a finding.

    When the reader is repaired, a person keeps the input of a finding under a name.
    """
    found: set[object] = set()

    def in_frame(code: object) -> Callable[[FrameType, str, Any], Any]:
        before = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            found.add((code, before, frame.f_lineno))
            before = frame.f_lineno
            return line

        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        return in_frame(code) if frame.f_globals.get("__name__", "").startswith(targets.PACKAGES) else None

    tracing = sys.gettrace()
    sys.settrace(call)
    try:
        outcome = judge(target, raw)
    finally:
        sys.settrace(tracing)
    if outcome.is_bug:
        return None
    found.add(SAID.sub("", outcome.said[-60:]))
    return found
