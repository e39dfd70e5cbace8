"""The `generate` command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import PATH, document_options, runtime_options, sampling_options
from xlexport.terminal import print_json, print_text

if TYPE_CHECKING:
    from xlruntime.documents import Tokenizer

__all__ = ["generate"]


@click.command(cls=LongCommand)
@click.argument("bundle", type=PATH)
@click.argument("prompt", required=False)
@headed(
    "Input", click.option("--file", "prompt_file", type=click.File("rb"), help="Read the prompt here, or from '-'.")
)
@headed(
    "Sampling",
    click.option(
        "-n", "--max-tokens", type=click.IntRange(0), default=200, show_default=True, help="Most tokens to draw."
    ),
    sampling_options,
)
@headed(
    "Output", click.option("--json", "as_json", is_flag=True, help="Print one object with prompt, text and token ids.")
)
@headed("Device", runtime_options)
@headed("Model settings", document_options)
def generate(
    bundle: Path,
    prompt: str | None,
    prompt_file: BinaryIO | None,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    as_json: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Continue PROMPT with BUNDLE. Needs no PyTorch."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("Give either PROMPT or --file.")
    import xlruntime
    from xlexport.bundles import open_bundle
    from xlexport.scoring.documents import REREAD_LIMITS
    from xlruntime.limits import read_at_most

    if prompt_file is not None:
        text = read_at_most(prompt_file, REREAD_LIMITS.budget("the prompt", xlruntime.TextError))
    else:
        text = str(prompt).encode("utf-8", "surrogateescape")
    sampling = xlruntime.Sampling(temperature, top_k, top_p, seed)
    model = open_bundle(bundle, **runtime)
    tokens = model.generate(text, max_tokens=max_tokens, sampling=sampling, **evaluation)
    _print_generated(text, tokens, model.tokenizer, as_json)


def _print_generated(prompt: bytes, tokens: Iterator[int], tokenizer: Tokenizer, as_json: bool) -> None:
    """Print the continuation as one object, or as text once characters are complete: one may be several tokens."""
    import numpy as np

    from xlruntime.documents import continuation

    ids, beginning = list(tokens), prompt.decode("utf-8", "replace")
    text = continuation(tokenizer, beginning, tokenizer.encode_piece(prompt, None), np.array(ids, np.int64))
    if as_json:
        print_json({"prompt": beginning, "text": text, "ids": ids})
    else:
        print_text(beginning + text)
