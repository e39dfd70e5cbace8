"""Encoder-decoders in the runtime: the golden bundle that `make_encoder_decoder.py` makes, and beam search."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import EMPTY, GOLDEN, golden_bundle
from xlruntime import BundleError, OptionError, SearchOptions, TextError, Translation, Translator, load, load_translator
from xlruntime.translator import Beam, length_penalty

FOLDER = GOLDEN / "encoder_decoder" / "translator"
PAIRS = (("abc", "cba!"), ("", "x"), ("a longer one", "long"), ("z", ""))
SOURCES = [source for source, _ in PAIRS]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return load_translator(FOLDER, threads=1)


def test_log_probs_are_those_of_the_eager_model(translator: Translator) -> None:
    wanted = load_file(FOLDER.parent / "expected.safetensors")["log_probs"]
    found = [translator.log_prob(source, target) for source, target in PAIRS]
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=0)


def test_greedy_search_takes_the_likeliest_token_at_each_step(translator: Translator) -> None:
    for source, found in zip(SOURCES, translator.translate(SOURCES, batch_size=1), strict=True):
        ids: list[int] = []
        memory = translator.new_targets([translator.tokenizer.encode(source)])
        token, total = translator.encoder.start, 0.0
        while len(ids) < translator.longest_target:
            read = np.array([[token]])
            logits = translator.step("generate", memory, read, read)["logits"][0].astype(np.float64)
            log_probs = logits - np.log(np.exp(logits).sum())
            logits[[translator.encoder.pad, translator.encoder.start]] = -np.inf
            token = int(logits.argmax())
            total += log_probs[token]
            if token == translator.encoder.end:
                break
            ids.append(token)
        assert list(found.ids) == ids and found.ended == (token == translator.encoder.end)
        assert found.log_prob == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 4])
def test_sources_of_a_batch_are_independent(translator: Translator, beams: int) -> None:
    """Compare batches with single sources: rows with other sources, padding and lengths do not matter."""
    options = SearchOptions(beams, 0.6)
    alone = [next(translator.translate([source], options=options)) for source in SOURCES]
    for batch_size in (2, 16):
        together = list(translator.translate(SOURCES, options=options, batch_size=batch_size))
        assert [found.ids for found in together] == [found.ids for found in alone]
        np.testing.assert_allclose([f.score for f in together], [f.score for f in alone], atol=1e-5)


def test_scores_of_a_search_are_those_of_its_targets(translator: Translator) -> None:
    for source, found in zip(SOURCES, translator.translate(SOURCES, options=SearchOptions(5)), strict=True):
        if found.ended:
            assert found.log_prob == pytest.approx(translator.log_prob(source, list(found.ids)), abs=2e-5)
    likelier = list(translator.translate(SOURCES, options=SearchOptions(30, max_tokens=3)))
    greedy = list(translator.translate(SOURCES, options=SearchOptions(max_tokens=3)))
    assert all(len(found.ids) <= 3 for found in (*likelier, *greedy))
    assert sum(found.log_prob for found in likelier) > sum(found.log_prob for found in greedy)


def test_texts_that_are_too_long_are_refused(translator: Translator) -> None:
    with pytest.raises(TextError, match="source 2: 13 tokens, but the model reads at most 12"):
        list(translator.translate(["short", "one too long."]))
    with pytest.raises(TextError, match="the target: 9 tokens, but the model reads at most 8"):
        translator.log_prob("short", "too long.")
    with pytest.raises(OptionError, match="batch size is 0"):
        list(translator.translate(["short"], batch_size=0))


def test_each_kind_of_bundle_has_its_own_interface() -> None:
    with pytest.raises(BundleError, match=r"an encoder-decoder, which turns one text into another.*load_translator"):
        load(FOLDER)
    with pytest.raises(BundleError, match="a language model, which reads tokens"):
        load_translator(golden_bundle(EMPTY))


FEED = {"feed": "tokens"}
DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "ids of the encoder are outside the vocabulary: end 259": lambda m: m["document"]["encoder"].update(end=259),
    "expected both a graph 'encode' and an encoder, found only one of them": lambda m: m["graphs"].pop("encode"),
    "the graph 'encode' takes tokens, but": lambda m: m["graphs"]["encode"].update(inputs={"tokens": FEED}),
    "targets have no longest length": lambda m: m["document"].update(max_positions=None),
    "takes source_key_0, but nothing feeds it": lambda m: m["graphs"]["encode"]["outputs"].pop("source_key_0"),
    "have no axis 'sources' in front: source_key_0": lambda m: m["graphs"]["encode"]["outputs"]["source_key_0"].update(
        shape=["batch", 2, "source_tokens", 3]
    ),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_contradictions_are_refused(problem: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "bundle"))
    edit_manifest(folder, DAMAGE[problem])
    with pytest.raises(BundleError, match=problem):
        load_translator(folder)


def test_bundle_without_the_declaration_is_refused(tmp_path: Path) -> None:
    """Check that nothing runs the steps without a source: their inputs would be missing."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "bundle"))
    edit_manifest(folder, lambda fields: fields["document"].update(encoder=None))
    with pytest.raises((BundleError, OptionError)):
        list(load(folder, threads=1).score(["text"]))


