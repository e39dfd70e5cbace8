"""The options of the `score` command."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from xlexport.choices import LEVELS, RECORD_FORMATS
from xlexport.commands.input_options import Selection, file_options
from xlexport.commands.options import Names, OutputFile, all_of, declared
from xlexport.commands.settings import Setting
from xlexport.terminal import quiet_option
from xltraining.config_fields import options_of, setting

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Reading
    from xlexport.scoring.output_formats import Format
    from xlexport.scoring.run_options import Level, RunOptions
    from xlruntime.scorer import BatchSize

__all__ = [
    "ENDINGS",
    "HERE",
    "PlaceName",
    "RowOptions",
    "ScoreOptions",
    "format_of_ending",
    "input_options",
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


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How rows of tables become texts to score."""

    group: str | None = setting(
        None,
        "With --field: rows that follow each other with the same value in this field are one text, such as words of a "
        "story. Each row has a record.",
        common=True,
    )
    join: str = setting(" ", "With --group: text between rows, unless there is white space.", common=True)
    na: str | None = setting(
        None, "With --field: a context or text that is exactly this is missing, such as NA of R.", common=True
    )


ROWS = options_of(RowOptions)


@dataclass(frozen=True)
class ScoreOptions(RowOptions, Selection):
    """The options of `score`, without device and evaluation settings; fields and options have the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    context_field: str | None = None
    keep: tuple[str, ...] | None = None
    continuous: bool = False
    separator: str | None = None
    strict: bool = False
    per: Level | None = None
    kind: Literal["jsonl", "csv", "tsv", "parquet"] | None = None
    as_json: bool = False
    top: int | None = None
    region_field: str | None = None
    punctuation: Literal["attached", "apart"] = "attached"
    boundary: Literal["plain", "corrected"] = "plain"
    bos: str | None = None
    output: Path | str | None = None
    force: bool = False
    resume: bool = False
    save_every: float = 10.0
    batch_size: BatchSize | None = None
    processes: int | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for applies, problem in self._problems():
            if applies:
                raise click.UsageError(problem)

    def _problems(self) -> Sequence[tuple[bool, str]]:
        """Return combinations of options, each with whether it is given and what is wrong with it."""
        level, corrected, alone = self.level, self.boundary == "corrected", self.batch_size in (None, 1)
        return (
            *(
                (value is not None and self.field is None, f"{option} is for JSON lines and tables. Add --field.")
                for option, value in (
                    ("--context-field", self.context_field),
                    ("--keep", self.keep),
                    ("--region-field", self.region_field if level == "region" else None),
                    ("--group", self.group),
                    ("--na", self.na),
                )
            ),
            (self.join != ROWS["join"].default and self.group is None, "--join is for --group. Add it."),
            (
                self.group is not None and (level not in ("word", "region") or self.ids),
                "--group writes a record for each row of text. Leave out --ids, and give --per word or --per region.",
            ),
            (
                self.group is not None and (self.region_field is not None or self.punctuation == "apart"),
                "--group makes a word or region of each row. Leave out --region-field and --set punctuation.",
            ),
            (
                self.separator is not None and self.ids,
                "--set separator is text, but --ids reads token ids. Leave out one of them.",
            ),
            (
                self.separator is not None and not self.continuous and self.context_field is None,
                "--set separator is for --continuous and --context-field. Add one of them.",
            ),
            (
                self.ids and level in ("line", "word", "region"),
                f"--per {level} needs text, but --ids reads token ids. Use --per token or --per document.",
            ),
            (
                self.top is not None and level == "document",
                "--top needs a record for each part of a document. Add --per token, word, region or line.",
            ),
            (bool(self.top) and level != "token", f"--top {self.top} is for tokens. Add --per token, or give --top 0."),
            (self.region_field is not None and level != "region", "--region-field is for regions. Add --per region."),
            (self.punctuation == "apart" and level != "word", "--set punctuation is for words. Add --per word."),
            (
                corrected and level not in ("word", "region"),
                "--boundary is for words and regions. Add --per word or --per region.",
            ),
            (
                self.as_json and self.kind not in (None, "jsonl"),
                f"--json is --format jsonl, but --format is {self.kind}. Give one of them.",
            ),
            (
                self.path is None and (self.force or self.resume),
                "--resume and --force are about an output file. Give it with -o.",
            ),
            (
                self.force and self.resume,
                "--resume continues the interrupted run, --force starts again. Give one of them.",
            ),
            (
                self.processes is not None and self.batch_size not in (None, "auto", 1),
                "--processes forms batches itself. Leave out --batch-size, or set it to auto or 1.",
            ),
            (
                self.continuous and self.by_chunks and self.ray is None,
                "--continuous scores documents one after another. Leave out --processes and --batch-size auto.",
            ),
            (
                (self.continuous or corrected) and not alone,
                f"{'--continuous' if self.continuous else '--boundary corrected'} scores documents one after another. "
                "Leave out --batch-size.",
            ),
            (
                self.continuous and self.ray is not None,
                "--continuous cannot be combined with --ray. Leave out one of them.",
            ),
        )

    @property
    def level(self) -> Level:
        """The unit of one record."""
        return self.per or ("document" if self.group is None else "word")

    @property
    def path(self) -> Path | str | None:
        """The output; None: standard output."""
        return None if str(self.output) == "-" else self.output

    @property
    def by_chunks(self) -> bool:
        """Whether the documents are divided before they are scored."""
        return self.processes is not None or self.ray is not None or self.batch_size == "auto"

    @property
    def reading(self) -> Reading:
        """Return how files become documents, as the library takes it."""
        reading = super().reading
        return replace(
            reading,
            context_field=self.context_field,
            keep=self.keep,
            separator=reading.separator if self.separator is None else self.separator,
            cut=self._cut,
            group=self.group,
            join=self.join,
            na=self.na,
            region_field=self.region_field,
        )

    @property
    def _cut(self) -> Literal["marks", "punctuation"] | None:
        if self.level == "region" and self.group is None:
            return "marks"
        return "punctuation" if self.punctuation == "apart" else None

    def run_options(self, kind: Format) -> RunOptions:
        """Return the choices of a run, as the library takes them."""
        from xlexport.scoring.run_options import RunOptions

        corrected = self.boundary == "corrected"
        between = "\n" if self.separator is None else self.separator
        return RunOptions(
            per=self.level,
            kind=kind,
            reading=self.reading,
            batch_size=self.batch_size or ("auto" if self.by_chunks and not corrected else 1),
            detail=self.top,
            continuous=self.continuous,
            separator=between if self.continuous and not self.ids else "",
            strict=self.strict,
            bos=self.bos,
            corrected=corrected,
            by_chunks=self.by_chunks,
        )

    @property
    def format(self) -> Format:
        """The format of the records."""
        output = self.path
        if self.kind == "parquet" and output is None:
            raise click.UsageError("Parquet needs an output file. Name one with -o.")
        if isinstance(output, str) and output.endswith(("/", os.sep)):
            raise click.UsageError(f"{output!r} is the name of a folder. Give that of a file, such as scores.parquet.")
        if self.as_json or self.kind is not None:
            return self.kind or "jsonl"
        if self.ray is not None and output is not None and not Path(output).suffix:
            raise click.UsageError(
                f"{output}: --ray writes one file, not a folder. Name one, such as {output}.parquet."
            )
        if output is None:
            return "text" if self.level == "document" else "jsonl"
        return format_of_ending(Path(output))


def format_of_ending(output: Path) -> Format:
    """Return the format of records in a file, by the ending of its name.

    Raises:
        click.UsageError: no format has this ending.
    """
    if output.suffix not in ENDINGS:
        raise click.UsageError(
            f"{output}: no format has this ending. Use {', '.join(ENDINGS)}, or choose with --format."
        )
    return ENDINGS[output.suffix]


class PlaceName(click.Path):
    """A path, or a text if it is the address of an object store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of an option or argument."""
        return value if "://" in str(value) else super().convert(value, param, ctx)


class _OutputPlace(OutputFile):
    """A file to write; or a text if it is the address of an object store, or the name of a folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) or str(value).endswith("/") else super().convert(value, param, ctx)


