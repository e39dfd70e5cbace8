"""The options of `score`: fields that declare help, limits, default, and whether another value makes another run.

Commands make their options of these fields. Nothing that is slow to import is imported here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xlruntime import OptionError
from xltraining.config_fields import options_of, setting
from xltraining.messages import renamed

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Reading

__all__ = [
    "ENDINGS",
    "HERE",
    "NO_FORMAT",
    "UNITS",
    "InputOptions",
    "Level",
    "OutputFormat",
    "RecordFormat",
    "ScoreOptions",
]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"Selection": "InputOptions"})

Level = Literal["document", "line", "word", "region", "token"]
UNITS: tuple[Level, ...] = ("line", "word", "region")  # whose records are sums over the tokens of a part of the text
RecordFormat = Literal["jsonl", "csv", "tsv", "parquet"]
OutputFormat = Literal["text"] | RecordFormat  # text: a line for people, of each document
ENDINGS: dict[str, RecordFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
HERE = "this machine"  # instead of the address of a Ray cluster
NO_FORMAT = f"no format has this ending. Use {', '.join(ENDINGS)}, or choose with --format."
_input = functools.partial(setting, common=True, heading="Input")
_record = functools.partial(setting, common=True, heading="Output")
_output = functools.partial(setting, common=True, heading="Output", identity=False)
_device = functools.partial(setting, common=True, heading="Device")


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How files become documents.

    Raises:
        OptionError: options do not go together.
    """

    field: str | None = _input(None, "Field to read, of .csv, .tsv, .parquet or JSON lines.", metavar="NAME")
    delimiter: str | None = _input(
        None,
        "Mark between the columns of tables: a character or 'tab'. Files of any name are then tables.  [default: a "
        "comma, semicolon or tab, as the first row shows]",
        metavar="MARK",
        common=False,
    )
    id_field: str | None = _input(None, "With --field: the field that names the document.", metavar="NAME")
    include: tuple[str, ...] = _input(
        (),
        "Files to take from folders: '*.txt'. Repeatable.",
        metavar="PATTERN",
        identity=False,
    )
    ids: bool = _input(False, "Read token ids, separated by white space.")
    binary: bool = _input(
        False, "Also read files that are not text: with zero bytes, or marked as UTF-16.", common=False
    )
    max_document_bytes: int | None = _input(
        None,
        "Most bytes of a document that is read as a whole: a row, or a text for a tokenizer.json or a SentencePiece "
        "model.  [default: 64 MiB and 16 MiB]",
        minimum=1,
        common=False,
    )

    def __post_init__(self) -> None:
        for problem in self.problems():
            raise OptionError(problem)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with combinations of options."""
        if self.id_field is not None and self.field is None:
            yield "--id-field is for JSON lines and tables. Add --field."
        if self.delimiter is not None and self.field is None:
            yield "--set delimiter is for tables. Add --field."
        if self.ids and self.binary:
            yield "--set binary is for text, but --ids reads token ids. Leave out one of them."
        if self.ids and self.max_document_bytes is not None and self.field is None:
            yield "--set max_document_bytes is for rows and texts, but --ids reads token ids. Leave it out."

    @functools.cached_property
    def reading(self) -> Reading:
        """How files become documents, as the library takes it."""
        return self._reading()

    def _reading(self) -> Reading:
        from xlexport.scoring.inputs import Reading

        reading = Reading(self.ids, self.field, self.id_field, keep=(), binary=self.binary, delimiter=self.delimiter)
        if self.max_document_bytes is None:
            return reading
        line, document = (
            dataclasses.replace(limits, bytes=self.max_document_bytes)
            for limits in (reading.line_limits, reading.document_limits)
        )
        return dataclasses.replace(reading, line_limits=line, document_limits=document)


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(InputOptions):
    """The options of `score`, without device and evaluation settings.

    Raises:
        OptionError: options do not go together.
    """

    context_field: str | None = _input(
        None,
        "With --field: the field to read first, unscored.",
        metavar="NAME",
    )
    keep: tuple[str, ...] | None = _input(
        None,
        "With --field: columns to repeat.  [default: all]",
        metavar="NAME,NAME",
    )
    group: str | None = _input(
        None,
        "With --field: rows with one value here are one text.",
        metavar="NAME",
    )
    join: str = _input(
        " ", "With --group: text between rows, unless there is white space.", shown="a space", common=False
    )
    na: str | None = _input(
        None, "With --field: a context or text that is exactly this is missing, such as NA of R.", common=False
    )
    continuous: bool = _input(False, "Carry memory from each document to the next.")
    separator: str | None = _input(
        None,
        r"Text to read, without scoring it, between documents with --continuous, and between context and document "
        r"unless there is white space.  [default: '\n'; after a context ' ']",
        common=False,
    )
    strict: bool = _input(False, "Stop at the first document that cannot be scored.", identity=False, common=False)

    per: Level | None = setting(
        None,
        "Part of the text with a record.  [default: document]",
        common=True,
        heading="Output",
    )
    kind: RecordFormat | None = setting(
        None,
        "Format of the records.  [default: as -o ends]",
        flags=("--format",),
        common=True,
        heading="Output",
    )
    as_json: bool = _record(
        False,
        "As --format jsonl; totals on stderr are JSON, too.",
        flags=("--json",),
        identity=False,
    )
    top: int | None = _record(
        None,
        "Entropies, and the K likeliest tokens.",
        metavar="K",
        minimum=0,
        maximum=10,
    )
    region_field: str | None = _record(
        None,
        "With --per region and --field: the field with the regions. It holds the text with marks, or the numbers "
        "of the characters at which regions begin.",
        metavar="NAME",
        common=False,
    )
    punctuation: Literal["attached", "apart"] = _record(
        "attached",
        "With --per word: attach punctuation to the word that it touches, or make it a word of its own.",
        common=False,
    )
    boundary: Literal["plain", "corrected"] = _record(
        "plain",
        "Correct surprisal at word ends.",
    )
    bos: str | None = _record(
        None,
        "Token to read first.  [default: the tokenizer's]",
        metavar="TOKEN|TEXT|none",
    )

    output: Path | str | None = setting(
        None,
        "Write to FILE; it appears when it is complete.",
        flags=("-o", "--output"),
        metavar="FILE",
        common=True,
        heading="Output",
        identity=False,
    )
    force: bool = _output(False, "Replace FILE, or what an interrupted run left.")
    resume: bool = _output(False, "Continue an interrupted run to the same output.")
    save_every: float = _output(
        10.0, "Seconds between saved states, from which --resume continues.", metavar="NUMBER", minimum=0, common=False
    )

    batch_size: int | Literal["auto"] | None = _device(
        None,
        "Documents at once.  [default: 1; auto: --processes]",
        metavar="N|auto",
    )
    processes: int | None = _device(
        None,
        "Divide the documents among N processes.",
        metavar="N",
        minimum=1,
        identity=False,
    )
    ray: str | None = _device(
        None,
        "Divide them among a Ray cluster, or this machine.",
        metavar="[ADDRESS]",
        identity=False,
    )

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with combinations of options."""
        yield from super().problems()
        yield from self._problems_of_input()
        yield from self._problems_of_records()
        yield from self._problems_of_output()
        yield from self._problems_of_sharing()

    def _problems_of_input(self) -> Iterator[str]:
        of_rows = {
            "--context-field": self.context_field,
            "--keep": self.keep,
            "--set region_field": self.region_field if self.level == "region" else None,
            "--group": self.group,
            "--set na": self.na,
        }
        for option, value in of_rows.items():
            if value is not None and self.field is None:
                yield f"{option} is for JSON lines and tables. Add --field."
        if self.join != type(self).join and self.group is None:
            yield "--set join is for --group. Add it."
        if self.group is not None and (self.level not in ("word", "region") or self.ids):
            yield "--group writes a record for each row of text. Leave out --ids, and give --per word or --per region."
        if self.group is not None and (self.region_field is not None or self.punctuation == "apart"):
            yield "--group makes a word or region of each row. Leave out --set region_field and --set punctuation."
        if self.separator is not None and self.ids:
            yield "--set separator is text, but --ids reads token ids. Leave out one of them."
        if self.separator is not None and not self.continuous and self.context_field is None:
            yield "--set separator is for --continuous and --context-field. Add one of them."
        if self.ids and self.level in UNITS:
            yield f"--per {self.level} needs text, but --ids reads token ids. Use --per token or --per document."

    def _problems_of_records(self) -> Iterator[str]:
        level = self.level
        if self.top is not None and level == "document":
            yield "--top needs a record for each part of a document. Add --per token, word, region or line."
        if self.top and level != "token":
            yield f"--top {self.top} is for tokens. Add --per token, or give --top 0."
        if self.region_field is not None and level != "region":
            yield "--set region_field is for regions. Add --per region."
        if self.punctuation == "apart" and level != "word":
            yield "--set punctuation is for words. Add --per word."
        if self.corrected and level not in ("word", "region"):
            yield "--boundary is for words and regions. Add --per word or --per region."
        if self.as_json and self.kind not in (None, "jsonl"):
            yield f"--json is --format jsonl, but --format is {self.kind}. Give one of them."

    def _problems_of_output(self) -> Iterator[str]:
        path = self.path
        if path is None and (self.force or self.resume):
            yield "--resume and --force are about an output file. Give it with -o."
        if path is None and self.save_every not in (type(self).save_every, math.inf):  # inf: in processes of a run
            yield "--set save_every is about an interrupted output file. Give it with -o."
        if self.force and self.resume:
            yield "--resume continues the interrupted run, --force starts again. Give one of them."
        if self.kind == "parquet" and path is None:
            yield "Parquet needs an output file. Name one with -o."
        if isinstance(path, str) and path.endswith(("/", os.sep)):
            too = "" if self.ray is None else " --ray writes a file, too."
            yield f"{path!r} is the name of a folder. Give that of a file.{too}"
        if path is not None and not self.as_json and self.kind is None and Path(path).suffix not in ENDINGS:
            if self.ray is not None and not Path(path).suffix:
                yield f"{path}: --ray writes a file, not a folder. Name one, such as {path}.parquet."
            yield f"{path}: {NO_FORMAT}"

    def _problems_of_sharing(self) -> Iterator[str]:
        if self.processes is not None and self.batch_size not in (None, "auto", 1):
            yield "--processes forms batches itself. Leave out --batch-size, or set it to auto or 1."
        if self.continuous and self.ray is not None:
            yield "--continuous cannot be combined with --ray. Leave out one of them."
        if self.continuous and self.by_chunks:
            yield "--continuous scores documents one after another. Leave out --processes and --batch-size auto."
        if (self.continuous or self.corrected) and self.batch_size not in (None, 1):
            option = "--continuous" if self.continuous else "--boundary corrected"
            yield f"{option} scores documents one after another. Leave out --batch-size."

    @property
    def level(self) -> Level:
        """The unit of one record."""
        return self.per or ("document" if self.group is None else "word")

    @property
    def path(self) -> Path | str | None:
        """The output; None: standard output."""
        return None if str(self.output) == "-" else self.output

    @property
    def format(self) -> OutputFormat:
        """The format of the records."""
        if self.as_json or self.kind is not None:
            return self.kind or "jsonl"
        if self.path is None:
            return "text" if self.level == "document" else "jsonl"
        return ENDINGS[Path(self.path).suffix]

    @property
    def corrected(self) -> bool:
        """Whether words and regions have surprisal with the correction for boundaries, too."""
        return self.boundary == "corrected"

    @property
    def by_chunks(self) -> bool:
        """Whether documents are divided into chunks, which any number of workers may share."""
        return self.processes is not None or self.ray is not None or self.batch_size == "auto"

    @property
    def at_once(self) -> int | Literal["auto"]:
        """Most documents at a time; `auto`: batches of similar lengths."""
        return self.batch_size or ("auto" if self.by_chunks and not self.corrected else 1)

    @property
    def between(self) -> str:
        """With `continuous`, the text between documents; its tokens belong to none of them."""
        return ("\n" if self.separator is None else self.separator) if self.continuous and not self.ids else ""

    def _reading(self) -> Reading:
        reading = super()._reading()
        cut: Literal["marks"] | None = "marks" if self.level == "region" and self.group is None else None
        return dataclasses.replace(
            reading,
            context_field=self.context_field,
            keep=self.keep,
            separator=reading.separator if self.separator is None else self.separator,
            cut="punctuation" if self.punctuation == "apart" else cut,
            group=self.group,
            join=self.join,
            na=self.na,
            region_field=self.region_field,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The options on which the bytes of the output depend, by their names on the command line, for JSON."""
        reading = self.reading
        resolved = {
            "per": self.level,
            "kind": self.format,
            "batch_size": self.at_once,
            "keep": None if self.keep is None else ",".join(self.keep),
            "join": None if self.group is None else repr(self.join),
            "separator": repr(self.between),
            "max_document_bytes": [reading.line_limits.bytes, reading.document_limits.bytes],
        }
        after_contexts = None if self.context_field is None else repr(reading.separator)
        return {
            **{
                option.spelling: resolved.get(name, getattr(self, name))
                for name, option in options_of(type(self)).items()
                if option.identity
            },
            "--set separator after contexts": after_contexts,
            "documents shared by processes": self.by_chunks,
        }
