"""The token that a model reads before a document, so that the document's first token has a score."""

from __future__ import annotations

from xlruntime import OptionError, XlruntimeError
from xlruntime.documents import Tokenizer
from xlruntime.messages import named

__all__ = ["ESCAPES", "bos_token"]

ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}  # which are hard to type in a shell
USUAL = ("<|endoftext|>", "<eos>", "</s>", "<s>", "<bos>", "[CLS]", "[BOS]")


def bos_token(text: str, tokenizer: Tokenizer) -> int:
    r"""Return the id of a token, given by its name in the vocabulary, or by a text that is one token.

    Args:
        text: the name or the text. `\n`, `\t` and `\r` are the characters that they mean elsewhere.

    Raises:
        OptionError: it is not one token; the message has an example of one.
    """
    number = tokenizer.id_of(text)
    if number is not None:
        return number
    try:
        ids = tokenizer.encode_piece(ESCAPES.get(text, text), None).tolist()
    except XlruntimeError as error:
        raise _refusal(text, "not a token of this vocabulary", tokenizer) from error
    if len(ids) != 1:
        raise _refusal(text, f"{len(ids):,} tokens, expected the name or the text of one", tokenizer)
    if ids[0] == tokenizer.unk_id:
        raise _refusal(text, "not a token of this vocabulary", tokenizer)
    return int(ids[0])


def _refusal(text: str, why: str, tokenizer: Tokenizer) -> OptionError:
    known = next((name for name in USUAL if tokenizer.id_of(name) is not None), None)
    example = r"--bos '\n'" if known is None else f"--bos {named(known)}"
    return OptionError(f"--bos {named(text)}: {why}.", hint=f"Give one token, for instance {example}.")
