"""What the conformance kit does not ask of the C interface: states byte for byte, files that change, and kernels."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import xlruntime
from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CModel, CRuntime
from tests.helpers.ids import random_ids
from tests.helpers.manifests import edit_manifest, seal
from tests.helpers.paths import BAND, CHUNK, EMPTY, GOLDEN, WHOLE, ZEROS, golden_bundle
from xlruntime import Model
from xlruntime.bundle_files import digest_file

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/bundle"))
STREAMING = [name for name in NAMES if name not in (*WHOLE, "late_reader")]
PIECES = (0, 1, 1, 17, 64, 3, 40)

Both = Callable[[str], tuple[Model, CModel]]


@pytest.fixture(scope="module")
def both(c_runtime: CRuntime) -> Both:
    """Return a function that opens a golden bundle in Python and in C, without kernels."""
    opened: dict[str, tuple[Model, CModel]] = {}

    def make(name: str) -> tuple[Model, CModel]:
        if name not in opened:
            folder = golden_bundle(name)
            opened[name] = xlruntime.load(folder, threads=1, ops="none"), c_runtime.load(folder, kernels=False)
        return opened[name]

    return make


def equal(found: Any, expected: Any, names: tuple[str, ...]) -> None:
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def ids_for(model: Model, n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return random_ids(n, seed=seed, vocab_size=model.bundle.vocab_size)


def pieces_of(ids: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    return np.split(ids, np.cumsum(PIECES))[:-1]


def content(file: Path) -> tuple[Any, bytes]:
    """Return what the header of a saved stream says, and the data."""
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def test_draws_without_a_seed_differ(both: Both) -> None:
    _, c = both(EMPTY)
    assert len({tuple(c.generate([1, 2, 3], 20)) for _ in range(4)}) > 1


@pytest.mark.parametrize("name", STREAMING)
def test_states_are_those_of_python(name: str, both: Both, tmp_path: Path) -> None:
    python, c = both(name)
    ours, theirs, more = c.stream(), python.stream(), ids_for(python, 33, seed=9)
    for piece in pieces_of(ids_for(python, sum(PIECES))):  # the first one is empty
        ours.feed(piece)
        theirs.feed(piece)
        ours.save(tmp_path / "c.state")
        theirs.save(tmp_path / "python.state")
        assert content(tmp_path / "c.state") == content(tmp_path / "python.state")
    expected = theirs.feed(more)
    equal(python.restore(tmp_path / "c.state").feed(more), expected, ("index", "log_probs", "context"))
    equal(c.restore(tmp_path / "python.state").feed(more), expected, ("index", "log_probs", "context"))
    if python.bundle.evaluation.rings:
        capacity = python.bundle.settings.capacity() + 30
        wide = python.restore(tmp_path / "c.state", capacity=capacity).feed(more)
        equal(c.restore(tmp_path / "python.state", capacity).feed(more), wide, ("log_probs", "context"))


def test_a_state_is_replaced_or_left_alone(both: Both, tmp_path: Path) -> None:
    python, c = both(EMPTY)
    file, target = tmp_path / "stream.state", tmp_path / "target.state"
    python.stream(mem_len=9, clamp_len=5).save(file)
    target.write_bytes(b"not a state")
    for attempt, code in [
        (lambda: c.restore(target), "state_damaged"),
        (lambda: c.restore(tmp_path / "missing.state"), "file"),
        (lambda: c.stream().save(tmp_path / "missing" / "stream.state"), "file"),
    ]:
        with pytest.raises(CError) as error:
            attempt()
        assert error.value.code == code
    c.restore(file).save(target)  # with the settings of the state; a file that is there is replaced
    assert content(target) == content(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stream.state", "target.state"]


def test_what_is_no_file_is_not_replaced(both: Both, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CError, match=r"pipe: cannot be written \(not a file\)"):
        both(EMPTY)[1].stream().save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (EMPTY, {"capacity": 1}),
        (EMPTY, {"mem_len": 2**30}),  # more memory than machines have
        ("relative_attention", {"capacity": 14}),  # would cut segments, on which the scores depend
    ],
)
def test_streams_that_would_not_fit(name: str, settings: dict[str, int], both: Both) -> None:
    with pytest.raises(CError) as error:
        both(name)[1].stream(**settings)
    assert error.value.code == "option"
    assert str(error.value).endswith(error.value.hint) and "\n" not in str(error.value)


def test_files_are_compared_if_wanted(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    weights = bytearray((folder / "weights.data").read_bytes())
    weights[100] ^= 1
    (folder / "weights.data").write_bytes(weights)
    with pytest.raises(CError) as error:
        c_runtime.load(folder)
    assert error.value.code == "bundle_damaged"
    assert c_runtime.load(folder, check_files=False).info.vocab_size == 256


def test_links(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    weights = (folder / "weights.data").rename(folder / "inside.data")
    (folder / "weights.data").symlink_to("inside.data")
    (tmp_path / "link").symlink_to(folder)
    assert c_runtime.load(tmp_path / "link").info.vocab_size == 256
    weights.rename(tmp_path / "outside.data")
    for target in ("../outside.data", tmp_path / "outside.data"):
        (folder / "weights.data").unlink()
        (folder / "weights.data").symlink_to(target)
        for check_files in (True, False):
            with pytest.raises(CError, match=r"weights\.data is missing, no regular file, or outside") as error:
                c_runtime.load(folder, check_files=check_files)
            assert error.value.code == "bundle_damaged"


ODD_TEXTS = {
    "a byte that is not UTF-8": lambda text: text.replace(b"float32", b"float32\xff", 1),
    "half of a surrogate pair": lambda text: text.replace(b"float32", rb"float32\ud800", 1),
    "a control character": lambda text: text.replace(b"float32", b"float\t32", 1),
    "a long name that a terminal would obey": lambda text: text.replace(
        b'"config": {}', b'"%s": {}' % (r"\u001b\r\u009b\u2028\u202e\u2066\ufeff" * 4000 + "é" * 4000).encode(), 1
    ),
    "two members of one name": lambda text: text.replace(b'"format": 5,', b'"format": 5, "format": 5,', 1),
    "more text": lambda text: text + b"0",
    "a comma too many": lambda text: text.rstrip()[:-1] + b",}",
    "many containers within each other": lambda text: text.replace(b'"config": {}', b'"config": ' + b"[" * 10**6, 1),
    "a number with a zero in front": lambda text: text.replace(b'"format": 5', b'"format": 05', 1),
    "a number beyond 64 bits": lambda text: text.replace(b'"vocab_size": 10', b'"vocab_size": 99999999999999999999', 1),
    "a number with a point": lambda text: text.replace(b'"vocab_size": 10', b'"vocab_size": 10.0', 1),
}


@pytest.mark.parametrize("change", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_texts_that_are_no_manifest(change: Callable[[bytes], bytes], c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle("two_rings"), tmp_path / "bundle")
    text = (folder / "bundle.json").read_bytes()
    seal(folder, text.replace(b"float32", rb"fl\u006fat32", 1) + b" \r\n\t")
    assert c_runtime.load(folder).info.vocab_size == 10
    assert change(text) != text
    seal(folder, change(text))
    with pytest.raises(CError) as error:
        c_runtime.load(folder)
    assert error.value.code == "bundle_format"
    assert str(error.value).isprintable() and len(str(error.value).encode()) < 2000


def test_a_bundle_of_the_last_format_is_refused_with_the_command_that_rewrites_it(
    c_runtime: CRuntime, tmp_path: Path
) -> None:
    folder = shutil.copytree(golden_bundle(BAND), tmp_path / "bundle")
    seal(folder, (GOLDEN / BAND / "format4.json").read_bytes())
    with pytest.raises(CError, match="not of bundle format 5, which this runtime reads") as error:
        c_runtime.load(folder)
    assert (error.value.code, error.value.hint) == ("bundle_format", "Rewrite it: xlexport configure OLD -o NEW")


def test_graphs_for_accelerators_are_passed_over(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    choice: dict[str, Any] = {"graph": "other", "max_segment": None, "kernels": [], "device": "accelerator"}

    def prefer(manifest: dict[str, Any]) -> None:  # its file is not a graph, so it cannot open
        manifest["graphs"]["other"] = {**manifest["graphs"]["score"], "file": "weights.data"}
        manifest["steps"]["score"].insert(0, choice)

    edit_manifest(folder, prefer)
    nats = [c_runtime.load(each).score([1, 2, 3])[0].nats for each in (folder, golden_bundle(EMPTY))]
    assert nats[0] == nats[1]


def test_a_bundle_that_is_replaced_while_it_is_open(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    model = c_runtime.load(folder)
    shutil.copyfile(golden_bundle(ZEROS) / "generate.onnx", folder / "generate.onnx")
    with pytest.raises(CError, match="was replaced while the bundle was open") as error:
        model.generate([1], 1)
    assert error.value.code == "bundle_damaged"
    shutil.copyfile(golden_bundle(EMPTY) / "generate.onnx", folder / "generate.onnx")
    assert len(model.generate([1], 1)) == 1


def test_what_is_known_about_a_model(both: Both) -> None:
    python, c = both(EMPTY)
    info, bundle = c.info, python.bundle
    for name in ("architecture", "precision", "fingerprint", "digest"):
        assert getattr(info, name).decode() == getattr(bundle, name)
    assert (info.tokenizer, info.vocab_size, info.full_document, info.restart) == (b"bytes", 256, 0, 0)
    assert [*c.settings] == ["segment_len", *bundle.evaluation.settings]
    for name, setting in bundle.evaluation.settings.items():
        shown = c.settings[name]
        assert (shown.value, shown.is_boolean) == (setting.value, isinstance(setting.value, bool))
        assert (shown.off if shown.can_be_off else None) == setting.off
    assert c.decode(c.encode("Moby Dick – é")) == "Moby Dick – é"


def test_scores_that_are_not_finite_reset_the_memory(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    weights = np.fromfile(folder / "weights.data", np.float32)
    weights[:16] = np.nan
    weights.tofile(folder / "weights.data")
    digest = digest_file(folder / "weights.data").sha256
    edit_manifest(folder, lambda manifest: manifest["files"]["weights.data"].update(sha256=digest))
    python = xlruntime.load(folder, threads=1, ops="none").stream()
    c = c_runtime.load(folder, kernels=False).stream()
    for piece in ([1, 2, 3, 4, 5], [6, 7], [8]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xlruntime.NonFiniteScoreWarning)
            expected = python.feed(piece)
        found = c.feed(piece)
        equal(found, expected, ("log_probs", "context", "index"))
        assert not np.isfinite(found.log_probs).all()
    assert c.resets == 3
    with pytest.raises(CError, match="logits that are not finite, so generation stops") as error:
        c.generate([], 3)
    assert error.value.code == "runtime"


@pytest.mark.parametrize("name", [BAND, CHUNK, "relative_attention"])
def test_kernels_give_the_bits_of_python(name: str, c_runtime: CRuntime, kernel_library: Path, tmp_path: Path) -> None:
    python = xlruntime.load(golden_bundle(name), threads=1, ops=kernel_library)
    c = c_runtime.load(golden_bundle(name))
    expected = list(python.score_tokens([ids_for(python, 90)]))
    for step, part in zip(c.score(ids_for(python, 90))[1], expected, strict=True):
        equal(step, part, ("index", "log_probs", "context"))
    if python.bundle.settings.full_document:
        return
    ours, theirs, more = c.stream(), python.stream(), ids_for(python, 33, seed=9)
    for stream, file in ((ours, "c.state"), (theirs, "python.state")):
        stream.feed(ids_for(python, 70))
        stream.save(tmp_path / file)
    assert content(tmp_path / "c.state") == content(tmp_path / "python.state")
    log_probs = theirs.feed(more).log_probs
    np.testing.assert_array_equal(python.restore(tmp_path / "c.state").feed(more).log_probs, log_probs)
    np.testing.assert_array_equal(c.restore(tmp_path / "python.state").feed(more).log_probs, log_probs)
