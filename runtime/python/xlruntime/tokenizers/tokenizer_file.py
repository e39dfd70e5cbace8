"""Check a tokenizer.json before the `tokenizers` library sees it.

The library trusts the file: a part of it may end the process, or expand a line of text to gigabytes. Parts that are
not on the lists below are refused. The library gets the checked JSON, written again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import VocabularyError
from ..limits import Budget, Limits, parse_json, read_at_most
from ..messages import shown
from .charsmap import longest_replacement

__all__ = ["LONGEST_TOKEN", "read_tokenizer_json"]

# The most bytes that each kind makes of one byte. Unicode forms do not multiply: `UNICODE_GROWTH` counts once for all.
NORMALIZERS = {
    **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt"), 1),
    **{"BertNormalizer": 1, "ByteLevel": 2},
}
PRE_TOKENIZERS = {
    **dict.fromkeys(("BertPreTokenizer", "CharDelimiterSplit", "Whitespace", "WhitespaceSplit", "Split"), 1),
    **dict.fromkeys(("Punctuation", "Digits", "UnicodeScripts", "FixedLength"), 1),
    **{"ByteLevel": 2, "Metaspace": 4},
}
POST_PROCESSORS = dict.fromkeys(("BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing"), 1)
DECODERS = {
    **dict.fromkeys(("BPEDecoder", "WordPiece", "Metaspace", "CTC", "Fuse", "Strip", "ByteFallback"), 1),
    "ByteLevel": 2,
}
MEMBERS = {  # section: the kinds in it, the name of a sequence's list, the largest product of growths
    "normalizer": (NORMALIZERS, "normalizers", 1000),
    "pre_tokenizer": (PRE_TOKENIZERS, "pretokenizers", 16),
    "post_processor": (POST_PROCESSORS, "processors", 1),
    "decoder": (DECODERS, "decoders", 1000),
}
UNICODE_GROWTH = 12
MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")
MOST_PARTS = 32  # of a section
LONGEST_TEXT = 100  # characters of a setting
LONGEST_PREPENDED = 16
LONGEST_TOKEN = 1000  # characters; Unigram reads so many at each place of a text
LONGEST_WORD = 200  # characters of a word; WordPiece needs time proportional to their square
# Regular expressions, which the Oniguruma library runs on every document.
LONGEST_EXPRESSION = 10_000  # characters
MOST_REPETITIONS = 1000  # in a count such as {1000}
MOST_LOOPS = 4  # in a row: each multiplies the time by the length of the text
# One element: an escape, a quantifier, or another character.
ELEMENT = re.compile(r"\\.|\{\d*,?\d*\}|[*+?][+?]?|.", re.DOTALL)
REFERENCE = re.compile(r"\\[1-9kg]")
OTHER_SYNTAX = re.compile(r"\\[cCM]")  # consumes the next characters
GROUP = re.compile(r"\(\?(?:[imsp-]*[:)]|[=!>]|<[=!])|\((?![?*])")  # neither names, conditions, calls nor comments
TOKEN_COST, CHARACTER_COST = 300, 220  # bytes in the library; measured: 212 per character of a Unigram model


def read_tokenizer_json(path: Path, limits: Limits) -> tuple[dict[str, Any], str, int]:
    """Read a tokenizer.json; return it, its text, and the most bytes that one byte of text can become.

    Raises:
        VocabularyError: the file is too large or not a tokenizer, or has a part not known to be harmless.
        OSError: the file cannot be read.
    """
    budget = limits.budget(str(path), VocabularyError)
    with path.open("rb") as file:
        fields = parse_json(read_at_most(file, budget), budget)
    _need(isinstance(fields, dict) and isinstance(fields.get("model"), dict), budget, "no model", fields)
    fields |= {"truncation": None, "padding": None}  # not needed, and the library does not check them
    growth = {section: _section(fields.get(section), section, budget) for section in MEMBERS}
    _check_model(fields["model"], budget)
    added = fields.get("added_tokens") or []
    _need(isinstance(added, list), budget, "added_tokens", added)
    for token in added:
        _check_token(token.get("content") if isinstance(token, dict) else token, budget)
    fields["post_processor"] = None  # adds tokens to texts, which callers do, and trims the places of tokens
    return fields, json.dumps(fields, ensure_ascii=False), UNICODE_GROWTH * growth["normalizer"]


def _section(part: Any, section: str, budget: Budget) -> int:
    """Check a section, and return the product of its parts' growths."""
    allowed, members, most = MEMBERS[section]
    product = 1
    for number, (kind, fields) in enumerate(_parts(part, members, section, budget)):
        _need(number < MOST_PARTS, budget, f"more than {MOST_PARTS} parts in {section}", number)
        for text in (value for name, value in fields.items() if name != "precompiled_charsmap"):
            _need(not isinstance(text, str) or len(text) <= LONGEST_TEXT, budget, f"a long text in {section}", text)
        if kind in allowed:
            product *= allowed[kind]
            CHECKS.get(kind, lambda fields, budget: None)(fields, budget)
        else:
            growing = GROWING.get((section, kind))
            if growing is None:
                raise _refused(budget, f"{section} of type {shown(kind)}", f"one of {', '.join(sorted(allowed))}")
            product *= growing(fields, budget)
        _need(product <= most, budget, f"{section} makes more than {most:,} bytes of one", kind)
    return product


