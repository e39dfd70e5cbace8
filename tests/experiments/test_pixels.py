"""Images from bundles: PNG files that another reader reads back, sheets, and images from a model of bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from experiments.pixels import Pixels, draw_image, image_side, png, side_by_side
from tests.helpers.paths import ROOT
from xlruntime import ArgumentError, Model, OptionError
from xlruntime.bundle import Bundle
from xlruntime.bundle_files import read_bundle

GOLDEN = read_bundle(ROOT / "tests/golden/reformer_band/bundle")


def bundle_of(positions: int | None, tokens: int = 256) -> Bundle:
    return replace(GOLDEN, vocab_size=tokens, evaluation=replace(GOLDEN.evaluation, max_positions=positions))


class Counting:
    """A model that continues its prompt with 1, 2, 3 and so on."""

    def __init__(self) -> None:
        self.bundle = bundle_of(12)
        self.prompts: list[list[int]] = []

    def generate(self, prompt: Any, *, max_tokens: int, sampling: Any, **settings: Any) -> Iterator[int]:
        self.prompts.append(prompt.tolist())
        yield from range(1, max_tokens + 1)


def random_pixels(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "pixels",
    [
        random_pixels(1, 1),
        random_pixels(7, 5),
        np.zeros((3, 4, 3), np.uint8),
        random_pixels(9, 1).repeat(8, axis=1),  # each row of one colour: the filter of the left pixel
        random_pixels(1, 9).repeat(8, axis=0),  # each column of one colour: the filter of the row above
    ],
)
def test_png_is_read_back_pixel_by_pixel(pixels: Pixels) -> None:
    image = pytest.importorskip("PIL.Image", reason="PNG files are read back with Pillow")
    with image.open(io.BytesIO(png(pixels))) as found:
        assert found.mode == "RGB"
        found.load()
        assert np.array_equal(np.asarray(found), pixels)


def test_images_side_by_side_have_gaps() -> None:
    images = [random_pixels(2, 3) for _ in range(3)]
    sheet = side_by_side([images[:2], images[2:]], scale=2)
    assert sheet.shape == (4 + 2 * (4 + 4), 4 + 2 * (6 + 4), 3)
    assert np.array_equal(sheet[4:8:2, 4:10:2], images[0]) and np.array_equal(sheet[5:8:2, 15:20:2], images[1])
    assert np.array_equal(sheet[12:16:2, 4:10:2], images[2]) and (sheet[12:, 14:] == 255).all()


def test_an_image_keeps_its_first_rows_and_draws_the_rest() -> None:
    model, steps = Counting(), []
    whole = draw_image(cast(Model, model), on_byte=lambda: steps.append(1))
    assert whole.flatten().tolist() == list(range(1, 13)) and len(steps) == 12
    kept = random_pixels(1, 2)
    image = draw_image(cast(Model, model), kept)
    assert image.shape == (2, 2, 3)
    assert np.array_equal(image[:1], kept) and image[1:].flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert model.prompts == [[0], [0, *kept.flatten().tolist()]]
    assert np.array_equal(draw_image(cast(Model, model), image), image)


@pytest.mark.parametrize("kept", [np.zeros((1, 3, 3), np.uint8), np.zeros((3, 2, 3), np.uint8), np.zeros((1, 2, 3))])
def test_kept_rows_of_another_shape_are_refused(kept: Any) -> None:
    with pytest.raises(ArgumentError, match="expected at most 2 rows of 2 × 3 uint8"):
        draw_image(cast(Model, Counting()), kept)


def test_size_is_that_of_the_positions() -> None:
    assert image_side(bundle_of(12_288)) == 64
    for bundle in (bundle_of(12_288, 257), bundle_of(12_289), bundle_of(None), bundle_of(2)):
        with pytest.raises(OptionError, match="3 positions for each pixel"):
            image_side(bundle)
