"""Choose the tokenizer of a bundle: the checkpoint's own, or one that the user names."""

from __future__ import annotations

import json
import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from xlexport.byte_pair_file import BYTE_PAIR_FILE, byte_pair_file
from xlexport.checkpoints.files import CONFIG, TOKENIZERS
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.vocabularies import describe_vocabulary, read_vocabulary, restyled
from xlexport.errors import ExportError
from xlexport.families.transformer_xl.huggingface import VOCABULARIES
from xlexport.text_cuts import Settled, sentencepiece_rule, settled_rule
from xlexport.text_ends import TokenNames, find_ends, sentencepiece_names, text_ends_note, tokenizers_names
from xlruntime.bundle import TokenizerEntry
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.libraries import TOKENIZER_LIMITS
from xlruntime.tokenizers.tokenizer_file import read_tokenizer_json
from xlruntime.tokenizers.vocabulary import VOCABULARY_FORMAT, Vocabulary
from xltraining.data.tokenizer_file import TokenizerFile

__all__ = ["FILES", "TokenizerChoice", "choose_tokenizer", "file_kind", "settled_of", "tokenizer_library"]

FILES = {"vocabulary": "vocabulary.json", "tokenizers": "tokenizer.json", "sentencepiece": "tokenizer.model"}
NEARBY = (
    *("cache.pt", "cache.pkl", "vocab.pkl", "vocab.bin", "vocab.txt", "vocabulary.json"),
    *("tokenizer.json", "spiece.model", "tokenizer.model"),
)
# Sizes of vocabularies that a byte tokenizer fits, and the id of byte 0 in each. Of 258 tokens, id 0 is padding and
# id 1 is unused (google/reformer-enwik8). Of 259, ids 0 to 2 pad, start and end texts.
FIRST_BYTES = {"reformer": {256: 0, 258: 2}, "encoder_decoder": {259: 3}}
_CHOICES = (
    "--tokenizer with a vocab.txt, cache.pt, vocab.pkl, tokenizer.json or SentencePiece model, {}or "
    "--tokenizer none for a bundle that takes token ids only"
)


@dataclass(frozen=True)
class TokenizerChoice:
    """The tokenizer that was chosen for a bundle.

    Attributes:
        spec: its entry in the manifest.
        content: the bytes of its file, if it has one.
        notes: sentences for people about the choice.
        bpe: the bytes of the file for runtimes without the `tokenizers` library, if the entry names one.
        folder: where its file lies, if other files of Hugging Face's form may lie beside it.
        special: ids of tokens with a role, or that are no pieces of text.
    """

    spec: TokenizerEntry
    content: bytes | None = None
    notes: tuple[str, ...] = ()
    bpe: bytes | None = None
    folder: Path | None = None
    special: tuple[int, ...] = ()

    def write(self, folder: Path) -> None:
        """Write its files, if it has any, into a bundle."""
        for name, content in ((self.spec.file, self.content), (self.spec.bpe, self.bpe)):
            if name is not None and content is not None:
                (folder / name).write_bytes(content)


def choose_tokenizer(
    source: SourceCheckpoint,
    chosen: str | None = None,
    vocab_style: str | None = None,
    *,
    bos: str | None = None,
    eos: str | None = None,
) -> TokenizerChoice:
    """Return the tokenizer of a bundle, with the tokens that begin and end a text.

    Args:
        chosen: `bytes` (the architecture says which id byte 0 has), `none`, or a file: a vocabulary, a tokenizer.json
            or a SentencePiece model; None: the checkpoint's own.
        vocab_style: how to read a vocabulary, one of `STYLES`; None: recognized by its symbols.
        bos, eos: the tokens that begin and end a text, by name, or `none`; None: as the checkpoint's files say.

    Raises:
        ExportError: the checkpoint has no tokenizer, it does not fit the model, a file is missing, or `bos` or `eos`
            is no token.
        CheckpointError, VocabularyError: the file is not a tokenizer, or one beside it is damaged.
    """
    choice = _without_ends(source, chosen, vocab_style)
    names = _token_names(choice, source.config["n_token"])
    folders = [file.parent for file in source.files if file.name == CONFIG]
    if choice.folder is not None:
        folders.append(choice.folder)
    found = find_ends(names, folders, bos, eos)
    spec = replace(choice.spec, begin=found.begin, adds_begin=found.adds_begin, ends=found.ends)
    notes = (*choice.notes, *found.notes)
    if spec.file is not None and (spec.kind != "vocabulary" or spec.begin is not None or spec.ends):
        notes += (f"Texts {text_ends_note(spec.begin, spec.adds_begin, spec.ends)}.",)
    roles = [token.id for token in (*found.ends, *filter(None, [found.begin]))]
    return replace(choice, spec=spec, notes=notes, special=(*names.special, *roles))


