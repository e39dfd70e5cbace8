"""The `translate` command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    BUNDLE,
    DOCUMENT,
    PATH,
    device_option,
    threads_option,
    timeout_option,
    trust_option,
)
from xlexport.extras import require
from xlexport.terminal import print_json, print_text, tell

__all__ = ["translate"]


@click.command(cls=LongCommand)
@click.argument("bundle", type=BUNDLE)
@click.argument("file", type=DOCUMENT)
@headed(
    "Search",
    click.option("--beams", type=int, default=1, show_default=True, help="Width of the beam search; 1 is greedy."),
    click.option(
        "--length-penalty",
        type=float,
        default=0.0,
        show_default=True,
        help="Exponent of the length penalty of Wu et al. 2016; 0 compares log-probabilities.",
    ),
    click.option(
        "-n",
        "--max-tokens",
        type=int,
        help="Most tokens of an output, including its end.  [default: the model's limit]",
    ),
)
@headed(
    "Output",
    click.option(
        "--references",
        type=PATH,
        help="Right translations, one a line: report BLEU by sacreBLEU, and how many are equal.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each line, with its nats."),
)
@headed(
    "Device",
    click.option(
        "--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Lines that run at the same time."
    ),
    device_option,
    threads_option,
    timeout_option,
    trust_option,
)
def translate(
    bundle: Path,
    file: Path,
    beams: int,
    length_penalty: float,
    max_tokens: int | None,
    batch_size: int,
    references: Path | None,
    as_json: bool,
    **runtime: Any,
) -> None:
    """Translate each line of FILE with BUNDLE, an encoder-decoder. Needs no PyTorch."""
    from xlexport.bundles import open_translator
    from xlexport.errors import XlexportError
    from xlruntime import SearchOptions

    expected = None
    if references is not None:
        require(None, "sacrebleu")
        expected = references.read_text("utf-8").splitlines()
    texts = []
    options, translator = SearchOptions(beams, length_penalty, max_tokens), open_translator(bundle, **runtime)
    with click.open_file(str(file), "rb") as lines:
        sources: Iterable[bytes] = (line.rstrip(b"\r\n") for line in lines)
        if expected is not None:
            sources = list(sources)
            if len(sources) != len(expected) or not expected:
                what = f"{references}: {len(expected):,} references for {len(sources):,} lines of {file}."
                raise XlexportError(what, hint="Give one line for each.")
        for translation in translator.translate(sources, options=options, batch_size=batch_size):
            if as_json:
                print_json(asdict(translation))
            else:
                print_text(" ".join(translation.text.splitlines()))
            texts.append(translation.text)
    if expected is not None:
        from xlexport.scoring.bleu import bleu

        score, signature = bleu(texts, expected)
        equal = sum(map(str.__eq__, texts, expected))
        tell(f"BLEU {score:.2f} ({signature}); {equal:,} of {len(texts):,} are equal to their references")
