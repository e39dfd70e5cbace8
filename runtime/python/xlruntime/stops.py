"""Turn drawn tokens into text, which ends before the first stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .documents import Ids, Tokenizer
from .tokenizers import VocabularyTokenizer

__all__ = ["GrowingText", "token_texts"]

BEFORE = 8  # tokens before new ones that decide how these look: white space between words; up to twice as many are kept
PIECES = 64  # tokens after which a character that is not complete never will be
REPLACEMENT = "\ufffd"


def token_texts(tokenizer: Tokenizer, ids: Sequence[int] | Ids, growing: GrowingText | None = None) -> list[str]:
    """Return the part of the text for which each of some tokens stands; a character belongs to its last token.

    Words of a vocabulary have no white space. A token that no text follows may end within a character.

    Args:
        growing: the text of the tokens before; None: these are unknown, and the text ends with the last token.
    """
    if isinstance(tokenizer, VocabularyTokenizer) and tokenizer.vocabulary.kind == "words":
        return [tokenizer.text_of(int(token)) for token in ids]
    text = GrowingText(tokenizer, ids[:1]) if growing is None else growing
    texts = [text.add(int(token)) for token in ids]
    if growing is None and texts:
        texts[-1] += text.end()
    return texts


class GrowingText:
    """The text of a continuation, which ends before the first stop in it.

    Attributes:
        stopped: whether a stop was found; later tokens have no effect.
        length: characters of the text so far, with those that are held back as they may belong to a stop.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        before: Sequence[int] | Ids,
        stops: Sequence[str] = (),
        prompt: str = "",
        special: bool = False,
    ) -> None:
        """Start after the tokens `before`.

        Args:
            special: whether the text has the names of special tokens, so that stops may be such names.
            prompt: the text of these tokens, if it is known: tokens do not show which white space it ended with.
        """
        self.stopped = False
        self.length = 0
        self._decode = partial(tokenizer.decode, special=special)
        self._stops = [stop for stop in stops if stop]
        self._hold = max(map(len, self._stops), default=1) - 1  # characters that may belong to a stop
        self._tokens = list(map(int, before[-2 * BEFORE :]))
        self._shown = len(self._tokens)  # tokens whose text is in `_text`
        self._before = self._decoded(self._tokens)  # their text
        self._skip_space = prompt[-1:].isspace() and not self._before[-1:].isspace()
        self._text = ""  # text that was not returned yet
        self._searched = 0  # characters of `_text` before which no stop ends

    def add(self, token: int) -> str:
        """Add a token, and return the text that is certain now."""
        if self.stopped:
            return ""
        self._tokens.append(token)
        self._take(final=False)
        return self._released(len(self._text) - self._hold)

    def tokens(self) -> tuple[list[int], list[int]]:
        """Return the tokens on which later text depends: those before its end, and those of an incomplete character.

        A new object that starts after the former and is given the latter goes on as this one, if there are no stops.
        """
        return self._tokens[: self._shown], self._tokens[self._shown :]

    def end(self) -> str:
        """Return the rest of the text."""
        if self.stopped:
            return ""
        self._take(final=True)
        return self._released(len(self._text))

    def _take(self, final: bool) -> None:
        """Move the text of new tokens to `_text`, without a last character that is not complete."""
        whole, before = self._decoded(self._tokens), self._before
        waits = not final and len(self._tokens) - self._shown < PIECES
        certain = whole.rstrip(REPLACEMENT) if waits else whole
        is_complete = len(certain) == len(whole)
        if certain.startswith(before):
            fresh = certain[len(before) :]
        elif is_complete:
            fresh = self._decoded(self._tokens[self._shown :])
        else:
            return
        if fresh and self._skip_space:
            fresh, self._skip_space = fresh.removeprefix(" "), False
        self._text += fresh
        self.length += len(fresh)
        self._before = certain
        if not is_complete:
            return
        if len(self._tokens) > 2 * BEFORE:
            del self._tokens[:-BEFORE]
            self._before = self._decoded(self._tokens)
        self._shown = len(self._tokens)

    def _released(self, certain: int) -> str:
        """Return the beginning of the text up to a stop, or its `certain` part."""
        ends = range(self._searched + 1, len(self._text) + 1)
        places = [end - len(stop) for end in ends for stop in self._stops if self._text.endswith(stop, 0, end)]
        if places:
            self.stopped = True
            certain = min(places)
        text, self._text = self._text[: max(certain, 0)], self._text[max(certain, 0) :]
        self._searched = len(self._text)
        return text

    def _decoded(self, tokens: Sequence[int]) -> str:
        return self._decode(list(tokens)) if tokens else ""
