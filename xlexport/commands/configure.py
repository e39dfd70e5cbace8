"""The `configure` command: a bundle with other settings of evaluation."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import BUNDLE, PATH, evaluation_options
from xlexport.terminal import tell

__all__ = ["configure"]


@click.command(cls=LongCommand)
@click.argument("bundle", type=BUNDLE)
@headed(
    "Output",
    click.option("-o", "--output", type=PATH, required=True, help="Bundle folder to write."),
    click.option("--force", is_flag=True, help="Replace an existing bundle."),
)
@headed(
    "Model settings",
    evaluation_options,
    click.option(
        "--restart/--no-restart",
        default=None,
        help="Reset position and memory if a document exceeds the model's positions.  [default: the bundle's]",
    ),
)
def configure(bundle: Path, output: Path, force: bool, **evaluation: Any) -> None:
    """Write a copy of BUNDLE with other evaluation settings. Weights, graphs and fingerprint stay the same.

    The copy of a bundle of format 4 has the present format, with or without other settings.

    `xlexport verify` compares a bundle under its own settings; `parity.json` says which settings were verified.
    """
    from xlexport.bundle_readme import defaults
    from xlexport.bundles import DESCRIPTIONS, check_graphs, check_output, publishing, write_manifest
    from xlexport.format4 import upgrade
    from xlexport.meanings import meanings_of
    from xlruntime.bundle_files import read_bundle
    from xlruntime.errors import OptionError

    check_output(output, force)
    before = read_bundle(bundle, upgrade=upgrade)
    if all(value is None for value in evaluation.values()) and before.meaning:
        raise click.UsageError("nothing to change. Give at least one of the model settings.")
    check_graphs(bundle, before)
    try:
        rules = before.evaluation.adopt(before.evaluation.choose(**evaluation))
    except OptionError as error:
        raise OptionError(f"{bundle}: {error.message}", hint=error.hint) from None
    meaning = meanings_of(before.graphs.values(), before.memory)
    after = dataclasses.replace(before, evaluation=rules, meaning=meaning)
    with publishing(output, force) as folder:
        for name in {*before.files, *DESCRIPTIONS}:
            if (bundle / name).is_file():
                shutil.copyfile(bundle / name, folder / name)
        if (readme := folder / "README.md").is_file():
            text = readme.read_text("utf-8", "surrogateescape")
            text = text.replace(defaults(before.settings), defaults(after.settings))
            readme.write_text(text, "utf-8", "surrogateescape")
        write_manifest(folder, after)
    if not before.meaning:  # of format 4: the rewrite may have added a note
        for note in after.provenance["notes"]:
            tell(note)
    tell(f"wrote {output}")