class _Batch(click.ParamType[Any]):
    """A number of documents, or `auto`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in (None, "auto") else click.IntRange(1).convert(value, param, ctx)


class _Escaped(click.ParamType[str]):
    r"""A text in which `\n`, `\t`, `\r` and `\\` are the characters that they mean elsewhere."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        marks = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
        return re.sub(r"\\([ntr\\])", lambda match: marks[match[1]], str(value))


def _one_context(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> str | None:
    if len(names) > 1:
        raise click.UsageError("--context-field is given twice, but `score` takes one context. `report` compares two.")
    return names[0] if names else None


input_options = all_of(
    file_options,
    click.option(
        "--context-field",
        metavar="NAME",
        multiple=True,
        callback=_one_context,
        help="With --field: the field with a context, which the model reads before the document without scoring it.",
    ),
    click.option(
        "--keep",
        type=Names(),
        metavar="NAME,NAME",
        help="With --field: columns to repeat in records; '' for none.  [default: all other columns of the first row]",
    ),
    declared(ROWS["group"], metavar="NAME"),
    declared(ROWS["join"], type=_Escaped(), default=ROWS["join"].default, show_default="a space"),
    declared(ROWS["na"], metavar="TEXT"),
    click.option("--continuous", is_flag=True, help="Carry memory from each document to the next, in the given order."),
    click.option(
        "--separator",
        cls=Setting,
        type=_Escaped(),
        help=r"Text to read, without scoring it, between documents with --continuous, and between context and document "
        r"unless there is white space.  [default: '\n'; after a context ' ']",
    ),
    click.option("--strict", is_flag=True, help="Stop at the first document that cannot be scored."),
)

record_options = all_of(
    click.option(
        "--per",
        type=click.Choice(LEVELS),
        help="Write one record for each document, line, word, region or token; totals go to stderr. With region, `|` "
        "in the text separates regions and is removed.  [default: document; with --group word]",
    ),
    click.option(
        "--format",
        "kind",
        type=click.Choice(RECORD_FORMATS),
        help="Format of the records.  [default: from the ending of --output; on stdout text for documents, else jsonl]",
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Write records as --format jsonl does, and totals on stderr as JSON, too.",
    ),
    click.option(
        "--top",
        type=click.IntRange(0, 10),
        metavar="K",
        help="Add the entropy of each prediction in bits; with --per token also the rank and the K likeliest tokens. "
        "For lines, words and regions, K must be 0.",
    ),
    click.option(
        "--region-field",
        metavar="NAME",
        help="With --per region and --field: the field with the regions. It holds the text with marks, or the numbers "
        "of the characters at which regions begin.",
    ),
    click.option(
        "--punctuation",
        cls=Setting,
        type=click.Choice(["attached", "apart"]),
        default="attached",
        show_default=True,
        help="With --per word: attach punctuation to the word that it touches, or make it a word of its own.",
    ),
    click.option(
        "--boundary",
        type=click.Choice(["plain", "corrected"]),
        default="plain",
        show_default=True,
        help="corrected: also write surprisal that includes the end of the word itself, not the end of the previous "
        "word. This takes about five times as long.",
    ),
    click.option(
        "--bos",
        metavar="TOKEN|TEXT|none",
        help="Token to read before each document, so that the first token has a score, too: a name such as '<eos>', or "
        r"a text of one token such as '\n'.  [default: the bundle's, if its tokenizer puts it before each text]",
    ),
)

output_options = all_of(
    click.option(
        "-o", "--output", type=_OutputPlace(), metavar="FILE", help="Write to FILE; it appears when it is complete."
    ),
    click.option("--force", is_flag=True, help="Replace FILE, or what an interrupted run left."),
    click.option("--resume", is_flag=True, help="Continue an interrupted run; the output is the same, byte for byte."),
    click.option(
        "--save-every",
        cls=Setting,
        type=click.FloatRange(0),
        metavar="NUMBER",
        default=10.0,
        show_default=True,
        help="Seconds between saved states, from which --resume continues.",
    ),
    quiet_option,
)

sharing_options = all_of(
    click.option(
        "--batch-size",
        type=_Batch(),
        metavar="N|auto",
        help="Documents that run at the same time; 'auto' forms batches of similar lengths.  [default: 1; auto with "
        "--processes]",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1),
        metavar="N",
        help="Divide the documents among N processes, each with one thread unless --threads sets more. The output is "
        "the same for any N.",
    ),
    click.option(
        "--ray",
        is_flag=False,
        flag_value=HERE,
        metavar="[ADDRESS]",
        help="Divide the documents among the machines of a Ray cluster or, without ADDRESS, the CPUs of this machine.",
    ),
)
