"""TensorFlow's checkpoint files are read exactly; damaged and hostile ones are refused with one line."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.tensor_bundle_writer import (
    block,
    chunk,
    entry,
    fixed,
    footer,
    header,
    number,
    sealed,
    table,
    varint,
    write_bundle,
)
from xlexport.checkpoints.tensorflow_bundle import ends_as_table, open_tensor_bundle
from xlexport.errors import CheckpointError
from xlruntime.limits import Limits

GENUINE = sorted((Path(__file__).parent / "data" / "tensorflow").glob("*/*.index"))
TENSORS = {
    "a/flag": np.array([True]),
    "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),  # one byte behind an aligned address
    "b": np.float64(0.5) + np.zeros(()),
    "c/half": np.linspace(-1, 1, 5, dtype=np.float16),
    "global_step": np.array(7, np.int64),
}


def write_index(folder: Path, index: bytes, data: bytes = bytes(100)) -> Path:
    """Write a checkpoint with this index and 100 bytes of zeros; return its prefix."""
    (folder / "model.index").write_bytes(index)
    (folder / "model.data-00000-of-00001").write_bytes(data)
    return folder / "model"


def refusal(prefix: Path) -> str:
    """Return the line with which a checkpoint is refused; assert that it comes soon and takes little memory."""
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            bundle = open_tensor_bundle(prefix)
            for name in bundle.entries:
                bundle.read(name)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(str(prefix)), message
    assert message.isprintable(), message
    assert time.monotonic() - start < 20  # detects a hang: the slowest takes two seconds
    return message


@pytest.mark.parametrize("index", GENUINE, ids=lambda path: path.parent.name)
def test_files_of_tensorflow_are_written_again_byte_for_byte(index: Path, tmp_path: Path) -> None:
    """Check that reader and writer agree with TensorFlow in every byte, and with each other."""
    bundle = open_tensor_bundle(index.with_suffix(""))
    write_bundle(tmp_path / bundle.prefix.name, {name: bundle.read(name) for name in bundle.entries})
    assert [file.name for file in bundle.files] == ["model.ckpt-12.index", "model.ckpt-12.data-00000-of-00001"]
    for file in bundle.files:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(("shards", "per_block"), [(1, 1000), (3, 1000), (2, 2), (1, 1)])
def test_tensors_come_back_as_they_were(shards: int, per_block: int, tmp_path: Path) -> None:
    write_bundle(tmp_path / "model.ckpt-7", TENSORS, shards, per_block)
    bundle = open_tensor_bundle(tmp_path / "model.ckpt-7")
    assert list(bundle.entries) == sorted(TENSORS)
    assert len(bundle.files) == 1 + shards
    for name, tensor in TENSORS.items():
        read = bundle.read(name)
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert read.flags.aligned
        np.testing.assert_array_equal(read, tensor)
        assert (bundle.entries[name].dtype, bundle.entries[name].shape) == (tensor.dtype.name, tensor.shape)


def test_tensors_are_views_that_do_not_change_the_file(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", {"kernel": np.ones((4, 4), np.float32)})
    before = (tmp_path / "model.data-00000-of-00001").read_bytes()
    read = open_tensor_bundle(tmp_path / "model").read("kernel")
    assert not read.flags.owndata
    read += 1
    assert (tmp_path / "model.data-00000-of-00001").read_bytes() == before


def test_ends_as_table(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", TENSORS)
    assert ends_as_table(tmp_path / "model.index")
    assert not ends_as_table(tmp_path / "model.data-00000-of-00001")
    (tmp_path / "short").write_bytes(b"\xdb")
    assert not ends_as_table(tmp_path / "short")


@pytest.mark.full
def test_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    """Notice every flipped bit, except in the footer's padding, where it changes nothing."""
    write_bundle(tmp_path / "model", TENSORS, per_block=2)
    sound = open_tensor_bundle(tmp_path / "model").entries
    file = tmp_path / "model.index"
    whole = file.read_bytes()
    harmless = []
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            assert open_tensor_bundle(tmp_path / "model").entries == sound
            harmless.append(place)
        except CheckpointError:
            pass
    assert harmless == [place for place in range(len(whole) - 48, len(whole) - 8) if whole[place] == 0]


def test_flipped_bit_of_a_tensor_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", TENSORS)
    file = tmp_path / "model.data-00000-of-00001"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    bundle = open_tensor_bundle(tmp_path / "model")
    bundle.read("a/flag")
    with pytest.raises(CheckpointError, match=r"data-00000-of-00001: a/kernel is damaged \(wrong checksum\)"):
        bundle.read("a/kernel")


