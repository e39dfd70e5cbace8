"""Golden bundles for tests that run without PyTorch; `tests/golden/make_golden.py` made them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers import ids
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import BAND, CHUNK, EMPTY, GOLDEN, WHOLE, ZEROS
from xlruntime import Model, load
from xlruntime.memory import Memory

MADE_UP = {"late_reader", "two_rings"}  # artificial graphs, not from models
PLACES = "learned_places"  # a Transformer-XL without the settings of memory
VARIANTS = sorted({path.parent.name for path in GOLDEN.glob("*/bundle")} - {BAND, PLACES, *WHOLE, *MADE_UP})

RandomIds = Callable[..., npt.NDArray[np.int64]]
Close = Callable[..., None]
Golden = Callable[[str], Model]
BundleWith = Callable[[str, Path], Path]
Steps = list[tuple[str, tuple[int, ...]]]


@functools.cache
def open_golden(name: str) -> Model:
    return load(GOLDEN / name / "bundle", threads=1)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Model]:
    """Return a function that opens the golden bundle of a name."""
    return open_golden


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Model:
    """Return each golden bundle of a Transformer-XL with memory in turn."""
    return open_golden(request.param)


@pytest.fixture(params=[EMPTY, ZEROS])
def model(request: pytest.FixtureRequest) -> Model:
    """Return a model with same_length, for each rule for the first memory."""
    return open_golden(request.param)


@pytest.fixture
def bytes_model() -> Model:
    """Return a model that reads bytes, for tests that do not depend on the variant."""
    return open_golden(EMPTY)


@pytest.fixture
def no_text_model() -> Model:
    """Return a model of 29 tokens without tokenizer and without same_length."""
    return open_golden("pre_lnorm_empty")


@pytest.fixture
def band_model() -> Model:
    """Return a Reformer of 258 tokens with 200 positions: local attention, and LSH attention of three rounds."""
    return open_golden(BAND)


@pytest.fixture
def chunk_model() -> Model:
    """Return a Reformer of 40 tokens that reads documents of up to 96 tokens in one step."""
    return open_golden(CHUNK)


@pytest.fixture
def bytes_of_band(band_model: Model, tmp_path: Path) -> Model:
    """Return the same Reformer with a byte tokenizer: id = byte + 2."""
    return load(with_tokenizer(band_model.folder, tmp_path / "bytes", kind="bytes", first_id=2), threads=1)


@pytest.fixture
def bundle_copy(tmp_path: Path) -> Path:
    """Return a copy of a bundle with a first_memory.safetensors, for tests that break it."""
    return Path(shutil.copytree(GOLDEN / ZEROS / "bundle", tmp_path / "bundle"))


@pytest.fixture
def bundle_with(no_text_model: Model, tmp_path: Path) -> Callable[[str, Path], Path]:
    """Return `bundle_with(kind, file)`, which makes a bundle of 29 tokens with this tokenizer."""

    def make(kind: str, file: Path) -> Path:
        return with_tokenizer(no_text_model.folder, tmp_path / "bundle", file, kind=kind)

    return make


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Record the purpose of every step, and the shape of its tokens."""
    run, seen = Model.run, []

    def spy(self: Model, purpose: str, memory: Memory, segment: Any) -> Any:
        seen.append((purpose, segment["tokens"].shape))
        return run(self, purpose, memory, segment)

    monkeypatch.setattr(Model, "run", spy)
    return seen


@pytest.fixture
def random_ids() -> RandomIds:
    """Return `random_ids(n, seed=0, vocab_size=256)`, which makes token ids (n,)."""
    return ids.random_ids


@pytest.fixture
def close() -> Callable[..., Any]:
    """Return `close(found, expected, within=2e-5)`, which fails if a number differs by more."""

    def check(found: Any, expected: Any, within: float = 2e-5) -> None:
        np.testing.assert_allclose(found, expected, rtol=0, atol=within)

    return check
