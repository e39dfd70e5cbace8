"""Damage to whole bundles, saved streams, checkpoints and documents is refused, or does no harm."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from tests.families.reformer import test_reformer_pytorch
from tests.families.transformer_xl.files import VARIANTS, WAYS, make_oracle
from tests.helpers.manifests import seal, with_tokenizer
from tests.helpers.paths import EMPTY, ROOT, ZEROS, golden_bundle
from tests.helpers.tokenizer_kinds import sentence_pieces
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer
from tests.reliability.bundle_targets import TokenizerJson
from tests.reliability.damage import STEADY, THOROUGH, VALUES, damaged, damaged_array, damaged_json
from tests.reliability.target import check_message
from tests.runtime.conftest import open_golden
from xlexport.commands import execute
from xlexport.commands.inspect import bundle_rows
from xlexport.errors import XlexportError
from xlexport.formats import load as load_checkpoint
from xlexport.scoring.inputs import LOOKED_AT
from xlruntime import Model, TokenError, XlruntimeError, load
from xlruntime.bundle import MANIFEST
from xlruntime.bundle_files import digest_file, read_bundle
from xlruntime.sampling import Sampling
from xlruntime.state import write_state
from xlruntime.tokenizers.vocabulary import Vocabulary
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig

pytestmark = pytest.mark.full

TEXT = "It was the best of times, it was the worst of times."
CLOSE = 1e-5  # nats: the same graphs on the same tokens
STREAMS = (EMPTY, ZEROS, "post_lnorm_zeros", "reformer_band")
COMPUTING = {"tokenizer", "document", "settings", "rings", "memory", "graphs"}  # fields that say what is computed
Files = Mapping[str, bytes]
Damaged = Mapping[str, bytes | str | None]  # a text: a link to it; None: a folder
Arrays = list[npt.NDArray[Any]]
Tensors = dict[str, torch.Tensor]
T = TypeVar("T")


def equal(arrays: Arrays, expected: Arrays) -> bool:
    """Return whether results are those of the undamaged input."""
    return len(arrays) == len(expected) and all(
        a.shape == b.shape and bool((abs(a - b) <= CLOSE).all()) for a, b in zip(arrays, expected, strict=True)
    )


def unless_refused(attempt: Callable[[], T], *errors: type[Exception]) -> T | None:
    """Return what an attempt returns, perhaps with a warning; None if it is refused, in one line that can be shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return attempt()
        except errors as error:
            check_message(error)
            return None


