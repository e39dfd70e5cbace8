"""The `evaluate` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import find_document, reading_options
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import document_options, json_option, protocol_options, quiet_option, runtime_options
from xlexport.commands.values import BUNDLE, DOCUMENT
from xlexport.progress_bar import progress_bar
from xlexport.terminal import print_json, print_table, tell_problem

if TYPE_CHECKING:
    from xlexport.scoring.score_options import InputOptions
    from xlruntime.protocols import CorpusScore, Streams

__all__ = ["corpus_rows", "evaluate", "short_streams"]


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport evaluate bundle test.txt", "Ten parallel streams, as in the script of the Transformer-XL paper."),
        ("xlexport evaluate bundle test.txt --protocol nvidia --batch-size 4", "Four streams, after a warm-up."),
        ("xlexport evaluate bundle test.txt --protocol document --json", "One stream, the same as `score`."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("corpus", type=DOCUMENT)
@headed("Protocol", protocol_options)
@headed("Input", reading_options)
@headed("Output", json_option(), quiet_option)
@headed("Device", runtime_options)
@headed("Model settings", document_options)
def evaluate(
    bundle: Path,
    corpus: Path,
    protocol: str,
    batch_size: int | None,
    sentences: bool | None,
    input_options: InputOptions,
    as_json: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Reproduce a published score: cut CORPUS into parallel streams, as the authors did. Needs no PyTorch.

    CORPUS is one document: a file (gzip is unpacked), or '-' for standard input.
    To score your own documents, use `score`.
    """
    from xlexport.bundles import open_bundle
    from xlruntime.protocols import arrange, read_corpus, walk

    document = find_document(corpus, input_options)
    model = open_bundle(bundle, **runtime)
    settings = model.evaluation(**evaluation)
    streams = arrange(read_corpus(model, document), settings, protocol, batch_size, sentences)
    if (warning := short_streams(streams)) is not None:
        tell_problem(f"Warning: {warning}")
    with progress_bar("evaluating") as progress:
        score = walk(model, streams, progress)
    if as_json:
        print_json(score.to_dict())
    else:
        print_table(corpus_rows(score))


def short_streams(streams: Streams) -> str | None:
    """Return a warning if no stream fills the memory, though longer streams could; else None."""
    from xlruntime.protocols import PROTOCOLS

    length, rows = streams.tokens.shape[1], streams.evaluation.most_rows
    if PROTOCOLS[streams.protocol].one_stream or length >= rows:
        return None
    return (
        f"streams have {length:,} {streams.corpus.unit}s and the memory has {rows:,} rows, so it is never full. To "
        "score one document, use `score` or --protocol document."
    )


def corpus_rows(score: CorpusScore) -> list[tuple[str, str]]:
    """Return the rows of a CorpusScore for people; rows that do not apply are left out."""
    unit = score.unit
    text = f", {score.bytes:,} bytes" if score.bytes and unit != "byte" else ""
    settings = "".join(f", {name} {json.dumps(value)}" for name, value in score.settings.items())
    warmup = f", {score.warmup_segments} segments of warm-up" if score.warmup_segments else ""
    rows = [
        ("corpus", f"{score.corpus}: {score.tokens:,} {unit}s{text}"),
        ("no token for", f"{score.dropped_bytes:,} bytes" if score.dropped_bytes else ""),
        ("unknown", f"{score.unknown_tokens:,} {unit}s" if score.unknown_tokens else ""),
        ("protocol", f"{score.protocol}{', sentences packed' if score.sentences else ''}{warmup}"),
        ("streams", f"{score.batch_size:,} of {score.stream_len:,} predicted {unit}s"),
        (
            "not predicted",
            f"{score.unpredicted_tokens:,}, the first of each {'sentence' if score.sentences else 'stream'}, and "
            f"{score.trimmed_tokens:,} at the end",
        ),
        (
            "settings",
            f"segment_len {score.segment_len:,}{settings}, first memory {score.first_memory}"
            f"{', restart at the last position' if score.restart else ''}",
        ),
        (f"nats per {unit}", f"{score.nats_per_token:.4f}"),
        (f"bits per {unit}", f"{score.bits_per_token:.5f}"),
        ("perplexity", f"{score.perplexity:.3f}"),
        ("tokens/s", f"{score.tokens_per_second:,.0f}"),
    ]
    return [row for row in rows if row[1]]
