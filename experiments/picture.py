"""Draw images with a bundle that has learned them, or complete photographs: `python -m experiments.picture`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import click
from tqdm import tqdm

from experiments.commands import FILE, ShortErrors
from experiments.photos import central_crop, read_photos
from experiments.pixels import Pixels, draw_image, image_side, png, side_by_side
from xlexport.extras import require
from xlruntime import Sampling, load
from xltraining import atomic_output

__all__ = ["main"]

GREY = 128


@click.command(cls=ShortErrors)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("photos", nargs=-1, type=FILE)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The .png file to write.")
@click.option("--scale", type=click.IntRange(1, 32), default=2, show_default=True, help="Size of each drawn pixel.")
@click.option("-n", "--count", type=click.IntRange(1), default=1, show_default=True, help="Images for each photo.")
@click.option(
    "--keep", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Share of a photo's rows, from the top."
)
@click.option("--temperature", default=1.0, show_default=True, help="Randomness; 0 takes the likeliest byte.")
@click.option("--top-k", type=int, help="Draw only from the k likeliest bytes.")
@click.option("--top-p", default=1.0, show_default=True, help="Draw from the likeliest bytes with this probability.")
@click.option("--seed", type=int, help="Seed of the random draws.")
@click.option("--device", default="cpu", show_default=True, help="Device that runs the bundle.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads of one step.  [default: all cores]")
def main(
    bundle: Path,
    photos: tuple[Path, ...],
    output: Path,
    scale: int,
    count: int,
    keep: float,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    device: str,
    threads: int | None,
) -> None:
    """Draw images with BUNDLE, or complete PHOTOS, and write one .png file. Needs no PyTorch.

    Each photo is cropped to a square and scaled to the model's size. It gets one row: the photo, the part that is kept,
    and completions.
    """
    if output.suffix.lower() != ".png":
        raise click.UsageError(f"'{output}' does not end in .png.")
    sampling = [Sampling(temperature, top_k, top_p, None if seed is None else seed + place) for place in range(count)]
    model = load(bundle, device=device, threads=threads)
    side = image_side(model.bundle)
    if photos:
        require("images")
    originals = [central_crop(photo, side) for photo in read_photos(photos, side)]
    prefixes: Sequence[Pixels | None] = [original[: round(side * keep)] for original in originals] or [None]
    total = count * sum(3 * side * (side - (0 if part is None else len(part))) for part in prefixes)
    with tqdm(total=total, unit="byte", disable=None) as bar:
        drawings = [[draw_image(model, part, each, bar.update) for each in sampling] for part in prefixes]
    rows = [
        [*_shown(original, part), *images]
        for original, part, images in itertools.zip_longest(originals, prefixes, drawings)
    ]
    with atomic_output.file(output) as temporary:
        temporary.write_bytes(png(side_by_side(rows, scale)))
    click.echo(f"wrote {output}", err=True)


def _shown(original: Pixels | None, prefix: Pixels | None) -> list[Pixels]:
    """Return a photograph, and its kept part on grey."""
    if original is None or prefix is None:
        return []
    masked = original.copy()
    masked[len(prefix) :] = GREY
    return [original, masked]


if __name__ == "__main__":
    main(prog_name="python -m experiments.picture")
