"""Prepared data: files of token ids, read on demand, and a manifest that describes them.

A folder has `manifest.json`, the tokenizer's file, and for each split (`train`, `valid`, `test`) its shards:
`train_00000.bin` and so on, little-endian unsigned integers of 16 or 32 bits. `train_documents.bin` has the index of
each document's first token, as little-endian int64. A shard is mapped into memory for each read only: the pages of a
mapping that stays would count as the process's memory, up to the size of the corpus.
"""

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, get_args

import numpy as np
import numpy.typing as npt

from xltraining.data.tokenizer_file import TokenizerFile, TokenizerKind
from xltraining.errors import DataError
from xltraining.messages import first_line, listed, shown

__all__ = [
    "MANIFEST_NAME",
    "PreparedData",
    "Shard",
    "ShardWriter",
    "Split",
    "TokenIds",
    "is_prepared",
    "read_prepared",
    "read_to_train",
    "write_manifest",
]

TokenIds = npt.NDArray[np.int64]

MANIFEST_NAME = "manifest.json"
FORMAT, VERSION = "xltraining data", 1
SHARD_TOKENS = 1 << 28
LARGEST = 1 << 27  # bytes of a manifest or a tokenizer
_HINT = "Prepare the data again."


@dataclass(frozen=True)
class Shard:
    """A file of token ids."""

    file: str
    tokens: int


@dataclass(frozen=True)
class Split:
    """The tokens of one split, as one sequence."""

    folder: Path
    dtype: str
    """`uint16` or `uint32`."""
    shards: tuple[Shard, ...]
    text_bytes: int
    """Bytes of the text that the tokens represent."""
    documents: int
    documents_file: str

    @property
    def name(self) -> str:
        """Name of the text for messages."""
        return f"{self.folder}: the training text"

    def __len__(self) -> int:
        """Return the number of tokens."""
        return sum(shard.tokens for shard in self.shards)

    def read(self, start: int, count: int) -> TokenIds:
        """Return `count` token ids (count,) from index `start`; after the last token comes the first."""
        parts: list[npt.NDArray[Any]] = []
        total = len(self)
        while count:
            start %= total
            first = 0
            for shard in self.shards:
                if start < first + shard.tokens:
                    break
                first += shard.tokens
            taken = min(count, first + shard.tokens - start)
            parts.append(_mapped(self.folder / shard.file, self.dtype, start - first, taken).astype(np.int64))
            start, count = start + taken, count - taken
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def document_starts(self) -> TokenIds:
        """Return the index of each document's first token, (documents,).

        Raises:
            DataError: the documents do not cover the tokens in their order.
        """
        starts = _mapped(self.folder / self.documents_file, "int64", 0, self.documents).astype(np.int64)
        if starts[:1].any() or (np.diff(starts, append=len(self)) < 0).any():
            raise DataError(f"{self.name}: {self.documents_file} is wrong: documents overlap.", hint=_HINT)
        return starts


