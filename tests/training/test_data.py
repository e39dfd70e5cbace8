"""Texts and shards of prepared data, and the batches that are read from them."""

import functools
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xltraining.data.streams import ByteText, OrderedStreams, ShuffledStreams, read_bytes
from xltraining.data.tasks import prepared_task
from xltraining.data.token_shards import (
    MANIFEST_NAME,
    PreparedData,
    ShardWriter,
    is_prepared,
    read_prepared,
    write_manifest,
)
from xltraining.errors import DataError
from xltraining.training_config import TrainingConfig

LENGTHS = (5, 17, 1, 40, 0, 12, 25)  # of the documents
TOTAL = sum(LENGTHS)


def text_of(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


def streams_of(text: torch.Tensor, batch_size: int, segment_len: int, seed: int) -> OrderedStreams:
    return OrderedStreams(ByteText(text), batch_size, segment_len, seed)


def test_rows_are_contiguous_from_batch_to_batch() -> None:
    text = text_of(1003)
    streams = streams_of(text, 4, 9, 3)
    batches = [streams.batch(step) for step in range(60)]  # more than one lap of the batch
    walked = torch.cat([tokens for tokens, _ in batches], dim=1)
    assert torch.equal(torch.cat([targets for _, targets in batches], dim=1)[:, :-1], walked[:, 1:])
    ring = text.repeat(3)
    for row in walked:
        start = next(i for i in range(len(text)) if torch.equal(ring[i : i + 540].long(), row))
        assert torch.equal(ring[start : start + 540].long(), row)


def test_one_lap_reads_the_whole_text_once() -> None:
    text = torch.arange(240).to(torch.uint8)
    streams = streams_of(text, 4, 10, 5)
    read = torch.cat([streams.batch(step)[0].flatten() for step in range(6)])
    assert sorted(read.tolist()) == list(range(240))


def test_the_seed_alone_decides_where_the_rows_start() -> None:
    text = text_of(5000)
    batches = [streams_of(text, 2, 16, seed).batch(0)[0] for seed in (1, 1, 2)]
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
        streams_of(text_of(39), 4, 9, 0)
    assert streams_of(text_of(40), 4, 9, 0).batch(0)[0].shape == (4, 9)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., PreparedData]:
    """Write documents whose tokens are 0, 1, 2 … in shards of 16 tokens."""

    def written(n_token: int = 100, width: int = 16, tokens: int | None = None) -> PreparedData:
        with ShardWriter(tmp_path, "train", n_token, shard_tokens=width) as writer:
            at = 0
            for length in LENGTHS if tokens is None else (tokens,):
                writer.begin_document()
                writer.add(np.arange(at, at + length) % n_token)
                at += length
            writer.text_bytes = 2 * at
        write_manifest(
            tmp_path, unit="word", n_token=n_token, cutoffs=(10,), tokenizer={"kind": "bytes"}, writers=[writer]
        )
        return read_prepared(tmp_path)

    return written


def test_tokens_come_back_across_shards_and_round_the_end(make: Callable[..., PreparedData]) -> None:
    data = make()
    split = data.splits["train"]
    assert [shard.tokens for shard in split.shards] == [16] * 6 + [4]
    assert (len(split), split.text_bytes, split.documents) == (TOTAL, 200, len(LENGTHS))
    assert split.read(0, TOTAL).tolist() == list(range(TOTAL))
    assert split.read(14, 20).tolist() == list(range(14, 34))
    assert split.read(98, 5).tolist() == [98, 99, 0, 1, 2]
    assert split.read(3 * TOTAL + 7, 2).tolist() == [7, 8]
    assert split.document_starts().tolist() == [0, 5, 22, 23, 63, 63, 75]
    assert (data.unit, data.n_token, data.cutoffs, data.tokenizer_file()) == ("word", 100, (10,), None)


@pytest.mark.parametrize("starts", [[1, 5, 22, 23, 63, 63, 75], [0, 5, 4, 23, 63, 63, 75], [0, 5, 22, 23, 63, 63, 101]])
def test_documents_of_a_stranger_cover_the_tokens(make: Callable[..., PreparedData], starts: list[int]) -> None:
    split = make().splits["train"]
    np.array(starts, "<i8").tofile(split.folder / split.documents_file)
    with pytest.raises(DataError, match=r"train_documents\.bin is wrong: documents overlap\."):
        split.document_starts()


def test_large_vocabularies_take_four_bytes(make: Callable[..., PreparedData], tmp_path: Path) -> None:
    split = make(n_token=70_000, width=1 << 20, tokens=70_000).splits["train"]
    assert (tmp_path / "train_00000.bin").stat().st_size == 280_000
    assert split.read(65_530, 10).tolist() == list(range(65_530, 65_540))


def test_ordered_batches_are_those_of_bytes_in_memory(make: Callable[..., PreparedData]) -> None:
    streams = OrderedStreams(make().splits["train"], 4, 9, 3, 100)
    expected = streams_of(torch.arange(TOTAL).to(torch.uint8), 4, 9, 3)
    for step in range(30):
        tokens, targets = streams.batch(step)
        assert torch.equal(tokens, expected.batch(step)[0])
        assert torch.equal(targets, expected.batch(step)[1])
        assert torch.equal(streams.batch(step, slice(1, 3))[0], tokens[1:3])


