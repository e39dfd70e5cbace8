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

__all__ = ["SCORES", "Dataset", "PublishedScore", "differences", "read_test_set"]


@dataclass(frozen=True)
class Dataset:
    """The test set of a corpus.

    Attributes:
        files: names of its file in the folder of the corpus; the first that is there is read.
        origin: a sentence that says where this file comes from.
        unit: what a token is. Figures of words are perplexities, all others are bits per token.
        bytes: size of the test set, which is the end of a larger file; None: the whole file, whatever its size.
        tokens: number of its tokens; None: no source states it.
    """

    title: str
    files: tuple[str, ...]
    origin: str
    unit: str
    bytes: int | None = None
    tokens: int | None = None

    @property
    def measure(self) -> str:
        """The name of the figure for people."""
        return "perplexity" if self.unit == "word" else f"bits per {self.unit}"

    def figure_of(self, score: CorpusScore) -> float:
        """Return the figure of a score that compares with published ones."""
        return score.perplexity if self.unit == "word" else score.bits_per_token


@dataclass(frozen=True)
class PublishedScore:
    """A published score and the way to reproduce it.

    Attributes:
        weights: who published the weights, or which script makes them.
        config: values in the configuration of the published model.
        settings: evaluation settings by name.
        figures: the figure of each source; ours is compared with the first.
        protocol, batch_size, sentences: as for `xlruntime.protocols.arrange`.
        note: a sentence about what the sources leave open.
    """

    dataset: Dataset
    weights: str
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    figures: Mapping[str, float]
    protocol: str = "kimiyoung"
    batch_size: int | None = None
    sentences: bool | None = None
    note: str = ""


def _sizes(n_layer: int, d_model: int, n_head: int, d_inner: int) -> dict[str, int]:
    return {"n_layer": n_layer, "d_model": d_model, "n_head": n_head, "d_inner": d_inner}


def _lengths(segment_len: int, mem_len: int, clamp_len: int) -> dict[str, Any]:
    return {"segment_len": segment_len, "mem_len": mem_len, "clamp_len": clamp_len, "same_length": True}


def _table(number: int, figure: float) -> dict[str, float]:
    return {f"Transformer-XL, Table {number}": figure}


LAST_BYTES = "Its last 5,000,000 bytes are the test set, which the authors' getdata.sh writes to test.txt.raw."
ENWIK8 = Dataset("enwik8", ("enwik8", "test.txt.raw"), LAST_BYTES, "byte", bytes=5_000_000)
TEXT8 = Dataset("text8", ("text8", "test.txt.raw"), LAST_BYTES, "character", bytes=5_000_000)
WT103 = Dataset("WikiText-103", ("wiki.test.tokens",), "It is in wikitext-103-v1.zip.", "word", tokens=245_569)
HELD_OUT = "It is in the corpus' folder of held-out sentences."
LM1B = Dataset("One Billion Word", ("news.en.heldout-00000-of-00050",), HELD_OUT, "word")

S80, S64, S128 = _lengths(80, 2100, 820), _lengths(64, 640, 400), _lengths(128, 1600, 1000)
S128C, S32 = _lengths(128, 3800, 1000), _lengths(32, 128, -1)
BASE_BYTES, LARGE_BYTES = _sizes(12, 512, 8, 2048), _sizes(24, 1024, 8, 3072)
BASE_WORDS, LARGE_WORDS = _sizes(16, 410, 10, 2100), _sizes(18, 1024, 16, 4096)
NVIDIA_BASE, LARGE_SENTENCES = _sizes(16, 512, 8, 2048), _sizes(24, 1280, 16, 8192)
REFORMER = {
    "attn_layers": ["local", "local", "lsh", "local"] * 3,
    **{"d_model": 1024, "n_head": 8, "d_inner": 4096, "n_hashes": 4, "max_positions": 65_536},
}

