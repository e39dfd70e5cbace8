"""Which tokenizer a bundle gets: the checkpoint's own, or one that the user names; and token ids to verify it on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlexport.checkpoints import SourceCheckpoint
from xlexport.checkpoints.vocabularies import describe_vocabulary, read_vocabulary, restyled
from xlexport.errors import ExportError
from xlexport.sample import sample_text
from xlruntime import spec
from xlruntime.documents import Tokenizer, check_ids
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import VOCABULARY_FORMAT, Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["TokenizerChoice", "check_verify_text", "choose_tokenizer", "verify_ids"]

FILES = {"vocabulary": "vocabulary.json", "tokenizers": "tokenizer.json", "sentencepiece": "tokenizer.model"}
_CHOICES = (
    "--tokenizer with a vocab.txt, cache.pt, vocab.pkl, tokenizer.json or SentencePiece model, {}or "
    "--tokenizer none for a bundle that takes token ids only"
)
FIRST_BYTES = {256: 0}  # size of the vocabulary: id of byte 0
REFORMER_FIRST_BYTES = {256: 0, 258: 2}  # of 258, the first two stand for padding and nothing (google/reformer-enwik8)
RANDOM_IDS = 100_000
FEWEST_KNOWN = 1_000  # fewer known words or characters of the sample text verify less than random ids do


@dataclass(frozen=True)
class TokenizerChoice:
    """A bundle's tokenizer.

    Attributes:
        spec: its entry in the manifest.
        content: of its file, if it has one.
        notes: what a person should know about it.
    """

    spec: spec.Tokenizer
    content: bytes | None = None
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write its file, if it has one, into a bundle."""
        if self.spec.file is not None and self.content is not None:
            (folder / self.spec.file).write_bytes(self.content)


def choose_tokenizer(
    source: SourceCheckpoint, chosen: str | None = None, vocab_style: str | None = None
) -> TokenizerChoice:
    """The tokenizer of a bundle.

    Args:
        chosen: `bytes` (byte + 2 where a Reformer has 258 tokens), `none`, or a file: a vocabulary, a tokenizer.json
            or a SentencePiece model; None is the checkpoint's own.
        vocab_style: how to read a vocabulary, one of `STYLES`; None finds out.

    Raises:
        ExportError: there is none, it does not fit the model, or the file is missing.
        CheckpointError, BundleError: the file is no tokenizer.
    """
    n_token = source.config["n_token"]
    own = source.tokenizer
    if chosen in ("none", "bytes") or (chosen is None and own == "bytes"):
        if vocab_style is not None:
            raise ExportError(
                f"--vocab-style {vocab_style} is for vocabularies, but the tokenizer is {chosen or own}.",
                repair="Leave it out.",
            )
        if chosen == "none":
            return TokenizerChoice(spec.Tokenizer("none"))
        first_bytes = _first_bytes(source)
        if n_token not in first_bytes:
            sizes = " or ".join(map(str, first_bytes))
            raise ExportError(
                f"the model has {n_token:,} tokens, a byte tokenizer needs {sizes}.", repair=f"Give {_choices(source)}."
            )
        return TokenizerChoice(spec.Tokenizer("bytes", first_id=first_bytes[n_token]))
    named = own if chosen is None and isinstance(own, Path) else chosen
    if named is not None:
        return _from_file(Path(named), source, vocab_style)
    if isinstance(own, Vocabulary):
        where = f"the vocabulary in {next(iter(source.files), 'the checkpoint')}"
        return _from_vocabulary(own if vocab_style is None else restyled(own, where, vocab_style), where, n_token)
    file = next(iter(source.files), "the checkpoint")
    raise ExportError(f"{file}: does not say what its {n_token:,} tokens are.", repair=f"Give {_choices(source)}.")


def _first_bytes(source: SourceCheckpoint) -> dict[int, int]:
    return REFORMER_FIRST_BYTES if source.architecture == "reformer" else FIRST_BYTES


def _choices(source: SourceCheckpoint) -> str:
    """What fits a model of so many tokens."""
    return _CHOICES.format("--tokenizer bytes, " if source.config["n_token"] in _first_bytes(source) else "")