def results(folder: Path) -> Arrays:
    """Return scores of ids, the tokens generated after them, and scores of a text, if a bundle takes texts."""
    model = load(folder, threads=1)
    ids = np.random.default_rng(7).integers(0, min(model.bundle.vocab_size, 29), 40)
    documents: list[Any] = [ids, *([TEXT] if model.bundle.tokenizer.kind != "none" else [])]
    drawn = list(model.generate(ids[:10], max_tokens=3, sampling=Sampling(temperature=0)))
    scores = [model.stream().feed(document).log_probs for document in documents]
    return [*scores, np.array(drawn)]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return golden bundles, and some with each kind of tokenizer that has a file."""
    folder, words = tmp_path_factory.mktemp("bundles"), sorted(set(TEXT.split()))
    vocabulary = Vocabulary("words", ("<unk>", "<eos>", *words), unk="<unk>", line_end="<eos>")
    files = {"vocabulary.json": vocabulary.to_json().encode(), "tokenizer.model": sentence_pieces(29, [TEXT] * 5)}
    files["tokenizer.json"] = next(iter(TokenizerJson(folder).seeds()))
    kinds = {"vocabulary.json": "vocabulary", "tokenizer.json": "tokenizers", "tokenizer.model": "sentencepiece"}
    bundles = {name: golden_bundle(name) for name in (EMPTY, ZEROS)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
        bundles[name] = with_tokenizer(
            golden_bundle("pre_lnorm_empty"), folder / kinds[name], folder / name, kind=kinds[name]
        )
    return bundles


@cache
def undamaged(folder: Path) -> Arrays:
    """Return the results of a bundle."""
    return results(folder)


@cache
def files_of(folder: Path) -> Files:
    """Return the content of the files of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def write(folder: Path, files: Damaged) -> Path:
    """Write files to an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        if content is None:
            (folder / name).mkdir()
        elif isinstance(content, str):
            (folder / name).symlink_to(content)
        else:
            (folder / name).write_bytes(content)
    return folder


@st.composite
def damaged_files(draw: st.DrawFn, files: Files) -> tuple[str, Damaged]:
    """Draw the files of a folder with one of them damaged, missing, a link, or another one; return its name."""
    name, other = draw(st.sampled_from(sorted(files))), draw(st.sampled_from(sorted(files)))
    changed: dict[str, bytes | str | None] = dict(files)
    kind = draw(st.sampled_from(("damaged",) * 9 + ("missing", "folder", "link", "exchanged")))
    if kind == "missing":
        del changed[name]
    elif kind in ("folder", "link"):
        changed[name] = draw(st.sampled_from((other, "nowhere", "/etc/passwd", name))) if kind == "link" else None
    elif kind == "exchanged":
        changed[name], changed[other] = files[other], files[name]
    elif name.endswith(".json") and draw(st.booleans()):
        changed[name] = draw(damaged_json(json.loads(files[name])))
    else:
        changed[name] = draw(damaged(files[name]))
    return name, changed


@STEADY
@given(data=st.data())
def test_damaged_bundle_is_refused_or_right(data: st.DataObject, bundles: dict[str, Path], tmp_path: Path) -> None:
    source = data.draw(st.sampled_from(sorted(bundles.values())))
    _, files = data.draw(damaged_files(files_of(source)))
    copy = write(tmp_path / "copy", files)
    scores = unless_refused(lambda: results(copy), XlruntimeError)
    assert scores is None or equal(scores, undamaged(source))


@STEADY
@given(data=st.data())
def test_changed_manifest_is_refused_or_said(data: st.DataObject, bundles: dict[str, Path], tmp_path: Path) -> None:
    """A manifest has a new digest: results may change if a field that says what is computed does."""
    source = data.draw(st.sampled_from(sorted(bundles.values())))
    before = json.loads(files_of(source)[MANIFEST])
    text = data.draw(damaged_json(before))
    copy = write(tmp_path / "copy", files_of(source))
    seal(copy, text)
    unless_refused(lambda: bundle_rows(read_bundle(copy), copy), XlruntimeError)
    if (scores := unless_refused(lambda: results(copy), XlruntimeError)) is not None:
        after = json.loads(text)
        changed = {name for name in {*before, *after} if before.get(name, ...) != after.get(name, ...)}
        assert changed & COMPUTING or equal(scores, undamaged(source))


@STEADY
@given(data=st.data())
@pytest.mark.release
def test_files_under_new_digests_are_refused_or_run(
    data: st.DataObject, bundles: dict[str, Path], tmp_path: Path
) -> None:
    """A digest shows integrity, not trust: results may change, but every error is one of ours."""
    source = data.draw(st.sampled_from(sorted(bundles.values())))
    names = [name for name in files_of(source) if name.endswith((".onnx", ".data", "r.json", "y.json", ".model"))]
    name = data.draw(st.sampled_from(names))
    raw = files_of(source)[name]
    content = damaged_json(json.loads(raw)) | damaged(raw) if name.endswith(".json") else damaged(raw)
    copy = write(tmp_path / "copy", {**files_of(source), name: data.draw(content)})
    manifest = json.loads(files_of(source)[MANIFEST])
    for listed in manifest["files"]:
        digest = digest_file(copy / listed)
        manifest["files"][listed] = {"sha256": digest.sha256, "size": digest.size}
    seal(copy, json.dumps(manifest).encode())
    unless_refused(lambda: results(copy), XlruntimeError)


@pytest.fixture(scope="module", params=STREAMS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path, Arrays]:
    """Return a model, a saved stream of it, and the stream's next scores."""
    model = load(golden_bundle(request.param), threads=1)
    file = tmp_path_factory.mktemp("state") / "state.safetensors"
    stream = model.stream()
    stream.feed(following(model)[:35])
    stream.save(file)
    return model, file, [stream.feed(following(model)[35:]).log_probs]


def following(model: Model) -> npt.NDArray[np.int64]:
    """Return 64 tokens."""
    return np.random.default_rng(3).integers(0, model.bundle.vocab_size, 64)


def continued(model: Model, state: Path) -> npt.NDArray[Any]:
    """Return the next scores of a saved stream."""
    return model.restore(state).feed(following(model)[35:]).log_probs


