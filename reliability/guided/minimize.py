"""The kept corpus: of all inputs the smallest ones that reach every line after every other, and say every message."""

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

MOST_BYTES = 32_000  # of a target; inputs that a person has named are kept in any case
MADE = re.compile("[0-9a-f]{40}")  # the name of an input that a search has found
SAID = re.compile(r"[\d,.'\"]+")


@dataclass
class Kept:
    """What a target's corpus consists of."""

    inputs: int
    bytes: int


def minimize(name: str, new: Iterable[bytes], corpus: Path) -> Kept:
    """Write the corpus of a target again: what it has, and what is new, without what reaches nothing more."""
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
    """Return pairs of lines of our modules, one run after the other, and the message without values; None of findings.

    An input of a finding is kept under a name once the reader is repaired.
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