def _parts(part: Any, members: str, section: str, budget: Budget) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a section in order, including parts of nested sequences."""
    waiting = [] if part is None else [part]
    while waiting:
        fields = waiting.pop(0)
        budget.charge()
        _need(
            isinstance(fields, dict) and isinstance(fields.get("type"), str), budget, f"{section} without type", fields
        )
        if fields["type"] != "Sequence":
            yield fields["type"], fields
            continue
        inner = fields.get(members)
        _need(isinstance(inner, list) and len(inner) <= MOST_PARTS, budget, f"{section} of type Sequence", inner)
        waiting[:0] = inner


def _replace(fields: dict[str, Any], budget: Budget) -> int:
    """Return the growth by a replacement. An expression may match empty text, and then adds to each byte."""
    content: Any = fields.get("content")
    _need(isinstance(content, str), budget, "content of Replace", content)
    size, pattern = len(content.encode("utf-8", "replace")), _check_pattern(fields, budget)
    return 1 + size if pattern is None else max(1, -(-size // len(pattern)))


def _prepend(fields: dict[str, Any], budget: Budget) -> int:
    text: Any = fields.get("prepend")
    _need(isinstance(text, str) and len(text.encode("utf-8", "replace")) <= LONGEST_PREPENDED, budget, "Prepend", text)
    return 1 + len(text.encode("utf-8", "replace"))


def _precompiled(fields: dict[str, Any], budget: Budget) -> int:
    packed: Any = fields.get("precompiled_charsmap")
    _need(isinstance(packed, str), budget, "precompiled_charsmap", packed)
    try:
        raw = base64.b64decode(packed, validate=True)
    except (ValueError, binascii.Error) as error:
        raise _refused(budget, "precompiled_charsmap that is not base64", "base64") from error
    return longest_replacement(raw, budget)


def _check_pattern(fields: dict[str, Any], budget: Budget) -> bytes | None:
    """Check the pattern of a Replace or Split; return it if it is a text, None if it is an expression."""
    pattern: Any = fields.get("pattern")
    _need(isinstance(pattern, dict) and len(pattern) == 1, budget, "pattern", pattern)
    ((kind, text),) = pattern.items()
    _need(kind in ("String", "Regex") and isinstance(text, str), budget, "pattern", pattern)
    if kind == "String" and text:
        return text.encode("utf-8", "replace")
    if kind == "Regex":
        problem = _problem_of_expression(text)
        _need(problem is None, budget, f"a pattern with {problem}", text)
    return None


def _check_template(fields: dict[str, Any], budget: Budget) -> None:
    """Refuse templates that do not have the text exactly once: the library copies it each time."""
    pieces: Any = fields.get("single")
    good = isinstance(pieces, list) and all(isinstance(piece, dict) and len(piece) == 1 for piece in pieces)
    texts = [piece for piece in pieces if "SpecialToken" not in piece] if good else []
    _need(len(texts) == 1, budget, "a template that does not hold the text once", pieces)


def _check_length(fields: dict[str, Any], budget: Budget) -> None:
    length = fields.get("length")
    _need(type(length) is int and length > 0, budget, "length of FixedLength", length)


def _check_model(model: dict[str, Any], budget: Budget) -> None:
    vocabulary: Any = model.get("vocab")
    kind = model.get("type")
    if kind not in MODELS:
        raise _refused(budget, f"a model of type {shown(kind)}", f"one of {', '.join(MODELS)}")
    if kind == "Unigram":
        _need(isinstance(vocabulary, list), budget, "vocab", vocabulary)
        for entry in vocabulary:
            _check_token(entry[0] if isinstance(entry, list) and entry else entry, budget)
    else:
        _need(isinstance(vocabulary, dict), budget, "vocab", vocabulary)
        for token in vocabulary:
            _check_token(token, budget)
    for name, value in model.items():
        _need(not isinstance(value, str) or len(value) <= LONGEST_TEXT, budget, f"{shown(name)} of the model", value)
    longest = model.get("max_input_chars_per_word", 0)
    _need(type(longest) is int and longest <= LONGEST_WORD, budget, "max_input_chars_per_word", longest)


def _check_token(token: Any, budget: Budget) -> None:
    _need(isinstance(token, str) and len(token) <= LONGEST_TOKEN, budget, "a token", token)
    budget.charge(TOKEN_COST + CHARACTER_COST * len(token))


Check = Callable[[dict[str, Any], Budget], Any]
CHECKS: dict[str, Check] = {
    "Split": _check_pattern,
    "TemplateProcessing": _check_template,
    "FixedLength": _check_length,
}
GROWING: dict[tuple[str, str], Callable[[dict[str, Any], Budget], int]] = {
    ("normalizer", "Replace"): _replace,
    ("normalizer", "Prepend"): _prepend,
    ("normalizer", "Precompiled"): _precompiled,
    ("decoder", "Replace"): _replace,
}


def _need(good: bool, budget: Budget, what: str, found: object) -> None:
    """Raise a VocabularyError unless `good`."""
    if not good:
        raise _refused(budget, f"{what}: {shown(found)}", "what the library writes, within bounds")


def _refused(budget: Budget, found: str, expected: str) -> VocabularyError:
    return VocabularyError(
        f"{budget.name}: not a tokenizer of the tokenizers library that can be run safely: expected {expected}, found "
        f"{found}.",
        hint="Check where the file comes from, or use another tokenizer.",
    )


def _problem_of_expression(text: str) -> str | None:
    """Return why an expression may take unbounded time; None: its time is bounded.

    Oniguruma stops after ten million steps at one place of a text, but a text has many places. So an expression must
    not repeat a group or refer to one. The expressions of published tokenizers do neither.
    """
    if len(text) > LONGEST_EXPRESSION:
        return f"more than {LONGEST_EXPRESSION:,} characters"
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
