"""Compare bits per byte (bits per dimension) of photographs: a trained model, its bundle, and two file formats.

python -m benchmarks.image_bits run/checkpoint.pt bundle cat.png coffee.png [--images 16]

All score the same random crops of the photographs. `xlexport train` evaluates the first 16 crops of its held-out ones.
The bundle reads each image with carried memory, and its score of every byte is compared with the model's.
"""

from __future__ import annotations

import argparse
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import xlruntime
from xlexport.bench.measuring import Clock, disturbance
from xlruntime.images import Pixels, image_ids, image_side
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.data.images import random_images
from xltraining.data.photos import read_photos
from xltraining.language_model import LanguageModel

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


def main() -> None:
    """Score crops and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path, nargs="+", help="photographs that the model was not trained on")
    parser.add_argument("--images", type=int, default=16, help="number of crops")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bundle = xlruntime.load(options.bundle, threads=options.threads)
    side = image_side(bundle.bundle)
    images = random_images(read_photos(options.photos, side), side, 0, range(options.images))
    trained, clocks, losses = build_model(load_checkpoint(options.checkpoint)).eval(), (Clock(), Clock()), []
    clocks[0].round(lambda: losses.append(model_losses(trained, images)), 1)
    clocks[1].round(lambda: losses.append(bundle_losses(bundle, images, len(images))), 1)
    of_model, of_bundle = losses
    count, bit = of_model.size, math.log(2)
    print(f"{len(images)} crops of {', '.join(file.name for file in options.photos)}, {side} × {side} pixels\n")
    print("| | bits per byte |\n|---|---|")
    print("| uniform | 8 |")
    print(f"| PNG (Pillow, `optimize`) | {file_bits(images, 'PNG', optimize=True):.3f} |")
    print(f"| lossless WebP (Pillow, `method=6`) | {file_bits(images, 'WEBP', lossless=True, method=6):.3f} |")
    print(f"| trained model, PyTorch | {of_model.mean() / bit:.6f} |")
    print(f"| bundle | {of_bundle.mean() / bit:.6f} |")
    differences = np.abs(of_model - of_bundle)
    print(f"\nlargest difference of a byte's score: {differences.max():.1e} nats")
    print(f"more than {LARGE} nats: {(differences > LARGE).sum():,} of {count:,} bytes")
    speeds = [f"{count / clock.quantile(0.5):,.0f} bytes/s" for clock in clocks]
    print(f"PyTorch {speeds[0]}, bundle {speeds[1]}")
    if reason := disturbance(*clocks):
        print(f"not to be compared: {reason}")


if __name__ == "__main__":
    main()
