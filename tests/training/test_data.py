from pathlib import Path

import pytest
import torch

from xltraining.data.byte_streams import ByteStreams, read_bytes
from xltraining.errors import DataError


def text_of(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


def test_rows_are_contiguous_from_batch_to_batch() -> None:
    text = text_of(1003)
    streams = ByteStreams(text, batch_size=4, segment_len=9, seed=3)
    walked = torch.cat([streams.batch(step)[0] for step in range(60)], dim=1)  # more than one lap of the batch
    ring = text.repeat(3)
    for row in walked:
        start = next(i for i in range(len(text)) if torch.equal(ring[i : i + 540].long(), row))
        assert torch.equal(ring[start : start + 540].long(), row)


def test_targets_are_the_next_bytes() -> None:
    streams = ByteStreams(text_of(500), batch_size=3, segment_len=8, seed=0)
    for step in (0, 1, 30):
        tokens, targets = streams.batch(step)
        assert tokens.shape == targets.shape == (3, 8)
        assert tokens.dtype == targets.dtype == torch.int64
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        assert torch.equal(streams.batch(step + 1)[0][:, 0], targets[:, -1])


def test_one_lap_reads_the_whole_text_once() -> None:
    text = torch.arange(240).to(torch.uint8)
    streams = ByteStreams(text, batch_size=4, segment_len=10, seed=5)
    read = torch.cat([streams.batch(step)[0].flatten() for step in range(6)])
    assert sorted(read.tolist()) == list(range(240))


def test_the_seed_alone_decides_where_the_rows_start() -> None:
    text = text_of(5000)
    batches = [ByteStreams(text, 2, 16, seed).batch(0)[0] for seed in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_files_follow_one_another_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\xff\x00\r\n")
    (tmp_path / "two").write_bytes(b"ab")
    assert bytes(read_bytes([tmp_path / "two", tmp_path / "one"]).tolist()) == b"ab\xff\x00\r\n"
    assert len(read_bytes([])) == 0


def test_every_bad_file_is_listed(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match=r"missing: No such file.*empty: the file is empty") as caught:
        read_bytes([tmp_path / "missing", tmp_path / "empty"])
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataError, match="directory"):
        read_bytes([tmp_path])


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(DataError, match=r"39 bytes.*at least 40"):
        ByteStreams(text_of(39), batch_size=4, segment_len=9, seed=0)
    assert ByteStreams(text_of(40), batch_size=4, segment_len=9, seed=0).batch(0)[0].shape == (4, 9)
