"""Compare bits per byte (bits per dimension) of photographs: a trained model, its bundle, and two file formats.

python -m benchmarks.image_bits run/checkpoint.pt bundle cat.png coffee.png [--images 16]

All score the same random crops of the photographs. `xlexport train` evaluates the first 16 crops of its held-out ones.
The bundle reads each image with carried memory, and its score of every byte is compared with the model's.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import xlruntime
from benchmarks.sides import PATH
from xlexport.bench.measuring import Clock, disturbance
from xlruntime.images import Pixels, image_ids, image_side
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.data.images import random_images
from xltraining.data.photos import read_photos
from xltraining.language_model import LanguageModel

__all__ = ["main"]

LARGE = 1e-4  # nats; what `xlexport verify` allows if both have the same buckets
LossesByByte = npt.NDArray[np.float64]  # (images,bytes), nats


def file_bits(images: list[Pixels], kind: str, **options: Any) -> float:
    """Return the bits of a byte in files of a lossless format, one file an image."""
    size = 0
    for image in images:
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(image)).save(file, kind, **options)
        size += len(file.getvalue())
    return 8 * size / sum(image.size for image in images)


@torch.no_grad()
def model_losses(model: LanguageModel, images: list[Pixels]) -> LossesByByte:
    """Return the losses by the trained model, which reads segments of its `tgt_len`."""
    ids = torch.from_numpy(np.stack([image_ids(image) for image in images]))
    tokens = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], dim=1)
    parts, memory, length = [], None, model.config.tgt_len
    for fed, wanted in zip(tokens.split(length, dim=1), ids.split(length, dim=1), strict=True):
        hidden, memory = model(fed, model.memory_before(memory, fed.shape[1]))
        parts.append(-model.log_probs(hidden, wanted).double())
    return torch.cat(parts, dim=1).numpy()


def bundle_losses(model: xlruntime.Model, images: list[Pixels], batch_size: int) -> LossesByByte:
    """Return the losses by the exported graphs."""
    losses = np.full((len(images), images[0].size), np.nan)
    for part in model.score_tokens([image_ids(image) for image in images], batch_size=batch_size, bos=0):
        losses[part.number, part.index] = -part.log_probs
    return losses


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("checkpoint", type=PATH)
@click.argument("bundle", type=PATH)
@click.argument("photos", type=PATH, nargs=-1, required=True)
@click.option("--images", "count", default=16, show_default=True, help="Number of crops.")
@click.option("--threads", default=1, show_default=True)
def main(checkpoint: Path, bundle: Path, photos: tuple[Path, ...], count: int, threads: int) -> None:
    """Score crops of photographs that the model was not trained on, and print a table."""
    torch.set_num_threads(threads)
    model = xlruntime.load(bundle, threads=threads)
    side = image_side(model.bundle)
    images = random_images(read_photos(photos, side), side, 0, range(count))
    trained, clocks, losses = build_model(load_checkpoint(checkpoint)).eval(), (Clock(), Clock()), []
    clocks[0].round(lambda: losses.append(model_losses(trained, images)), 1)
    clocks[1].round(lambda: losses.append(bundle_losses(model, images, len(images))), 1)
    of_model, of_bundle = losses
    bit = math.log(2)
    rows = {
        "uniform": "8",
        "PNG (Pillow, `optimize`)": f"{file_bits(images, 'PNG', optimize=True):.3f}",
        "lossless WebP (Pillow, `method=6`)": f"{file_bits(images, 'WEBP', lossless=True, method=6):.3f}",
        "trained model, PyTorch": f"{of_model.mean() / bit:.6f}",
        "bundle": f"{of_bundle.mean() / bit:.6f}",
    }
    click.echo(f"{len(images)} crops of {', '.join(file.name for file in photos)}, {side} × {side} pixels\n")
    click.echo("| | bits per byte |\n|---|---|")
    for name, bits in rows.items():
        click.echo(f"| {name} | {bits} |")
    differences = np.abs(of_model - of_bundle)
    click.echo(f"\nlargest difference of a byte's score: {differences.max():.1e} nats")
    click.echo(f"more than {LARGE} nats: {(differences > LARGE).sum():,} of {of_model.size:,} bytes")
    speeds = [f"{of_model.size / clock.quantile(0.5):,.0f} bytes/s" for clock in clocks]
    click.echo(f"PyTorch {speeds[0]}, bundle {speeds[1]}")
    if reason := disturbance(*clocks):
        click.echo(f"not to be compared: {reason}")


if __name__ == "__main__":
    main()
