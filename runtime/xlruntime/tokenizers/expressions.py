"""Check the regular expressions of a tokenizer.json, which the Oniguruma library runs on every document."""

from __future__ import annotations

import re

__all__ = ["problem_of_expression"]

LONGEST = 10_000  # characters
MOST_REPETITIONS = 1000  # that a pattern counts: {1000}
MOST_LOOPS = 4  # one behind the other: each multiplies the time by the length of the text
# One element: an escape, a quantifier, or another character.
ELEMENT = re.compile(r"\\.|\{\d*,?\d*\}|[*+?][+?]?|.", re.DOTALL)
REFERENCE = re.compile(r"\\[1-9kg]")
OTHER_SYNTAX = re.compile(r"\\[cCM]")  # takes the next characters with it, whatever they are
GROUP = re.compile(r"\(\?(?:[imsp-]*[:)]|[=!>]|<[=!])|\((?![?*])")  # neither names, conditions, calls nor comments


def problem_of_expression(text: str) -> str | None:
    """Return why an expression may take time without bound; None: it does not.

    Oniguruma gives up after ten million steps at one place of a text, but a text has many places. So groups must not
    be repeated, nor may an expression refer to a group. The expressions of published tokenizers do neither.
    """
    if len(text) > LONGEST:
        return f"more than {LONGEST:,} characters"
    brackets = loops = 0  # how deep; one behind the other
    groups = [(0, 0)]  # for each open one: loops before it, and the most of its alternatives so far
    before = ""
    for match in ELEMENT.finditer(text):
        element = match.group()
        if OTHER_SYNTAX.fullmatch(element):
            return f"the escape {element}"
        if brackets:  # brackets may hold brackets; all other marks are characters there
            brackets += {"[": 1, "]": -1}.get(element, 0)
        elif element == "[":
            brackets = 1
        elif REFERENCE.fullmatch(element):
            return "a reference to a group"
        elif element == "(":
            if not GROUP.match(text, match.start()):
                return "a group of a kind that no tokenizer needs"
            groups.append((loops, loops))
        elif element in ("|", ")"):
            first, most = groups.pop() if len(groups) > 1 or element == "|" else (0, loops)
            most = max(most, loops)
            loops = most if element == ")" else first
            if element == "|":
                groups.append((first, most))
        elif element[0] in "*+" or (len(element) > 1 and element[0] == "{"):
            if before == "\\x":  # a character by its number
                before = element[-1]
                continue
            if before == ")" or before[:1] in ("*", "+", "?") or (before[:1] == "{" and len(before) > 1):
                return "a repetition of a group or of a repetition"
            loops += 1
            if loops > MOST_LOOPS:
                return f"more than {MOST_LOOPS} repetitions in a row"
            if any(int(count[:9]) > MOST_REPETITIONS for count in re.findall(r"\d+", element)):
                return f"more than {MOST_REPETITIONS:,} repetitions"
        before = element
    return None