def _from_file(path: Path, source: SourceCheckpoint, vocab_style: str | None) -> TokenizerChoice:
    n_token = source.config["n_token"]
    if not path.is_file():
        what = "a folder, not a" if path.is_dir() else "no such"
        raise ExportError(f"{path}: {what} tokenizer file.", repair=f"Give {_choices(source)}.")
    kind = _kind(path)
    if kind == "vocabulary":
        return _from_vocabulary(read_vocabulary(path, vocab_style), str(path), n_token)
    if vocab_style is not None:
        raise ExportError(
            f"{path}: of the {kind} library, but --vocab-style is for vocabularies.", repair="Leave it out."
        )
    entry = spec.Tokenizer("tokenizers" if kind == "tokenizers" else "sentencepiece", FILES[kind])
    size = make_tokenizer(spec.Tokenizer(entry.kind, path.name), path.parent).vocab_size
    if size is not None and size > n_token:
        raise ExportError(
            f"{path}: {size:,} tokens, but the model has {n_token:,}.", repair="Give the model's own tokenizer."
        )
    unused = () if size == n_token else (f"The tokenizer has {size:,} of the model's {n_token:,} tokens.",)
    return TokenizerChoice(entry, path.read_bytes(), unused)


def _kind(path: Path) -> str:
    """What the content says, else the name."""
    with path.open("rb") as file:
        beginning = file.read(200)
    if beginning.lstrip().startswith(b"{"):
        return "vocabulary" if VOCABULARY_FORMAT.encode() in beginning else "tokenizers"
    # A SentencePiece model is a protobuf message that begins with a piece, which begins with its text.
    if (beginning[:1] == b"\n" and beginning[2:3] == b"\n") or path.suffix == ".model":
        return "sentencepiece"
    return "tokenizers" if path.suffix == ".json" else "vocabulary"


def _from_vocabulary(vocabulary: Vocabulary, where: str, n_token: int) -> TokenizerChoice:
    if len(vocabulary) != n_token:
        raise ExportError(
            f"{where}: {len(vocabulary):,} symbols, but the model has {n_token:,} tokens.",
            repair="Give the model's own vocabulary with --tokenizer.",
        )
    entry = spec.Tokenizer("vocabulary", FILES["vocabulary"])
    return TokenizerChoice(entry, vocabulary.to_json().encode("utf-8"), (describe_vocabulary(vocabulary),))


def check_verify_text(tokenizer: spec.Tokenizer, text: Path | None) -> None:
    """Raise ExportError or OSError for a text that is not there, or that the bundle could not use."""
    if text is None:
        return
    if tokenizer.kind == "none":
        raise ExportError(f"{text}: the bundle has no tokenizer, so random ids verify it.", repair="Leave out --text.")
    if text.is_dir():
        raise ExportError(f"{text}: a folder, not a text.", repair="Give a file.")
    if not text.stat().st_size and text.is_file():  # not opened: a pipe can be read but once
        raise ExportError(f"{text}: the file is empty.", repair="Give a text to verify on.")


def verify_ids(bundle: spec.Bundle, tokenizer: Tokenizer, text: Path | None) -> npt.NDArray[np.int64]:
    """Token ids to verify on: of `text`, else of a text that every Python brings, else random ones.

    Of that text, what a vocabulary lacks is left out: one of unknown words alone would prove little.

    Raises:
        TokenError, TextError, OSError: the text does not suit the bundle, or cannot be read.
    """
    check_verify_text(bundle.tokenizer, text)
    if text is not None:
        ids = tokenizer.encode(text.read_bytes())
    elif bundle.tokenizer.kind == "none":
        ids = _random_ids(bundle.vocab_size)
    elif isinstance(tokenizer, VocabularyTokenizer):
        ids = _known_ids(tokenizer.vocabulary)
    else:
        ids = tokenizer.encode(sample_text().encode("utf-8"))
    check_ids(ids, bundle.vocab_size, str(text or "the sample text"))
    return ids


def _known_ids(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    ids = VocabularyTokenizer(vocabulary, skip_unknown=True).encode(sample_text().encode("utf-8"))
    marks = [vocabulary.id_of(symbol) for symbol in (vocabulary.line_start, vocabulary.line_end)]
    known = np.count_nonzero(~np.isin(ids, [number for number in marks if number is not None]))
    return ids if known >= FEWEST_KNOWN else _random_ids(len(vocabulary))


def _random_ids(n_token: int) -> npt.NDArray[np.int64]:
    """Spread as words are, whose ids fall in frequency (Zipf's law): every decade of ids is as likely as any other."""
    decades = np.random.default_rng(0).random(RANDOM_IDS) * np.log(n_token + 1)
    return np.clip(np.exp(decades).astype(np.int64) - 1, 0, n_token - 1)