SCORES: Mapping[str, PublishedScore] = {
    "transfo-xl/transfo-xl-wt103": PublishedScore(
        WT103,
        weights="Hugging Face",
        config=LARGE_WORDS,
        settings=S128,
        figures={**_table(1, 18.3), "Hugging Face's documentation of run_transfo_xl.py": 18.22},
    ),
    "google/reformer-enwik8": PublishedScore(
        ENWIK8,
        weights="Hugging Face",
        config=REFORMER,
        settings={"restart": True},
        figures={
            "Reformer, section 5, 12 layers, longest training": 1.05,
            "Reformer, section 5, 12 layers, 20,000 updates": 1.19,
        },
        protocol="document",
        note="The paper says neither how it cut the test set, nor that its figures are of these weights.",
    ),
    "enwik8-base": PublishedScore(ENWIK8, "run_enwik8_base.sh", BASE_BYTES, S80, _table(2, 1.06)),
    "enwik8-large": PublishedScore(ENWIK8, "run_enwik8_large.sh", LARGE_BYTES, S128C, _table(2, 0.99)),
    "enwik8-tf": PublishedScore(ENWIK8, "tf/sota/enwik8.sh", LARGE_BYTES, S128C, _table(2, 0.99), batch_size=16),
    "text8-large": PublishedScore(TEXT8, "run_text8_large.sh", LARGE_BYTES, S128C, _table(3, 1.08)),
    "text8-tf": PublishedScore(TEXT8, "tf/sota/text8.sh", LARGE_BYTES, S128C, _table(3, 1.08), batch_size=16),
    "wt103-base": PublishedScore(
        WT103, "run_wt103_base.sh", BASE_WORDS, S64, {**_table(1, 24.0), "the authors' README": 24.03}
    ),
    "wt103-large": PublishedScore(WT103, "run_wt103_large.sh", LARGE_WORDS, S128, _table(1, 18.3)),
    "wt103-tf": PublishedScore(WT103, "tf/sota/wt103.sh", LARGE_WORDS, S128, _table(1, 18.3), batch_size=16),
    "wt103-nvidia-base": PublishedScore(
        WT103, "wt103_base.yaml", NVIDIA_BASE, S64, {"NVIDIA's README": 23.24}, protocol="nvidia"
    ),
    "wt103-nvidia-large": PublishedScore(
        WT103, "wt103_large.yaml", LARGE_WORDS, S128, {"NVIDIA's README": 18.18}, protocol="nvidia"
    ),
    "lm1b-large": PublishedScore(LM1B, "run_lm1b_large.sh", LARGE_SENTENCES, S32, _table(4, 21.8), batch_size=8),
    "lm1b-tf": PublishedScore(
        LM1B, "tf/sota/lm1b.sh", LARGE_SENTENCES, S32, _table(4, 21.8), batch_size=16, sentences=False
    ),
}
"""Published scores by name; a name with a slash is that of the weights on the Hugging Face hub."""


def read_test_set(dataset: Dataset, data: Path) -> Document:
    """Return the test set of a corpus as a document.

    Args:
        data: its file, a larger file that ends with it, or a folder with one of them.

    Raises:
        TextError: there is no such file.
        OSError: it cannot be read.
    """
    from xlruntime import Document
    from xlruntime.errors import TextError

    files = [data / name for name in dataset.files] if data.is_dir() else [data]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        where = "not in this folder" if data.is_dir() else "no such file or folder"
        what = f"{data}: {where}: {' or '.join(dataset.files)}, with the test set of {dataset.title}."
        raise TextError(what, hint=dataset.origin)
    if dataset.bytes is None or file.stat().st_size <= dataset.bytes:
        return Document(str(file), file)
    with file.open("rb") as opened:
        opened.seek(-dataset.bytes, os.SEEK_END)
        return Document(f"{file}, the last {dataset.bytes:,} bytes", opened.read())


def differences(published: PublishedScore, config: Mapping[str, Any], score: CorpusScore) -> list[str]:
    """Return what differs from the published model and test set; if anything does, the figures do not compare.

    Args:
        config: the configuration of the model that was evaluated.
    """
    sizes = {"bytes": score.bytes, "tokens": score.tokens}
    expected = {**published.config, "bytes": published.dataset.bytes, "tokens": published.dataset.tokens}
    return [
        f"{name} {shown(value)}, published {shown(expected[name])}"
        for name, value in {**{name: config.get(name) for name in published.config}, **sizes}.items()
        if expected[name] is not None and value != expected[name]
    ]
