"""The machine of pickles counts its operations and its values' memory before it makes the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.hostile_torch_files import archive, tensor
from xlexport.checkpoints import safe_pickle
from xlexport.checkpoints.safe_pickle import PICKLE_LIMITS
from xlexport.errors import CheckpointError
from xlruntime.limits import Limits


def test_operations_are_limited(pickled: Callable[..., Any]) -> None:
    content = b"\x80\x02" + b"N0" * 500 + b"N."
    assert pickled(content) is None
    with pytest.raises(CheckpointError, match="more than 1,000 operations"):
        pickled(content, limits=replace(PICKLE_LIMITS, operations=1000))


NAMESPACE = b"cargparse\nNamespace\nq\x00"
COUNTED = {
    "places on the stack": (b"", b"N", b""),
    "marks": (b"N", b"(", b"ttt0"),
    "numbers": (b"", b"J\x01\x01\x01\x010", b"N"),
    "texts": (b"", b"X\x02\x00\x00\x00ab0", b"N"),
    "bytes": (b"", b"C\x02ab0", b"N"),
    "lists": (b"", b"]0", b"N"),
    "tuples": (b"", b")\x850", b"N"),
    "tuples of some": (b"Nq\x00", b"(h\x00h\x00h\x00t0", b""),
    "dicts": (b"", b"}0", b"N"),
    "sets": (b"", b"\x8f0", b"N"),
    "frozensets": (b"", b"(K\x01\x910", b"N"),
    "elements of a list": (b"]", b"Na", b""),
    "several elements of a list": (b"]", b"(NNe", b""),
    "elements of a set": (b"\x8f", b"(K\x01\x90", b""),
    "items by number": (b"}", b"K\x01Ns", b""),
    "items by text": (b"}X\x01\x00\x00\x00aq\x010", b"h\x01Ns", b""),
    "memo": (b"N", b"\x94", b""),
    "memo in no order": (b"N", b"r\x00\x00\x01\x00", b""),
    "names": (b"", NAMESPACE + b"0", b"N"),
    "objects": (NAMESPACE, b"h\x00)R0", b""),
    "state": (NAMESPACE + b")R}(K\x01NK\x02NK\x03Nuq\x010", b"h\x01b", b""),
    "arguments of objects": (NAMESPACE + b"0(NNNNNNNNNNtq\x010", b"h\x00h\x01\x810", b"N"),
    "dicts that are made": (b"ccollections\nOrderedDict\nq\x00]q\x010", b"h\x00)R0", b""),
    "sets that are made": (b"c__builtin__\nset\nq\x00(K\x01K\x02K\x03l\x85q\x010", b"h\x00h\x01R0", b""),
}


@pytest.mark.parametrize("what", COUNTED)
def test_memory_is_counted(what: str, pickled: Callable[..., Any]) -> None:
    """Refuse ten thousand of each: each counts for nine bytes or more, together more than 80 KB."""
    before, repeated, after = COUNTED[what]
    pickled(b"\x80\x04" + before + repeated * 3 + after + b".")
    with pytest.raises(CheckpointError, match="more than 80,000 bytes of memory"):
        pickled(b"\x80\x04" + before + repeated * 10_000 + after + b".", limits=Limits(bytes=80_000))


def test_part_of_the_memory_is_for_words_alone(pickled: Callable[..., Any]) -> None:
    content = [f"word{number}" for number in range(3000)]
    limits = Limits(bytes=800_000)
    assert pickled(content, limits=limits) == content
    with pytest.raises(CheckpointError, match="more than 800,000 bytes of memory"):
        pickled([[number] for number in range(5000)], limits=limits)
    with pytest.raises(CheckpointError, match="more than 800,000 bytes of memory"):
        pickled([f"word{number}" for number in range(12_000)], limits=limits)


def test_arguments_within_arguments_are_counted(tmp_path: Path) -> None:
    """Count the arguments of each call: for nine bytes of the file, a call walked a tuple of a million references."""
    storage_and_shape, end = tensor()[len(b"ctorch._utils\n_rebuild_tensor_v2\n") : -2], b"}tq\x020"
    arguments = b"}q\x010" + storage_and_shape + b"h\x01" * 100_000 + b"tq\x000"
    typed = (
        b"ctorch._tensor\n_rebuild_from_type_v2\nq\x010(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\nh\x00" + end
    )
    path = tmp_path / "model.pt"
    path.write_bytes(archive(arguments + typed + b"(" + b"h\x01h\x02R0" * 2 + b"l"))
    assert safe_pickle.read(path) == []
    path.write_bytes(archive(arguments + typed + b"(" + b"h\x01h\x02R0" * 400 + b"l"))
    with pytest.raises(CheckpointError, match="bytes of memory"):
        safe_pickle.read(path)


def test_long_keys_are_refused(pickled: Callable[..., Any]) -> None:
    """Refuse long keys: looking up a long text in a dict compares all of it, each time."""
    for content in ({"a" * 4097: 1}, {b"a" * 4097: 1}, {("a" * 4097, "b"): 1}, {"a" * 4097}):
        with pytest.raises(CheckpointError, match="other things than short texts"):
            pickled(content)
    assert pickled({"a" * 4096: 1}) == {"a" * 4096: 1}


def test_numbers_that_all_tensors_share_are_counted(saved: Callable[..., Any]) -> None:
    """Count shared numbers: each tensor becomes float32, so a shared megabyte in a thousand tensors takes gigabytes."""
    base = torch.zeros(1_000_000, dtype=torch.float16)
    assert len(saved([base[:-1] for _ in range(16)])) == 16
    with pytest.raises(CheckpointError, match="the same numbers more often"):
        saved([base[:-1] for _ in range(30)])