def test_shuffled_rows_read_whole_documents_once_a_lap(make: Callable[..., PreparedData]) -> None:
    streams = ShuffledStreams(make().splits["train"], 1, 10, 7, 100)
    walked = torch.cat([streams.batch(step)[0][0] for step in range(3 * TOTAL // 10)]).tolist()
    begins = np.cumsum([0, *LENGTHS[:-1]]).tolist()
    starts = {begin: length for begin, length in zip(begins, LENGTHS, strict=True) if length}
    orders = []
    for lap in range(3):
        part = walked[lap * TOTAL : (lap + 1) * TOTAL]
        assert Counter(part) == Counter(range(TOTAL))
        order, at = [], 0
        while at < TOTAL:
            order.append(part[at])
            assert part[at : at + starts[part[at]]] == list(range(part[at], part[at] + starts[part[at]]))
            at += starts[part[at]]
        orders.append(order)
    assert orders[0] != sorted(orders[0]) or orders[1] != sorted(orders[1])
    assert orders[0] != orders[1] or orders[1] != orders[2]
    parts = ShuffledStreams(make().splits["train"], 3, 8, 1, 100)
    late = ShuffledStreams(make().splits["train"], 3, 8, 1, 100).batch(40)  # a batch depends on its number only
    for step in range(40):
        assert torch.equal(parts.batch(step)[1][:, -1], parts.batch(step + 1)[0][:, 0])
    assert torch.equal(late[0], parts.batch(40)[0])


def test_short_texts_and_foreign_tokens_are_refused(make: Callable[..., PreparedData]) -> None:
    split = make().splits["train"]
    for kind in (OrderedStreams, ShuffledStreams):
        with pytest.raises(DataError, match="100 tokens, and 10 streams with segments of 10 need at least 110"):
            kind(split, 10, 10, 0, 100)
        with pytest.raises(DataError, match="has the token 99, but its manifest has 50 tokens"):
            kind(split, 1, 99, 0, 50).batch(0)


@pytest.mark.parametrize("name", ["train_00001.bin", "train_documents.bin"])
def test_changed_data_is_refused_before_training(make: Callable[..., PreparedData], tmp_path: Path, name: str) -> None:
    make()
    start = functools.partial(prepared_task, tmp_path, 100, TrainingConfig(batch_size=1), 9)
    start()
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[8:16] + content[:8] + content[16:])
    with pytest.raises(DataError, match=rf"{name} changed since the data was prepared .*prepare the data again"):
        start()


@pytest.mark.parametrize("content", [b"a secret", b"\xff", b"[1]"])
def test_tokenizer_is_of_its_kind(make: Callable[..., PreparedData], tmp_path: Path, content: bytes) -> None:
    make()
    digests = json.loads((tmp_path / MANIFEST_NAME).read_text())["sha256"]
    (tmp_path / "tokenizer.json").write_bytes(content)
    digests["tokenizer.json"] = hashlib.sha256(content).hexdigest()
    _change(tokenizer=TOKENIZER, sha256=digests)(tmp_path)
    with pytest.raises(DataError, match=r"not (valid JSON|a JSON object)"):
        read_prepared(tmp_path).tokenizer_file()


def _cut(folder: Path) -> None:
    (folder / "train_00001.bin").write_bytes(b"x")


def _change(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / MANIFEST_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _plant(folder: Path) -> None:
    (folder / "link").symlink_to(MANIFEST_NAME)
    os.mkfifo(folder / "pipe")
    _change(tokenizer={**TOKENIZER, "file": "link"}, sha256={"pipe": "0" * 64})(folder)


TOKENIZER = {"kind": "tokenizers", "file": "tokenizer.json"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"train_00001\.bin has 1 bytes, expected 32"),
        (lambda folder: (folder / "train_documents.bin").unlink(), "train_documents.bin is missing"),
        (lambda folder: (folder / MANIFEST_NAME).write_text("{"), "not valid JSON"),
        (_change(format="other"), "not a manifest of version 1"),
        (_change(dtype="float32"), "fields are missing or wrong .dtype 'float32'"),
        (_change(splits={"train": {"shards": [{"file": "../x", "tokens": 1, "sha256": ""}]}}), r"file '\.\./x'"),
        (_change(splits={"train": {}}), "fields are missing or wrong .'shards'"),
        (_change(tokenizer={**TOKENIZER, "file": "../secret"}), r"file '\.\./secret'"),
        (_plant, "pipe is a link or no file; link is a link or no file; train_documents"),
        (_change(sha256={}), r"train_documents\.bin has no digest\. Prepare the data again"),
        (_change(sha256={"train_\0": "0" * 64}), r"file 'train_\\x00'"),
        (_change(tokenizer={**TOKENIZER, "kind": "bytes"}), "tokenizer 'bytes'"),
        (_change(tokenizer={"kind": "tokenizers"}), "tokenizer 'tokenizers'"),
        (_change(n_token=10**4000), r"1000+\.\.\.0+, expected a whole number from 1"),
        (_change(cutoffs=[math.inf]), "inf, expected a whole number"),
        (lambda folder: (folder / MANIFEST_NAME).write_text("[" * 10**5), "not valid JSON"),
    ],
)
def test_damaged_data_is_refused(
    make: Callable[..., PreparedData], tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    make()
    assert is_prepared(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        read_prepared(tmp_path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 2000
    with pytest.raises(DataError, match="Give a folder of `xlexport prepare`"):
        read_prepared(tmp_path / "absent")
