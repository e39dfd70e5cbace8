"""Texts of streams in C: marks, previews, held text and ends. The conformance kit has texts that are cut anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CModel, CRuntime
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import EMPTY, golden_bundle
from xlruntime import Sampling
from xlruntime.state import KIND, VERSION, read_state, write_state

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

TEXT = "the old cat.\r\nthé— —the  cats CCl the\n\nha é—é \U0001f642ab.\n"


@pytest.fixture(params=[EMPTY, "words", "characters", "text_symbols", "text_trie", "text_neox"])
def model(request: pytest.FixtureRequest, c_runtime: CRuntime, kit: Path) -> CModel:
    return c_runtime.load(kit / "bundles" / request.param, kernels=False)


@pytest.fixture
def pairs(c_runtime: CRuntime, kit: Path) -> CModel:
    return c_runtime.load(kit / "bundles" / "text_neox", kernels=False)


def test_a_mark_at_the_beginning_of_a_file_has_no_score(model: CModel, tmp_path: Path) -> None:
    raw, file = TEXT.encode(), tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbf" + raw)
    total, steps = model.score(file, bos=-2)
    assert [int(token) for step in steps for token in step.tokens] == model.encode(raw)[1:].tolist()
    assert (total.bytes, total.chars) == (len(raw) + 3, len(TEXT) + 1)
    assert total.scored_bytes == model.score(raw, bos=-2)[0].scored_bytes


def test_previews_change_nothing(model: CModel) -> None:
    stream, twin = model.stream(), model.stream()
    for piece in ("the ca", "t sa", "t.\r", "\nth\u00e9", "\u2014 ca"):
        stream.feed(piece)
        twin.feed(piece)
        seen, expected = stream.preview(), twin.fork().flush()
        assert seen.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_array_equal(seen.log_probs, expected.log_probs)
        assert stream.position == twin.position
    assert stream.flush().tokens.tolist() == seen.tokens.tolist()
    assert len(stream.flush().tokens) == len(stream.preview().tokens) == 0


def test_continuations_count_tokens_that_end_in_them(pairs: CModel) -> None:
    stream, twin = pairs.stream(), pairs.stream()
    stream.feed("the old ")
    twin.feed("the old the")
    before = pairs.encode("the old ").tolist()
    found = stream.score_continuation("the")
    assert found.tokens.tolist() == pairs.encode("the old the").tolist()[len(before) - 1 :]  # " the" is one token
    assert found.log_probs[-1] == twin.flush().log_probs[-1]
    ids = stream.score_continuation([3, 4])
    assert (ids.tokens.tolist(), ids.index.tolist()) == ([3, 4], [len(before), len(before) + 1])
    assert len(stream.score_continuation("").tokens) == 0


def test_drawn_tokens_and_a_reset_leave_no_held_text(pairs: CModel) -> None:
    stream = pairs.stream()
    stream.feed("abc")
    stream.reset()
    assert len(stream.flush().tokens) == 0 and stream.position == 0
    stream.feed("abc")
    assert len(stream.generate([], 3, Sampling(temperature=0))) == 3
    assert stream.position == len(pairs.encode("abc")) + 3 and len(stream.flush().tokens) == 0


def test_errors_change_nothing(pairs: CModel) -> None:
    stream, twin = pairs.stream(), pairs.stream()
    stream.feed("the ca")
    for wrong in (b"t \xff", b"\xc3("):
        with pytest.raises(CError, match="not UTF-8 at byte"):
            stream.feed(wrong)
    stream.feed(b"t\xc3")
    with pytest.raises(CError, match="not UTF-8 at byte 7"):
        stream.flush()
    stream.feed(b"\xa9")
    twin.feed("the caté")
    assert stream.flush().tokens.tolist() == twin.flush().tokens.tolist()


def test_long_runs_are_cut_and_counted(pairs: CModel) -> None:
    stream = pairs.stream()
    for _ in range(5):
        stream.feed("a" * 1000)
    assert stream.unsettled_cuts == 1
    stream.feed("Ж" * 2048)  # as much as is held
    assert stream.unsettled_cuts == 1
    assert len(stream.flush().tokens) == 4096


def test_states_hold_text_of_their_own_tokenizer(pairs: CModel, c_runtime: CRuntime, kit: Path, tmp_path: Path) -> None:
    stream, file = pairs.stream(), tmp_path / "state"
    other = c_runtime.load(kit / "bundles" / "text_trie", kernels=False)
    stream.feed([1])
    stream.save(file)
    other.restore(file)
    stream.feed("x")
    stream.save(file)
    with pytest.raises(CError, match="text that another tokenizer had read") as error:
        other.restore(file)
    assert error.value.code == "state_mismatch"
    texts, tensors = read_state(file, KIND, VERSION, "")
    write_state(file, {**texts, "held": "ff"}, tensors)
    with pytest.raises(CError, match="its held text is none that the tokenizer reads") as error:
        pairs.restore(file)
    assert error.value.code == "state_damaged"


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
