"""The options of the `score` command, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from xlexport.choices import LEVELS, RECORD_FORMATS
from xlexport.commands.options import OutputFile, all_of, grouped
from xlexport.commands.settings import Setting
from xlexport.terminal import quiet_option

if TYPE_CHECKING:
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.records import Level
    from xlruntime.scorer import BatchSize

__all__ = [
    "ENDINGS",
    "HERE",
    "OUTPUT_PLACE",
    "OutputOptions",
    "PlaceName",
    "RecordOptions",
    "SharingOptions",
    "format_of_ending",
    "output_options",
    "record_options",
    "sharing_options",
]

ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


HERE = "this machine"  # instead of the address of a Ray cluster


class PlaceName(click.Path):
    """A path, or a text if it is the address of an object store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of an option or argument."""
        return value if "://" in str(value) else super().convert(value, param, ctx)


class _OutputPlace(OutputFile):
    """A file to write; or a text if it is the address of an object store, or the name of a folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) or str(value).endswith("/") else super().convert(value, param, ctx)


OUTPUT_PLACE = _OutputPlace()


def format_of_ending(output: Path) -> Format:
    """Return the format of records in a file, by the ending of its name.

    Raises:
        click.UsageError: no format has this ending.
    """
    if output.suffix not in ENDINGS:
        raise click.UsageError(f"{output}: no format of that ending; use {', '.join(ENDINGS)}, or give --format.")
    return ENDINGS[output.suffix]


@dataclass(frozen=True)
class RecordOptions:
    """The unit of a record and its format; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    per: Level | None
    kind: Literal["jsonl", "csv", "tsv", "parquet"] | None
    as_json: bool
    top: int | None
    region_field: str | None
    boundary: Literal["plain", "corrected"]
    bos: str | None

    def __post_init__(self) -> None:
        if self.top is not None and self.level == "document":
            raise click.UsageError("--top is for parts of a document. Add --per token, word, region or line.")
        if self.top and self.level != "token":
            raise click.UsageError(f"--top {self.top} is for tokens. Add --per token, or give --top 0.")
        if self.region_field is not None and self.level != "region":
            raise click.UsageError("--region-field is for regions. Add --per region.")
        if self.boundary == "corrected" and self.level not in ("word", "region"):
            raise click.UsageError("--boundary is for words and regions. Add --per word or --per region.")
        if self.as_json and self.kind not in (None, "jsonl"):
            raise click.UsageError(f"--json is --format jsonl, but --format is {self.kind}. Give one of them.")

    @property
    def level(self) -> Level:
        """The unit of one record."""
        return self.per or "document"

    def format_for(self, output: Path | None) -> Format:
        """Return the format of the records in `output`; None: standard output."""
        if self.kind == "parquet" and output is None:
            raise click.UsageError("Parquet is a format of files. Give one with -o.")
        if self.as_json or self.kind is not None:
            return self.kind or "jsonl"
        if output is None:
            return "text" if self.level == "document" else "jsonl"
        return format_of_ending(output)


@dataclass(frozen=True)
class OutputOptions:
    """Where records are written; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    output: Path | None
    force: bool
    resume: bool
    save_every: float

    def __post_init__(self) -> None:
        if self.path is None and (self.force or self.resume):
            raise click.UsageError("--resume and --force are about an output file. Give it with -o.")
        if self.force and self.resume:
            raise click.UsageError("--resume goes on with what is there, --force begins again. Give one of them.")

    @property
    def path(self) -> Path | None:
        """Return the file to write; None: standard output."""
        return None if str(self.output) == "-" else self.output


class _Batch(click.ParamType[Any]):
    """A number of documents, or `auto`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in (None, "auto") else click.IntRange(1).convert(value, param, ctx)


@dataclass(frozen=True)
class SharingOptions:
    """How many documents are scored at a time, and by how many processes; the fields are options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    batch_size: BatchSize | None
    processes: int | None
    ray: str | None

    def __post_init__(self) -> None:
        if self.processes is not None and self.batch_size not in (None, "auto", 1):
            raise click.UsageError("--processes forms batches itself. Leave out --batch-size, or give auto or 1.")

    @property
    def by_chunks(self) -> bool:
        """Whether the documents are divided before they are scored."""
        return self.processes is not None or self.ray is not None or self.batch_size == "auto"

    def threads(self, given: int | None) -> int | None:
        """Return the threads of a process: those given, or one if there are several processes."""
        return 1 if given is None and (self.processes is not None or self.ray is not None) else given

    def batch(self, alone: bool) -> BatchSize:
        """Return the size of batches.

        Args:
            alone: whether the other options need one document at a time.
        """
        return self.batch_size or ("auto" if self.by_chunks and not alone else 1)


record_options = all_of(
    click.option(
        "--per",
        type=click.Choice(LEVELS),
        help="Write one record for each document, line, word, region or token; totals go to stderr. Marks | in the "
        "text separate regions, and are removed.  [default: document]",
    ),
    click.option(
        "--format",
        "kind",
        type=click.Choice(RECORD_FORMATS),
        help="Format of the records.  [default: by the ending of --output; on stdout jsonl, and text for documents]",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --format jsonl; totals on stderr are JSON, too."),
    click.option(
        "--top",
        type=click.IntRange(0, 10),
        metavar="K",
        help="Also entropies of the predictions, in nats; with --per token the rank and the K likeliest tokens, too. "
        "For lines, words and regions K is 0.",
    ),
    click.option(
        "--region-field",
        metavar="NAME",
        help="With --per region and --field: the field with the regions, as the text with marks, or as the numbers of "
        "the characters where they begin.",
    ),
    click.option(
        "--boundary",
        type=click.Choice(["plain", "corrected"]),
        default="plain",
        show_default=True,
        help="corrected: also surprisal that includes the end of a word instead of the end of the word before it. "
        "Takes about five times as long.",
    ),
    click.option(
        "--bos",
        metavar="TOKEN|TEXT",
        help="Let the model read this token before each document, so that the first token has a score, too: a name "
        r"such as '<eos>', or a text of one token such as '\n'.",
    ),
    grouped("record", RecordOptions),
)

output_options = all_of(
    click.option(
        "-o", "--output", type=OUTPUT_PLACE, metavar="FILE", help="Write to FILE, which appears when it is complete."
    ),
    click.option("--force", is_flag=True, help="Replace FILE, or the rest of an interrupted run."),
    click.option("--resume", is_flag=True, help="Continue an interrupted run; the output is the same, byte for byte."),
    click.option(
        "--save-every",
        cls=Setting,
        type=click.FloatRange(0),
        default=10.0,
        show_default=True,
        help="Seconds between two saved states, from which --resume continues a run with --output.",
    ),
    quiet_option,
    grouped("writing", OutputOptions),
)

sharing_options = all_of(
    click.option(
        "--batch-size",
        type=_Batch(),
        metavar="N|auto",
        help="Documents at a time; 'auto' forms batches of documents of similar lengths.  [default: 1; auto with "
        "--processes]",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1),
        metavar="N",
        help="Share the documents between N processes, each with one thread unless --threads says more. The output is "
        "the same for any N.",
    ),
    click.option(
        "--ray",
        is_flag=False,
        flag_value=HERE,
        metavar="[ADDRESS]",
        help="Share the files between the machines of a Ray cluster, or without ADDRESS the CPUs of this one. FILES "
        "and --output, which is a folder, may be addresses such as s3://bucket/texts.",
    ),
    grouped("sharing", SharingOptions),
)
