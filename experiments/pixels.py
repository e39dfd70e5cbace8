"""Images from a model of bytes, and their PNG files.

Such a model's document is a byte 0 and then the pixels row by row, each as its red, green and blue.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xlruntime import ArgumentError, Model, OptionError, Sampling
from xlruntime.bundle import Bundle

__all__ = ["Pixels", "draw_image", "image_ids", "image_side", "png", "side_by_side"]

_GAP = 4  # white pixels around each image
_WHITE = 255

Pixels = npt.NDArray[np.uint8]


def image_side(bundle: Bundle) -> int:
    """Return the width and height of the images that a bundle's model has learned.

    Raises:
        OptionError: its positions and tokens are not those of the bytes of a square image.
    """
    positions = bundle.evaluation.max_positions or 0
    side = math.isqrt(positions // 3)
    if not side or positions != 3 * side * side or bundle.vocab_size != 256:
        raise OptionError(
            f"the model has {bundle.vocab_size:,} tokens and {positions or 'unlimited'} positions; a model of images "
            "has 256 tokens, and 3 positions for each pixel of a square.",
            hint="Train one with `python -m experiments images`.",
        )
    return side


def image_ids(pixels: Pixels) -> npt.NDArray[np.int64]:
    """Return the bytes of pixels (rows,columns,3) as token ids, without the 0 before them."""
    return pixels.reshape(-1).astype(np.int64)


def draw_image(
    model: Model,
    kept: Pixels | None = None,
    sampling: Sampling | None = None,
    on_byte: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Pixels:
    """Draw an image (side,side,3), byte by byte.

    Args:
        kept: its first rows (rows,side,3), which stay as they are; None: the model draws all of them.
        on_byte: called after each byte.
        settings: see `Model.evaluation`.

    Raises:
        OptionError: the bundle has another kind of model, or a setting is out of range.
        ArgumentError: `kept` has another shape or type.
    """
    side = image_side(model.bundle)
    kept = np.empty((0, side, 3), np.uint8) if kept is None else kept
    if kept.dtype != np.uint8 or kept.shape[1:] != (side, 3) or len(kept) > side:
        raise ArgumentError(
            f"kept: expected at most {side} rows of {side} × 3 uint8, found {kept.shape} of {kept.dtype}."
        )
    left = 3 * side * side - kept.size
    drawn = np.empty(left, np.uint8)
    prompt = np.append(np.int64(0), image_ids(kept))
    for place, token in enumerate(model.generate(prompt, max_tokens=left, sampling=sampling, **settings)):
        drawn[place] = token
        on_byte()
    return np.append(kept, drawn).reshape(side, side, 3)


def side_by_side(rows: Sequence[Sequence[Pixels]], scale: int = 1) -> Pixels:
    """Return images of one size in rows, each pixel `scale` pixels wide and high, on a white ground."""
    height, width, _ = rows[0][0].shape
    columns = max(map(len, rows))
    down, right = height * scale + _GAP, width * scale + _GAP
    sheet = np.full((len(rows) * down + _GAP, columns * right + _GAP, 3), _WHITE, np.uint8)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            large = image.repeat(scale, axis=0).repeat(scale, axis=1)
            top, left = _GAP + row * down, _GAP + column * right
            sheet[top : top + len(large), left : left + large.shape[1]] = large
    return sheet


def png(pixels: Pixels) -> bytes:
    """Return the PNG file of pixels (rows,columns,3)."""
    height, width, _ = pixels.shape
    lines = pixels.reshape(height, -1)
    left = np.pad(lines, ((0, 0), (3, 0)))[:, :-3]
    above = np.pad(lines, ((1, 0), (0, 0)))[:-1]
    filtered = np.stack([lines, lines - left, lines - above])  # the format's filters 0, 1 and 2, modulo 256
    # The least sum of absolute values usually compresses best (PNG specification, 12.7).
    chosen = np.abs(filtered.view(np.int8).astype(np.int32)).sum(axis=-1).argmin(axis=0)  # (rows,)
    chosen_lines = filtered[chosen, np.arange(height)]
    content = np.concatenate([chosen[:, None].astype(np.uint8), chosen_lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, red, green and blue
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(content, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
