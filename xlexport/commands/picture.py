"""The `picture` command."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import BUNDLE, OUTPUT, PATH, evaluation_options, runtime_options, sampling_options
from xlexport.progress_bar import progress_bar
from xlexport.terminal import quiet_option, tell

if TYPE_CHECKING:
    from xlruntime.images import Pixels

__all__ = ["picture"]

_GREY = 128


@click.command(cls=LongCommand)
@click.argument("bundle", type=BUNDLE)
@click.argument("photos", nargs=-1, type=PATH)
@headed(
    "Output",
    click.option(
        "-o", "--output", type=OUTPUT, required=True, help="The .png file to write; it replaces an existing file."
    ),
    click.option(
        "--scale",
        type=click.IntRange(1, 32),
        default=2,
        show_default=True,
        help="Width and height of each drawn pixel.",
    ),
    quiet_option,
)
@headed(
    "Sampling",
    click.option(
        "-n",
        "--count",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Number of images, or of completions of each photo.",
    ),
    click.option(
        "--keep",
        type=click.FloatRange(0, 1),
        default=0.5,
        show_default=True,
        help="Share of each photo's rows to keep, from the top.",
    ),
    sampling_options(),
)
@headed("Device", runtime_options)
@headed("Model settings", evaluation_options)
def picture(
    bundle: Path,
    photos: tuple[Path, ...],
    output: Path,
    count: int,
    keep: float,
    scale: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Draw images with BUNDLE, or complete PHOTOS, and write one .png file. Needs no PyTorch.

    `picture` crops each photo to a square and scales it to the model's size. Each photo gets one row: the photo, the
    part that is kept, and completions.
    """
    from xlexport import atomic_output
    from xlexport.bundles import open_bundle
    from xlruntime import Sampling
    from xlruntime.images import draw_image, image_side, png, side_by_side

    if output.suffix.lower() != ".png":
        raise click.UsageError(f"'{output}' does not end in .png.")
    atomic_output.check_folder(output)
    sampling = [Sampling(temperature, top_k, top_p, None if seed is None else seed + place) for place in range(count)]
    model = open_bundle(bundle, **runtime)
    side = image_side(model.bundle)
    originals = _photographs(photos, side)
    prefixes: list[Pixels | None] = [original[: round(side * keep)] for original in originals]
    prefixes = prefixes or [None]
    counter = itertools.count(1)
    total = count * sum(3 * side * (side - (0 if part is None else len(part))) for part in prefixes)
    with progress_bar("drawing") as show:
        drawings = [
            [draw_image(model, part, each, lambda: show(next(counter), total), **evaluation) for each in sampling]
            for part in prefixes
        ]
    rows = [
        [*_shown(original, part), *images]
        for original, part, images in itertools.zip_longest(originals, prefixes, drawings)
    ]
    with atomic_output.file(output) as temporary, atomic_output.writing(output):
        temporary.write_bytes(png(side_by_side(rows, scale)))
    tell(f"wrote {output}")


def _photographs(files: Sequence[Path], side: int) -> list[Pixels]:
    """Return the middle of each photograph as pixels (side,side,3); only this needs Pillow."""
    if not files:
        return []
    from xlexport.extras import require

    require("images")
    from xltraining.data.photos import central_crop, read_photos

    return [central_crop(photo, side) for photo in read_photos(files, side)]


def _shown(original: Pixels | None, prefix: Pixels | None) -> list[Pixels]:
    """Return a photograph, and its kept part on grey."""
    if original is None or prefix is None:
        return []
    masked = original.copy()
    masked[len(prefix) :] = _GREY
    return [original, masked]
