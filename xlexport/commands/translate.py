"""The `translate` command."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import DOCUMENT, PATH, device_option, threads_option, timeout_option
from xlexport.terminal import print_json, print_text

__all__ = ["translate"]


@click.command(cls=LongCommand)
@click.argument("bundle", type=PATH)
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
)
def translate(
    bundle: Path,
    file: Path,
    beams: int,
    length_penalty: float,
    max_tokens: int | None,
    batch_size: int,
    as_json: bool,
    device: str,
    provider: str | None,
    provider_options: dict[str, str],
    threads: int | None,
    step_timeout: float | None,
) -> None:
    """Translate each line of FILE with BUNDLE, an encoder-decoder. Needs no PyTorch."""
    import xlruntime

    options = xlruntime.SearchOptions(beams, length_penalty, max_tokens)
    translator = xlruntime.load_translator(
        bundle,
        device=device,
        provider=provider,
        provider_options=provider_options,
        threads=threads,
        step_timeout=step_timeout,
    )
    with click.open_file(str(file), "rb") as lines:
        sources = (line.rstrip(b"\r\n") for line in lines)
        for translation in translator.translate(sources, options=options, batch_size=batch_size):
            if as_json:
                print_json(asdict(translation))
            else:
                print_text(" ".join(translation.text.splitlines()))
