"""Translate lines with the bundle of an encoder-decoder: `python -m experiments.translate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from experiments.bleu import bleu
from experiments.commands import FILE, ShortErrors
from xlexport.extras import require
from xlruntime import SearchOptions, load_translator
from xlruntime.messages import many_lines

__all__ = ["main"]


@click.command(cls=ShortErrors)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--beams", default=1, show_default=True, help="Width of the beam search; 1 is greedy.")
@click.option(
    "--length-penalty",
    default=0.0,
    show_default=True,
    help="Exponent of the length penalty of Wu et al. 2016; 0 compares log-probabilities.",
)
@click.option("-n", "--max-tokens", type=int, help="Most tokens of an output, with its end.  [default: the model's]")
@click.option("--references", type=FILE, help="Right translations, one a line: report BLEU, and how many are equal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each line, with its nats.")
@click.option("--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Lines that run together.")
@click.option("--device", default="cpu", show_default=True, help="Device that runs the bundle.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads of one step.  [default: all cores]")
@click.option("--trust", is_flag=True, help="Open graphs for PyTorch, which can run code of others.")
def main(
    bundle: Path,
    file: str,
    beams: int,
    length_penalty: float,
    max_tokens: int | None,
    references: Path | None,
    as_json: bool,
    batch_size: int,
    device: str,
    threads: int | None,
    trust: bool,
) -> None:
    """Translate each line of FILE with BUNDLE, an encoder-decoder. Needs no PyTorch, except with --trust."""
    expected = None
    if references is not None:
        require(None, "sacrebleu")
        expected = references.read_text("utf-8").splitlines()
    options = SearchOptions(beams, length_penalty, max_tokens)
    open_bundle = load_translator
    if trust:
        from xlexport.torch_runtime import load_translator as open_bundle
    translator, texts = open_bundle(bundle, device=device, threads=threads), []
    with click.open_file(file, "rb") as lines:
        sources: Iterable[bytes] = (line.rstrip(b"\r\n") for line in lines)
        if expected is not None:
            sources = list(sources)
            if len(sources) != len(expected) or not expected:
                what = f"{references}: {len(expected):,} references for {len(sources):,} lines of {file}."
                raise click.ClickException(f"{what} Give one line for each.")
        for translation in translator.translate(sources, options=options, batch_size=batch_size):
            if as_json:
                click.echo(json.dumps(asdict(translation)))
            else:
                text = " ".join(translation.text.splitlines())
                click.echo(many_lines(text) if sys.stdout.isatty() else text)
            texts.append(translation.text)
    if expected is not None:
        score, signature = bleu(texts, expected)
        equal = sum(map(str.__eq__, texts, expected))
        message = f"BLEU {score:.2f} ({signature}); {equal:,} of {len(texts):,} are equal to their references"
        click.echo(message, err=True)


if __name__ == "__main__":
    main(prog_name="python -m experiments.translate")