def _without_ends(source: SourceCheckpoint, chosen: str | None, vocab_style: str | None) -> TokenizerChoice:
    n_token = source.config["n_token"]
    own = source.tokenizer
    if chosen is None and isinstance(own, str):
        chosen = own
    if chosen in ("none", "bytes"):
        if vocab_style is not None:
            raise ExportError(
                f"--set vocab_style={vocab_style} is for vocabularies, but the tokenizer is {chosen}.",
                hint="Leave it out.",
            )
        if chosen == "none":
            return TokenizerChoice(TokenizerEntry("none"))
        first_bytes = _first_bytes(source)
        if n_token not in first_bytes:
            sizes = " or ".join(map(str, first_bytes))
            raise ExportError(
                f"the model has {n_token:,} tokens, a byte tokenizer needs {sizes}.", hint=f"Give {_choices(source)}."
            )
        return TokenizerChoice(TokenizerEntry("bytes", first_id=first_bytes[n_token]))
    named = own if chosen is None and isinstance(own, Path) else chosen
    if named is not None:
        return _from_file(Path(named), source, vocab_style)
    if isinstance(own, TokenizerFile):
        with tempfile.TemporaryDirectory(prefix="xlexport-tokenizer-") as folder:
            path = Path(folder, FILES[own.kind])
            path.write_bytes(own.content)
            return _from_file(path, source, vocab_style)
    if isinstance(own, Vocabulary):
        where = f"the vocabulary in {next(iter(source.files), 'the checkpoint')}"
        return _from_vocabulary(own if vocab_style is None else restyled(own, where, vocab_style), where, n_token)
    file = next(iter(source.files), Path("the checkpoint"))
    nearby = next((file.parent / name for name in NEARBY if (file.parent / name).is_file()), None)
    hint = "" if nearby is None else f"--tokenizer {shlex.quote(str(nearby))}, which is in its folder, or "
    raise ExportError(f"{file}: does not say what its {n_token:,} tokens are.", hint=f"Give {hint}{_choices(source)}.")


def tokenizer_library(checkpoint: Path, chosen: str | None) -> list[str]:
    """Return the library that the tokenizer of a conversion needs, if any, without reading the checkpoint.

    Args:
        chosen: as for `choose_tokenizer`.
    """
    if chosen in ("none", "bytes"):
        return []
    names = () if chosen is not None or any((checkpoint / name).is_file() for name in VOCABULARIES) else TOKENIZERS
    files = [checkpoint / name for name in names] if chosen is None else [Path(chosen)]
    file = next((file for file in files if file.is_file()), None)
    return [] if file is None or (kind := file_kind(file)) == "vocabulary" else [kind]


def _first_bytes(source: SourceCheckpoint) -> dict[int, int]:
    return FIRST_BYTES.get(source.architecture, {256: 0})


def _choices(source: SourceCheckpoint) -> str:
    """Return the options that fit a model with this number of tokens."""
    fits_bytes = source.config["n_token"] in _first_bytes(source)
    return _CHOICES.format("--tokenizer bytes, " if fits_bytes else "")


