"""The `reproduce` command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xlexport.commands.evaluate import corpus_rows
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import json_option, quiet_option, refuse, runtime_options
from xlexport.commands.values import MODEL, PATH
from xlexport.progress_bar import progress_bar
from xlexport.published import SCORES, differences, read_test_set
from xlexport.terminal import print_json, print_table, tell

__all__ = ["reproduce"]


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport reproduce transfo-xl/transfo-xl-wt103 wikitext-103", "Weights in the local cache of the hub."),
        ("xlexport reproduce enwik8-large enwik8 --model model.pt --tokenizer cache.pt", "Weights that you trained."),
    ),
    epilog=f"Names: {', '.join(SCORES)}.",
)
@click.argument("name", type=click.Choice(list(SCORES)), metavar="NAME")
@click.argument("data", type=PATH)
@headed(
    "Input",
    click.option("--model", type=MODEL, help="Checkpoint to convert.  [default: NAME, if it is on the hub]"),
    click.option("--tokenizer", metavar="FILE", help="Vocabulary of a checkpoint that has none, such as cache.pt."),
    click.option("--bundle", type=PATH, help="Bundle; if missing, the model is converted to it.  [default: its name]"),
)
@headed("Output", json_option(), quiet_option)
@headed("Device", runtime_options)
def reproduce(
    name: str,
    data: Path,
    model: str | None,
    tokenizer: str | None,
    bundle: Path | None,
    as_json: bool,
    runtime: dict[str, Any],
) -> None:
    """Reproduce the published score NAME: convert its model, evaluate DATA by its protocol, compare both figures.

    DATA is the corpus: a folder, or the file with the test set. Weights come from the local cache of the hub, or
    from --model, which --download also fetches from the hub.
    """
    from xlexport.bundles import check_output, open_bundle, origin
    from xlexport.extras import require
    from xlexport.model_names import bundle_path
    from xlruntime.bundle_files import is_bundle
    from xlruntime.protocols import arrange, read_corpus, walk

    published, given = SCORES[name], {"--model": model if bundle else None, "--tokenizer": tokenizer}
    model = model or (name if "/" in name else None)
    document = read_test_set(published.dataset, data)
    bundle = bundle_path(model) if bundle is None and model is not None else bundle
    if bundle is None or (model is None and not is_bundle(bundle)):
        raise click.UsageError(f"Missing option '--model', a checkpoint of {published.weights}, or '--bundle' of it.")
    if is_bundle(bundle):
        refuse(given, f"for a conversion, but {bundle} is there already. Leave {{}} out, or remove the bundle.")
        tell(f"{bundle} is there already, so nothing is converted")
    elif model is not None:
        require("convert")
        from xlexport.api import convert

        check_output(bundle, force=False)
        options = {"tokenizer": tokenizer, "threads": runtime["threads"], **published.settings}
        with progress_bar(f"reading {model}") as progress:
            trust = runtime.get("trust", False)
            convert(model, bundle, trust=trust, tell=progress.tell, progress=progress, **options)
        tell(f"wrote {bundle}")
    engine = open_bundle(bundle, **runtime)
    settings, corpus = engine.evaluation(**published.settings), read_corpus(engine, document)
    streams = arrange(corpus, settings, published.protocol, published.batch_size, published.sentences)
    with progress_bar("evaluating") as progress:
        score = walk(engine, streams, progress)
    measure, figures = published.dataset.measure, dict(published.figures)
    ours = score.perplexity if measure == "perplexity" else score.bits_per_token
    difference, others = ours - next(iter(figures.values())), differences(published, engine.bundle.config, score)
    if as_json:
        comparison = {"figure": ours, "published": figures, "difference": difference, "not_as_published": others}
        print_json({"converted_from": origin(engine.bundle), **score.to_dict(), **comparison})
        return
    print_table(
        [
            ("converted from", origin(engine.bundle)),
            *corpus_rows(score),
            *(("published", f"{figure} {measure}: {source}") for source, figure in figures.items()),
            ("difference", f"{difference:+.5f}"),
            *(("not as published", other) for other in others),
        ]
    )
