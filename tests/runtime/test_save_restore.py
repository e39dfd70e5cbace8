"""A saved stream goes on in another process as if it had not stopped; other files are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save

from tests.runtime.conftest import Close, RandomIds
from xlruntime import Model, OptionError, Sampling, StateDamagedError, StateError

FED = (0, 1, 5, 300)
GO_ON = """
import sys
import numpy as np
from xlruntime import Sampling, load
folder, bundle, *numbers = sys.argv[1:]
model = load(bundle, threads=1)
ids = np.load(f"{folder}/ids.npy")
for number in numbers:
    stream = model.restore(f"{folder}/{number}.state")
    log_probs = stream.feed(ids[int(number):]).log_probs
    np.save(f"{folder}/{number}.npy", log_probs)
    np.save(f"{folder}/{number}.drawn.npy", list(stream.generate(max_tokens=5, sampling=Sampling(temperature=0))))
assert "torch" not in sys.modules
"""


@pytest.fixture
def saved(bytes_model: Model, random_ids: RandomIds, tmp_path: Path) -> Path:
    """Return the saved state of a stream of 50 tokens."""
    stream = bytes_model.stream()
    stream.feed(random_ids(50))
    stream.save(tmp_path / "saved.state")
    return tmp_path / "saved.state"


@pytest.mark.full
def test_restored_stream_is_bit_equal_in_a_new_process(variant: Model, random_ids: RandomIds, tmp_path: Path) -> None:
    ids = random_ids(400, vocab_size=variant.bundle.vocab_size)
    np.save(tmp_path / "ids.npy", ids)
    expected = {}
    for number in FED:
        stream = variant.stream()
        stream.feed(ids[:number])
        stream.save(tmp_path / f"{number}.state")
        log_probs = stream.feed(ids[number:]).log_probs
        expected[number] = log_probs, list(stream.generate(max_tokens=5, sampling=Sampling(temperature=0)))
    command = [sys.executable, "-c", GO_ON, str(tmp_path), str(variant.folder), *map(str, FED)]
    subprocess.run(command, check=True, timeout=120)
    for number, (log_probs, drawn) in expected.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{number}.npy"), log_probs)
        assert np.load(tmp_path / f"{number}.drawn.npy").tolist() == drawn


def check_restored_with(
    capacity: int, fed: int, model: Model, ids: npt.NDArray[np.int64], file: Path, close: Close
) -> None:
    stream = model.stream()
    stream.feed(ids[:fed])
    stream.save(file)
    restored = model.restore(file, capacity=capacity)
    assert restored.memory.capacity == capacity
    found, expected = restored.feed(ids[fed:]), stream.feed(ids[fed:])
    close(found.log_probs, expected.log_probs, within=1e-5)
    for what in ("index", "tokens", "context"):
        np.testing.assert_array_equal(getattr(found, what), getattr(expected, what))


@pytest.mark.parametrize("more", [1, 70])
@pytest.mark.parametrize("fed", FED)
def test_restored_with_more_capacity_is_close(
    fed: int, more: int, variant: Model, random_ids: RandomIds, close: Close, tmp_path: Path
) -> None:
    bundle = variant.bundle
    ids = random_ids(fed + 60, vocab_size=bundle.vocab_size)
    check_restored_with(bundle.settings.capacity() + more, fed, variant, ids, tmp_path / "state", close)


@pytest.mark.parametrize("capacity", [13, 19])
@pytest.mark.parametrize("fed", FED)
@pytest.mark.full
def test_restored_with_less_capacity_is_close(
    fed: int, capacity: int, model: Model, random_ids: RandomIds, close: Close, tmp_path: Path
) -> None:
    check_restored_with(capacity, fed, model, random_ids(fed + 60), tmp_path / "state", close)


@pytest.mark.parametrize("capacity", [0, 5, 12])
def test_capacity_that_is_too_small_is_refused(capacity: int, saved: Path, bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=f"a capacity of {capacity} slots is too small for a segment"):
        bytes_model.restore(saved, capacity=capacity)


def test_settings_of_the_stream_are_restored(bytes_model: Model, random_ids: RandomIds, tmp_path: Path) -> None:
    ids = random_ids(80)
    stream = bytes_model.stream(segment_len=5, mem_len=21, clamp_len=4, same_length=False, capacity=40)
    stream.feed(ids[:41])
    stream.save(tmp_path / "state")
    restored = bytes_model.restore(tmp_path / "state")
    assert restored.evaluation == stream.evaluation
    assert restored.memory.capacity == 40
    np.testing.assert_array_equal(restored.feed(ids[41:]).log_probs, stream.feed(ids[41:]).log_probs)


def test_stream_that_was_reset_is_restored(model: Model, random_ids: RandomIds, tmp_path: Path) -> None:
    ids = random_ids(70)
    stream = model.stream()
    stream.feed(ids)
    stream.reset()
    stream.save(tmp_path / "state")
    found, expected = model.restore(tmp_path / "state").feed(ids), stream.feed(ids)
    np.testing.assert_array_equal(found.log_probs, expected.log_probs)
    np.testing.assert_array_equal(found.context, expected.context)


def test_missing_state_is_file_not_found(bytes_model: Model, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=r"(a folder|no such file); expected a stream's state"):
            bytes_model.restore(path)


OTHER = save({"weight": np.zeros(3, np.float32)})
OF_A_RUN = save({"weight": np.zeros(3, np.float32)}, {"kind": "xlexport score run"})


@pytest.mark.parametrize(
    "content",
    [b"", bytes(100), b"\x10" + bytes(7) + b"{]" * 8, b"not safetensors at all", OTHER, OF_A_RUN, 2000, -1],
)
def test_foreign_or_truncated_file_is_refused(content: bytes | int, saved: Path, bytes_model: Model) -> None:
    saved.write_bytes(content if isinstance(content, bytes) else saved.read_bytes()[:content])
    with pytest.raises(StateDamagedError, match=r"saved\.state: .*(not|damaged).* Save the stream again") as caught:
        bytes_model.restore(saved)
    assert "\n" not in str(caught.value)


def test_any_flipped_byte_is_noticed(saved: Path, bytes_model: Model) -> None:
    """Notice it also in the memory's numbers and in the counters, which safetensors does not check."""
    content = saved.read_bytes()
    for place in [*range(0, len(content), 97), len(content) - 1]:
        saved.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(StateError):
            bytes_model.restore(saved)
    saved.write_bytes(content)
    assert bytes_model.restore(saved).position == 50


def only_file_in(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_save_that_fails_leaves_the_old_state(saved: Path, bytes_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    content, stream = saved.read_bytes(), bytes_model.stream()

    def full(descriptor: int) -> None:
        os.ftruncate(descriptor, 1000)
        raise OSError(28, "No space left on device")

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(target))

    for name, failing, error in (
        ("fsync", full, OSError),
        ("replace", refuse, PermissionError),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            with pytest.raises(error):
                stream.save(saved)
        assert only_file_in(saved.parent) == saved
        assert saved.read_bytes() == content