@STEADY
@given(data=st.data())
def test_damaged_stream_is_refused_or_right(
    data: st.DataObject, saved: tuple[Model, Path, Arrays], tmp_path: Path
) -> None:
    model, file, expected = saved
    (tmp_path / "damaged").write_bytes(data.draw(damaged(file.read_bytes())))

    scores = unless_refused(lambda: continued(model, tmp_path / "damaged"), XlruntimeError)
    assert scores is None or equal([scores], expected)


@STEADY
@given(data=st.data())
def test_stream_with_a_new_digest_is_refused_or_continued(
    data: st.DataObject, saved: tuple[Model, Path, Arrays], tmp_path: Path
) -> None:
    """Counters and numbers within their range may belong to another document."""
    model, file, _ = saved
    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
        arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    del metadata["digest"]
    if data.draw(st.integers(0, 3)):
        name = data.draw(st.sampled_from(sorted({*metadata} - {"kind", "version"})))
        metadata[name] = data.draw(damaged(metadata[name].encode())).decode("utf-8", "replace")
    else:
        name = data.draw(st.sampled_from(sorted(arrays)))
        arrays[name] = data.draw(damaged_array(arrays[name]))
    write_state(tmp_path / "state", metadata, arrays)
    unless_refused(lambda: continued(model, tmp_path / "state"), XlruntimeError)


@dataclass(frozen=True)
class Sample:
    """An undamaged checkpoint.

    Attributes:
        path: the argument of `load`; config: settings that the checkpoint lacks.
        checks: whether the format has checksums that are compared, so that all damage must be found.
    """

    path: Path
    config: Mapping[str, Any] | None = None
    checks: bool = False

    @property
    def files(self) -> Files:
        """The content of its files."""
        folder = self.path if self.path.is_dir() else self.path.parent
        return {name: content for name, content in files_of(folder).items() if name != "expected.npz"}

    def read(self, folder: Path) -> Tensors:
        """Return the tensors of the model in a copy of the checkpoint."""
        path = folder if self.path.is_dir() else folder / self.path.name
        return load_checkpoint(path, config=self.config).build_model().state_dict()


REFORMER = ReformerConfig(d_model=16, n_head=2, d_head=4, d_inner=20, attn_layers=("lsh", "local"), axial_dims=(4, 12))
TENSORFLOW = ROOT / "tests" / "families" / "transformer_xl" / "data" / "tensorflow"
TENSORFLOW_SETTINGS = {"tgt_len": 5, "mem_len": 6, "clamp_len": 7, "same_length": True}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Return a checkpoint of every format and container."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    def place(name: str) -> Path:
        return tmp_path_factory.mktemp("checkpoint") / name

    plain, cut = make_oracle(), make_oracle(**VARIANTS["div_val"])
    oracles = {"kimiyoung": cut, "kimiyoung, legacy": plain, "nvidia": cut, "state_dict": plain}
    oracles["huggingface"] = WAYS["huggingface"].oracle()
    oracles["huggingface, torch"] = WAYS["huggingface"].oracle(**VARIANTS["cutoffs"])
    hashed = ReformerCase("small", {"attn_layers": ["local", "lsh"], "num_buckets": [4, 6], "num_hashes": 2}, ())
    samples = [
        *(
            Sample(WAYS[name].write(oracle, tmp_path_factory.mktemp("checkpoint")), WAYS[name].config(oracle))
            for name, oracle in oracles.items()
        ),
        Sample(HuggingFaceReformer(hashed).save(place("folder"))),
        *(Sample(TENSORFLOW / name, TENSORFLOW_SETTINGS, checks=True) for name in ("plain", "adaptive")),
    ]
    path = place("model.pt")
    test_reformer_pytorch.saved(test_reformer_pytorch.make(), path)
    samples.append(Sample(path, test_reformer_pytorch.TOLD))
    for name in ("checkpoint.pt", "checkpoint"):
        for model in (Reformer(REFORMER), cut):
            path = place(name)
            save_checkpoint(path, model.config, model.state_dict())
            samples.append(Sample(path))
    return samples


@THOROUGH
@given(data=st.data())
@pytest.mark.release
def test_damaged_checkpoint_is_refused_or_right(data: st.DataObject, checkpoints: list[Sample], tmp_path: Path) -> None:
    """Without checksums, damage in weights gives another model of the same shape."""
    sample = data.draw(st.sampled_from(checkpoints))
    name, files = data.draw(damaged_files(sample.files))
    copy = write(tmp_path / "copy", files)
    tensors = unless_refused(lambda: sample.read(copy), XlexportError)
    if tensors is not None and sample.checks and not name.endswith(".json"):
        expected = sample.read(sample.path)
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[key], expected[key]) for key in expected)


