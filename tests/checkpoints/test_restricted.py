"""The restricted reader returns the content of plain files, with inert records for objects."""

from __future__ import annotations

import argparse
import gc
import io
import pickle
import re
import sys
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from xlexport.checkpoints import safe_pickle
from xlexport.checkpoints.safe_pickle import Record
from xlexport.errors import CheckpointError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
BOTH_CONTAINERS = pytest.mark.parametrize("new", [True, False], ids=["archive", "legacy"])
DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values(protocol: int, pickled: Callable[..., Any]) -> None:
    content = {
        "numbers": [0, 1, -1, 255, 256, 65536, -(2**31), 2**31, 2**80, -(2**80), 0.1, -1e300, float("inf")],
        "texts": ["", "a", "é", "€\U0001f600", "\ud800", "a" * 300, "a'\"\\\n\t\r\x00"],
        "bytes": [b"", b"\x00\xff", bytes(300), bytearray(b"abc")],
        "none": (None, True, False),
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "sets": [set(), {1, 2}, frozenset({"a"})],
        "nested": [[[], {}], {"a": {"b": [1]}}],
        1: "number as key",
        None: "none as key",
        ("a", "b"): "pair as key",
    }
    content["twice"] = [content["texts"], content["texts"]]
    read = pickled(content, protocol)
    assert read == content
    assert [type(value) for value in read["sets"]] == [set, set, frozenset]
    assert [type(value) for value in read["bytes"]] == [bytes] * 4
    assert read["twice"][0] is read["texts"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_dicts_of_some_kind_are_dicts(protocol: int, pickled: Callable[..., Any]) -> None:
    ordered = OrderedDict(b=1, a=2)
    read = pickled([ordered, Counter("aab"), defaultdict(list, {"a": [1]}), OrderedDict(), Counter()], protocol)
    assert read == [{"b": 1, "a": 2}, {"a": 2, "b": 1}, {"a": [1]}, {}, {}]
    assert {type(value) for value in read} == {dict}
    assert list(read[0]) == ["b", "a"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
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
    for protocol in PROTOCOLS:
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
    for protocol in PROTOCOLS:
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


def test_long_data_stays_in_the_file(pickled: Callable[..., Any]) -> None:
    array = np.arange(500_000)  # four million bytes
    for protocol in (2, 3, 4):
        record = pickled({"train": array, "after": 1}, protocol)
        assert record["after"] == 1
        assert isinstance(record["train"], Record)
    text = pickled(["a" * (1 << 20), "b" * ((1 << 20) + 1)])
    assert type(text[0]) is str
    assert isinstance(text[1], memoryview)
    assert bytes(text[1][:2]) == b"bb"


@pytest.mark.full
def test_large_vocabulary(pickled: Callable[..., Any]) -> None:
    """Read as many words as WikiText-103 has; Python's own unpickler needs 80 MB for them."""
    words = [f"word{number}" for number in range(267_735)]
    table = OrderedDict((word, number) for number, word in enumerate(words))
    read = pickled({"idx2sym": words, "sym2idx": table, "counter": Counter(dict.fromkeys(words, 300))})
    assert read["idx2sym"] == words
    assert read["sym2idx"] == table
    assert len(read["counter"]) == len(words)


def test_package_is_the_only_entry() -> None:
    package = Path(safe_pickle.__file__).parent
    private = f"{safe_pickle.__name__}."
    outside = [file for file in package.parents[1].rglob("*.py") if package not in file.parents]
    assert len(outside) > 100
    assert not [file.name for file in outside if private in file.read_text("utf-8")]


def test_recursive_or_deep_objects_are_refused(pickled: Callable[..., Any]) -> None:
    circle: list[Any] = []
    circle.append([circle])
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for content in (circle, deep):
        with pytest.raises(CheckpointError, match="contains itself, or is nested more deeply"):
            pickled(content)
    assert pickled(deep[0]) == deep[0]


def test_data_after_a_pickle_is_refused(pickled: Callable[..., Any]) -> None:
    with pytest.raises(CheckpointError, match="4 bytes follow the pickle in it"):
        pickled(pickle.dumps(1) + b"more")


@BOTH_CONTAINERS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors(dtype: torch.dtype, new: bool, saved: Callable[..., Any]) -> None:
    tensor = torch.arange(-3, 9).reshape(3, 4).to(dtype)
    read = saved({"whole": tensor, "scalar": tensor[1, 1], "none": tensor[:0], "parameters": [tensor] * 2}, new)
    assert torch.equal(read["whole"], tensor)
    assert torch.equal(read["scalar"], tensor[1, 1])
    assert read["none"].shape == (0, 4)
    assert {value.dtype for value in (read["whole"], read["scalar"], read["none"])} == {dtype}
    assert read["parameters"][0] is read["parameters"][1]
    assert read["whole"].data_ptr() % dtype.itemsize == 0  # in old files, numbers can be at any address


@BOTH_CONTAINERS
def test_views_and_ties_share_numbers_as_they_did(new: bool, saved: Callable[..., Any]) -> None:
    base = torch.arange(24.0)
    views = {"base": base, "rows": base.view(4, 6)[1:3], "turned": base.view(4, 6).t(), "steps": base[1::5]}
    read = saved({**views, "alone": base.clone()}, new)
    for name, view in views.items():
        assert torch.equal(read[name], view)
        assert read[name].stride() == view.stride()
        assert read[name].untyped_storage().data_ptr() == read["base"].data_ptr()
    assert read["alone"].data_ptr() != read["base"].data_ptr()


@BOTH_CONTAINERS
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


@BOTH_CONTAINERS
def test_objects_in_checkpoints_other_than_tensors(new: bool, saved: Callable[..., Any]) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    content = {
        "args": argparse.Namespace(dtype=torch.float16, device=torch.device("cpu")),
        "model_state": model.state_dict(),
        "optimizer_state": optimizer.state_dict(),
        "rng_states": [torch.get_rng_state(), np.random.RandomState(0).get_state()],
        "size": torch.Size([2, 3]),
        "best": float("inf"),
    }
    read = saved(content, new)
    assert torch.equal(read["model_state"]["weight"], model.weight)
    assert type(read["model_state"]) is dict
    assert torch.equal(read["optimizer_state"]["state"][0]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert torch.equal(read["rng_states"][0], torch.get_rng_state())
    assert read["size"] == (2, 3)
    dtype, device = read["args"].get("dtype"), read["args"].get("device")
    assert (dtype.name, device.name, device.arguments) == ("torch.float16", "torch.device", ("cpu",))


@BOTH_CONTAINERS
def test_pickle_protocols_of_torch(new: bool, saved: Callable[..., Any]) -> None:
    for protocol in PROTOCOLS[2:]:
        assert torch.equal(saved({"a": torch.ones(3)}, new, pickle_protocol=protocol)["a"], torch.ones(3))


def test_tensor_with_attributes(saved: Callable[..., Any]) -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.model_parallel = False  # type: ignore[attr-defined]
    assert torch.equal(saved({"a": parameter})["a"], torch.ones(3))


@pytest.mark.parametrize("has_part", [True, False])
def test_parts_of_storages_in_old_files_are_refused(has_part: bool, tmp_path: Path) -> None:
    """Refuse parts of storages, which existed only before PyTorch 0.4, and thus before Transformer-XL."""
    whole = torch.arange(6.0)

    class Old(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return value.reference if isinstance(value, Stand) else None

    class Stand:
        def __init__(self, *view: Any) -> None:
            self.reference = ("storage", torch.FloatStorage, "94", "cpu", 6, view or None)

    class Tensor:
        def __init__(self, storage: Stand, offset: int, size: int) -> None:
            self.made = (storage, offset, (size,), (1,))

        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor, self.made

    file = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}):
        pickle.dump(part, file, protocol=2)
    Old(file, protocol=2).dump([Tensor(Stand(), 0, 6), *([Tensor(Stand("95", 2, 4), 1, 3)] if has_part else [])])
    pickle.dump(["94"], file, protocol=2)
    file.write((6).to_bytes(8, "little") + whole.numpy().tobytes())
    path = tmp_path / "model.pt"
    path.write_bytes(file.getvalue())
    if has_part:
        with pytest.raises(CheckpointError, match="or to a part of a storage"):
            safe_pickle.read(path)
    else:
        assert torch.equal(safe_pickle.read(path)[0], whole)


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
