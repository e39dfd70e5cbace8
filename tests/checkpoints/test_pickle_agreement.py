"""On files of honest programs, the machine of pickles returns the same as `pickle.load` and `torch.load`."""

from __future__ import annotations

import pickle
import string
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from xlexport.checkpoints.safe_pickle import read
from xlexport.errors import CheckpointError

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
PROTOCOLS = st.integers(0, pickle.HIGHEST_PROTOCOL)
CHECKED = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(max_size=20) | st.text(string.ascii_letters, min_size=1, max_size=300)
numbers = st.integers() | st.integers(-(1 << 600), 1 << 600) | st.floats() | st.booleans()
leaves = st.none() | numbers | texts | st.binary(max_size=300)
keys = (
    st.none() | st.booleans() | st.integers(-(1 << 59), 1 << 59) | st.floats(allow_nan=False)
    | texts | st.binary(max_size=20) | st.tuples(texts, texts)
)  # fmt: skip


def containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    tables = st.dictionaries(keys, values, max_size=5)
    return (
        st.lists(values, max_size=6)
        | st.lists(values, max_size=6).map(tuple)
        | tables
        | tables.map(OrderedDict)
        | tables.map(lambda table: defaultdict(list, table))
        | st.lists(texts, max_size=6).map(Counter)
        | st.sets(keys, max_size=6)
        | st.frozensets(keys, max_size=6)
        | st.binary(max_size=300).map(bytearray)
        | values.map(lambda value: [value, {"again": value}, (value, value)])
    )


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Draw a tensor, a parameter, or several tensors that share one storage."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    base = torch.arange(-20, 605).remainder(251).to(dtype)
    whole = base[: torch.Size(shape).numel()].clone().reshape(shape)
    kind = draw(st.sampled_from(("whole", "views", "parameter", "strides", "scalar", "buffer")))
    if kind == "views":
        first, last = sorted(draw(st.tuples(st.integers(0, 600), st.integers(0, 600))))
        return {"base": base, "part": base[first:last], "turned": base[:600].view(20, 30).t(), "same": base}
    if kind == "strides":
        return base[:600].view(2, 3, 4, 25)[:, draw(st.integers(0, 2)), :: draw(st.integers(1, 4))]
    if kind == "parameter" and dtype.is_floating_point:
        return nn.Parameter(whole, requires_grad=draw(st.booleans()))
    if kind == "buffer":
        return [whole, whole]
    return base[draw(st.integers(0, 600))] if kind == "scalar" else whole


plain_values = st.recursive(leaves, containers, max_leaves=30)
tensor_trees = st.recursive(
    tensors() | numbers | texts | st.none(),
    lambda values: (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=4).map(tuple)
        | st.dictionaries(texts, values, max_size=4)
        | st.dictionaries(texts, values, max_size=4).map(OrderedDict)
        | values.map(lambda value: {"value": value, "again": [value]})
    ),
    max_leaves=8,
)


def assert_same(found: Any, expected: Any, pairs: dict[int, int]) -> None:
    """Compare two trees. An object that is shared in the expected tree is shared in the other.

    The machine makes plain dicts of all kinds of dicts, bytes of bytearrays, and tensors of parameters.
    """
    if isinstance(expected, list | dict | set | Tensor):
        assert pairs.setdefault(id(expected), id(found)) == id(found) or not expected_is_shared(expected)
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor) and found.dtype == expected.dtype
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())
        assert found.storage_offset() == expected.storage_offset() or not expected.numel()
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert type(found) is dict and list(map(repr, found)) == list(map(repr, expected))
        for (_, one), (_, other) in zip(found.items(), expected.items(), strict=True):
            assert_same(one, other, pairs)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, pairs)
    elif isinstance(expected, bytearray):
        assert found == bytes(expected) and type(found) is bytes
    else:
        assert type(found) is type(expected)
        equal = repr(found) == repr(expected) if isinstance(expected, float) else found == expected
        assert equal  # as they are written: nan differs from itself, and zeros have signs


