"""The task of images: crops of photographs, their documents, exact resume, and what is refused."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.images import ImageTask, image_bytes, random_images
from experiments.photos import central_crop, read_photos
from experiments.pixels import png
from tests.training.runs import REFORMER, resumed_like_whole, run
from xltraining.architectures import new_model
from xltraining.errors import ConfigError, DataError, RunFileError
from xltraining.training_config import TrainingConfig

pytest.importorskip("PIL", reason="photographs need Pillow, the extra images")

SIDE = 4
MODEL = replace(
    REFORMER, tgt_len=12, mem_len=12, axial_shape=(SIDE, SIDE, 3), axial_dims=(4, 4, 8), max_positions=image_bytes(SIDE)
)
TRAINING = TrainingConfig(steps=6, batch_size=2, eval_every=3, checkpoint_every=2, log_every=1, threads=1)


def photo(folder: Path, name: str = "photo.png", height: int = 9, width: int = 7, seed: int = 0) -> Path:
    """Write a photograph of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    (folder / name).write_bytes(png(pixels))
    return folder / name


def test_crops_depend_on_seed_and_number_alone(tmp_path: Path) -> None:
    photos = read_photos([photo(tmp_path), photo(tmp_path, "other.png", seed=1)], SIDE)
    images = random_images(photos, SIDE, 3, range(20))
    assert all(image.shape == (SIDE, SIDE, 3) and image.dtype == np.uint8 for image in images)
    assert np.array_equal(images[5:8], random_images(photos, SIDE, 3, range(5, 8)))
    assert not np.array_equal(images, random_images(photos, SIDE, 4, range(20)))
    assert len({image.tobytes() for image in images}) > 15


def test_a_crop_of_a_photograph_of_its_size_is_the_photograph_or_its_mirror(tmp_path: Path) -> None:
    (whole,) = photos = read_photos([photo(tmp_path, height=SIDE, width=SIDE)], SIDE)
    pixels = central_crop(whole, SIDE)
    assert pixels.tobytes() == whole.tobytes()
    found = {image.tobytes() for image in random_images(photos, SIDE, 0, range(20))}
    assert found == {pixels.tobytes(), pixels[:, ::-1].tobytes()}


def test_segments_of_a_row_are_the_document_of_an_image(tmp_path: Path) -> None:
    photos = read_photos([photo(tmp_path)], SIDE)
    task = ImageTask(photos, (), MODEL, TRAINING)
    for turn in range(2):  # an image has 48 bytes, so a row reads it in four segments
        segments = [task.batch(4 * turn + part) for part in range(4)]
        tokens, targets = (torch.cat(each, dim=1) for each in zip(*segments, strict=True))
        images = random_images(photos, SIDE, TRAINING.seed, range(2 * turn, 2 * turn + 2))
        assert targets.tolist() == [image.flatten().tolist() for image in images]
        assert torch.equal(tokens[:, 1:], targets[:, :-1]) and not tokens[:, 0].any()
    assert all(
        torch.equal(part, whole[1:]) for part, whole in zip(task.batch(5, slice(1, 2)), task.batch(5), strict=True)
    )


def test_bits_per_byte_are_those_of_every_byte_of_held_out_images(tmp_path: Path) -> None:
    photos = read_photos([photo(tmp_path)], SIDE)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = new_model(replace(MODEL, mem_len=48)).eval()
    held_out = torch.from_numpy(np.stack(random_images(photos, SIDE, 0, range(16)))).flatten(1).long()  # (16,48)
    tokens = torch.cat([torch.zeros(16, 1).long(), held_out[:, :-1]], dim=1)
    with torch.no_grad():
        nats = -model.log_probs(model(tokens)[0], held_out).double().mean().item()
    bits = ImageTask((), photos, MODEL, TRAINING).evaluate(model)["valid_bits_per_byte"]
    assert bits == pytest.approx(nats / np.log(2), abs=1e-5)  # float32's rounding, in other segments


@pytest.mark.full
def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    files = [photo(tmp_path), photo(tmp_path, "other.png", seed=1)]
    photos = read_photos(files, SIDE)
    resumed_like_whole(MODEL, TRAINING, tmp_path, files, stop=5, task=ImageTask(photos, photos, MODEL, TRAINING))
    turned = ImageTask(photos[::-1], photos, MODEL, TRAINING)
    with pytest.raises(RunFileError, match="training text was"):
        run(MODEL, TRAINING, tmp_path / "parts", files, task=turned, resume=True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"axial_shape": (4, 8, 3), "max_positions": 96},
            "max_positions must be 3 for each pixel of a square, found 96",
        ),
        ({"position": "rotary", "max_positions": 0}, "max_positions must be 3 for each .*, found no limit"),
        ({"tgt_len": 9}, "tgt_len must divide 48"),
        ({"rule": "paper"}, "tgt_len must be 48, since this model reads an image in one segment, found 12"),
        ({"n_token": 300}, r"n_token must be 256 \(bytes\), found 300"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ImageTask((), (), replace(MODEL, **changes), TRAINING)


def test_files_that_are_not_usable_photographs_are_named_together(tmp_path: Path) -> None:
    whole = photo(tmp_path).read_bytes()
    files = {
        "text.png": b"not an image",
        "damaged.png": whole[:120],
        "bomb.png": header(30_000, 30_000),
        "large.png": header(9_000, 8_000),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    given = [*(tmp_path / name for name in (*files, "absent.png")), tmp_path, photo(tmp_path, "small.png", 9, 3)]
    with pytest.raises(DataError) as caught:
        read_photos(given, SIDE)
    message = str(caught.value)
    for name, problem in {
        "text.png": "neither PNG nor JPEG",
        "damaged.png": "damaged (",
        "bomb.png": "more than 67,108,864 pixels",
        "large.png": "9,000 × 8,000 pixels are more than 67,108,864",
        "absent.png": "No such file or directory",
        tmp_path.name: "Is a directory",
        "small.png": "3 × 9 pixels, at least 4 × 4 are needed",
    }.items():
        assert f"{name}: {problem}" in message
    assert "\n" not in message and message.endswith("Name PNG or JPEG files of at least 4 × 4 pixels.")


def header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG file of this size: what a decompression bomb claims."""
    content = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + content + struct.pack(">I", zlib.crc32(content))
    return start + struct.pack(">I", 100) + b"IDAT"
