"""Texts of streams in C, cut anywhere: tokens and sums of the whole, held text, previews, states, and ends of texts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CModel, CRuntime, CStream
from tests.helpers.manifests import edit_manifest, with_tokenizer
from tests.helpers.paths import EMPTY, golden_bundle
from tests.native.test_c_byte_pairs import make_bundle, tokenizer_json
from xlruntime import Sampling, load

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

WORDS = {"kind": "words", "symbols": ["<S>", "<unk>", "the", "cat", "sat"], "unk": "<unk>", "line_end": "<S>"}
LINES = {**WORDS, "line_start": "<S>"}
MARKS = [*"abcdehst .é—", "<unk>", "\n"]
CHARACTERS = {"kind": "characters", "symbols": MARKS, "unk": "<unk>"}
SYMBOLS = {"kind": "symbols", "symbols": [*MARKS, "the", "the cat", "tha", "é—", "at\n", "\r"], "unk": "<unk>"}
LONGER = ("the", "the cat s", "é—", " the", "\n\n", "—é", "by", "byte")
SINGLE = [bytes([byte]).hex() for byte in range(200)]
TRIE = {"kind": "trie", "symbols": ["", *SINGLE, "", *(text.encode().hex() for text in LONGER)], "unk": "00"}
BYTES: dict[str, Any] = {}
EVERY: dict[str, dict[str, Any] | None] = {
    **{"words": WORDS, "lines": LINES, "characters": CHARACTERS, "symbols": SYMBOLS, "trie": TRIE},
    **{"bytes": BYTES, "byte_pairs": None},
}
TEXT = "the cat sat.\r\nthé— —the  cats the cat the\n\nha é—é \U0001f642ab.\n"


def made(kind: str, folder: Path) -> Path:
    """Return a bundle with this tokenizer."""
    rules = EVERY[kind]
    if rules is None:
        return make_bundle(folder, tokenizer_json())
    if not rules:
        return shutil.copytree(golden_bundle(EMPTY), folder)
    file = folder.parent / "vocabulary.json"
    file.write_text(json.dumps({"format": "xlexport vocabulary", **rules}))
    return with_tokenizer(golden_bundle(EMPTY), folder, file, kind="vocabulary")


@pytest.fixture(params=list(EVERY))
def model(request: pytest.FixtureRequest, c_runtime: CRuntime, tmp_path: Path) -> CModel:
    return c_runtime.load(made(request.param, tmp_path / "bundle"), kernels=False)


@pytest.fixture
def pairs(c_runtime: CRuntime, tmp_path: Path) -> CModel:
    return c_runtime.load(made("byte_pairs", tmp_path / "bundle"), kernels=False)


def fed(stream: CStream, raw: bytes, cuts: list[int]) -> tuple[list[int], float]:
    """Feed a text in pieces, then flush; return all tokens and the sum of their scores."""
    parts = [stream.feed(raw[a:b]) for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    parts.append(stream.flush())
    return [int(n) for part in parts for n in part.tokens], float(sum(part.log_probs.sum() for part in parts))


def all_cuts(size: int) -> Iterator[list[int]]:
    rng = random.Random(1)
    yield from ([place] for place in range(size + 1))
    for n in (2, 3, 5, 8, 20, size):
        yield sorted(rng.choices(range(size + 1), k=n))
    yield list(range(size))


def test_every_cut_has_the_tokens_and_the_sum_of_the_whole(model: CModel) -> None:
    raw = TEXT.encode()
    expected, total = fed(model.stream(), raw, [])
    whole = model.encode(raw).tolist()
    assert [*whole[1:]] == expected or whole[1:-1] == expected  # a vocabulary's line end is only that of a document
    for cuts in all_cuts(len(raw)):
        tokens, nats = fed(model.stream(), raw, cuts)
        assert tokens == expected, cuts
        assert nats == pytest.approx(total, rel=1e-5)


def test_documents_have_the_tokens_of_the_whole(c_runtime: CRuntime, model: CModel, tmp_path: Path) -> None:
    raw = (TEXT * 900).encode()
    file = tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbf" + raw)
    total, steps = model.score(file)
    tokens = [int(token) for step in steps for token in step.tokens]
    assert tokens == model.encode(raw)[1:].tolist()
    assert (total.bytes, total.chars) == (len(raw) + 3, len(raw.decode()) + 1)
    left_out = model.score(raw)[0]
    is_words = model.info.tokenizer == b"vocabulary" and left_out.dropped_bytes == 0 and total.dropped_bytes == 0
    if not is_words:  # which cover what is before them
        assert (total.dropped_bytes, total.dropped_chars) == (left_out.dropped_bytes + 3, left_out.dropped_chars + 1)
        assert total.scored_bytes == left_out.scored_bytes


def test_previews_change_nothing(model: CModel) -> None:
    stream, twin = model.stream(), model.stream()
    for piece in ("the ca", "t sa", "t.\r", "\nth\u00e9", "\u2014 ca"):
        stream.feed(piece)
        twin.feed(piece)
        seen = stream.preview()
        expected = twin.fork().flush()
        assert seen.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_array_equal(seen.log_probs, expected.log_probs)
        assert stream.position == twin.position
    assert stream.flush().tokens.tolist() == seen.tokens.tolist()
    assert len(stream.flush().tokens) == len(stream.preview().tokens) == 0


def test_continuations_count_tokens_that_end_in_them(pairs: CModel) -> None:
    stream = pairs.stream()
    stream.feed("the abc ")
    before = pairs.encode("the abc ").tolist()
    whole = pairs.encode("the abc the").tolist()  # " the" is one token
    found = stream.score_continuation("the")
    assert found.tokens.tolist() == whole[len(before) - 1 :]
    twin = pairs.stream()
    twin.feed("the abc the")
    assert found.log_probs[-1] == twin.flush().log_probs[-1]
    ids = stream.score_continuation([3, 4])
    assert ids.tokens.tolist() == [3, 4] and ids.index.tolist() == [len(before), len(before) + 1]
    assert len(stream.score_continuation("").tokens) == 0
    assert [*pairs.stream().score_continuation("the").tokens] == pairs.encode("the").tolist()[1:]


def test_ids_end_the_held_text(pairs: CModel) -> None:
    stream = pairs.stream()
    assert len(stream.feed("the").tokens) == 0
    rest = pairs.encode("the").tolist()
    assert stream.feed([5, 6]).tokens.tolist() == [*rest[1:], 5, 6]
    stream.feed("abc")
    stream.reset()
    assert len(stream.flush().tokens) == 0 and stream.position == 0
    stream.feed("abc")
    assert len(stream.generate([], 3, Sampling(temperature=0))) == 3
    assert stream.position == len(pairs.encode("abc")) + 3 and len(stream.flush().tokens) == 0
    stream.feed("abc")
    assert stream.fork().flush().tokens.tolist() == stream.flush().tokens.tolist() != []


def test_errors_change_nothing(model: CModel) -> None:
    if model.info.tokenizer == b"bytes":
        pytest.skip("any text is one")
    stream = model.stream()
    stream.feed("the ca")
    seen = stream.preview().tokens.tolist()
    for wrong in (b"t \xff", b"\xc3("):
        with pytest.raises(CError, match="not UTF-8 at byte"):
            stream.feed(wrong)
    stream.feed(b"t\xc3")
    with pytest.raises(CError, match="not UTF-8 at byte"):
        stream.flush()
    stream.feed(b"\xa9")
    twin = model.stream()
    twin.feed("the ca")
    assert twin.preview().tokens.tolist() == seen
    twin.feed("té")
    assert stream.flush().tokens.tolist() == twin.flush().tokens.tolist()


def test_long_runs_are_cut_and_counted(pairs: CModel) -> None:
    stream = pairs.stream()
    for _ in range(5):
        stream.feed("a" * 1000)
    assert stream.unsettled_cuts == 1
    stream.feed("é" * 2047 + "\u00e9"[0])
    assert stream.unsettled_cuts == 1
    assert len(stream.flush().tokens) == 4096


def test_states_hold_text(pairs: CModel, c_runtime: CRuntime, tmp_path: Path) -> None:
    stream, file = pairs.stream(), tmp_path / "state"
    stream.feed("the abc")
    stream.feed("the é".encode()[:-1])
    stream.save(file)
    with safe_open(file, "numpy") as opened:
        texts = opened.metadata()
    assert texts["version"] == "4" and texts["begun"] == "false"
    assert bytes.fromhex(texts["held"]) == "the abcthe é".encode()[:-1]
    restored = pairs.restore(file)
    for each in (stream, restored):
        each.feed(b"\xa9 the")
    assert restored.flush().tokens.tolist() == stream.flush().tokens.tolist()
    restored.save(file)
    other = c_runtime.load(made("bytes", tmp_path / "other"), kernels=False)
    other.restore(file)  # nothing is held
    pairs.stream().save(file)
    stream.feed("x")
    stream.save(file)
    with pytest.raises(CError, match="text that another tokenizer had read") as error:
        other.restore(file)
    assert error.value.code == "state_mismatch"


CHANGES: dict[str, tuple[Callable[[dict[str, str]], Any], str]] = {
    "no digits": (lambda texts: texts.update(held="6"), "state_damaged"),
    "capitals": (lambda texts: texts.update(held="4A"), "state_damaged"),
    "too much": (lambda texts: texts.update(held="61" * 4101), "state_damaged"),
    "no text": (lambda texts: texts.update(held="ff"), "state_damaged"),
    "neither": (lambda texts: texts.update(begun="yes"), "state_damaged"),
    "nothing": (lambda texts: texts.pop("held"), "state_damaged"),
    "later": (lambda texts: texts.update(version="5"), "state_mismatch"),
    "earlier, with more": (lambda texts: texts.update(version="3"), "state_mismatch"),
    "earlier": (lambda texts: (texts.update(version="3"), *map(texts.pop, ("held", "begun", "tokenizer"))), ""),
}


@pytest.mark.parametrize(("change", "code"), CHANGES.values(), ids=CHANGES)
def test_other_states(change: Callable[[Any], Any], code: str, pairs: CModel, tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "state"
    stream = pairs.stream()
    stream.feed([1, 2, 3])
    stream.save(file)
    with safe_open(file, "numpy") as opened:
        texts, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    change(texts)
    lines = "".join(f"{name}={text}\n" for name, text in sorted(texts.items()) if name != "digest")
    data = b"".join(tensors[name].tobytes() for name in sorted(tensors))
    texts["digest"] = hashlib.sha256(lines.encode() + data).hexdigest()
    save_file(tensors, file, texts)
    if code:
        with pytest.raises(CError) as error:
            pairs.restore(file)
        assert error.value.code == code
    else:
        assert pairs.restore(file).position == 3


def test_draws_are_those_of_python(c_runtime: CRuntime) -> None:
    folder = golden_bundle(EMPTY)
    python, c = load(folder, threads=1, ops="none"), c_runtime.load(folder, kernels=False)
    for rule in (
        Sampling(seed=1, min_p=0.4),
        Sampling(seed=2, min_p=0.2, top_p=0.9, top_k=50),
        Sampling(seed=3, repetition_penalty=1.8, repetition_window=3),
        Sampling(temperature=0, repetition_penalty=5.0),
        Sampling(seed=4, repetition_penalty=0.5, min_p=0.1, temperature=1.3, top_p=0.99),
    ):
        prompt = [1, 2, 3, 2, 9]
        assert c.generate(prompt, 40, rule) == [*python.generate(prompt, max_tokens=40, sampling=rule)], rule
        ours, theirs = c.stream(), python.stream()
        ours.feed(prompt)
        theirs.feed(prompt)
        assert ours.generate([], 20, rule) == [*theirs.generate(max_tokens=20, sampling=rule)], rule


def test_generation_ends_with_the_text(c_runtime: CRuntime, tmp_path: Path) -> None:
    plain = c_runtime.load(golden_bundle(EMPTY), kernels=False)
    rule = Sampling(seed=7)
    drawn = plain.generate([1, 2], 30, rule)
    end = drawn[11]
    folder = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    token = {"id": end, "name": "end", "source": "a test"}
    edit_manifest(folder, lambda manifest: manifest["tokenizer"].update(ends=[token], begin=token, adds_begin=True))
    model = c_runtime.load(folder, kernels=False)
    assert (model.info.begin, model.info.adds_begin, plain.info.begin, plain.info.adds_begin) == (end, 1, -1, 0)
    before = drawn[: drawn.index(end)]
    assert model.generate([1, 2], 30, rule) == before
    assert model.generate([1, 2], 30, rule, ignore_eos=True) == drawn
    stream = model.stream()
    assert stream.generate([1, 2], 30, rule) == before
    assert stream.position == 2 + len(before) + 1  # the end is part of the document
    edit_manifest(folder, lambda manifest: manifest["tokenizer"]["ends"][0].update(id=256))
    with pytest.raises(CError, match="'id' is 256, expected 0 to 255"):
        c_runtime.load(folder)


def test_ids_without_text_are_not_drawn(c_runtime: CRuntime, tmp_path: Path) -> None:
    model = c_runtime.load(made("words", tmp_path / "bundle"), kernels=False)
    assert set(model.generate([1], 60, Sampling(seed=1))) <= set(range(5))
    assert set(model.generate([1], 60, Sampling(temperature=0))) <= set(range(5))
