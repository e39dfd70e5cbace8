"""Published scores as data: the model, test set, protocol and settings of each, and the figures that were reported.

docs/protocols.md has their sources. A figure that no source states is not here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlruntime.messages import shown

if TYPE_CHECKING:
    from xlruntime import Document
    from xlruntime.protocols import CorpusScore

__all__ = ["SCORES", "Dataset", "Published", "differences", "read_test_set"]


@dataclass(frozen=True)
class Dataset:
    """The test set of a corpus."""

    title: str
    file: str  # its name in the folder of the corpus
    origin: str  # a sentence that says where this file comes from
    measure: str  # perplexity, or bits per byte or character
    bytes: int | None = None  # size of the test set, if the file is larger and ends with it
    tokens: int | None = None  # their number, if a source states it


@dataclass(frozen=True)
class Published:
    """A published score and the way to reproduce it."""

    dataset: Dataset
    weights: str  # who published them, or which script makes them
    config: Mapping[str, Any]  # values in the configuration of the model
    settings: Mapping[str, Any]  # of the evaluation
    figures: Mapping[str, float]  # by source; ours is compared with the first
    protocol: str = "kimiyoung"  # this and the following are as for `xlruntime.protocols.arrange`
    batch_size: int | None = None
    sentences: bool | None = None


def _sizes(n_layer: int, d_model: int, n_head: int, d_inner: int) -> dict[str, Any]:
    return {"n_layer": n_layer, "d_model": d_model, "n_head": n_head, "d_inner": d_inner}


def _lengths(segment_len: int, mem_len: int, clamp_len: int) -> dict[str, Any]:
    return {"segment_len": segment_len, "mem_len": mem_len, "clamp_len": clamp_len, "same_length": True}


LAST, HELD_OUT = "Its last 5,000,000 bytes are the test set.", "It is in the folder of held-out sentences."
ENWIK8 = Dataset("enwik8", "enwik8", LAST, "bits per byte", bytes=5_000_000)
TEXT8 = Dataset("text8", "text8", LAST, "bits per character", bytes=5_000_000)
WT103 = Dataset("WikiText-103", "wiki.test.tokens", "It is in wikitext-103-v1.zip.", "perplexity", tokens=245_569)
LM1B = Dataset("One Billion Word", "news.en.heldout-00000-of-00050", HELD_OUT, "perplexity")

S80, S64, S128 = _lengths(80, 2100, 820), _lengths(64, 640, 400), _lengths(128, 1600, 1000)
S128C, S32 = _lengths(128, 3800, 1000), _lengths(32, 128, -1)
SMALL, BASE, LARGE = _sizes(12, 512, 8, 2048), _sizes(16, 410, 10, 2100), _sizes(18, 1024, 16, 4096)
BYTES, SENTENCES, NVIDIA = _sizes(24, 1024, 8, 3072), _sizes(24, 1280, 16, 8192), _sizes(16, 512, 8, 2048)
LAYERS = {"attn_layers": ["local", "local", "lsh", "local"] * 3}
REFORMER = {**LAYERS, "d_model": 1024, "n_head": 8, "d_inner": 4096, "n_hashes": 4, "max_positions": 65_536}

WORDS, ENWIK8_BITS, TEXT8_BITS, BILLION = (f"Transformer-XL, Table {number}" for number in (1, 2, 3, 4))
PORT, README = "Hugging Face's documentation of run_transfo_xl.py", "the authors' README"
LONGEST = "Reformer, section 5, 12 layers, longest training, not said to be of these weights"
SHORTER = "Reformer, section 5, 12 layers, 20,000 updates"

SCORES: Mapping[str, Published] = {
    "transfo-xl/transfo-xl-wt103": Published(WT103, "Hugging Face", LARGE, S128, {WORDS: 18.3, PORT: 18.22}),
    "google/reformer-enwik8": Published(
        ENWIK8, "Hugging Face", REFORMER, {"restart": True}, {LONGEST: 1.05, SHORTER: 1.19}, "document"
    ),
    "enwik8-base": Published(ENWIK8, "run_enwik8_base.sh", SMALL, S80, {ENWIK8_BITS: 1.06}),
    "enwik8-large": Published(ENWIK8, "run_enwik8_large.sh", BYTES, S128C, {ENWIK8_BITS: 0.99}),
    "enwik8-tf": Published(ENWIK8, "tf/sota/enwik8.sh", BYTES, S128C, {ENWIK8_BITS: 0.99}, batch_size=16),
    "text8-large": Published(TEXT8, "run_text8_large.sh", BYTES, S128C, {TEXT8_BITS: 1.08}),
    "text8-tf": Published(TEXT8, "tf/sota/text8.sh", BYTES, S128C, {TEXT8_BITS: 1.08}, batch_size=16),
    "wt103-base": Published(WT103, "run_wt103_base.sh", BASE, S64, {WORDS: 24.0, README: 24.03}),
    "wt103-large": Published(WT103, "run_wt103_large.sh", LARGE, S128, {WORDS: 18.3}),
    "wt103-tf": Published(WT103, "tf/sota/wt103.sh", LARGE, S128, {WORDS: 18.3}, batch_size=16),
    "wt103-nvidia-base": Published(WT103, "wt103_base.yaml", NVIDIA, S64, {"NVIDIA's README": 23.24}, "nvidia"),
    "wt103-nvidia-large": Published(WT103, "wt103_large.yaml", LARGE, S128, {"NVIDIA's README": 18.18}, "nvidia"),
    "lm1b-large": Published(LM1B, "run_lm1b_large.sh", SENTENCES, S32, {BILLION: 21.8}, batch_size=8),
    "lm1b-tf": Published(LM1B, "tf/sota/lm1b.sh", SENTENCES, S32, {BILLION: 21.8}, batch_size=16, sentences=False),
}
"""Published scores by name; a name with a slash is that of the weights on the Hugging Face hub."""


def read_test_set(dataset: Dataset, data: Path) -> Document:
    """Return the test set of a corpus: a file, the end of a larger one, or one of both in a folder.

    Raises:
        TextError: there is no such file.
        OSError: it cannot be read.
    """
    from xlruntime import Document
    from xlruntime.errors import TextError

    file = data / dataset.file if data.is_dir() else data
    if not file.is_file():
        what = f"{file}: no such file. Expected {dataset.file} with the test set of {dataset.title}, or its folder."
        raise TextError(what, hint=dataset.origin)
    if dataset.bytes is None or file.stat().st_size <= dataset.bytes:
        return Document(str(file), file)
    with file.open("rb") as opened:
        opened.seek(-dataset.bytes, os.SEEK_END)
        return Document(f"{file}, the last {dataset.bytes:,} bytes", opened.read())


def differences(published: Published, config: Mapping[str, Any], score: CorpusScore) -> list[str]:
    """Return how the evaluated model and test set differ from the published ones: then the figures do not compare."""
    ours = {**config, "bytes": score.bytes, "tokens": score.tokens}
    theirs = {**published.config, "bytes": published.dataset.bytes, "tokens": published.dataset.tokens}
    return [
        f"{name} {shown(ours.get(name))}, published {shown(value)}"
        for name, value in theirs.items()
        if value is not None and ours.get(name) != value
    ]
