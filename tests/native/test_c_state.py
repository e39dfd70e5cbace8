"""State files are written and read by the C runtime as by Python, byte by byte, with the same refusals."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from reliability.damage import damage_array, damage_bytes, damage_json
from tests.helpers.c_base import CRefusal, ask, outcome
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import EMPTY, GOLDEN, ZEROS, golden_bundle
from tests.runtime.test_state_file import KINDS, with_header
from tests.runtime.test_states_that_lie import LIES
from xlruntime import Model, StateError, load
from xlruntime.bundle import digest_file
from xlruntime.limits import Limits
from xlruntime.state_file import read_state, write_state
from xlruntime.stream_state import KIND, VERSION, read_stream

pytestmark = pytest.mark.native

LIMITS = Limits()
HEADERS = (
    *(b"[]", b"{", b"{}", b'{"__metadata__": []}'),
    *(b'{"__metadata__": {"xlexport": 1}}', b'{"__metadata__": {"xlexport": "["}}'),
)
NAMES = ("post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "two_rings", "reformer_band")


def described(fields: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        "fields": fields,
        "tensors": {
            name: {
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
                "finite": bool(np.isfinite(array).all()),
            }
            for name, array in arrays.items()
        },
    }


def in_c(file: Path, limits: Limits = LIMITS, to: Path | None = None) -> Any:
    asked = {"path": file, "kind": "it", "version": 1, "limits": [limits.bytes, limits.operations]}
    return ask("state", **asked, **({} if to is None else {"to": to}))


def in_python(file: Path, limits: Limits = LIMITS) -> Any:
    return described(*read_state(file, "it", 1, "Save it again.", limits))


def plain(found: Any) -> Any:
    """Return the start of a message about a damaged file; the library words the rest."""
    if isinstance(found, tuple):
        kind, message, repair = found
        return kind, message.partition(" (")[0], repair
    return found


@pytest.mark.parametrize("shape", [(3, 5), (1, 0, 4), (7,), ()])
def test_there_and_back(shape: tuple[int, ...], tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), tmp_path / "it.state"
    arrays = {f"{kind} ü": (rng.random(shape) * 100).astype(kind) for kind in KINDS}
    arrays |= {"nan": np.full(shape, np.nan, np.float16), "inf": np.full(shape, -np.inf, np.float64)}
    fields = {"text": "für \ud800\U0001f600", "number": -0.1, "list": [1, None, True, {"b": 1, "a": 2**70}], "x": 1e300}
    write_state(file, "it", 1, fields, arrays)
    found = in_c(file, to=tmp_path / "copy.state")
    assert found["tensors"] == described({}, {name: np.atleast_1d(array) for name, array in arrays.items()})["tensors"]
    assert found["fields"] == fields
    assert (tmp_path / "copy.state").read_bytes() == file.read_bytes()


def test_no_tensors(tmp_path: Path) -> None:
    write_state(tmp_path / "it.state", "it", 1, {}, {})
    assert in_c(tmp_path / "it.state", to=tmp_path / "copy.state") == {"fields": {}, "tensors": {}}
    assert (tmp_path / "copy.state").read_bytes() == (tmp_path / "it.state").read_bytes()


@pytest.mark.parametrize("dtype", ["F4", "F8_E4M3", "BF16", "C64", 7, None])
def test_types_that_numpy_lacks(dtype: object, tmp_path: Path) -> None:
    file = with_header(tmp_path / "it.state", dtype=dtype, shape=[64])
    ours = outcome(lambda: in_python(file))
    assert ours[0] == "StateError" and outcome(lambda: in_c(file)) == ours


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [65]},
        {"shape": [-64]},
        {"shape": [64.0]},
        {"shape": [2**31, 2**31, 2**31]},
        {"shape": [2**63 - 1, 2**63 - 1, 0], "data_offsets": [0, 0]},
        {"shape": "64"},
        {"shape": [2**70]},
        {"data_offsets": [0, 255]},
        {"data_offsets": [256, 0]},
        {"data_offsets": [0]},
        {"data_offsets": [4, 260]},
        {"data_offsets": [0, 256, 300]},
        {"data_offsets": [-4, 252]},
        {"dtype": "F16"},
        {"dtype": "U8", "shape": [64]},
    ],
    ids=str,
)
def test_places_that_do_not_fit(changes: dict[str, Any], tmp_path: Path) -> None:
    file = with_header(tmp_path / "it.state", **changes)
    ours = plain(outcome(lambda: in_python(file)))
    assert ours[0] == "StateError" and plain(outcome(lambda: in_c(file))) == ours


def test_limits(tmp_path: Path) -> None:
    file = tmp_path / "it.state"
    write_state(file, "it", 1, {"numbers": [0] * 1000}, {})
    for limits in (Limits(bytes=500), Limits(bytes=50_000), Limits(operations=100), Limits(bytes=500_000)):
        ours = outcome(lambda: in_python(file, limits))  # noqa: B023
        assert outcome(lambda: in_c(file, limits)) == ours  # noqa: B023


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0" * 7, b"\0" * 8, (2**40).to_bytes(8, "little") + b"{}", (2**63 + 5).to_bytes(8, "little") + b"{}"),
        *(len(text).to_bytes(8, "little") + text for text in HEADERS),
    ],
    ids=lambda content: content[8:].decode() or str(len(content)),
)
def test_files_that_are_no_states(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "it.state"
    file.write_bytes(content)
    ours, theirs = outcome(lambda: in_python(file)), outcome(lambda: in_c(file))
    assert ours[0] == "StateError" and plain(theirs) == plain(ours)
    assert theirs == ours or "follow" not in ours[1]


def test_other_kinds_and_versions(tmp_path: Path) -> None:
    file = tmp_path / "it.state"
    for kind, version in (("other", 1), ("it", 2), ("it", "1"), ("it", None)):
        write_state(file, kind, version, {}, {})  # type: ignore[arg-type]
        ours = outcome(lambda: in_python(file))
        assert ours[0] == "StateError" and outcome(lambda: in_c(file)) == ours
    os.mkfifo(tmp_path / "pipe")
    assert outcome(lambda: in_c(tmp_path / "pipe")) == outcome(lambda: in_python(tmp_path / "pipe"))


def test_damaged_states(tmp_path: Path) -> None:
    rng, file = random.Random(10), tmp_path / "it.state"
    arrays: dict[str, Any] = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(3)}
    write_state(file, "it", 1, {"x": [1.5, "ü", {}]}, arrays)
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tail, accepted = content[8 + int.from_bytes(content[:8], "little") :], 0
    for number in range(1000):
        if number % 2:
            file.write_bytes(damage_bytes(content, rng))
        else:
            text = damage_json(header, rng, (100,)).encode()
            file.write_bytes(len(text).to_bytes(8, "little") + text + tail)
        try:
            ours: Any = in_python(file)
            accepted += 1
        except StateError as error:
            ours = plain(("StateError", error.message, error.repair))
        theirs = plain(outcome(lambda: in_c(file)))
        if isinstance(ours, tuple) and file.read_bytes().count(b'"__metadata__"') > 1:  # the C runtime merges them
            ours, theirs = ours[0], theirs[0]
        assert theirs == ours, file.read_bytes()
    assert accepted > 5


def test_writing_follows_the_umask_and_replaces_links(tmp_path: Path) -> None:
    write_state(tmp_path / "it.state", "it", 1, {}, {})
    victim, target = tmp_path / "victim", tmp_path / "out.state"
    victim.write_text("mine")
    target.symlink_to(victim)
    in_c(tmp_path / "it.state", to=target)
    assert victim.read_text() == "mine" and not target.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE((tmp_path / "it.state").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.state", "out.state", "victim"]


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    write_state(tmp_path / "it.state", "it", 1, {}, {})
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for target, problem in (
        (tmp_path / "none" / "it.state", "cannot be written"),
        (Path("/dev/full/x"), "cannot be written"),
        (tmp_path / "folder", r"exists and is not a file, so it is never replaced\. Give another path"),
        (tmp_path / "pipe", r"exists and is not a file, so it is never replaced\. Give another path"),
    ):
        with pytest.raises(CRefusal, match=f"{target}: {problem}") as caught:
            in_c(tmp_path / "it.state", to=target)
        assert caught.value.kind == "OSError"
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "it.state", "pipe"]


def test_remains_of_killed_writers_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    import fcntl

    write_state(tmp_path / "it.state", "it", 1, {}, {})
    dead, alive = (f".out.state.xlexport-{digit * 16}" for digit in "0a")
    kept = [alive, f"{alive}.lock", ".out.state.xlexport-short", ".other.state.xlexport-0000000000000000", ".out.state"]
    for name in (dead, f"{dead}.lock", ".out.state.xlexport-" + "1" * 16, *kept):
        (tmp_path / name).touch()
    with (tmp_path / f"{alive}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        in_c(tmp_path / "it.state", to=tmp_path / "out.state")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "it.state", "out.state"])


def test_writers_in_both_languages_leave_each_other_in_peace(tmp_path: Path) -> None:
    source, target = tmp_path / "it.state", tmp_path / "out.state"
    arrays = {"one": np.ones(200_000)}
    write_state(source, "it", 1, {}, arrays)
    failed: list[Exception] = []

    def write_in_python() -> None:
        try:
            for _ in range(30):
                write_state(target, "it", 1, {}, arrays)
        except Exception as error:
            failed.append(error)

    writer = threading.Thread(target=write_in_python)
    writer.start()
    for _ in range(30):
        in_c(source, to=target)
    writer.join()
    assert not failed
    assert target.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.state", "out.state"]


@pytest.fixture(params=NAMES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Model, Path]:
    """Return an open bundle, and a stream that Python saved."""
    model = load(golden_bundle(request.param), threads=1)
    stream = model.stream()
    stream.feed(np.arange(35) % min(29, model.bundle.vocab_size))
    stream.save(tmp_path / "stream.state")
    return model, tmp_path / "stream.state"


def test_streams_there_and_back(saved: tuple[Model, Path], tmp_path: Path) -> None:
    model, file = saved
    found = ask("stream", folder=model.folder, path=file, to=tmp_path / "copy.state")
    assert found["settings"] == model.evaluation().to_dict()
    assert (tmp_path / "copy.state").read_bytes() == file.read_bytes()


def stream_outcomes(model: Model, file: Path) -> tuple[Any, Any]:
    """Return the outcomes of both readers: the settings, or the refusal."""

    def in_python() -> Any:
        return read_stream(model, file)[1].to_dict()

    return outcome(in_python), outcome(lambda: ask("stream", folder=model.folder, path=file)["settings"])


@pytest.mark.parametrize(("how", "said"), LIES, ids=[said[:40] for _, said in LIES])
def test_states_that_lie(how: Callable[[Any, Any], Any], said: str, tmp_path: Path) -> None:
    model, file = load(golden_bundle(EMPTY), threads=1), tmp_path / "stream.state"
    stream = model.stream()
    stream.feed("a text of some length")
    stream.save(file)
    fields, arrays = read_state(file, KIND, VERSION, "")
    how(fields, arrays)
    write_state(file, KIND, VERSION, fields, arrays)
    ours, theirs = stream_outcomes(model, file)
    assert said in ours[1] + ours[2]
    if str(2**63) in ours[1] or "1000000" in ours[1]:  # numbers beyond 2^62 are shown as the largest one
        assert theirs[0] == ours[0] and " is 46116860184273" in theirs[1]
    else:
        assert theirs == ours


def test_streams_of_damaged_fields(saved: tuple[Model, Path]) -> None:
    model, file = saved
    rng, (fields, arrays) = random.Random(11), read_state(saved[1], KIND, VERSION, "")
    for _ in range(150):
        changed = json.loads(damage_json(fields, rng, (50,)))
        tensors = dict(arrays)
        if rng.random() < 0.3:
            name = rng.choice(sorted(tensors))
            tensors[name] = damage_array(tensors[name], rng)
        if not isinstance(changed, dict):
            continue
        write_state(file, KIND, VERSION, {key: value for key, value in changed.items() if key != "sha256"}, tensors)
        ours, theirs = stream_outcomes(model, file)
        if isinstance(ours, tuple) and isinstance(theirs, tuple):
            assert theirs[0] == ours[0], changed
            continue
        same_as_number = {True: 1, False: 0}  # Python takes 1 for true, and true for 1
        assert theirs == ours or any(
            type(value) is not type(fields["evaluation"][key]) and same_as_number.get(value, value) in (0, 1)
            for key, value in changed["evaluation"].items()
        ), changed


def test_stream_of_another_bundle(saved: tuple[Model, Path], tmp_path: Path) -> None:
    model, file = saved
    other = load(golden_bundle("post_lnorm_zeros"), threads=1)
    ours, theirs = stream_outcomes(other, file)
    assert theirs == ours and "saved from another bundle" in ours[1]
    with pytest.raises(CRefusal, match="no such file; expected a stream's state") as caught:
        ask("stream", folder=model.folder, path=tmp_path / "none")
    assert caught.value.kind == "OSError"


def test_first_values(tmp_path: Path) -> None:
    folder = next(path.parent for path in GOLDEN.glob("*/bundle/first_memory.safetensors"))
    with safe_open(folder / "first_memory.safetensors", "numpy") as opened:
        values = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert ask("first_values", folder=folder) == described({}, values)["tensors"]
    assert ask("first_values", folder=golden_bundle(EMPTY)) == {} != ask("first_values", folder=golden_bundle(ZEROS))
    copy, rng = tmp_path / "bundle", random.Random(12)
    for number in range(40):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        file = copy / "first_memory.safetensors"
        if number % 2:
            name = rng.choice(sorted(values))
            save_file(values | {name: np.ascontiguousarray(damage_array(values[name], rng))}, file)
        else:
            file.write_bytes(damage_bytes(file.read_bytes(), rng))
        digest = digest_file(file)
        listing = {"sha256": digest.sha256, "size": digest.size}
        edit_manifest(copy, lambda manifest: manifest["files"].update({file.name: listing}))  # noqa: B023
        ours = plain(outcome(lambda: load(copy, threads=1)))
        theirs = plain(outcome(lambda: ask("first_values", folder=copy)))
        assert theirs == ours if isinstance(ours, tuple) else isinstance(theirs, dict)
