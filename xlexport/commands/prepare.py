"""The `prepare` command: texts to token ids in shards, for `xlexport train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlexport.choices import SUBWORDS, TEXT_UNITS, VOCAB_STYLES
from xlexport.commands.input_options import find_texts
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import all_of, force_option, grouped, json_option, quiet_option
from xlexport.commands.settings import rare
from xlexport.commands.values import PATH
from xlexport.extras import require
from xlexport.progress_bar import progress_bar
from xlexport.terminal import print_json, tell

if TYPE_CHECKING:
    from xlexport.prepare.units import PreparedTokenizer

__all__ = ["TokenOptions", "prepare"]

SUBWORDS_BY_DEFAULT = 8000


@dataclass(frozen=True)
class TokenOptions:
    """What a token is, and the clusters of tokens; the fields are options of the same names.

    Raises:
        click.UsageError: some would have no effect.
    """

    unit: str | None
    tokenizer: Path | None
    vocab_style: str | None
    vocab_size: int | None
    min_count: int | None
    lower_case: bool
    clusters: int | None
    cutoffs: tuple[int, ...] | None

    def __post_init__(self) -> None:
        problems = []
        counting = {"--set min_count": self.min_count, "--set lower_case": self.lower_case}
        if self.tokenizer is not None:
            decided = {"--unit": self.unit, "--vocab-size": self.vocab_size, **counting}
            problems += [f"{name}: leave it out, --tokenizer decides it" for name, value in decided.items() if value]
        elif self.vocab_style is not None:
            problems.append("--set vocab_style: needs --tokenizer")
        if self.tokenizer is None and self.unit not in (None, "words", "characters"):
            problems += [f"{name}: only for words and characters" for name, value in counting.items() if value]
        if self.unit == "bytes" and self.vocab_size is not None:
            problems.append("--vocab-size: leave it out, there are 256 bytes")
        if self.unit == "bpe" and self.vocab_size is not None and self.vocab_size < 256:
            problems.append("--vocab-size: give at least 256, as bpe includes all bytes")
        if self.clusters is not None and self.cutoffs is not None:
            problems.append("--set clusters: leave it out, cutoffs decides it")
        if problems:
            raise click.UsageError("; ".join(problems) + ".")


token_options = all_of(
    headed(
        "Tokens",
        click.option("--unit", type=click.Choice(TEXT_UNITS), help="Unit of a token.  [default: words]"),
        click.option(
            "--tokenizer", type=PATH, metavar="FILE", help="Use this vocabulary, tokenizer.json or SentencePiece model."
        ),
        rare("vocab_style", "choice", "How to read the vocabulary file.", choices=tuple(VOCAB_STYLES)),
        click.option(
            "--vocab-size",
            type=click.IntRange(1),
            help="Most tokens of the vocabulary.  [default: 8000 for subwords, else all]",
        ),
        rare("min_count", "integer", "Leave rarer words or characters out of the vocabulary.  [default: 1]", minimum=1),
        rare("lower_case", "boolean", "Convert the text to lower case.", default=False),
    ),
    headed(
        "Clusters",
        rare(
            "clusters",
            "integer",
            "Number of clusters of the adaptive softmax.  [default: 4 or 1, by size]",
            minimum=1,
            maximum=8,
        ),
        rare(
            "cutoffs",
            "integers",
            "Token ids at which further clusters begin.  [default: those with the least work]",
            metavar="N,N",
        ),
    ),
    grouped("tokens", TokenOptions),
)


@click.command(
    cls=LongCommand,
    examples=(
        (
            "xlexport prepare train.txt --valid valid.txt -o data --unit words --set min_count=3",
            "Count words, as for WikiText.",
        ),
        ("xlexport prepare train.txt -o data --unit bpe --vocab-size 8000", "Train subwords on the text."),
        ("xlexport prepare train.txt -o data --tokenizer cache.pt", "Use the vocabulary of another checkpoint."),
        ("xlexport prepare pairs.tsv -o data --documents pair --unit bpe", "Train subwords for translation."),
    ),
)
@click.argument("files", nargs=-1, required=True, type=PATH)
@headed(
    "Texts",
    click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text. Repeatable."),
    click.option("--test", "test_files", multiple=True, type=PATH, help="Text for a test. Repeatable."),
    click.option(
        "--documents",
        type=click.Choice(("file", "line", "pair")),
        default="file",
        show_default=True,
        help="Unit of a document, for shuffling. pair: each line is a source, a tab and a target; both sides share "
        "the subwords of --unit.",
    ),
)
@token_options
@headed(
    "Output",
    click.option(
        "-o", "--output", required=True, type=PATH, metavar="FOLDER", help="Folder to write the prepared data to."
    ),
    force_option,
    quiet_option,
    json_option(),
)
def prepare(
    files: tuple[Path, ...],
    valid_files: tuple[Path, ...],
    test_files: tuple[Path, ...],
    documents: str,
    tokens: TokenOptions,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Turn text FILES into token ids once, so that `xlexport train FOLDER` can train on them.

    FILES are files, folders and quoted patterns ('books/**/*.txt'); gzip is unpacked.
    `prepare` counts the words or characters of FILES, and sorts the vocabulary by frequency. White space separates
    words, and <eos> ends every line. Checkpoints keep the vocabulary. Texts of any length need little memory.
    """
    if documents == "pair" and (tokens.unit not in SUBWORDS or tokens.clusters or tokens.cutoffs):
        raise click.UsageError(f"--documents pair: needs --unit {' or '.join(SUBWORDS)}, and no clusters.")
    if tokens.unit in SUBWORDS:
        require(None, SUBWORDS[tokens.unit])
    files, valid_files, test_files = map(find_texts, (files, valid_files, test_files))
    from xlexport.prepare.units import counted, given, trained
    from xlexport.prepare.writing import prepare_data
    from xlruntime import messages

    def make(folder: Path) -> PreparedTokenizer:
        if tokens.tokenizer is not None:
            return given(tokens.tokenizer, tokens.vocab_style)
        if tokens.unit in SUBWORDS:
            size = tokens.vocab_size or SUBWORDS_BY_DEFAULT
            tell(f"training {size:,} {tokens.unit} tokens on {messages.counted(len(files), 'file')}")
            return trained(files, tokens.unit, size, folder, pairs=documents == "pair")
        return counted(
            files,
            tokens.unit or "words",
            min_count=tokens.min_count or 1,
            max_size=tokens.vocab_size,
            lower_case=tokens.lower_case,
            folder=folder,
        )

    splits = {"train": files, "valid": valid_files, "test": test_files}
    with progress_bar("preparing") as progress:
        summary = prepare_data(
            {name: given_files for name, given_files in splits.items() if given_files},
            output,
            make,
            document=documents,
            cutoffs=tokens.cutoffs,
            clusters=1 if documents == "pair" else tokens.clusters,
            force=force,
            progress=progress,
        )
    if as_json:
        print_json(summary.to_dict())
        return
    for name, count in summary.tokens.items():
        unknown = f", {summary.unknown[name]:,} unknown" if summary.unknown[name] else ""
        tell(f"{name}: {count:,} tokens of {summary.bytes[name]:,} bytes{unknown}")
    if tokens.unit in SUBWORDS and summary.n_token < (size := tokens.vocab_size or SUBWORDS_BY_DEFAULT):
        tell(f"the text has too few subwords for a vocabulary of {size:,}")
    cut = f", clusters from {', '.join(f'{place:,}' for place in summary.cutoffs)}" if summary.cutoffs else ""
    tell(f"wrote {output}: a vocabulary of {summary.n_token:,} ({summary.unit}){cut}")