def records(*entries: tuple[bytes, bytes], first: bytes | None = None) -> bytes:
    """Return an index of these entries after a valid header, or after another first record."""
    return table([(b"", header() if first is None else first), *entries])


def one(value: bytes) -> bytes:
    return records((b"kernel", value))


def blocks(*contents: bytes, index: Callable[[int], list[tuple[int, int]]] | None = None) -> bytes:
    """Return blocks and an index of them, or the index that `index` returns for the place at which the index begins."""
    content, handles = b"", []
    for data in contents:
        handles.append((len(content), len(data)))
        content += sealed(data)
    properties = (len(content), 8)
    content += sealed(block([]))
    handles = handles if index is None else index(len(content))
    addresses = block([(b"%9d" % place, varint(at) + varint(size)) for place, (at, size) in enumerate(handles)])
    return content + sealed(addresses) + footer(properties, (len(content), len(addresses)))


FIRST = block([(b"", header())])
HUGE = 1 << 60
SOUND = entry((5, 5))
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "its end is not that of a table"),
    "text": (b"It was the best of times. " * 9, "its end is not that of a table"),
    "magic alone": (footer((0, 0), (0, 0))[-8:], "its end is not that of a table"),
    "footer alone": (footer((0, 0), (0, 0)), "a block ends at byte 5 of 48"),
    "footer of continued numbers": (b"\xff" * 40 + footer((0, 0), (0, 0))[-8:], "more than ten bytes"),
    "huge block": (footer((0, 0), (0, HUGE)), "a block ends at byte"),
    "huge offset": (bytes(99) + footer((HUGE, 0), (0, 0)), "a block ends at byte"),
    "header is missing": (table([(b"kernel", SOUND)]), "the header does not come first"),
    "nothing": (table([]), "the header does not come first"),
    "big endian": (records(first=header(endianness=1)), "written on a big-endian machine"),
    "newer version": (records(first=header(needs=2)), "Update xlexport"),
    "no data files": (records(first=header(0)), "0 data files"),
    "huge number of data files": (records(first=header(HUGE)), "data files"),
    "header of another kind": (records(first=chunk(1, b"x")), "field 1 is not a number"),
    "version of another kind": (records(first=number(1, 1) + number(3, 1)), "field 3 is not a message"),
    "snappy": (table([(b"", header())], kind=1), "compressed with snappy"),
    "zlib": (table([(b"", header())], kind=2), "compressed with zlib"),
    "unknown compression": (table([(b"", header())], kind=77), "compressed with method 77"),
    "slices": (one(SOUND + chunk(7, chunk(1, b""))), "cut into slices"),
    "slices alone": (records((b"\0\x01kernel\0\x01\x02", SOUND)), "cut into slices"),
    "beyond the data": (one(entry((5, 5), offset=1)), "ends after 100 bytes, but kernel ends at 101"),
    "huge tensor": (one(entry((1 << 50, 8))), "ends after 100 bytes"),
    "huge tensor far away": (one(entry((1 << 50, 8), offset=HUGE)), "ends after 100 bytes"),
    "huge tensor, small size": (one(entry((HUGE, 8), size=100)), "too many or too few for float32"),
    "negative axis": (one(entry((-5, -5), size=100)), "too many or too few"),
    "negative offset": (one(entry((5, 5), offset=-100)), "ends after 100 bytes"),
    "negative data file": (one(entry((5, 5), shard=-1)), "of 1"),
    "too large": (
        one(entry((5, 4), size=100)),
        "kernel has 100 bytes, too many or too few for float32 of shape (5, 4)",
    ),
    "no known shape": (one(number(1, 1) + chunk(2, number(3, 1))), "no shape"),
    "a thousand axes": (one(entry([1] * 1000)), "no shape of at most 32 axes"),
    "empty tensor": (one(entry((0, HUGE))), "kernel is empty"),
    "strings": (one(entry((5,), dtype=7, size=100)), "kernel is of TensorFlow type 7"),
    "unknown type": (one(entry((5,), dtype=HUGE, size=100)), "TensorFlow type 1152921504606846976"),
    "another data file": (one(entry((5, 5), shard=1)), "kernel is in data file 1, of 1"),
    "overlap": (records((b"a", SOUND), (b"b", entry((5,), offset=80))), "a and b overlap"),
    "same place": (records((b"a", SOUND), (b"b", SOUND)), "a and b overlap"),
    "wrong checksum": (one(SOUND), "kernel is damaged (wrong checksum)"),
    "name that moves the cursor": (records((b"\x1b[2Jkernel", SOUND)), "'\\x1b[2Jkernel'"),
    "name of two lines": (records((b"ker\nnel", SOUND)), "'ker\\nnel'"),
    "name in Chinese": (records(("内核".encode(), SOUND)), "a name that TensorFlow would not give"),
    "names unsorted": (records((b"b", SOUND), (b"a", SOUND)), "not sorted"),
    "name twice": (records((b"a", SOUND), (b"a", SOUND)), "not sorted"),
    "header twice": (records((b"", header())), "not sorted"),
    "field of a group": (one(b"\x0b"), "a field of type 3"),
    "field cut off": (one(b"\x12\x05abc"), "a field goes on after its message"),
    "huge field": (one(b"\x12" + varint(HUGE)), "a field goes on after its message"),
    "number cut off": (one(b"\x08\xff"), "ends within a number"),
    "fixed number cut off": (one(fixed(6, 1)[:-1]), "a field goes on after its message"),
    "number of eleven bytes": (one(b"\x08" + b"\xff" * 10 + b"\x01"), "more than ten bytes"),
    "long value": (one(bytes(1 << 17)), "a record does not fit its block"),
    "block within a block": (blocks(FIRST, index=lambda start: [(0, len(FIRST)), (4, 4)]), "its blocks overlap"),
    "block twice": (blocks(FIRST, index=lambda start: [(0, len(FIRST))] * 2), "its blocks overlap"),
    "addresses of themselves": (blocks(FIRST, index=lambda start: [(0, len(FIRST)), (start, 20)]), "a wrong checksum"),
    "address beyond the file": (blocks(FIRST, index=lambda start: [(0, len(FIRST)), (start, HUGE)]), "a block ends at"),
    "block without restarts": (blocks(b""), "a block is too short"),
    "block of restarts alone": (blocks(b"\xff\xff\xff\xff"), "a block is too short"),
    "shares more than there is": (blocks(FIRST[:-8] + b"\x09\x01\x00x" + bytes(4)), "a record does not fit its block"),
    "key beyond its block": (blocks(b"\x00\xff\x7f\x00x" + bytes(4)), "a record does not fit its block"),
    "value beyond its block": (blocks(b"\x00\x01\xff\x7fx" + bytes(4)), "a record does not fit its block"),
    "ever longer names": (
        blocks(FIRST, block([(b"k" * length, SOUND) for length in range(1, 600)], interval=1000)),
        "a record does not fit its block",
    ),
}


