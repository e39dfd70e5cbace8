"""The CUDA execution provider against the CPU, over carried memory; skipped, with the reason, without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.paths import EMPTY, GOLDEN, WHOLE
from tests.runtime.conftest import Close, Golden, RandomIds
from tests.runtime.in_place import walk_both_ways
from xlruntime import Model, ProviderError, load

pytestmark = pytest.mark.cuda
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/bundle") if path.parent.name not in WHOLE)
# The first has no ring, the second too few positions for its ring to wrap.
RINGS = [name for name in NAMES if name not in ("late_reader", "learned_places")]


def open_on_cuda(name: str) -> Model:
    try:
        return load(GOLDEN / name / "bundle", device="cuda")
    except ProviderError as error:
        pytest.skip(f"no CUDA here: {error}")


@pytest.mark.parametrize("name", NAMES)
def test_cuda_against_cpu_over_segments(name: str, golden: Golden, random_ids: RandomIds, close: Close) -> None:
    ids = random_ids(200, vocab_size=golden(name).bundle.vocab_size)
    close(open_on_cuda(name).stream().feed(ids).log_probs, golden(name).stream().feed(ids).log_probs, within=1e-4)


@pytest.mark.parametrize("name", WHOLE)
def test_cuda_against_cpu_on_whole_documents(name: str, golden: Golden, random_ids: RandomIds, close: Close) -> None:
    documents = [random_ids(length, vocab_size=golden(name).bundle.vocab_size) for length in (2, 30, 60)]
    here, there = (model.score_tokens(documents) for model in (golden(name), open_on_cuda(name)))
    for expected, found in zip(here, there, strict=True):
        close(found.log_probs, expected.log_probs, within=1e-4)


@pytest.mark.parametrize("name", RINGS)
def test_ring_on_cuda_is_written_in_place(name: str, random_ids: RandomIds) -> None:
    model = open_on_cuda(name)
    T = 4 * model.new_memory(model.bundle.settings).capacity
    ids = random_ids(2 * T, vocab_size=model.bundle.vocab_size).reshape(2, T)
    walk_both_ways(model, ids, within=1e-5)  # kernels may sum in any order


@pytest.mark.parametrize("name", [*NAMES, *WHOLE])
def test_nothing_but_sizes_is_computed_on_the_cpu(name: str) -> None:
    open_on_cuda(name)  # skips
    if name.startswith("reformer"):  # written with pads of integers; `tests/export/test_cuda_kernels.py` opens new ones
        with pytest.raises(ProviderError, match=r"not on CUDAExecutionProvider: \d+ Pad \("):
            load(GOLDEN / name / "bundle", device="cuda", strict_device=True)
        return
    model = load(GOLDEN / name / "bundle", device="cuda", strict_device=True)
    for purpose in model.bundle.graphs:
        assert model.placement(purpose)["CUDAExecutionProvider"]


def test_state_saved_on_cuda_goes_on_on_the_cpu(
    golden: Golden, random_ids: RandomIds, close: Close, tmp_path: Path
) -> None:
    ids = random_ids(200)
    stream = open_on_cuda(EMPTY).stream()
    stream.feed(ids[:100])
    stream.save(tmp_path / "state")
    close(golden(EMPTY).restore(tmp_path / "state").feed(ids[100:]).log_probs, stream.feed(ids[100:]).log_probs, 1e-4)


def test_batch_rows_restart_and_shrink_on_cuda(golden: Golden, random_ids: RandomIds) -> None:
    documents = [random_ids(length, seed=length) for length in (5, 40, 90, 200)]
    on_cuda = open_on_cuda(EMPTY).score(documents, batch_size=3)
    for found, expected in zip(on_cuda, golden(EMPTY).score(documents), strict=True):
        assert found.nats == pytest.approx(expected.nats, abs=1e-4 * expected.scored_tokens)
        assert np.isfinite(found.nats)
