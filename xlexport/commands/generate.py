"""The `generate` command."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any, BinaryIO

import click

from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import document_options, is_given, json_option, refuse, runtime_options
from xlexport.commands.settings import rare
from xlexport.commands.values import BUNDLE
from xlexport.terminal import print_json, print_text
from xlruntime import Sampling

__all__ = ["generate"]


def _unescaped(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    r"""Replace \n, \t and \r in texts by the characters they denote, which are hard to type in a shell."""
    return tuple(text.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\r", "\r") for text in texts)


@click.command(
    cls=LongCommand,
    examples=(
        ('xlexport generate bundle "Call me"', "Continue a text with 200 tokens."),
        (r"xlexport generate bundle --file chapter.txt --stop '\n\n' --seed 1", "Write the rest of a paragraph."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("prompt", required=False)
@headed(
    "Input",
    click.option(
        "--file",
        "prompt_file",
        type=click.File("rb"),
        help="Read the prompt from a file, or from standard input ('-').",
    ),
)
@headed(
    "Sampling",
    click.option(
        "-n",
        "--max-tokens",
        type=click.IntRange(0),
        default=200,
        show_default=True,
        help="Largest number of tokens to draw.",
    ),
    options_from(
        Sampling,
        "sampling",
        temperature={"default": 0.8},
        top_p={"default": 0.95, "show_default": True},
    ),
    click.option(
        "--stop",
        "stops",
        multiple=True,
        metavar="TEXT",
        callback=_unescaped,
        help=r"Stop before this text, such as '\n\n'. Repeatable.",
    ),
)
@headed(
    "Output",
    json_option("prompt, text and token ids"),
    rare("special", "boolean", "Show special tokens by their names, and let --stop find them.", default=False),
)
@headed("Device", runtime_options)
@headed("Model settings", document_options)
def generate(
    bundle: Path,
    prompt: str | None,
    prompt_file: BinaryIO | None,
    max_tokens: int,
    sampling: Sampling,
    stops: tuple[str, ...],
    as_json: bool,
    special: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Continue PROMPT with BUNDLE, until a token ends the text. Needs no PyTorch."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("Give either PROMPT or --file.")
    if "" in stops:
        raise click.UsageError("--stop is empty, which would stop before any text.")
    if sampling.temperature == 0:
        of_draws = {"--top-k": "top_k", "--top-p": "top_p", "--set min_p": "min_p", "--seed": "seed"}
        given = {spelling: is_given(name) for spelling, name in of_draws.items()}
        refuse(given, "for random draws, but --temperature 0 takes the likeliest token. Leave {} out.")
    import xlruntime
    from xlexport.bundles import open_bundle
    from xlexport.scoring.documents import REREAD_LIMITS
    from xlruntime.limits import read_at_most

    if prompt_file is not None:
        text = read_at_most(prompt_file, REREAD_LIMITS.budget("the prompt", xlruntime.TextError))
        text = text.removeprefix(codecs.BOM_UTF8)
    else:
        text = str(prompt).encode("utf-8", "surrogateescape")
    model = open_bundle(bundle, **runtime)
    tokens = model.generate(text, max_tokens=max_tokens, sampling=sampling, **evaluation)
    beginning, ids, parts = text.decode("utf-8", "replace"), [], []
    before = model.tokenizer.encode_piece(text, None)
    growing = xlruntime.GrowingText(model.tokenizer, before, stops, beginning, special)
    for token in tokens:
        ids.append(token)
        parts.append(growing.add(token))
        if growing.stopped:
            break
    continuation = "".join([*parts, growing.end()])
    if as_json:
        reason = "stop" if growing.stopped or len(ids) < max_tokens else "length"
        print_json({"prompt": beginning, "text": continuation, "ids": ids, "finish_reason": reason})
    else:
        print_text(beginning + continuation)
