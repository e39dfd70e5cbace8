"""Photographs from files, and square crops of them (needs Pillow)."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from xltraining.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Photo", "Pixels", "central_crop", "photos_sha256", "random_crop", "read_photos"]

_FORMATS = ("PNG", "JPEG")
_MOST_PIXELS = 1 << 26  # of one photograph: a quarter of a gigabyte while it is read

Photo: TypeAlias = "Image.Image"
Pixels: TypeAlias = npt.NDArray[np.uint8]


def read_photos(files: Sequence[Path], side: int) -> list[Photo]:
    """Read PNG and JPEG files as colour photographs.

    Args:
        side: pixels that width and height must have at least.

    Raises:
        DataError: files are missing, damaged, not PNG or JPEG, too small or too large. The message lists all of them.
    """
    photos, problems = [], []
    for file in files:
        try:
            photos.append(_read(Path(file), side))
        except DataError as error:
            problems.append(f"{file}: {error.message}")
    if problems:
        raise DataError(
            f"cannot read the photographs: {'; '.join(problems)}.",
            hint=f"Name PNG or JPEG files of at least {side} × {side} pixels.",
        )
    return photos


def _read(file: Path, side: int) -> Photo:
    from PIL import Image, UnidentifiedImageError

    try:
        # Pillow only warns at the lower of its own two limits. It reads the pixels in `convert`, not before.
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                width, height = image.size
                if min(width, height) < side:
                    raise DataError(f"{width} × {height} pixels, at least {side} × {side} are needed")
                if width * height > _MOST_PIXELS:
                    raise DataError(f"{width:,} × {height:,} pixels are more than {_MOST_PIXELS:,}")
                return image.convert("RGB")
    except DataError:  # which is a ValueError, too
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"more than {_MOST_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise DataError("neither PNG nor JPEG") from error
    except OSError as error:
        raise DataError(error.strerror or f"damaged ({error})") from error
    except (SyntaxError, ValueError) as error:
        raise DataError(f"damaged ({error})") from error


def photos_sha256(photos: Sequence[Photo]) -> str:
    """Return the SHA-256 of the pixels of all photographs in their order."""
    digest = hashlib.sha256()
    for photo in photos:
        digest.update(repr(photo.size).encode())
        digest.update(photo.tobytes())
    return digest.hexdigest()


def random_crop(photo: Photo, side: int, rng: np.random.Generator) -> Pixels:
    """Return a random square of a photograph, scaled to pixels (side,side,3), in one case of two mirrored.

    The square's edge is between `side` and the photograph's shorter edge, so it is never enlarged.
    """
    edge = int(rng.integers(side, min(photo.size), endpoint=True))
    left, top = (int(rng.integers(0, size - edge, endpoint=True)) for size in photo.size)
    pixels = _scaled(photo, left, top, edge, side)
    return pixels[:, ::-1] if rng.integers(2) else pixels


def central_crop(photo: Photo, side: int) -> Pixels:
    """Return the largest square in the middle of a photograph, scaled to pixels (side,side,3)."""
    edge = min(photo.size)
    left, top = ((size - edge) // 2 for size in photo.size)
    return _scaled(photo, left, top, edge, side)


def _scaled(photo: Photo, left: int, top: int, edge: int, side: int) -> Pixels:
    """Return a square of a photograph as pixels (side,side,3): each is the mean of the area that it covers."""
    from PIL import Image

    area = (left, top, left + edge, top + edge)
    return np.asarray(photo.resize((side, side), Image.Resampling.BOX, area))
