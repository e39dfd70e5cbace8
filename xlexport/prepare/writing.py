"""Write prepared data: the documents of each split as token ids, and the manifest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from xlexport.atomic_output import check_own_folder
from xlexport.atomic_output import folder as whole_folder
from xlexport.callbacks import Progress, no_progress
from xlexport.errors import XlexportError
from xlexport.prepare.clusters import best_cutoffs
from xlexport.prepare.units import PreparedTokenizer
from xlexport.scoring.inputs import Input, open_text
from xlruntime.documents import DOCUMENT_LIMITS, Ids, TextCounts
from xltraining.data.token_shards import ShardWriter, is_prepared, write_manifest

__all__ = ["PreparedSummary", "prepare_data"]

TRAIN = "train"
PIECE_BYTES = 1 << 19  # of text for a library at a time: it needs 270 bytes of memory for each byte
SMALL_VOCABULARY = 10_000  # which needs no clusters


@dataclass(frozen=True)
class PreparedSummary:
    """The summary of the written data.

    Attributes:
        unit: what a token is.
        n_token: size of the vocabulary.
        cutoffs: where clusters of rarer tokens begin.
        tokens: number of tokens of each split.
        documents: number of documents of each split.
        bytes: bytes of text of each split.
        unknown: number of tokens of each split for text that the vocabulary lacks.
    """

    unit: str
    n_token: int
    cutoffs: tuple[int, ...]
    tokens: Mapping[str, int]
    documents: Mapping[str, int]
    bytes: Mapping[str, int]
    unknown: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def prepare_data(
    splits: Mapping[str, Sequence[Path]],
    output: Path,
    make: Callable[[Path], PreparedTokenizer],
    *,
    document: str = "file",
    cutoffs: Sequence[int] | None = None,
    clusters: int | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> PreparedSummary:
    """Write the splits' texts as token ids into a folder, which appears when it is complete.

    Args:
        splits: files of `train`, and perhaps of `valid` and `test`.
        make: returns the tokenizer; it may write its file into the folder that it is given.
        document: each `file` is a document, each `line`, or each side of a `pair`: a line of a source, a tab and a
            target.
        cutoffs: where clusters begin; None: where the output layer has the least work.
        clusters: how many to make; None: 4, or 1 for a vocabulary below 10,000.
        progress: called with the bytes that were read, and all bytes.

    Raises:
        XlexportError: a training text has no tokens, a line is not a pair, or the cut-offs do not fit.
        TextError, TokenError: a text does not fit the tokenizer. OSError: a file cannot be read or written.
    """

    def check() -> None:
        check_own_folder(output, force, is_prepared, "prepared data")

    check()
    reading = _Reading(sum(Input(str(file), file).size or 0 for files in splits.values() for file in files), progress)
    with whole_folder(output, check) as folder:
        prepared = make(folder)
        counts = np.zeros(prepared.n_token, np.int64)
        writers, unknown = [], {}
        for name, files in splits.items():
            with ShardWriter(folder, name, prepared.n_token) as writer:
                unknown[name] = _write_split(writer, files, prepared, document, counts, reading)
            writers.append(writer)
            if not writer.tokens:
                raise XlexportError(f"the texts of {name} have no tokens.", hint="Give files that are not empty.")
        if prepared.file is not None and prepared.content is not None:
            (folder / prepared.file).write_bytes(prepared.content)
        n_clusters = clusters if clusters is not None else (4 if prepared.n_token >= SMALL_VOCABULARY else 1)
        cut = tuple(cutoffs) if cutoffs is not None else best_cutoffs(counts, n_clusters)
        _check_cutoffs(cut, prepared.n_token)
        tokenizer = {"kind": prepared.kind} | ({} if prepared.file is None else {"file": prepared.file})
        write_manifest(
            folder,
            unit=prepared.unit,
            n_token=prepared.n_token,
            cutoffs=cut,
            tokenizer=tokenizer,
            writers=writers,
            pairs=document == "pair",
        )
    by_split = {writer.split: writer for writer in writers}
    return PreparedSummary(
        prepared.unit,
        prepared.n_token,
        cut,
        {name: writer.tokens for name, writer in by_split.items()},
        {name: writer.documents for name, writer in by_split.items()},
        {name: writer.text_bytes for name, writer in by_split.items()},
        unknown,
    )


@dataclass
class _Reading:
    total: int
    progress: Progress
    done: int = 0

    def more(self, size: int) -> None:
        self.done += size
        self.progress(self.done, self.total)


def _check_cutoffs(cutoffs: Sequence[int], n_token: int) -> None:
    edges = [0, *cutoffs, n_token]
    if any(left >= right for left, right in itertools.pairwise(edges)):
        raise XlexportError(
            f"cut-offs {', '.join(map(str, cutoffs))}: they must rise, between 0 and the vocabulary of {n_token:,}."
        )


def _write_split(
    writer: ShardWriter,
    files: Sequence[Path],
    prepared: PreparedTokenizer,
    document: str,
    counts: npt.NDArray[np.int64],
    reading: _Reading,
) -> int:
    """Write the documents of one split; return how many tokens are unknown ones."""
    unknown, unk = 0, prepared.tokenizer.unk_id
    for file in files:
        with open_text(file) as stream:
            begin = at = stream.tell()
            for ids in _DOCUMENTS[document](writer, stream, str(file), prepared):
                writer.add(ids)
                if writer.split == TRAIN:
                    counts += np.bincount(ids, minlength=len(counts))
                unknown += 0 if unk is None else int(np.count_nonzero(ids == unk))
                reading.more(stream.tell() - at)
                at = stream.tell()
            writer.text_bytes += at - begin
    return unknown


def _whole(writer: ShardWriter, file: BinaryIO, name: str, prepared: PreparedTokenizer) -> Iterator[Ids]:
    """Yield the tokens of a file that is one document."""
    writer.begin_document()
    if prepared.reads_whole:  # cut at the ends of lines all the same
        while raw := file.read(PIECE_BYTES) + file.readline():
            yield prepared.tokenizer.encode(raw)
        return
    for piece in prepared.tokenizer.read(file, name, TextCounts(), DOCUMENT_LIMITS):
        yield piece.ids


def _by_line(writer: ShardWriter, file: BinaryIO, name: str, prepared: PreparedTokenizer) -> Iterator[Ids]:
    """Yield the tokens of a file's lines, each of which is a document; blank lines are none."""
    while raw := file.readline():
        if raw.strip():
            writer.begin_document()
            yield prepared.tokenizer.encode(raw)


def _by_pair(writer: ShardWriter, file: BinaryIO, name: str, prepared: PreparedTokenizer) -> Iterator[Ids]:
    """Yield the tokens of both sides of each line, each of which is a document."""
    for number in itertools.count(1):
        if not (raw := file.readline()):
            return
        sides = raw.rstrip(b"\r\n").split(b"\t")
        if len(sides) != 2:
            raise XlexportError(
                f"{name}, line {number:,}: expected a source, one tab and a target, found {len(sides) - 1} tabs.",
                hint="Repair the line, or remove it.",
            )
        for side in sides:
            writer.begin_document()
            yield prepared.tokenizer.encode(side)


_DOCUMENTS = {"file": _whole, "line": _by_line, "pair": _by_pair}