# Beam search against an exhaustive search over a tiny vocabulary.

END, WORDS, LONGEST = 0, (1, 2), 4
VOCABULARY = 1 + len(WORDS)


class Table:
    """A model of random log-probabilities, one distribution for each beginning."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        beginnings = [ids for n in range(LONGEST) for ids in itertools.product(WORDS, repeat=n)]
        logits = rng.normal(scale=2.0, size=(len(beginnings), VOCABULARY))
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        self.rows = dict(zip(beginnings, logits, strict=True))

    def search(self, options: SearchOptions, longest: int = LONGEST) -> Beam:
        beam = Beam(options, END, longest)
        rows = list(beam.ids)
        while rows:
            parents = beam.extend(np.stack([self.rows[ids] for ids in rows]))
            assert [beam.ids[at][:-1] for at in range(len(parents))] == [rows[parent] for parent in parents]
            rows = beam.ids if parents else []
        return beam

    def ended(self, exponent: float) -> list[Translation]:
        """Return all targets that end."""
        found = []
        for ids in self.rows:
            log_prob = sum(self.rows[ids[:at]][token] for at, token in enumerate((*ids, END)))
            found.append(Translation(ids, log_prob, log_prob / length_penalty(len(ids) + 1, exponent), True))
        return found


@pytest.mark.parametrize("exponent", [0.0, 0.6, 2.0])
def test_wide_beam_finds_the_best_of_all_targets(exponent: float) -> None:
    """Compare with all targets: a beam with room for every beginning leaves none out."""
    for seed in range(40):
        table = Table(seed)
        best = max(table.ended(exponent), key=lambda target: target.score)
        found = table.search(SearchOptions(beams=40, length_penalty=exponent)).best
        assert found.ids == best.ids and found.ended
        assert found.log_prob == pytest.approx(best.log_prob, abs=1e-12)
        assert found.score == pytest.approx(best.score, abs=1e-12)


def test_beam_of_one_is_greedy_search() -> None:
    longer = 0
    for seed in range(40):
        table = Table(seed)
        ids: tuple[int, ...] = ()
        while len(ids) < LONGEST and (token := int(table.rows[ids].argmax())) != END:
            ids = (*ids, token)
        for exponent in (0.0, 1.0):
            found = table.search(SearchOptions(length_penalty=exponent)).best
            assert found.ids == ids and found.ended == (len(ids) < LONGEST)
        longer += table.search(SearchOptions(beams=3)).best.log_prob > found.log_prob + 1e-12
    assert longer > 5  # a wider beam finds likelier targets


def test_search_goes_on_while_a_longer_target_may_be_better() -> None:
    """Let a short target end with 0.6, and a beginning of 0.3 go on with certainty: its penalty grows until the end."""
    beam = Beam(SearchOptions(beams=2, length_penalty=1.0), END, 20)
    rows, longest = np.array([[0.6, 0.3, 0.1]]), 0
    while beam.extend(np.log(rows)):
        longest = len(beam.ids[0])
        rows = np.array([[1e-9, 1.0, 1e-9] if longest < 18 else [1.0, 1e-9, 1e-9]])
    assert longest == 18 and beam.best.ids == (1,) * 18
    assert beam.best.log_prob == pytest.approx(np.log(0.3), abs=1e-6)


def test_equal_beginnings_are_ordered_by_their_ids() -> None:
    beam = Beam(SearchOptions(beams=3), END, LONGEST)
    equal: npt.NDArray[np.float64] = np.log(np.full((1, 4), 0.25))
    equal[0, END] = -np.inf
    assert beam.extend(equal) == [0, 0, 0] and beam.ids == [(1,), (2,), (3,)]
    assert beam.extend(np.repeat(equal, 3, axis=0)) == [0, 0, 0] and beam.ids == [(1, 1), (1, 2), (1, 3)]


def test_target_without_end_is_cut_off() -> None:
    table = Table(0)
    for row in table.rows.values():
        row[END] = -np.inf
    found = table.search(SearchOptions(beams=2), longest=3).best
    assert len(found.ids) == 3 and not found.ended


def test_penalty_is_that_of_wu_and_others() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 0.5) == pytest.approx(2**0.5)


def test_bad_options_are_listed() -> None:
    with pytest.raises(OptionError, match=r"beams is 0, .*; length_penalty is -1, .*; max_tokens is 0, "):
        SearchOptions(0, -1, 0)
    with pytest.raises(OptionError, match="length_penalty is nan"):
        SearchOptions(length_penalty=float("nan"))
