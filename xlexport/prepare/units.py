"""The tokenizers of prepared data: counted from the training text, trained on it, or given."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.checkpoints.vocabularies import read_vocabulary
from xlexport.choices import SUBWORDS
from xlexport.errors import XlexportError
from xlexport.extras import require
from xlexport.prepare.counting import SymbolCounts
from xlexport.scoring.inputs import Input, open_text
from xlexport.tokenizer_choice import FILES, file_kind, settled_of
from xlruntime import TextError
from xlruntime.bundle import TokenizerEntry
from xlruntime.documents import TextCounts, Tokenizer, text_pieces
from xlruntime.tokenizers import ByteTokenizer, make_tokenizer, tokenizer_of
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["PreparedTokenizer", "counted", "given", "trained"]

EOS, UNK = "<eos>", "<unk>"
SAMPLE = 1 << 24  # bytes of text, about, on which subwords are trained at most; libraries keep them in memory
LONGEST_LINE = 1 << 16  # characters; a longer line may be cut
# Ids 0 to 2 of pairs (`xltraining.encoder_decoder.config`). No text has these pieces, because byte-level BPE never
# writes ⟨ or ⟩.
RESERVED = ["⟨pad⟩", "⟨start⟩", "⟨end⟩"]


@dataclass(frozen=True)
class PreparedTokenizer:
    """A tokenizer, and its properties that a manifest and a checkpoint record.

    Attributes:
        unit: what a token is, for people.
        kind: `bytes`, `vocabulary`, `tokenizers` or `sentencepiece`.
        tokenizer: converts text to ids.
        n_token: how many ids there are.
        content: its file; None for bytes.
        reads_whole: whether it cannot say where a text can be cut.
    """

    unit: str
    kind: str
    tokenizer: Tokenizer
    n_token: int
    content: bytes | None = None
    reads_whole: bool = False

    @property
    def file(self) -> str | None:
        """The name of its file; None for bytes."""
        return FILES.get(self.kind)


def counted(
    files: Sequence[Path],
    unit: str,
    *,
    min_count: int = 1,
    max_size: int | None = None,
    lower_case: bool = False,
    folder: Path | None = None,
) -> PreparedTokenizer:
    """Return the bytes, or a vocabulary of the characters or words of the texts, the most frequent first.

    Words follow `<eos>`, which ends every line; equal counts keep the order of the text. This is how the authors' code
    makes its vocabularies. `<unk>` follows `<eos>`, unless the text has it itself, as WikiText does.

    Args:
        min_count: leave out what is rarer.
        max_size: keep so many symbols at most, apart from the special ones.
        folder: where counts are while they do not fit into memory; None: the folder of temporary files.

    Raises:
        TextError: a text is not UTF-8. OSError: a file cannot be read.
    """
    if unit == "bytes":
        return PreparedTokenizer("byte", "bytes", ByteTokenizer(), 256)
    words = unit == "words"
    with closing(SymbolCounts(folder) if words else SymbolCounts(limit=None)) as counts:
        for file in files:
            for text in _complete(file, words):
                lowered = text.lower() if lower_case else text
                counts.update(lowered.split() if words else lowered)
        symbols = counts.most_common(min_count, max_size)
    special = [name for name, needed in ((EOS, words), (UNK, UNK not in symbols)) if needed and name not in symbols]
    line_end = EOS if words else None
    vocabulary = Vocabulary(
        "words" if words else "characters", (*special, *symbols), unk=UNK, line_end=line_end, lower_case=lower_case
    )
    return _of_vocabulary(vocabulary)


def _of_vocabulary(vocabulary: Vocabulary) -> PreparedTokenizer:
    unit = {"words": "word", "characters": "character", "bytes": "byte"}.get(vocabulary.kind, "token")
    content = vocabulary.to_json().encode("utf-8")
    return PreparedTokenizer(unit, "vocabulary", tokenizer_of(vocabulary), len(vocabulary), content)


def _complete(file: Path, words: bool) -> Iterator[str]:
    """Yield a text in pieces, which do not cut words."""
    rest, counts = "", TextCounts()
    with open_text(file) as raw:
        for piece in text_pieces(raw, str(file), counts):
            text = rest + piece
            end = next((at for at in range(len(text), 0, -1) if text[at - 1].isspace()), 0) if words else len(text)
            rest = text[end:]
            yield text[:end]
    yield rest


def trained(
    files: Sequence[Path], unit: str, vocab_size: int, folder: Path, *, pairs: bool = False
) -> PreparedTokenizer:
    """Train byte-level BPE (`tokenizers`) or a SentencePiece unigram model on the texts.

    Of long texts every nth line is taken, so that the lines have about `SAMPLE` bytes.

    Args:
        unit: one of `xlexport.choices.SUBWORDS`.
        vocab_size: how many tokens to aim at; at least the 256 bytes.
        folder: where the file is written; it must exist.
        pairs: whether lines are pairs, whose sides share the vocabulary; ids 0 to 2 are then reserved.

    Raises:
        MissingDependencyError: the library is not installed. TextError: a text is not UTF-8.
        XlexportError: the library cannot train on these texts.
    """
    kind = SUBWORDS[unit]
    require(None, kind)
    path = folder / FILES[kind]
    try:
        lines = _sample(files)
        if pairs:
            lines = itertools.chain.from_iterable(line.removesuffix("\n").split("\t") for line in lines)
        train = _bpe if unit == "bpe" else _sentencepiece
        path.write_bytes(train(lines, vocab_size, pairs))
    except TextError:
        raise
    except (RuntimeError, ValueError) as error:
        raise XlexportError(
            f"the {unit} vocabulary could not be trained ({str(error).strip().splitlines()[-1]}).",
            hint="Give more text, or a smaller --vocab-size.",
        ) from error
    return _of_library(path, kind)


def _of_library(path: Path, kind: str) -> PreparedTokenizer:
    settled = settled_of(path, kind)
    entry = TokenizerEntry("tokenizers" if kind == "tokenizers" else "sentencepiece", path.name, settled=settled)
    tokenizer = make_tokenizer(entry, path.parent)
    size = tokenizer.vocab_size
    assert size is not None
    return PreparedTokenizer("token", kind, tokenizer, size, path.read_bytes(), settled is None)


def _sample(files: Sequence[Path]) -> Iterator[str]:
    """Yield lines with their ends, evenly spaced over the texts."""
    every = max(1, math.ceil(sum(Input(str(file), file).size or 0 for file in files) / SAMPLE))
    return itertools.islice(itertools.chain.from_iterable(map(_lines, files)), 0, None, every)


def _lines(file: Path) -> Iterator[str]:
    rest = ""
    for piece in _complete(file, words=False):
        *lines, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in lines)
        if len(rest) > LONGEST_LINE:
            yield rest
            rest = ""
    if rest:
        yield rest


def _bpe(lines: Iterator[str], vocab_size: int, pairs: bool) -> bytes:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library: Any = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=RESERVED if pairs else [],
        show_progress=False,
    )
    library.train_from_iterator(lines, trainer)
    if not pairs:
        return str(library.to_str(pretty=True)).encode("utf-8")
    # As added tokens, the reserved pieces would be found in texts that spell them.
    fields = {**json.loads(library.to_str()), "added_tokens": []}
    return json.dumps(fields, ensure_ascii=False, indent=2).encode("utf-8")


def _sentencepiece(lines: Iterator[str], vocab_size: int, pairs: bool) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.removesuffix("\n") for line in lines),
        model_writer=model,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        byte_fallback=True,
        num_threads=1,
        minloglevel=2,
        pad_id=0 if pairs else -1,  # without padding, the unknown piece is 0
        unk_id=3 if pairs else 0,
        bos_id=1,
        eos_id=2,
    )
    return model.getvalue()


def given(path: Path, vocab_style: str | None = None) -> PreparedTokenizer:
    """Return the tokenizer in a file: a vocabulary, such as the authors' cache.pt, or one of a library.

    Raises:
        CheckpointError, VocabularyError: the file is not a tokenizer. XlexportError: a style was given for a library's.
    """
    kind = file_kind(path)
    if kind == "vocabulary":
        return _of_vocabulary(read_vocabulary(path, vocab_style))
    if vocab_style is not None:
        raise XlexportError(
            f"{path}: a tokenizer of the {kind} library, but --set vocab_style is for vocabularies.",
            hint="Leave it out.",
        )
    require(None, kind)
    return _of_library(path, kind)