LINES = st.lists(
    st.fixed_dictionaries(
        {"text": st.just(TEXT) | st.text() | st.sampled_from(VALUES), "id": st.sampled_from((1, "a"))}
    )
    .flatmap(lambda fields: damaged_json(fields, depths=(100, 5000)) | st.just(json.dumps(fields).encode()))
    .map(lambda line: line.replace(b"\n", b" ")),
    max_size=4,
).map(b"\n".join)
DOCUMENTS = st.text().map(str.encode) | st.binary(max_size=300) | st.just(TEXT.encode()).flatmap(damaged)
IDS = st.lists(st.integers(0, 255)).map(lambda ids: " ".join(map(str, ids)).encode())
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # marks; those of UTF-32 begin with one, or have a zero byte


@STEADY
@given(
    case=st.tuples(st.just(("--field", "text")), LINES)
    | st.tuples(st.just(()), DOCUMENTS)
    | st.tuples(st.just(("--ids",)), IDS | IDS.flatmap(damaged)),
    binary=st.booleans(),
    packed=st.booleans(),
)
def test_score_command_scores_what_can_be_read_and_reports_the_rest(
    case: tuple[tuple[str, ...], bytes], binary: bool, packed: bool, tmp_path: Path
) -> None:
    options, raw = case
    binary = binary and options != ("--ids",)  # which are never binary
    file = tmp_path / ("document.gz" if packed else "document")
    file.write_bytes(gzip.compress(raw, mtime=0) if packed else raw)
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    command = ["score", str(golden_bundle(EMPTY)), str(file), *options, "--json", "--threads", "1"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = execute([*command, *(["--set", "binary=true"] if binary else [])])
    out.flush()
    messages = err.getvalue().splitlines()
    assert all(line.isprintable() and "Traceback" not in line and len(line) <= 2000 for line in messages)
    expected = [None] if not binary and not_text(raw) else plain_documents(raw, options)
    assert code == int(None in expected or not expected)
    assert not code or any(line.startswith('{"error": ') for line in messages)
    scores = [json.loads(line)["nats"] for line in out.buffer.getvalue().splitlines()]
    right = [score.nats for score in open_golden(EMPTY).score([ids for ids in expected if ids is not None])]
    assert scores == pytest.approx(right, abs=CLOSE * 400)


def not_text(raw: bytes) -> bool:
    """Return whether a file does not look like text."""
    return raw.startswith(UTF_16) or b"\0" in raw[:LOOKED_AT]


def plain_documents(raw: bytes, options: tuple[str, ...]) -> list[list[int] | None]:
    """Return each document's ids, read in the plainest way; None if it cannot be scored."""
    if "--ids" in options:
        try:
            documents = [[int(word) for word in raw.removeprefix(b"\xef\xbb\xbf").split()]]
        except ValueError:
            return [None]
    elif options:
        documents = [text_of(line) for line in raw.split(b"\n") if line.strip()]
    else:
        documents = [list(raw)]
    return [ids if len(ids) > 1 and all(0 <= token < 256 for token in ids) else None for ids in documents]


def text_of(line: bytes) -> list[int]:
    """Return the bytes of the text in a line of JSON; none if there is no such text."""
    try:
        value = json.loads(line.strip().decode("utf-8-sig"))
        return list(value["text"].encode("utf-8")) if isinstance(value["text"], str) else []
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        return []


@STEADY
@given(st.lists(st.integers() | st.floats() | st.none() | st.text(max_size=2), max_size=5))
def test_any_list_is_ids_or_refused(ids: list[Any]) -> None:
    stream = open_golden(EMPTY).stream()
    good = all(type(token) is int and 0 <= token < 256 for token in ids)
    assert (unless_refused(lambda: stream.feed(ids), TokenError) is not None) == good
    assert stream.position == (len(ids) if good else 0)


@STEADY
@given(st.binary(min_size=2, max_size=80), st.lists(st.integers(0, 80), max_size=4))
def test_any_bytes_score_alike_in_any_pieces(raw: bytes, cuts: list[int]) -> None:
    model = open_golden(EMPTY)
    whole = model.stream().feed(raw).log_probs
    stream, edges = model.stream(), sorted([0, *(min(cut, len(raw)) for cut in cuts), len(raw)])
    pieces = [stream.feed(raw[a:b]).log_probs for a, b in itertools.pairwise(edges)]
    # float32 sums in another order: 2e-6 seen.
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=2e-5)
