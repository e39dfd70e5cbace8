"""The task of predicting images byte by byte, as Kitaev et al. 2020 (section 5) do on imagenet64.

A document is a byte 0 and then the pixels row by row, each as its red, green and blue. The first byte of the image is
predicted from the 0. So the position of a token is the place of the byte to predict, as in the paper's code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from experiments.commands import FILE
from experiments.photos import Photo, photos_sha256, random_crop, read_photos
from experiments.running import ExperimentCommand, read_recipe, train_further
from xlexport.extras import require
from xltraining.config_fields import ModelConfig
from xltraining.errors import ConfigError
from xltraining.evaluation import Progress, evaluate, no_progress
from xltraining.language_model import LanguageModel
from xltraining.training_config import TrainingConfig

__all__ = ["ImageTask", "image_bytes", "image_document", "image_side", "main", "random_images"]

_HELD_OUT_IMAGES = 16


def image_bytes(side: int) -> int:
    """Return the number of bytes of a square image."""
    return 3 * side * side


def image_side(model: ModelConfig) -> int:
    """Return the width and height of the images that a model learns: it has a position for each of their bytes.

    Raises:
        ConfigError: its sizes are not those of a square image. The message lists every problem.
    """
    limit = model.position_limit
    side = math.isqrt((limit or 0) // 3)
    if problems := [*_problems(model, side)]:
        raise ConfigError(f"the model does not fit the task of images: {'; '.join(problems)}.")
    return side


def _problems(model: ModelConfig, side: int) -> Iterator[str]:
    size, limit = image_bytes(side), model.position_limit
    if model.n_token != 256:
        yield f"n_token must be 256 (bytes), found {model.n_token:,}"
    if not side or limit != size:
        yield f"max_positions must be 3 for each pixel of a square, found {limit or 'no limit'}"
    elif model.whole_document and model.tgt_len != size:
        yield f"tgt_len must be {size:,}, since this model reads an image in one segment, found {model.tgt_len:,}"
    elif size % model.tgt_len:
        yield f"tgt_len must divide {size:,} (the bytes of {side} × {side} pixels), found {model.tgt_len:,}"


def image_document(pixels: npt.NDArray[np.uint8]) -> Tensor:
    """Return the document of pixels (side,side,3): 0 and their bytes, (1 + 3 side²,) uint8."""
    return torch.from_numpy(np.append(np.uint8(0), pixels))


def random_images(photos: Sequence[Photo], side: int, seed: int, numbers: range) -> list[npt.NDArray[np.uint8]]:
    """Return random crops (side,side,3) of photographs; each depends on the seed and its number only."""
    images = []
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        images.append(random_crop(photos[int(rng.integers(len(photos)))], side, rng))
    return images


class ImageTask:
    """The task with new crops of photographs in each row, and the same crops of others at each evaluation.

    A row is read segment by segment with carried memory. All rows begin their next image at the same step.
    """

    unit = "byte"
    tokenizer = "bytes"
    bytes_per_target = None
    carries_memory = True

    def __init__(
        self, photos: Sequence[Photo], valid_photos: Sequence[Photo], model: ModelConfig, training: TrainingConfig
    ) -> None:
        """Train on crops of `photos`, evaluate on crops of `valid_photos`, if there are any.

        Args:
            training: `batch_size` and `seed` count.

        Raises:
            ConfigError: the model's sizes are not those of a square image. The message lists every problem.
        """
        self._photos, self._valid_photos = photos, valid_photos
        self._side, self._batch_size, self._seed = image_side(model), training.batch_size, training.seed
        self.segment_len = model.tgt_len
        self.text_sha256 = photos_sha256(photos)
        self.held_out = len(valid_photos) > 0

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        turn, segment = divmod(step, image_bytes(self._side) // self.segment_len)
        numbers = range(turn * self._batch_size, (turn + 1) * self._batch_size)[rows]
        images = random_images(self._photos, self._side, self._seed, numbers)
        start = segment * self.segment_len
        read = torch.stack([image_document(image)[start : start + self.segment_len + 1] for image in images]).long()
        return read[:, :-1], read[:, 1:]

    def evaluate(self, model: LanguageModel, progress: Progress = no_progress) -> dict[str, float]:
        """Return bits per byte, which are the bits per dimension of the literature, of held-out images."""
        images = random_images(self._valid_photos, self._side, 0, range(_HELD_OUT_IMAGES))
        text = torch.cat([image_document(image) for image in images])
        return {"valid_bits_per_byte": evaluate(model, text, self.segment_len, len(images), progress)}


@click.command(cls=ExperimentCommand)
@click.argument("photos", nargs=-1, required=True, type=FILE)
@click.option("--valid", multiple=True, type=FILE, help="Held-out photograph. Repeatable.")
@click.option("--settings", required=True, type=FILE, help="Recipe in TOML, such as recipes/photographs.toml.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for checkpoint.pt and log.jsonl.")
def main(photos: tuple[Path, ...], valid: tuple[Path, ...], settings: Path, out: Path) -> None:
    """Train a model on random crops of PHOTOS, which are PNG or JPEG files."""
    require("images")
    model, training = read_recipe(settings)
    side = image_side(model)
    task = ImageTask(read_photos(photos, side), read_photos(valid, side), model, training)
    train_further(model, training, out, task, photos, valid)
