"""Files of a few kilobytes or megabytes that took gigabytes or hours: each is refused at once with one short line."""

from __future__ import annotations

import itertools
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints.hostile_pickles import text
from tests.checkpoints.hostile_torch_files import archive
from tests.checkpoints.refusals import refusal
from tests.helpers.paths import ROOT
from tests.helpers.tiers import thinned
from xlexport.checkpoints.files import JSON_LIMITS, read_json, read_tensors, safetensors_names
from xlexport.checkpoints.safe_pickle import read
from xlexport.checkpoints.vocabularies import TEXT_LIMITS, read_vocabulary
from xlexport.errors import CheckpointError
from xlexport.formats import load
from xltraining.architectures import architecture_of
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXLConfig

ROOM = 1 << 30  # bytes that reading may take in addition to the memory before
SMALL = ReformerConfig(
    n_token=4, d_model=4, n_head=1, d_head=4, d_inner=4, attn_layers=("lsh",), n_buckets=(2,), axial_shape=(2, 2),
    axial_dims=(2, 2), max_positions=4,
)  # fmt: skip
TINY = TransformerXLConfig(n_token=4, n_layer=1, n_head=1, d_model=2, d_head=1, d_inner=2)
READ_EACH = """
import json, resource, sys
from pathlib import Path
import torch, safetensors.torch, xltraining.checkpoint
from xlexport.formats import load
taken = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10
resource.setrlimit(resource.RLIMIT_DATA, (taken + int(sys.argv[1]), resource.RLIM_INFINITY))
for path in sys.argv[2:]:
    try:
        load(Path(path))
        print(json.dumps(["read", ""]), flush=True)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)[:100_000]]), flush=True)
"""


def folder(
    path: Path, config: dict[str, Any], architecture: str = "reformer", tensors: dict[str, torch.Tensor] | None = None
) -> None:
    """Write a folder as xltraining does, with any configuration and tensors."""
    path.mkdir()
    content = {"format": "xltraining", "version": 3, "architecture": architecture, "config": config}
    (path / "config.json").write_text(json.dumps(content))
    save_file(tensors or {"x": torch.zeros(1)}, path / "model.safetensors")


def rotations(path: Path) -> None:
    folder(path, {**SMALL.to_dict(), "n_buckets": [1_000_000], "n_head": 4, "d_head": 64, "n_hashes": 4})


def rotations_within_the_bound(path: Path) -> None:
    """Write a folder whose rotations take a quarter of a gigabyte if they are drawn."""
    folder(path, {**SMALL.to_dict(), "n_buckets": [1 << 24]})


def lists(path: Path) -> None:
    folder(path, SMALL.to_dict())
    (path / "config.json").write_bytes(b"[" + b"[]," * 20_000_000 + b"0]")


def unknown_tensors(path: Path) -> None:
    folder(path, SMALL.to_dict())
    entry = '"unknown_%d":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    header = "{" + ",".join(entry % (n, 4 * n, 4 * n + 4) for n in range(300_000)) + "}"
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(4 * 300_000)
    (path / "model.safetensors").write_bytes(content)


