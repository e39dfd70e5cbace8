"""The C interface gives the numbers of Python, bit for bit, with the same ONNX Runtime and the same settings."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from xlruntime import Model, Sampling
from xlruntime.bundle_files import digest_file

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/bundle"))
STREAMING = [name for name in NAMES if name not in (*WHOLE, "late_reader")]
GENERATING = [EMPTY, ZEROS, "pre_lnorm_empty", BAND, CHUNK]
TOTALS = (
    "tokens",
    "scored_tokens",
    "unknown_tokens",
    "words",
    "chars",
    "bytes",
    "dropped_chars",
    "dropped_bytes",
    "scored_chars",
    "scored_bytes",
)
RATIOS = ("bits_per_byte", "bits_per_char", "bits_per_token", "perplexity")
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


def check_score(python: Model, c: CModel, source: Any, *, detail: int | None = None, **options: Any) -> None:
    """Compare the scores of a document, step by step, and its total."""
    expected = list(python.score_tokens([source], detail=detail, **options))
    total, found = c.score(source, detail=-1 if detail is None else detail, **options)
    summary = expected[-1].summary
    assert summary is not None
    names: tuple[str, ...] = ("index", "tokens", "starts", "ends", "log_probs", "context")
    names += () if detail is None else ("rank", "entropy", "top_ids", "top_log_probs")
    expected = [part for part in expected if len(part)]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        equal(ours, theirs, names)
    for name in TOTALS:
        assert getattr(total, name) == getattr(summary, name), name
    for name in ("nats", "bits", *RATIOS):  # compensated sums, which may round in another order
        wanted = getattr(summary, name)
        np.testing.assert_allclose(getattr(total, name), np.nan if wanted is None else wanted, rtol=1e-14, err_msg=name)


def ids_for(model: Model, n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return random_ids(n, seed=seed, vocab_size=model.bundle.vocab_size)


def pieces_of(ids: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    return np.split(ids, np.cumsum(PIECES))[:-1]


def content(file: Path) -> tuple[Any, bytes]:
    """Return what the header of a saved stream says, and the data."""
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


@pytest.mark.parametrize("n", [0, 1, 2, 80])
@pytest.mark.parametrize("name", NAMES)
def test_documents_of_ids(name: str, n: int, both: Both) -> None:
    python, c = both(name)
    check_score(python, c, ids_for(python, n))


@pytest.mark.parametrize("name", [EMPTY, ZEROS])
@pytest.mark.parametrize("text", ["", "T", "The whale — Moby Dick — swims.\nIt is white.\n" * 9])
def test_documents_of_text(name: str, text: str, both: Both, tmp_path: Path) -> None:
    python, c = both(name)
    check_score(python, c, text)
    (tmp_path / "text.txt").write_text(text, "utf-8")
    check_score(python, c, tmp_path / "text.txt")


@pytest.mark.parametrize("name", GENERATING)
def test_settings_bos_and_detail(name: str, both: Both) -> None:
    python, c = both(name)
    ids = ids_for(python, 60)
    settings = {} if python.bundle.evaluation.full_document else {"mem_len": 9, "segment_len": 7}
    check_score(python, c, ids, bos=3, **settings)
    check_score(python, c, ids, detail=2, **settings)
    check_score(python, c, ids, detail=0)


@pytest.mark.parametrize("name", [BAND, CHUNK])
def test_documents_that_are_too_long(name: str, both: Both, c_runtime: CRuntime, tmp_path: Path) -> None:
    python, c = both(name)
    longest = python.bundle.settings.longest_document
    assert longest is not None
    ids = ids_for(python, 2 * longest + 5)
    with pytest.raises(CError, match="the model reads at most") as error:
        c.score(ids)
    assert error.value.code == "too_long"
    folder = shutil.copytree(golden_bundle(name), tmp_path / "bundle")
    edit_manifest(folder, lambda manifest: manifest["document"].update(restart=True))
    restarting = c_runtime.load(folder, kernels=False)
    assert restarting.info.restart == 1
    check_score(xlruntime.load(folder, threads=1, ops="none"), restarting, ids)


@pytest.mark.parametrize("name", STREAMING)
def test_streams(name: str, both: Both) -> None:
    python, c = both(name)
    ours, theirs = c.stream(), python.stream()
    for piece in pieces_of(ids_for(python, sum(PIECES))):
        equal(ours.feed(piece), theirs.feed(piece), ("index", "tokens", "log_probs", "context"))
        assert ours.position == theirs.position
        assert ours.pending == (-1 if theirs.pending is None else theirs.pending)
    assert ours.nbytes == theirs.memory.nbytes
    continuation = ids_for(python, 12, seed=5)
    equal(ours.score_continuation(continuation), theirs.score_continuation(continuation), ("log_probs", "context"))
    twin = ours.fork()
    more = ids_for(python, 9, seed=6)
    expected = theirs.feed(more)
    equal(twin.feed(more), expected, ("index", "log_probs"))
    equal(ours.feed(more), expected, ("index", "log_probs"))
    ours.reset()
    theirs.reset()
    equal(ours.feed(continuation), theirs.feed(continuation), ("index", "log_probs"))


@pytest.mark.parametrize("name", [EMPTY, ZEROS])
def test_continuations_longer_than_the_spare_slots(name: str, both: Both) -> None:
    python, c = both(name)
    ours, theirs = c.stream(segment_len=4), python.stream(segment_len=4)
    ours.feed(ids_for(python, 30))
    theirs.feed(ids_for(python, 30))
    continuation = ids_for(python, 50, seed=1)
    expected = theirs.feed(continuation)
    equal(ours.score_continuation(continuation), expected, ("index", "tokens", "log_probs", "context"))
    equal(ours.feed(continuation), expected, ("index", "tokens", "log_probs", "context"))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(seed=0),
        Sampling(temperature=0.7, seed=7),
        Sampling(top_k=5, seed=2**40 + 1),
        Sampling(top_p=0.6, seed=3),
        Sampling(temperature=2.5, top_k=20, top_p=0.9, seed=4),
        Sampling(temperature=1e-300, seed=5),
    ],
)
@pytest.mark.parametrize("name", GENERATING)
def test_seeds_draw_the_tokens_of_python(name: str, sampling: Sampling, both: Both) -> None:
    python, c = both(name)
    prompt = ids_for(python, 11)
    expected = list(python.generate(prompt, max_tokens=30, sampling=sampling))
    assert c.generate(prompt, 30, sampling) == expected
    if not python.bundle.evaluation.full_document:
        stream = c.stream()
        stream.feed(prompt)
        assert stream.generate([], 30, sampling) == expected
        assert stream.position == 41


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


def test_states_that_do_not_fit(both: Both, tmp_path: Path) -> None:
    python, c = both(EMPTY)
    file = tmp_path / "stream.state"
    python.stream(mem_len=9, clamp_len=5).save(file)
    damaged = tmp_path / "damaged.state"
    damaged.write_bytes(file.read_bytes()[:-1] + b"\x01")
    for model, path, code in [
        (both(ZEROS)[1], file, "state_mismatch"),
        (c, damaged, "state_damaged"),
        (c, golden_bundle(EMPTY) / "bundle.json", "state_damaged"),
        (c, tmp_path / "missing.state", "file"),
    ]:
        with pytest.raises(CError) as error:
            model.restore(path)
        assert error.value.code == code
    with pytest.raises(CError) as error:
        c.stream().save(tmp_path / "missing" / "stream.state")
    assert error.value.code == "file"
    c.restore(file).save(damaged)  # with the settings of the state; a file that is there is replaced
    assert content(damaged) == content(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.state", "stream.state"]


REFUSED: list[tuple[str, str, Callable[[Any], Any]]] = [
    (EMPTY, "option", lambda model: model.stream(mem_len=-1)),
    (EMPTY, "option", lambda model: model.stream(segment_len=-1)),
    (EMPTY, "option", lambda model: model.stream(capacity=1)),
    ("relative_attention", "option", lambda model: model.stream(capacity=14)),
    (EMPTY, "option", lambda model: model.stream(mem_len=2**30)),
    (EMPTY, "token", lambda model: model.stream().feed([1, 2, 256])),
    (EMPTY, "token", lambda model: model.stream().score_continuation([-1])),
    (EMPTY, "text", lambda model: model.stream().generate([], max_tokens=3)),
    ("pre_lnorm_empty", "text", lambda model: model.stream().feed("text")),
    (BAND, "too_long", lambda model: model.stream().feed([1] * 300)),
    (CHUNK, "option", lambda model: model.score([1, 2], mem_len=3)),
    (CHUNK, "text", lambda model: model.generate([], max_tokens=3)),
    (CHUNK, "too_long", lambda model: model.generate([1] * 90, max_tokens=30)),
    (CHUNK, "option", lambda model: model.stream()),
]


@pytest.mark.parametrize(("name", "code", "call"), REFUSED)
def test_refusals(name: str, code: str, call: Callable[[CModel], Any], both: Both) -> None:
    with pytest.raises(CError) as error:
        call(both(name)[1])
    assert error.value.code == code
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(error.value.hint)


def test_a_refused_piece_leaves_the_stream_unchanged(both: Both) -> None:
    python, c = both(EMPTY)
    ids = ids_for(python, 40)
    stream = c.stream()
    stream.feed(ids[:20])
    with pytest.raises(CError):
        stream.feed([5, 6, 999])
    assert stream.position == 20
    equal(stream.feed(ids[20:]), python.stream().feed(ids), ())
    assert stream.position == 40


def test_bundles_that_are_not_there_or_changed(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")

    def refusal(folder: Path = folder, digest: str | None = None) -> str:
        with pytest.raises(CError) as error:
            c_runtime.load(folder, digest=digest)
        return error.value.code

    digest = xlruntime.load(folder).bundle.digest
    assert refusal(tmp_path / "missing") == "bundle_not_found"
    assert refusal(digest="0" * 64) == "bundle_mismatch"
    assert c_runtime.load(folder, digest=digest).info.digest.decode() == digest
    weights = bytearray((folder / "weights.data").read_bytes())
    weights[100] ^= 1
    (folder / "weights.data").write_bytes(weights)
    assert refusal() == "bundle_damaged"
    assert c_runtime.load(folder, check_files=False).info.vocab_size == 256
    (folder / "bundle.json.sha256").unlink()
    assert refusal() == "bundle_damaged"
    edit_manifest(folder, lambda manifest: manifest.update(format=3))
    assert refusal() == "bundle_format"


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
    "two members of one name": lambda text: text.replace(b'"format": 4,', b'"format": 4, "format": 4,', 1),
    "more text": lambda text: text + b"0",
    "a comma too many": lambda text: text.rstrip()[:-1] + b",}",
    "many containers within each other": lambda text: text.replace(b'"config": {}', b'"config": ' + b"[" * 10**6, 1),
    "a number with a zero in front": lambda text: text.replace(b'"format": 4', b'"format": 04', 1),
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


def test_a_bundle_that_is_replaced_while_it_is_open(c_runtime: CRuntime, tmp_path: Path) -> None:
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    model = c_runtime.load(folder)
    shutil.copyfile(golden_bundle(ZEROS) / "generate.onnx", folder / "generate.onnx")
    with pytest.raises(CError, match="was replaced while the bundle was open") as error:
        model.generate([1], 1)
    assert error.value.code == "bundle_damaged"
    shutil.copyfile(golden_bundle(EMPTY) / "generate.onnx", folder / "generate.onnx")
    assert len(model.generate([1], 1)) == 1


def test_a_library_that_is_not_onnxruntime(c_runtime: CRuntime, tmp_path: Path) -> None:
    with pytest.raises(CError, match=r"ONNX Runtime cannot be loaded .*missing\.so") as error:
        c_runtime.load(golden_bundle(EMPTY), ort=tmp_path / "missing.so")
    assert error.value.code == "provider"
    assert "XLRUNTIME_ONNXRUNTIME" in error.value.hint


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


def test_the_caller_can_stop(both: Both) -> None:
    python, c = both(EMPTY)
    with pytest.raises(CError, match="asked to stop") as error:
        c.score(ids_for(python, 80), stop=lambda: True, segment_len=8)
    assert error.value.code == "stopped"


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


def test_threads_share_a_model(c_runtime: CRuntime, both: Both) -> None:
    python, _ = both(EMPTY)
    documents = [ids_for(python, 100 + 30 * seed, seed) for seed in range(8)]
    expected = [python.stream(segment_len=3 + seed).feed(ids).log_probs for seed, ids in enumerate(documents)]
    shared = c_runtime.load(golden_bundle(EMPTY))  # nothing but its score graph is open yet

    def walk(seed: int) -> tuple[npt.NDArray[np.float32], list[int]]:
        stream = shared.stream(segment_len=3 + seed)
        parts = [stream.feed(piece).log_probs for piece in np.array_split(documents[seed], 9)]
        return np.concatenate(parts), stream.generate([], 5, Sampling(seed=seed))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(walk, range(8)))
    for seed, (log_probs, drawn) in enumerate(found):
        np.testing.assert_allclose(log_probs, expected[seed], rtol=0, atol=2e-5)
        assert drawn == list(python.generate(documents[seed], max_tokens=5, sampling=Sampling(seed=seed)))


@pytest.mark.parametrize("name", [BAND, CHUNK, "relative_attention"])
def test_kernels_give_the_bits_of_python(name: str, c_runtime: CRuntime, kernel_library: Path, tmp_path: Path) -> None:
    python = xlruntime.load(golden_bundle(name), threads=1, ops=kernel_library)
    c = c_runtime.load(golden_bundle(name))
    check_score(python, c, ids_for(python, 90))
    if python.bundle.settings.full_document:
        return
    ours, theirs, more = c.stream(), python.stream(), ids_for(python, 33, seed=9)
    for stream, file in ((ours, "c.state"), (theirs, "python.state")):
        stream.feed(ids_for(python, 70))
        stream.save(tmp_path / file)
    assert content(tmp_path / "c.state") == content(tmp_path / "python.state")
    expected = theirs.feed(more)
    equal(python.restore(tmp_path / "c.state").feed(more), expected, ("log_probs",))
    equal(c.restore(tmp_path / "python.state").feed(more), expected, ("log_probs",))
