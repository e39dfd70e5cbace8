"""The token that a model reads before each document."""

from __future__ import annotations

from xlruntime import OptionError, XlruntimeError
from xlruntime.documents import Tokenizer
from xlruntime.messages import named, quoted

__all__ = ["bos_token", "chosen_bos"]

ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}  # which are hard to type in a shell
NO_BOS = "none"
USUAL = ("<|endoftext|>", "<eos>", "</s>", "<s>", "<bos>", "[CLS]", "[BOS]")


def chosen_bos(text: str | None, tokenizer: Tokenizer) -> int | bool | None:
    """Return the `bos` of a scorer for the value of an option: `none` is no token, and no value the tokenizer's rule.

    Raises:
        OptionError: as `bos_token`.
    """
    return None if text is None else False if text == NO_BOS else bos_token(text, tokenizer)


def bos_token(text: str, tokenizer: Tokenizer) -> int:
    r"""Return the id of the token that a model reads before a document.

    Args:
        text: its name in the vocabulary, or a text that is one token. `\n`, `\t` and `\r` are the characters that they
            mean elsewhere.

    Raises:
        OptionError: it is not one token; the message has an example of one.
    """
    number = tokenizer.id_of(text)
    if number is not None:
        return number
    try:
        ids = tokenizer.encode_piece(ESCAPES.get(text, text), None).tolist()
    except XlruntimeError as error:
        raise _no_token(text, "not a token of this vocabulary", tokenizer) from error
    if len(ids) != 1:
        raise _no_token(text, f"{len(ids):,} tokens, expected the name or the text of one", tokenizer)
    if ids[0] == tokenizer.unk_id:
        raise _no_token(text, "not a token of this vocabulary", tokenizer)
    return int(ids[0])


def _no_token(text: str, why: str, tokenizer: Tokenizer) -> OptionError:
    name = next((name for name in USUAL if tokenizer.id_of(name) is not None), None)
    example = quoted(r"\n" if name is None else name)
    return OptionError(f"--bos {named(text)}: {why}.", hint=f"Give one token, for instance --bos {example}.")
