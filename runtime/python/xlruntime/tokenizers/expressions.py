"""Check the regular expressions of a tokenizer.json, which the Oniguruma library runs on every document."""

from __future__ import annotations

import re

__all__ = ["problem_of_expression"]

LONGEST = 10_000  # characters
MOST_REPETITIONS = 1000  # in a count such as {1000}
MOST_LOOPS = 4  # in a row: each multiplies the time by the length of the text
# One element: an escape, a quantifier, or another character.
ELEMENT = re.compile(r"\\.|\{\d*,?\d*\}|[*+?][+?]?|.", re.DOTALL)
REFERENCE = re.compile(r"\\[1-9kg]")
OTHER_SYNTAX = re.compile(r"\\[cCM]")  # consumes the next characters
GROUP = re.compile(r"\(\?(?:[imsp-]*[:)]|[=!>]|<[=!])|\((?![?*])")  # neither names, conditions, calls nor comments


def problem_of_expression(text: str) -> str | None:
    """Return why an expression may take unbounded time; None: its time is bounded.

    Oniguruma stops after ten million steps at one place of a text, but a text has many places. So an expression must
    not repeat a group or refer to one. The expressions of published tokenizers do neither.
    """
    if len(text) > LONGEST:
        return f"more than {LONGEST:,} characters"
    brackets, before, loops = 0, "", _Loops()
    for match in ELEMENT.finditer(text):
        element, problem = match.group(), None
        if OTHER_SYNTAX.fullmatch(element):
            problem = f"the escape {element}"
        elif brackets or element == "[":  # brackets may contain brackets; other marks are plain characters there
            brackets += {"[": 1, "]": -1}.get(element, 0)
        elif REFERENCE.fullmatch(element):
            problem = "a reference to a group"
        elif element == "(" and not GROUP.match(text, match.start()):
            problem = "a group of a kind that no tokenizer needs"
        elif _repeats(element) and before == "\\x":  # a character by its number, not a count
            element = ""
        else:
            problem = loops.take(element, before)
        if problem is not None:
            return problem
        before = element
    return None


class _Loops:
    """A counter of repetitions in a row; only the longest alternative counts."""

    def __init__(self) -> None:
        self._now = 0
        self._groups = [(0, 0)]  # per open group: loops before it, and the most loops of its alternatives so far

    def take(self, element: str, before: str) -> str | None:
        """Take the next element, and return its problem, if any."""
        if element == "(":
            self._groups.append((self._now, self._now))
        elif element == "|":
            first, most = self._groups[-1]
            self._groups[-1] = (first, max(most, self._now))
            self._now = first
        elif element == ")" and len(self._groups) > 1:
            self._now = max(self._now, self._groups.pop()[1])
        elif _repeats(element):
            return self._repeat(element, before)
        return None

    def _repeat(self, element: str, before: str) -> str | None:
        self._now += 1
        if before == ")" or before[:1] == "?" or _repeats(before):
            return "a repetition of a group or of a repetition"
        if self._now > MOST_LOOPS:
            return f"more than {MOST_LOOPS} repetitions in a row"
        if any(int(count[:9]) > MOST_REPETITIONS for count in re.findall(r"\d+", element)):
            return f"more than {MOST_REPETITIONS:,} repetitions"
        return None


def _repeats(element: str) -> bool:
    """Return whether an element is a quantifier, except `?`, which repeats at most once."""
    return element[:1] in ("*", "+") or (element[:1] == "{" and len(element) > 1)