@pytest.mark.parametrize(("index", "what"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_index(index: bytes, what: str, tmp_path: Path) -> None:
    assert what in refusal(write_index(tmp_path, index))


def test_limits_on_what_takes_memory(tmp_path: Path) -> None:
    prefix = write_index(tmp_path, records(*((b"kernel_%02d" % place, entry()) for place in range(20))))
    for limits, what in ((Limits(operations=19), "19 operations"), (Limits(bytes=20_000), "20,000 bytes of memory")):
        with pytest.raises(CheckpointError, match=f"it would take more than {what}"):
            open_tensor_bundle(prefix, limits)
    with prefix.with_suffix(".index").open("r+b") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    assert "it would take more than 134,217,728 bytes of memory" in refusal(prefix)


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", TENSORS, shards=5)
    for shard in (0, 1, 3, 4):
        (tmp_path / f"model.data-0000{shard}-of-00005").unlink()
    message = refusal(tmp_path / "model")
    assert "data-00000-of-00005, model.data-00001-of-00005, model.data-00003-of-00005 and 1 more" in message
    (tmp_path / "model.index").unlink()
    assert "no such file, but a TensorFlow checkpoint needs its index" in refusal(tmp_path / "model")


def test_empty_data_file(tmp_path: Path) -> None:
    assert "ends after 0 bytes" in refusal(write_index(tmp_path, one(SOUND), b""))


@pytest.mark.parametrize("name", ["model.index", "model.data-00000-of-00001"])
def test_links_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_bundle(folder / "model", TENSORS)
    (folder / name).rename(folder / "inside")
    (folder / name).symlink_to("inside")
    open_tensor_bundle(folder / "model").read("a/kernel")
    (folder / "inside").rename(tmp_path / "outside")
    (folder / name).unlink()
    (folder / name).symlink_to("../outside")
    with pytest.raises(CheckpointError, match=f"{name}' leads out of the folder. Put the file itself into it."):
        open_tensor_bundle(folder / "model")
