"""Find where a library's tokenizer lets a text be cut: `settled` of the bundle's tokenizer.

A part of a text, up to a cut, has the tokens that the whole text has there. A cut is safe if no token reaches over it,
and the rules that split and rewrite the text look at nothing beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from xlruntime.tokenizers.libraries import BYTE_SPACE, META_SPACE, TOKENIZER_LIMITS
from xlruntime.tokenizers.sentencepiece_file import read_sentencepiece

__all__ = ["Settled", "pieces_rule", "sentencepiece_rule", "settled_rule"]

Settled = Literal["gpt2", "llama3", "gpt4o", "words", "letters"]

ENDS = r"\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD = r"[^\r\n\p{L}\p{N}]?"  # begins with a character that is neither a letter, a number nor the end of a line
PUBLISHED: Mapping[str, Settled] = {
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{ENDS}": "gpt2",
    rf"{CONTRACTIONS}|{WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{ENDS}": "llama3",
    rf"{WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{ENDS}": "gpt4o",
}
# Parts of a tokenizer.json whose work on one side of a space that follows a word does not depend on the other side.
NORMAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer", "Precompiled"}
WORD_SPLITTERS = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}  # no token of theirs holds a space
LOCAL_SPLITTERS = {"Split", "Digits", "Punctuation"}
LETTER = rf"[A-Za-z]|[^\x00-\x7f{BYTE_SPACE}]"  # or a part of a character, as byte-level vocabularies write bytes
BETWEEN_LETTERS = re.compile(rf"(?:{LETTER}){BYTE_SPACE}(?:{LETTER}|\Z)")


def settled_rule(fields: Mapping[str, Any]) -> Settled | None:
    """Return where texts of a tokenizer.json can be cut; None: nowhere, as far as its parts show.

    Normal forms (NFC) may join what is on both sides of a piece's end, if a combining character follows it. Such a
    place is no cut for any rule.

    Args:
        fields: the content of the file, which `read_tokenizer_json` has checked.
    """
    normalizers = list(_parts(fields.get("normalizer"), "normalizers"))
    splitters = list(_parts(fields.get("pre_tokenizer"), "pretokenizers"))
    added = [token for token in fields.get("added_tokens") or () if isinstance(token, dict)]
    kinds = [splitter["type"] for splitter in splitters]
    if "ByteLevel" in kinds:
        plain = all(part["type"] == "NFC" for part in normalizers)
        grasping = any(token.get(name) for token in added for name in ("lstrip", "rstrip", "single_word"))
        published = _published(splitters) if plain and not grasping else None
        return published or _letters(fields, normalizers, splitters, added)
    if not all(map(_keeps_words, normalizers)):
        return None
    split = bool(set(kinds) & WORD_SPLITTERS) and set(kinds) <= WORD_SPLITTERS | {"Digits", "Punctuation"}
    pieces = [] if split else list(_vocabulary(fields))
    if not split and not (_reads_marks(normalizers, splitters) and _joins_only(fields, META_SPACE)):
        return None
    if pieces_rule([*pieces, *_contents(added)]) is None:
        return None
    return _after_added(added, "words")


def sentencepiece_rule(path: Path) -> Settled | None:
    """Return where texts of a SentencePiece model can be cut; None: its pieces reach over spaces.

    Raises:
        VocabularyError: the file is not such a model.
    """
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=read_sentencepiece(path, TOKENIZER_LIMITS)[0])
    pieces = {model.id_to_piece(number) for number in range(model.vocab_size())}
    return pieces_rule(pieces) if META_SPACE in pieces else None


def pieces_rule(pieces: Iterable[str]) -> Settled | None:
    """Return `words` if no piece has a space, or its mark, behind another character; else None."""
    for piece in pieces:
        if (place := max(piece.rfind(" "), piece.rfind(META_SPACE))) > 0 and piece[:place].strip(f" {META_SPACE}"):
            return None
    return "words"


def _published(splitters: list[dict[str, Any]]) -> Settled | None:
    """Return the name of a published pattern, if the splitters do nothing but apply it to the whole text."""
    *before, last = splitters
    if last["type"] != "ByteLevel" or last.get("add_prefix_space"):  # each part would get a space before it
        return None
    if last.get("use_regex", True):
        return None if before else "gpt2"
    if len(before) != 1 or before[0]["type"] != "Split":
        return None
    pattern, behaviour = before[0].get("pattern"), (before[0].get("behavior"), bool(before[0].get("invert")))
    if not isinstance(pattern, dict) or behaviour not in (("Isolated", False), ("Removed", True)):
        return None
    return PUBLISHED.get(str(pattern.get("Regex")))


def _letters(
    fields: Mapping[str, Any],
    normalizers: list[dict[str, Any]],
    splitters: list[dict[str, Any]],
    added: list[dict[str, Any]],
) -> Settled | None:
    """Return `letters` if bytes can be cut before a space between two letters, for an unknown pattern."""
    local = all(part["type"] in LOCAL_SPLITTERS | {"ByteLevel"} for part in splitters)
    prefixed = len(splitters) > 1 and any(part.get("add_prefix_space") for part in splitters)  # before each part
    rewrites = any(part["type"] not in NORMAL_FORMS for part in normalizers)
    if not local or prefixed or rewrites or not _joins_only(fields, BYTE_SPACE):
        return None
    pieces = (*_vocabulary(fields), *(text.replace(" ", BYTE_SPACE) for text in _contents(added)))
    return None if any(map(BETWEEN_LETTERS.search, pieces)) else _after_added(added, "letters")


def _keeps_words(normalizer: dict[str, Any]) -> bool:
    """Return whether a normalizer works on each side of a space behind a word alone."""
    match normalizer:
        case {"type": "Prepend"} | {"type": "Strip", "strip_left": False}:  # the cut is before spaces at the end
            return True
        case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " " | "\u2581"}:  # ALBERT, T5 and others
            return True
        case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return not any(character.isspace() or character == META_SPACE for character in old + new)
        case {"type": kind}:
            return kind in NORMAL_FORMS
    return False


def _reads_marks(normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> bool:
    """Return whether spaces become marks, at which the vocabulary alone decides."""
    marked = any(part["type"] == "Replace" and part.get("content") == META_SPACE for part in normalizers)
    if [part["type"] for part in splitters] == ["Metaspace"]:
        return bool(splitters[0].get("replacement") == META_SPACE)
    # Gemma splits at spaces after all of them have become marks, so does nothing.
    return marked and all(part["type"] == "Split" and part.get("pattern") == {"String": " "} for part in splitters)


def _joins_only(fields: Mapping[str, Any], space: str) -> bool:
    """Return whether the model makes tokens of neighbours alone, wherever in a text they are."""
    model = fields["model"]
    affixed = any(model.get(name) for name in ("end_of_word_suffix", "continuing_subword_prefix"))
    # Without a token for the space, unknown characters on both sides of it become one token.
    return model.get("type") in ("BPE", "Unigram") and not affixed and space in _vocabulary(fields)


def _after_added(added: list[dict[str, Any]], rule: Settled) -> Settled | None:
    """Return the rule for texts with added tokens, of which some take the white space behind them."""
    ends = [text[-1:] for text, token in zip(_contents(added), added, strict=True) if token.get("rstrip")]
    return (None if any(map(str.isalpha, ends)) else "letters") if ends else rule


def _contents(added: list[dict[str, Any]]) -> list[str]:
    return [str(token.get("content", "")) for token in added]


def _vocabulary(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of the model's tokens."""
    for entry in fields["model"].get("vocab") or ():  # Unigram: a list of text and score
        yield str(entry[0]) if isinstance(entry, list) and entry else str(entry)


def _parts(part: Any, members: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a section in order, including those of nested sequences."""
    if isinstance(part, dict) and part.get("type") == "Sequence":
        for inner in part.get(members) or ():
            yield from _parts(inner, members)
    elif isinstance(part, dict):
        yield part