def expected_is_shared(value: Any) -> bool:
    """Return whether a value must be shared: empty ones may be made at each place."""
    return not isinstance(value, Tensor) and bool(value)


def storages(value: Any) -> list[int]:
    """Return the address of each tensor's storage in a tree as a rank: tensors of one storage have the same."""
    found: list[Tensor] = []

    def visit(part: Any) -> None:
        if isinstance(part, Tensor):
            found.append(part)
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ():
            visit(inner)

    visit(value)
    ranks: dict[int, int] = {}
    return [ranks.setdefault(t.untyped_storage().data_ptr(), len(ranks)) for t in found if t.untyped_storage().size()]


@CHECKED
@given(value=plain_values, protocol=PROTOCOLS)
def test_plain_values_as_pickle_reads_them(value: Any, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "value.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert_same(read(path), pickle.loads(path.read_bytes()), {})


@CHECKED
@given(value=plain_values, protocol=PROTOCOLS)
def test_plain_values_as_the_slow_pickler_writes_them(value: Any, protocol: int, tmp_path: Path) -> None:
    """Compare pickles of the pickler in Python, whose frames are at other places, as in other programs' files."""
    path = tmp_path / "value.pkl"
    with path.open("wb") as file:
        pickle._Pickler(file, protocol).dump(value)
    assert_same(read(path), pickle.loads(path.read_bytes()), {})


@CHECKED
@given(value=tensor_trees, new=st.booleans(), protocol=st.integers(2, 5))
def test_tensors_as_torch_reads_them(value: Any, new: bool, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "value.pt"
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    expected = torch.load(path, weights_only=protocol == 2)  # it cannot read pickles of newer protocols
    found = read(path)
    assert_same(found, expected, {})
    assert storages(found) == storages(expected)


@pytest.mark.parametrize("new", [True, False], ids=["archive", "legacy"])
def test_state_of_training_as_torch_reads_it(new: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 3), nn.LayerNorm(3))
    model[0].weight.model_parallel = False
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model[1](model[0](torch.arange(5)))[0].sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": {name: value for name, value in schedule.state_dict().items() if not callable(value)},
        "random": torch.get_rng_state(),
        "size": torch.Size([2, 3]),
    }
    path = tmp_path / "run.pt"
    torch.save(content, path, _use_new_zipfile_serialization=new)
    expected = torch.load(path, weights_only=True)
    found = read(path)
    assert type(expected.pop("size")) is torch.Size and found.pop("size") == (2, 3)
    assert_same(found, expected, {})


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1j, "<'__builtin__.complex'>"),
        (range(3), None),
        ({1 << 60: 1}, None),
        ({"a" * 4097: 1}, None),
        ({(1, 2): 1}, None),
        ({frozenset(): 1}, None),
        (nested(101), None),
        (torch.tensor(1j), None),
        (torch.tensor(1).to(torch.uint16), None),
        (torch.zeros(1).to(torch.float8_e4m3fn), None),
        (torch.eye(2).to_sparse(), None),
        (torch.ones(1, device="meta"), None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_objects_that_only_torch_reads(value: Any, found: str | None, tmp_path: Path) -> None:
    """Refuse or keep as records the objects that no language model needs: long keys, deep nesting, other tensors."""
    path = tmp_path / "value.pt"
    torch.save({"value": value}, path)
    assert "value" in torch.load(path, weights_only=False)  # trusted: the line above wrote it
    if found is None:
        with pytest.raises(CheckpointError):
            read(path)
    else:
        assert repr(read(path)["value"]) == found


def test_long_texts_are_views_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "value.pkl"
    path.write_bytes(pickle.dumps("a" * (1 << 21)))
    view = read(path)
    assert type(view) is memoryview and view == b"a" * (1 << 21)