def _from_file(path: Path, source: SourceCheckpoint, vocab_style: str | None) -> TokenizerChoice:
    n_token = source.config["n_token"]
    if not path.is_file():
        what = "a folder, not a" if path.is_dir() else "no such"
        raise ExportError(f"{path}: {what} tokenizer file.", hint=f"Give {_choices(source)}.")
    kind = file_kind(path)
    if kind == "vocabulary":
        return _from_vocabulary(read_vocabulary(path, vocab_style), str(path), n_token)
    if vocab_style is not None:
        raise ExportError(
            f"{path}: a tokenizer of the {kind} library, but --set vocab_style is for vocabularies.",
            hint="Leave it out.",
        )
    entry = TokenizerEntry("tokenizers" if kind == "tokenizers" else "sentencepiece", FILES[kind])
    size = make_tokenizer(TokenizerEntry(entry.kind, path.name), path.parent).vocab_size
    if size is not None and size > n_token:
        raise ExportError(
            f"{path}: {size:,} tokens, but the model has {n_token:,}.", hint="Give the model's own tokenizer."
        )
    unused = () if size == n_token else (f"The tokenizer has {size:,} of the model's {n_token:,} tokens.",)
    content = path.read_bytes()
    bpe = byte_pair_file(content) if kind == "tokenizers" else None
    entry = replace(entry, size=size, settled=settled_of(path, kind), bpe=None if bpe is None else BYTE_PAIR_FILE)
    folder = path.parent if path.name in TOKENIZERS else None
    return TokenizerChoice(entry, content, unused, bpe, folder)


def settled_of(path: Path, kind: str) -> Settled | None:
    """Return where texts of a library's file can be cut; None: nowhere."""
    if kind == "tokenizers":
        return settled_rule(read_tokenizer_json(path, TOKENIZER_LIMITS)[0])
    return sentencepiece_rule(path)


def _token_names(choice: TokenizerChoice, n_token: int) -> TokenNames:
    """Return the tokens of a tokenizer by name, and what it says of their roles."""
    spec, content = choice.spec, choice.content
    if spec.kind == "vocabulary" and content is not None:
        vocabulary = Vocabulary.from_json(content.decode("utf-8"), str(spec.file))
        if str(vocabulary.kind) == "trie":  # of RWKV, whose id 0 has no text, and stands before and after texts
            return TokenNames({"<|endoftext|>": 0}, n_token, begins=("<|endoftext|>",), ends=("<|endoftext|>",))
        ends = [number for number in (vocabulary.id_of(vocabulary.line_end),) if number is not None]
        marks = map(vocabulary.id_of, (vocabulary.unk, vocabulary.line_start, vocabulary.line_end))
        return TokenNames(
            vocabulary.index, n_token, text=ends, special=tuple(number for number in marks if number is not None)
        )
    if spec.kind == "sentencepiece" and content is not None:
        return sentencepiece_names(content, n_token)
    if spec.kind == "tokenizers" and content is not None:
        return tokenizers_names(json.loads(content.decode("utf-8-sig")), n_token)
    return TokenNames({}, n_token, text=range(spec.first_id, n_token) if spec.kind == "bytes" else ())


def file_kind(path: Path) -> str:
    """Return the kind of a file by its content, or else by its name."""
    with path.open("rb") as file:
        beginning = file.read(200)
    if beginning.lstrip().startswith(b"{"):
        return "vocabulary" if VOCABULARY_FORMAT.encode() in beginning else "tokenizers"
    # A SentencePiece model is a protobuf message that begins with a piece, which begins with its text.
    if (beginning[:1] == b"\n" and beginning[2:3] == b"\n") or path.suffix == ".model":
        return "sentencepiece"
    return "tokenizers" if path.suffix == ".json" else "vocabulary"


def _from_vocabulary(vocabulary: Vocabulary, where: str, n_token: int) -> TokenizerChoice:
    size = None
    if vocabulary.kind == "trie":  # its table may be padded, like those of libraries
        size = max(number for number, symbol in enumerate(vocabulary.symbols) if symbol) + 1
        vocabulary = replace(vocabulary, symbols=vocabulary.symbols + ("",) * (n_token - len(vocabulary)))
    if len(vocabulary) != n_token:
        raise ExportError(
            f"{where}: {len(vocabulary):,} symbols, but the model has {n_token:,} tokens.",
            hint="Give the model's own vocabulary with --tokenizer.",
        )
    entry = TokenizerEntry("vocabulary", FILES["vocabulary"], size=size)
    return TokenizerChoice(entry, vocabulary.to_json().encode("utf-8"), (describe_vocabulary(vocabulary),))
