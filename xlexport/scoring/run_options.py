"""The choices of a scoring run, and the scorer that follows from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from xlexport.scoring.inputs import Reading
from xlexport.scoring.output_formats import Format
from xlruntime import EvaluationSettings, Model, OptionError, XlruntimeError
from xlruntime.documents import Tokenizer
from xlruntime.messages import named, quoted
from xlruntime.scorer import BatchSize, Scorer
from xlruntime.tokenizers.white_space import starts_word

__all__ = ["UNITS", "Level", "RunOptions", "bos_token", "chosen_bos", "make_scorer"]

Level = Literal["document", "line", "word", "region", "token"]
UNITS: tuple[Level, ...] = (
    "line",
    "word",
    "region",
)  # levels whose records are sums over the tokens of a part of the text
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}  # which are hard to type in a shell
NO_BOS = "none"
USUAL = ("<|endoftext|>", "<eos>", "</s>", "<s>", "<bos>", "[CLS]", "[BOS]")


@dataclass(frozen=True)
class RunOptions:
    """The choices of a run, except model and evaluation settings.

    Attributes:
        per: the unit of one record; kind: the format of the records.
        reading: how inputs become documents.
        separator: with `continuous`, the text between documents; its tokens belong to none of them.
        batch_size: most documents at a time; `auto`: batches of similar lengths.
        detail: number of likeliest tokens in a token's record, with rank and entropy; None: no detail at all.
        bos: name or text of a token that the model reads before each document, or `none`; None: as the tokenizer's own
            rule says.
        corrected: whether words and regions have surprisal with the correction for boundaries, too.
        by_chunks: whether documents are divided into chunks, which any number of processes may share.
        strict: whether the first document that fails ends the run.
    """

    per: Level = "document"
    kind: Format = "text"
    reading: Reading = dataclasses.field(default_factory=Reading)
    batch_size: BatchSize = 1
    detail: int | None = None
    continuous: bool = False
    separator: str = ""
    strict: bool = False
    bos: str | None = None
    corrected: bool = False
    by_chunks: bool = False


def make_scorer(model: Model, settings: EvaluationSettings, options: RunOptions) -> Scorer:
    """Return the scorer of a run.

    Raises:
        OptionError: the options do not apply to this bundle.
    """
    return Scorer(
        model,
        settings,
        options.batch_size,
        options.detail,
        continuous=options.continuous,
        separator=options.separator,
        keep_going=not options.strict,
        bos=chosen_bos(options.bos, model.tokenizer),
        starts_word=starts_word(model.tokenizer, model.bundle.vocab_size) if options.corrected else None,
    )


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