def header(path: Path) -> None:
    """Write a file whose header claims to be as long as memory."""
    folder(path, SMALL.to_dict())
    (path / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")


def long_header(path: Path) -> None:
    """Write a file with a long header; the safetensors library accepts up to 100 MB."""
    folder(path, SMALL.to_dict())
    long = b'{"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(3_000_000)) + b"}}"
    (path / "model.safetensors").write_bytes(len(long).to_bytes(8, "little") + long)


def copies(path: Path) -> None:
    """Write nine-byte references to a table; PyTorch copies the table for each call, and keeps the copies."""
    table = b"}(" + b"".join(b"J" + number.to_bytes(4, "little") + b"N" for number in range(200_000)) + b"u"
    made = b"ccollections\nOrderedDict\n" + table + b"\x85r\1\1\0\0R"
    again = text("a") + b"ccollections\nOrderedDict\nj\1\1\0\0Rr%bs"
    rest = b"".join(again.replace(b"%b", struct.pack("<I", 300 + number)) for number in range(60))
    fields = text("config") + b"}" + text("state_dict") + b"}" + text("version") + b"K\x03"
    path.write_bytes(archive(b"}(" + text("format") + text("xltraining") + fields + text("b") + made + b"u" + rest))


def sizes_without_numbers(path: Path) -> None:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(0).as_strided(shape, (1,) * len(shape))

    tables = {"word_emb.emb_layers.0.weight": empty(0, 1 << 50), "word_emb.emb_layers.1.weight": empty(0, 3)}
    torch.save({**tables, "crit.cluster_weight": empty(1 << 40, 0), "r_w_bias": empty(1 << 40, 0)}, path)


def names_without_end(path: Path) -> None:
    """Write deeply nested modules with long names, the innermost with many parameters."""
    module = b"cmem_transformer\nMemTransformerLM\n)\x81}"
    names = b"".join(text(f"{number:05d}" + "a" * 500) + b"N" for number in range(5000))
    parts = module + text("_parameters") + b"}(" + names + b"usb"
    for _ in range(20):
        parts = module + text("_modules") + b"}" + text("a" * 4000) + parts + b"ssb"
    path.write_bytes(archive(parts))


FILES: dict[Callable[[Path], None], str] = {
    rotations: "numbers of the rotations) must be at most 67,108,864, found 512,000,000",
    rotations_within_the_bound: "word_emb.weight is missing; ",
    lists: "reading it would take more than 134,217,728 bytes of memory",
    unknown_tensors: "reading it would take more than 134,217,728 bytes of memory",
    header: "reading it would take more than 134,217,728 bytes of memory",
    long_header: "reading it would take more than 134,217,728 bytes of memory",
    copies: "the weights do not fit the configuration",
    sizes_without_numbers: "settings of this state dict are missing or wrong: pre_lnorm is not given",
    names_without_end: "more than 50,000 parts, or with a name of more than 512 characters",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the outcome of each file in a process limited to a gigabyte: the error's class and message."""
    if sys.platform != "linux":
        pytest.skip("only Linux bounds what a process takes, and says what it has")
    place = tmp_path_factory.mktemp("limits")
    paths = {make.__name__: place / make.__name__ for make in FILES}
    for make in FILES:
        make(paths[make.__name__])
    command = [sys.executable, "-c", READ_EACH, str(ROOM), *map(str, paths.values())]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return dict(zip(paths, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.mark.full
@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_refused_within_a_gigabyte(make: Callable[[Path], None], outcomes: dict[str, list[str]]) -> None:
    kind, message = outcomes[make.__name__]
    assert kind == "CheckpointError", message
    assert FILES[make] in message
    assert message.isprintable() and len(message) < 2000


def test_pytorchs_reader_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that only one parser reads a file: another one's memory would not be counted."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, SMALL, Reformer(SMALL).state_dict())
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    assert load(path).build_model().config == SMALL


@pytest.mark.parametrize("what", ["format", "version", "architecture", "tokenizer", "config", "state_dict"])
@pytest.mark.parametrize(
    "value", [torch.ones(3), torch.tensor(3), True, [], {}, "x", 1.0, b"bytes", {"a": [1]}], ids=repr
)
def test_fields_of_other_kinds_are_refused(what: str, value: Any, tmp_path: Path) -> None:
    content = {"format": "xltraining", "version": 3, "architecture": "transformer_xl", "config": TINY.to_dict()}
    path = tmp_path / "checkpoint.pt"
    torch.save(
        {"about": ("format", "xltraining"), **content, "tokenizer": "bytes", "state_dict": {}, what: value}, path
    )
    assert len(refusal(path)) < 2000
    assert len(refusal(path, format="xltraining")) < 2000


@pytest.mark.parametrize(
    "name", thinned([*SMALL.to_dict(), *TINY.to_dict(), "other"], ["n_token", "n_buckets", "cutoffs"])
)
def test_values_of_a_configuration_are_bounded(name: str, tmp_path: Path) -> None:
    values = [10**4000, -(10**4000), [10**4000] * 9, [-(10**4000)] * 9, ["a" * 5000] * 99, "\n" * 5000, {}, 1e300, -1]
    for number, (value, own) in enumerate(itertools.product(values, (SMALL, TINY))):
        path = tmp_path / str(number)
        folder(path, {**own.to_dict(), name: value}, architecture_of(own))
        assert len(refusal(path)) < 2000


@pytest.mark.parametrize("content", [b"cos\nsystem\n", b"cos\nsystem\n(S'echo'\ntR.", b"(dp0\nS'idx2sym'\n", b"I1\n"])
@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".pt", ".bin"])
def test_a_cut_pickle_is_not_read_as_text(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"vocab{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"could run code \('os\.system'\)|damaged or cut off"):
        read_vocabulary(path)


def test_lines_and_symbols_of_a_vocabulary_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(map(str, range(1000))))
    with pytest.raises(CheckpointError, match="more than 998 operations"):
        read_vocabulary(path, limits=replace(TEXT_LIMITS, operations=998))
    path.write_text("word\n" + "a" * 4097)
    with pytest.raises(CheckpointError, match="symbol 1 has 4,097, expected at most 4,096 characters"):
        read_vocabulary(path)
    path.with_suffix(".pkl").write_bytes(pickle.dumps({"idx2sym": ["a" * 4097] * 1000}))
    with pytest.raises(CheckpointError, match="symbol 0 has 4,097"):
        read_vocabulary(path.with_suffix(".pkl"))


def test_every_reader_takes_limits(tmp_path: Path) -> None:
    small = replace(JSON_LIMITS, bytes=1000)
    (tmp_path / "config.json").write_text(json.dumps({"a": [1, 2, 3] * 100}))
    save_file({f"tensor_{number}": torch.zeros(1) for number in range(20)}, tmp_path / "model.safetensors")
    torch.save({f"tensor_{number}": torch.zeros(1) for number in range(20)}, tmp_path / "model.pt")
    for reader, name in (
        (read_json, "config.json"),
        (read_tensors, "model.safetensors"),
        (read_tensors, "model.pt"),
        (read, "model.pt"),
    ):
        path = tmp_path / name
        assert reader(path)
        with pytest.raises(CheckpointError, match=r"model|config.*: reading it would take more than") as caught:
            reader(path, limits=small)
        assert "1,000 bytes" in str(caught.value) or "cut off or damaged" in str(caught.value)
    assert safetensors_names(tmp_path / "model.safetensors") and not safetensors_names(
        tmp_path / "model.safetensors", small
    )