def _mapped(path: Path, dtype: str, start: int, count: int) -> npt.NDArray[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    return np.memmap(path, kind, "r", offset=start * kind.itemsize, shape=(count,))


@dataclass(frozen=True)
class PreparedData:
    """A folder of prepared data."""

    folder: Path
    unit: str
    """What a token is, such as `word`; for people."""
    n_token: int
    cutoffs: tuple[int, ...]
    """Where clusters of rarer tokens begin; empty for one cluster."""
    tokenizer: Mapping[str, Any]
    """`kind`, and the name of its `file` if it has one."""
    splits: Mapping[str, Split]
    digests: Mapping[str, str]
    """SHA-256 of all files by name."""
    sha256: str
    """Of the manifest, which has the digests of all files."""
    pairs: bool = False
    """Whether documents are sources and targets by turns."""

    def tokenizer_file(self) -> bytes | None:
        """Return the content of the tokenizer's file; None for bytes.

        Raises:
            DataError: the file is not of the tokenizer's kind.
        """
        if "file" not in self.tokenizer:
            return None
        path = self.folder / self.tokenizer["file"]
        content = _content(path)
        if self.tokenizer["kind"] != "sentencepiece":
            _fields(path, content)
        return content

    def tokenizer_of_model(self) -> str | TokenizerFile:
        """Return the tokenizer as a checkpoint keeps it."""
        content = self.tokenizer_file()
        return "bytes" if content is None else TokenizerFile(self.tokenizer["kind"], content)


def is_prepared(path: Path) -> bool:
    """Return whether a path is a folder with a manifest."""
    return (path / MANIFEST_NAME).is_file()


def read_prepared(folder: Path) -> PreparedData:
    """Read the manifest of prepared data, and check the sizes of its files.

    Raises:
        DataError: the folder is damaged, or of another kind.
    """
    path = folder / MANIFEST_NAME
    raw = _content(path)
    fields = _fields(path, raw)
    if fields.get("format") != FORMAT or fields.get("version") != VERSION:
        raise DataError(
            f"{path}: not a manifest of version {VERSION} of this format.", hint="Give a folder of `xlexport prepare`."
        )
    try:
        splits = {name: _split(folder, fields["dtype"], entry) for name, entry in fields["splits"].items()}
        digests = {one["file"]: one["sha256"] for entry in fields["splits"].values() for one in entry["shards"]}
        digests |= {_inside(name): digest for name, digest in fields.get("sha256", {}).items()}
        data = PreparedData(
            folder,
            str(fields["unit"]),
            _whole(fields["n_token"], 1),
            tuple(map(_whole, fields["cutoffs"])),
            _tokenizer(fields["tokenizer"]),
            splits,
            digests,
            hashlib.sha256(raw).hexdigest(),
            bool(fields.get("pairs", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: fields are missing or wrong ({first_line(error)}).", hint=_HINT) from error
    problems = list(_file_problems(data))
    if data.pairs:
        odd = [name for name, split in splits.items() if split.documents % 2 or not split.documents]
        problems += [f"{name} is not pairs" for name in odd]
    if problems:
        raise DataError(f"{folder}: {listed(problems, '; ')}.", hint=_HINT)
    return data


def read_to_train(folder: Path, n_token: int, *, pairs: bool = False) -> PreparedData:
    """Read prepared data that a model with `n_token` tokens trains on, and compare its digests.

    Args:
        pairs: whether the model trains on pairs.

    Raises:
        DataError: the folder is damaged, changed, of the other kind, or has another vocabulary than the model.
    """
    data = read_prepared(folder)
    if data.pairs != pairs:
        raise DataError(
            f"{folder}: {'pairs' if data.pairs else 'a text'}, but the task needs {'pairs' if pairs else 'a text'}.",
            hint="Give --documents pair to `xlexport prepare` for an encoder-decoder, and only then.",
        )
    if data.n_token != n_token:
        raise DataError(
            f"{folder}: a vocabulary of {data.n_token:,}, but the model has {n_token:,} tokens.",
            hint="Leave n_token out, or prepare the data with the model's vocabulary.",
        )
    changed = [name for name, digest in data.digests.items() if _sha256(folder / name) != digest]
    if changed:
        raise DataError(
            f"{folder}: {listed(changed)} changed since the data was prepared (another SHA-256).",
            hint="Copy the folder again, or prepare the data again.",
        )
    if "train" not in data.splits:
        raise DataError(f"{folder}: no split named train.", hint="Prepare the data again.")
    return data


def _content(path: Path) -> bytes:
    """Return the content of a small file, which is no link."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            raise DataError(f"{path}: expected a file of at most {LARGEST:,} bytes, and no link.", hint=_HINT)
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.", hint="Give a folder of `xlexport prepare`.") from error


def _fields(path: Path, content: bytes) -> dict[str, Any]:
    """Return the JSON object in the content of a file."""
    try:
        fields = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({first_line(error)}).", hint=_HINT) from error
    if not isinstance(fields, dict):
        raise DataError(f"{path}: not a JSON object.", hint=_HINT)
    return fields


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.", hint=_HINT) from error


def _split(folder: Path, dtype: str, entry: Mapping[str, Any]) -> Split:
    if dtype not in ("uint16", "uint32"):
        raise ValueError(f"dtype {shown(dtype)}")
    shards = tuple(Shard(_inside(one["file"]), _whole(one["tokens"], 1)) for one in entry["shards"])
    documents = _whole(entry["documents"], 1)
    return Split(folder, dtype, shards, _whole(entry["bytes"], 1), documents, _inside(entry["documents_file"]))


def _tokenizer(entry: Mapping[str, Any]) -> dict[str, str]:
    kind = entry["kind"]
    if kind not in (("bytes",) if "file" not in entry else get_args(TokenizerKind)):
        raise ValueError(f"tokenizer {shown(kind)}")
    return {"kind": kind} | ({"file": _inside(entry["file"])} if "file" in entry else {})


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 60:
        raise ValueError(f"{shown(value)}, expected a whole number from {least}")
    return value


def _inside(name: str) -> str:
    if Path(name).name != name or not name.isprintable():
        raise ValueError(f"file {shown(name)}")
    return name


def _file_problems(data: PreparedData) -> Iterator[str]:
    """Yield names without a digest or a file of their own in the folder, and files of another size."""
    sizes: dict[str, int | None] = dict.fromkeys(data.digests)
    if "file" in data.tokenizer:
        sizes[data.tokenizer["file"]] = None
    for split in data.splits.values():
        sizes |= {shard.file: shard.tokens * np.dtype(split.dtype).itemsize for shard in split.shards}
        sizes[split.documents_file] = split.documents * 8
    for name, expected in sizes.items():
        try:
            status = (data.folder / name).lstat()
        except OSError:
            yield f"{name} is missing"
            continue
        if not stat.S_ISREG(status.st_mode):
            yield f"{name} is a link or no file"
        elif expected not in (None, status.st_size):
            yield f"{name} has {status.st_size:,} bytes, expected {expected:,}"
        elif name not in data.digests:
            yield f"{name} has no digest"


@dataclass
class ShardWriter:
    """Write the tokens of one split, shard after shard, at constant memory."""

    folder: Path
    split: str
    n_token: int
    shard_tokens: int = SHARD_TOKENS
    text_bytes: int = 0
    """Bytes of text so far; the caller counts them."""
    shards: list[dict[str, Any]] = field(default_factory=list)
    documents: int = 0

    def __post_init__(self) -> None:
        self.tokens = 0
        self._file: BinaryIO | None = None
        self._starts = (self.folder / self.documents_file).open("wb")

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_shard()
        self._starts.close()

    @property
    def documents_file(self) -> str:
        """Name of the file that holds the index of each document's first token."""
        return f"{self.split}_documents.bin"

    def begin_document(self) -> None:
        """Note that the next token begins a document."""
        self._starts.write(self.tokens.to_bytes(8, "little"))
        self.documents += 1

    def add(self, ids: npt.NDArray[np.integer[Any]]) -> None:
        """Append token ids (n,)."""
        values = ids.astype(np.dtype(_dtype(self.n_token)).newbyteorder("<"))
        while len(values):
            if self._file is None:
                name = f"{self.split}_{len(self.shards):05}.bin"
                self._file, self._sum = (self.folder / name).open("wb"), hashlib.sha256()
                self.shards.append({"file": name, "tokens": 0})
            shard = self.shards[-1]
            part = values[: self.shard_tokens - shard["tokens"]]
            raw = part.tobytes()
            self._file.write(raw)
            self._sum.update(raw)
            shard["tokens"] += len(part)
            self.tokens += len(part)
            values = values[len(part) :]
            if shard["tokens"] == self.shard_tokens:
                self._end_shard()

    def _end_shard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self.shards[-1]["sha256"] = self._sum.hexdigest()

    def entry(self) -> dict[str, Any]:
        """Return the split's part of the manifest."""
        return {
            "tokens": self.tokens,
            "bytes": self.text_bytes,
            "documents": self.documents,
            "documents_file": self.documents_file,
            "shards": self.shards,
        }


def _dtype(n_token: int) -> str:
    return "uint16" if n_token <= 1 << 16 else "uint32"


def write_manifest(
    folder: Path,
    *,
    unit: str,
    n_token: int,
    cutoffs: Sequence[int],
    tokenizer: Mapping[str, Any],
    writers: Sequence[ShardWriter],
    pairs: bool = False,
) -> None:
    """Write the manifest of splits that are complete."""
    names = [writer.documents_file for writer in writers]
    if "file" in tokenizer:
        names.append(tokenizer["file"])
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "unit": unit,
        "n_token": n_token,
        "dtype": _dtype(n_token),
        "cutoffs": list(cutoffs),
        "tokenizer": dict(tokenizer),
        "splits": {writer.split: writer.entry() for writer in writers},
        "sha256": {name: _sha256(folder / name) for name in names},
    }
    if pairs:
        fields["pairs"] = True
    (folder / MANIFEST_NAME).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
