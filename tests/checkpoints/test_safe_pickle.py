"""The reader of pickles returns what `pickle.load` and `torch.load` do on honest files, records, and within limits."""

from __future__ import annotations

import argparse
import gc
import io
import pickle
import re
import string
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.checkpoints.hostile_torch_files import archive, tensor
from xlexport.checkpoints import safe_pickle
from xlexport.checkpoints.safe_pickle import PICKLE_LIMITS, Record, read
from xlexport.errors import CheckpointError
from xlruntime.limits import Limits

ALL_PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
BOTH_CONTAINERS = pytest.mark.parametrize("new", [True, False], ids=["archive", "legacy"])
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
        assert found.data_ptr() % found.dtype.itemsize == 0  # in old files, numbers can be at any address
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


def slow_dumps(value: Any, protocol: int) -> bytes:
    """Return what the pickler in Python writes, whose frames are at other places, as in other programs' files."""
    file = io.BytesIO()
    pickle._Pickler(file, protocol).dump(value)
    return file.getvalue()


ODD = ["\ud800", 2**80, -(2**31), 255, 256, 65536, float("inf"), (1, 2, 3, 4)]


@CHECKED
@given(value=plain_values, protocol=PROTOCOLS, dumps=st.sampled_from((pickle.dumps, slow_dumps)))
@example(value=ODD, protocol=0, dumps=pickle.dumps)
@example(value=ODD, protocol=4, dumps=slow_dumps)
@pytest.mark.full
def test_plain_values_as_pickle_reads_them(
    value: Any, protocol: int, dumps: Callable[[Any, int], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "value.pkl"
    path.write_bytes(dumps(value, protocol))
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
        "args": argparse.Namespace(dtype=torch.float16, device=torch.device("cpu")),
        "numpy": np.random.RandomState(0).get_state(),
    }
    path = tmp_path / "run.pt"
    torch.save(content, path, _use_new_zipfile_serialization=new)
    expected = torch.load(path, weights_only=False)  # trusted: the line above wrote it
    found = read(path)
    assert type(expected.pop("size")) is torch.Size and found.pop("size") == (2, 3)
    dtype, device = (found["args"].get(name) for name in ("dtype", "device"))
    assert (dtype.name, device.name, device.arguments) == ("torch.float16", "torch.device", ("cpu",))
    assert isinstance(found.pop("numpy")[1], Record)
    del expected["numpy"], expected["args"], found["args"]
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


def test_long_data_stays_in_the_file(pickled: Callable[..., Any]) -> None:
    for protocol in (2, 3, 4):
        record = pickled({"train": np.arange(500_000), "after": 1}, protocol)
        assert record["after"] == 1 and isinstance(record["train"], Record)
    short, long = pickled(["a" * (1 << 20), "b" * ((1 << 20) + 1)])
    assert type(short) is str and type(long) is memoryview and bytes(long[:2]) == b"bb"


# Records.


@pytest.mark.parametrize("protocol", ALL_PROTOCOLS)
def test_objects_are_records(protocol: int, pickled: Callable[..., Any]) -> None:
    read = pickled({"args": argparse.Namespace(mem_len=5, cutoffs=[1, 2])}, protocol)
    record = read["args"]
    assert type(record) is Record
    assert record.name == "argparse.Namespace"
    assert record.state == {"mem_len": 5, "cutoffs": [1, 2]}
    assert (record.get("mem_len"), record.get("absent"), record.get("absent", 7)) == (5, None, 7)
    assert (record.arguments, record.items) == ((), None)


def test_known_class_is_known_in_any_module(pickled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somewhere.else_")
    made = type("Vocab", (), {"__module__": module.__name__})
    module.__dict__["Vocab"] = made
    monkeypatch.setitem(sys.modules, "somewhere", types.ModuleType("somewhere"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vocab = made()
    vocab.__dict__ |= {"idx2sym": ["a"], "lower_case": False}
    for protocol in ALL_PROTOCOLS:
        record = pickled(vocab, protocol)
        assert (record.name, record.get("idx2sym")) == ("somewhere.else_.Vocab", ["a"])


def test_lists_and_dicts_of_a_kind_keep_their_items(pickled: Callable[..., Any]) -> None:
    listing = pickled(b"\x80\x02ctorch.nn\nParameterList\n)\x81(K\x01K\x02eK\x03a}X\x01\x00\x00\x00aNsb.")
    assert (listing.items, listing.state) == ([1, 2, 3], {"a": None})
    table = pickled(b"\x80\x02ctorch.nn\nModuleDict\n)\x81(K\x01K\x02uK\x03K\x04s.")
    assert table.items == {1: 2, 3: 4}


def test_compiled_expressions_of_a_tokenizer_are_inert(pickled: Callable[..., Any]) -> None:
    record = pickled({"pattern": re.compile("[a-z]+", re.IGNORECASE)})["pattern"]
    assert (record.name, record.arguments[0]) == ("re._compile", "[a-z]+")


def test_numbers_of_numpy_are_plain_and_arrays_records(pickled: Callable[..., Any]) -> None:
    for protocol in ALL_PROTOCOLS:
        loss, step, array = pickled([np.float64(1.5), np.int32(-3), np.arange(3)], protocol)
        assert (loss, step) == (1.5, -3)
        assert (type(loss), type(step)) == (float, int)
        assert isinstance(array, Record)
    short = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'f8'\ntRC\x03abctR."
    assert pickled(short).arguments[1] == b"abc"


def test_pickles_of_python_2(pickled: Callable[..., Any]) -> None:
    record = pickled(
        b"\x80\x02cutils.vocabulary\nVocab\nq\x01)\x81q\x02}q\x03("
        b"U\x07idx2symq\x04]q\x05(U\x05<eos>q\x06U\x03\xe2\x82\xacq\x07U\x01\xe9q\x08e"
        b"U\x07sym2idxq\tccollections\nOrderedDict\nq\n]q\x0b(]q\x0c(h\x06K\x00e]q\r(h\x07K\x01ee\x85q\x0eRq\x0f"
        b"U\x04max_q\x10Nub."
    )
    assert record.get("idx2sym") == ["<eos>", "€", "é"]  # UTF-8 where it is valid, else Latin-1
    assert record.get("sym2idx") == {"<eos>": 0, "€": 1}


def test_pickles_of_python_2_in_text(pickled: Callable[..., Any]) -> None:
    record = pickled(
        b"ccopy_reg\n_reconstructor\np1\n(cvocabulary\nVocab\np2\nc__builtin__\nobject\np3\nNtRp4\n"
        b"(dp5\nS'a\\xe9\\n\\\\'\np6\nI7\nsS'b'\nL8L\nsS\"c\"\nI01\nsb."
    )
    assert (record.name, record.state) == ("vocabulary.Vocab", {"aé\n\\": 7, "b": 8, "c": True})
    assert pickled(b"(ivocabulary\nVocab\np0\n(dp1\nS'x'\nF0.5\nsb.").state == {"x": 0.5}


@pytest.mark.release
def test_large_vocabulary(pickled: Callable[..., Any]) -> None:
    """Read as many words as WikiText-103 has; Python's own unpickler needs 80 MB for them."""
    words = [f"word{number}" for number in range(267_735)]
    table = OrderedDict((word, number) for number, word in enumerate(words))
    read = pickled({"idx2sym": words, "sym2idx": table, "counter": Counter(dict.fromkeys(words, 300))})
    assert read["idx2sym"] == words
    assert read["sym2idx"] == table
    assert len(read["counter"]) == len(words)


def test_data_after_a_pickle_is_refused(pickled: Callable[..., Any]) -> None:
    with pytest.raises(CheckpointError, match="4 bytes follow the pickle in it"):
        pickled(pickle.dumps(1) + b"more")


@BOTH_CONTAINERS
@pytest.mark.full
def test_tensors_can_be_changed_and_the_file_stays(new: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(1000)}, path, _use_new_zipfile_serialization=new)
    content = path.read_bytes()
    tensor = safe_pickle.read(path)["a"]
    gc.collect()  # the numbers' memory lives as long as the tensor
    tensor += 1
    assert float(tensor.sum()) == 1000
    assert path.read_bytes() == content
    assert float(safe_pickle.read(path)["a"].sum()) == 0


@BOTH_CONTAINERS
def test_module_is_a_record_with_its_tensors(new: bool, saved: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    first, table = nn.Linear(3, 2), nn.Embedding(4, 2)
    model = nn.Sequential(first, nn.LayerNorm(2), nn.Dropout(0.1), nn.ReLU(), nn.ModuleList([table]))
    model.register_parameter("own", nn.Parameter(torch.ones(2)))
    record = saved(model, new)
    assert record.name == "torch.nn.modules.container.Sequential"
    linear = record.get("_modules")["0"]
    assert linear.name == "torch.nn.modules.linear.Linear"
    assert torch.equal(linear.get("_parameters")["weight"], first.weight)
    assert not linear.get("_parameters")["weight"].requires_grad
    embedding = record.get("_modules")["4"].get("_modules")["0"]
    assert torch.equal(embedding.get("_parameters")["weight"], table.weight)
    assert torch.equal(record.get("_parameters")["own"], torch.ones(2))
    assert record.get("training") is True


def test_archives_take_no_memory_for_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(100, 1000), "b": torch.ones(3)}, path)
    start = safe_pickle.read(path)["a"].data_ptr()
    maps = Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else []
    for line in maps:
        first, end = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= start < end:
            assert str(path) in line
            return
    pytest.skip("only Linux shows what is mapped where")


# Limits.


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


@BOTH_CONTAINERS
def test_tensors_go_with_their_last_reference(new: bool, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(4)}, tmp_path / "run.pt", _use_new_zipfile_serialization=new)
    gc.disable()  # a cycle of the reader that held them would live until the next collection
    try:
        weight = read(tmp_path / "run.pt")["weight"]
        reference = weakref.ref(weight)
        del weight
        assert reference() is None
    finally:
        gc.enable()
