"""The `prepare` command: texts to token ids in shards, for `xlexport train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlexport.choices import UNITS, VOCAB_STYLES
from xlexport.commands.long_help import LongCommand
from xlexport.commands.options import PATH, Integers
from xlexport.progress_bar import progress_bar
from xlexport.terminal import print_json, quiet_option, tell

if TYPE_CHECKING:
    from xlexport.prepare.units import PreparedTokenizer

__all__ = ["prepare"]


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport prepare train.txt --valid valid.txt -o data --unit words --min-count 3", "Words, as in WikiText."),
        ("xlexport prepare train.txt -o data --unit bpe --vocab-size 8000", "Subwords, trained on the text."),
        ("xlexport prepare train.txt -o data --tokenizer cache.pt", "The vocabulary of another checkpoint."),
    ),
    headings={
        "Texts": ["valid_files", "test_files", "documents"],
        "Tokens": ["unit", "tokenizer", "vocab_style", "vocab_size", "min_count", "lower_case"],
        "Clusters": ["clusters", "cutoffs"],
        "Output": ["output", "force", "quiet", "as_json"],
    },
)
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text; may be given several times.")
@click.option("--test", "test_files", multiple=True, type=PATH, help="Text for a test; may be given several times.")
@click.option(
    "--documents",
    type=click.Choice(("file", "line")),
    default="file",
    show_default=True,
    help="What a document is, for shuffling.",
)
@click.option("--unit", type=click.Choice(UNITS), help="What a token is.  [default: words]")
@click.option("--tokenizer", type=PATH, metavar="FILE", help="A vocabulary, tokenizer.json or SentencePiece model.")
@click.option("--vocab-style", type=click.Choice(VOCAB_STYLES), help="How to read a vocabulary in --tokenizer.")
@click.option("--vocab-size", type=click.IntRange(1), help="Largest vocabulary.  [subwords: 8000; else: no limit]")
@click.option(
    "--min-count", type=click.IntRange(1), help="Count below which a word or character is unknown.  [default: 1]"
)
@click.option("--lower-case", is_flag=True, help="Lower-case words or characters.")
@click.option("--clusters", type=click.IntRange(1, 8), help="Clusters of the output layer.  [default: 4 or 1, by size]")
@click.option("--cutoffs", type=Integers(), help="Token ids at which they begin.  [default: the least work]")
@click.option("-o", "--output", required=True, type=PATH, metavar="FOLDER", help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace older prepared data there.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prepare(
    files: tuple[Path, ...],
    valid_files: tuple[Path, ...],
    test_files: tuple[Path, ...],
    documents: str,
    unit: str | None,
    tokenizer: Path | None,
    vocab_style: str | None,
    vocab_size: int | None,
    min_count: int | None,
    lower_case: bool,
    clusters: int | None,
    cutoffs: tuple[int, ...] | None,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Turn text FILES into token ids, once; `xlexport train FOLDER` trains on them.

    A vocabulary of words or characters is counted in FILES, the most frequent first. White space separates words, and
    <eos> ends every line. Checkpoints keep the vocabulary. Texts of any length take little memory.
    """
    _refuse_what_does_not_count(unit, tokenizer, vocab_style, vocab_size, min_count, lower_case, clusters, cutoffs)
    from xlexport.prepare.units import SUBWORDS, counted, given, trained
    from xlexport.prepare.writing import prepare_data
    from xlruntime import messages

    def make(folder: Path) -> PreparedTokenizer:
        if tokenizer is not None:
            return given(tokenizer, vocab_style)
        if unit in SUBWORDS:
            tell(f"training {vocab_size or 8000:,} {unit} tokens on {messages.counted(len(files), 'file')}")
            return trained(files, unit, vocab_size or 8000, folder)
        return counted(
            files,
            unit or "words",
            min_count=min_count or 1,
            max_size=vocab_size,
            lower_case=lower_case,
            folder=folder,
        )

    splits = {"train": files, "valid": valid_files, "test": test_files}
    with progress_bar("preparing") as progress:
        summary = prepare_data(
            {name: given_files for name, given_files in splits.items() if given_files},
            output,
            make,
            by_line=documents == "line",
            cutoffs=cutoffs,
            clusters=clusters,
            force=force,
            progress=progress,
        )
    if as_json:
        print_json(summary.to_dict())
        return
    for name, tokens in summary.tokens.items():
        unknown = f", {summary.unknown[name]:,} unknown" if summary.unknown[name] else ""
        tell(f"{name}: {tokens:,} tokens of {summary.bytes[name]:,} bytes{unknown}")
    cut = f", clusters from {', '.join(f'{place:,}' for place in summary.cutoffs)}" if summary.cutoffs else ""
    tell(f"wrote {output}: a vocabulary of {summary.n_token:,} ({summary.unit}){cut}")


def _refuse_what_does_not_count(
    unit: str | None,
    tokenizer: Path | None,
    vocab_style: str | None,
    vocab_size: int | None,
    min_count: int | None,
    lower_case: bool,
    clusters: int | None,
    cutoffs: tuple[int, ...] | None,
) -> None:
    """Refuse options that were given but have no effect."""
    problems = []
    if tokenizer is None and vocab_style is not None:
        problems.append("--vocab-style: only with --tokenizer")
    if tokenizer is not None:
        options = {"--unit": unit, "--vocab-size": vocab_size, "--min-count": min_count, "--lower-case": lower_case}
        problems += [f"{name}: not with --tokenizer, which decides it" for name, value in options.items() if value]
    counted = tokenizer is None and unit in (None, "words", "characters")
    if tokenizer is None and not counted:
        options = {"--min-count": min_count, "--lower-case": lower_case}
        problems += [f"{name}: only for words and characters" for name, value in options.items() if value]
    if unit == "bytes" and vocab_size is not None:
        problems.append("--vocab-size: there are 256 bytes")
    if clusters is not None and cutoffs is not None:
        problems.append("--clusters: --cutoffs decides it")
    if problems:
        raise click.UsageError("; ".join(problems) + ".")
