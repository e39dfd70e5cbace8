"""The `reproduce` command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xlexport.commands.evaluate import corpus_rows, short_streams
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import MODEL, PATH, runtime_options
from xlexport.progress_bar import progress_bar
from xlexport.published import SCORES, PublishedScore, differences, read_test_set
from xlexport.terminal import print_json, print_table, quiet_option, tell, tell_problem

__all__ = ["reproduce"]


def _list(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the published scores and end."""
    if value:
        print_table([(name, _title(published)) for name, published in SCORES.items()])
        context.exit()


def _title(published: PublishedScore) -> str:
    """Return one line on a published score."""
    figure, dataset = next(iter(published.figures.values())), published.dataset
    return f"{figure} {dataset.measure} of {dataset.title}; weights: {published.weights}"


@click.command(
    cls=LongCommand,
    examples=(
        (
            "xlexport reproduce transfo-xl/transfo-xl-wt103 wikitext-103",
            "Weights in the cache of the Hugging Face hub.",
        ),
        (
            "xlexport reproduce enwik8-large enwik8 --model model.pt --tokenizer cache.pt",
            "Weights of your own training.",
        ),
        ("xlexport reproduce wt103-nvidia-base wikitext-103 --model bundle", "A bundle that is there already."),
    ),
)
@click.argument("name", type=click.Choice(list(SCORES)), metavar="NAME")
@click.argument("data", type=PATH)
@headed(
    "Input",
    click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Print all names."),
    click.option("--model", type=MODEL, help="Checkpoint, or bundle of it.  [default: NAME, if it is on the hub]"),
    click.option("--tokenizer", metavar="FILE", help="Vocabulary of a checkpoint that has none, such as cache.pt."),
)
@headed(
    "Output",
    click.option("-o", "--output", type=PATH, help="Bundle to write if the model is a checkpoint, as in `convert`."),
    click.option("--force", is_flag=True, help="Replace an existing bundle."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    quiet_option,
)
@headed("Device", runtime_options)
def reproduce(
    name: str,
    data: Path,
    model: str | None,
    tokenizer: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    runtime: dict[str, Any],
) -> None:
    """Reproduce the published score NAME: convert its model, evaluate DATA by its protocol, compare both figures.

    DATA is the corpus: a folder, or the file with the test set. `--list` prints the names. Weights come from the
    local cache of the hub, or from --model; nothing is downloaded.
    """
    from xlexport.bundles import open_bundle
    from xlruntime.bundle_files import is_bundle
    from xlruntime.protocols import arrange, read_corpus, walk

    published = SCORES[name]
    document = read_test_set(published.dataset, data)
    if model is None and "/" not in name:
        raise click.UsageError(
            f"Missing option '--model': {name} is about weights of {published.weights}, not of the hub."
        )
    folder = Path(model or name)
    if not is_bundle(folder):
        folder = _convert(model or name, output, force, published, tokenizer, runtime)
    elif tokenizer or output or force:
        raise click.UsageError(f"--tokenizer, --output and --force are for checkpoints, but {folder} is a bundle.")
    bundle = open_bundle(folder, **runtime)
    settings = bundle.evaluation(**published.settings)
    corpus = read_corpus(bundle, document)
    streams = arrange(corpus, settings, published.protocol, published.batch_size, published.sentences)
    if (warning := short_streams(streams)) is not None:
        tell_problem(f"Warning: {warning}")
    with progress_bar("evaluating") as progress:
        score = walk(bundle, streams, progress)
    ours, theirs = published.dataset.figure_of(score), next(iter(published.figures.values()))
    others = differences(published, bundle.bundle.config, score)
    if as_json:
        comparison = {"published": dict(published.figures), "figure": ours, "difference": ours - theirs}
        print_json({**score.to_dict(), **comparison, "not_as_published": others})
        return
    print_table(
        [
            *corpus_rows(score),
            *(
                ("published", f"{figure} {published.dataset.measure}: {where}")
                for where, figure in published.figures.items()
            ),
            ("difference", f"{ours:.5g} - {theirs} = {ours - theirs:+.5f}"),
            *([("note", published.note)] if published.note else []),
            *(("not as published", other) for other in others),
        ]
    )


def _convert(
    model: str,
    output: Path | None,
    force: bool,
    published: PublishedScore,
    tokenizer: str | None,
    runtime: dict[str, Any],
) -> Path:
    """Convert a checkpoint with the published settings, and return the bundle."""
    from xlexport.extras import require

    require("convert")
    from xlexport.bundles import check_output
    from xlexport.convert import ConversionOptions, convert
    from xlexport.model_names import bundle_path, load_source

    output = output or bundle_path(model)
    check_output(output, force)
    with progress_bar(f"reading {model}") as progress:
        source = load_source(model, trust=runtime.get("trust", False))
        options = ConversionOptions.of(tokenizer=tokenizer, threads=runtime["threads"], **published.settings)
        convert(source, output, options, force=force, tell=progress.tell, progress=progress)
    tell(f"wrote {output}; --model {output} evaluates it again")
    return output
