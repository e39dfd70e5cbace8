"""Short versions of `reliability/fuzz.py`: the first cases of each target that needs no PyTorch."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reliability.bundle_targets import BundleBytes, ManifestFields, ResealedFiles
from tests.reliability.damage import damage_bytes, damage_json
from tests.reliability.judging import Target, judged
from tests.reliability.state_targets import StateBytes, StateFields
from tests.reliability.tokenizer_targets import Tokenizers
from tests.runtime.conftest import EMPTY, open_golden
from xlruntime import BundleError, TokenError, XlruntimeError
from xlruntime.bundle import Bundle
from xlruntime.evaluation import EvaluationRules
from xlruntime.json_fields import read_fields

pytestmark = pytest.mark.full

# The same cases every time, even on a slow machine.
STEADY = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
CASES = 150


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("kind", [BundleBytes, ManifestFields, ResealedFiles, StateBytes, StateFields])
def test_damage_is_refused_or_does_no_harm(kind: type[Target], scratch: Path) -> None:
    folder = scratch / kind.__name__
    folder.mkdir(exist_ok=True)
    target = kind(folder)  # type: ignore[call-arg]  # a Protocol has no constructor
    cases = CASES if kind is not ResealedFiles else 60
    outcomes = {number: target.case(number) for number in range(cases)}
    assert not {number: outcome for number, outcome in outcomes.items() if outcome.is_bug}
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    assert kinds["refused"] > cases / 2
    assert kinds["right"] > 0  # the judge knows a right result


def test_damaged_tokenizers_are_refused_or_do_their_work(scratch: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("sentencepiece")
    target = Tokenizers(scratch)
    kinds = Counter(target.case(number).kind for number in range(CASES))
    assert set(kinds) == {"refused", "right"}
    assert min(kinds.values()) > CASES / 4


def test_wrong_results_and_wrong_errors_are_seen() -> None:
    def fail(error: Exception) -> object:
        raise error

    errors = (XlruntimeError,)
    assert judged(lambda: 1, errors, lambda found: found == 2).kind == "wrong result"
    assert judged(lambda: 2, errors, lambda found: found == 2).kind == "right"
    assert judged(lambda: fail(KeyError("x")), errors, bool).kind == "wrong error"
    assert judged(lambda: fail(BundleError("two\nlines")), errors, bool).kind == "bad message"
    assert judged(lambda: fail(BundleError("one line")), errors, bool).kind == "refused"


def test_the_same_seed_does_the_same_damage() -> None:
    document = {"a": [1, 2, {"b": "c"}], "d": None}
    content = json.dumps(document).encode() * 9
    for seed in range(50):
        for damage in (lambda rng: damage_bytes(content, rng), lambda rng: damage_json(document, rng)):
            assert damage(random.Random(seed)) == damage(random.Random(seed))


@STEADY
@given(ANY_JSON)
def test_any_json_is_no_manifest(value: object) -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.from_json(json.dumps(value), "it")
    assert "\n" not in str(caught.value)


@STEADY
@given(st.dictionaries(st.sampled_from([*EvaluationRules.__dataclass_fields__, "other"]), ANY_JSON))
def test_any_values_are_settings_or_told(fields: dict[str, object]) -> None:
    try:
        read = read_fields(EvaluationRules, fields)
    except ValueError as error:
        assert str(error).isprintable()
    else:
        plain = {name: value for name, value in fields.items() if name not in ("settings", "rings")}
        assert all(type(getattr(read, name)) is type(value) for name, value in plain.items())


@STEADY
@given(st.lists(st.integers() | st.floats() | st.none() | st.text(max_size=2), max_size=5))
def test_any_list_is_ids_or_told(ids: list[object]) -> None:
    stream = open_golden(EMPTY).stream()
    good = all(type(token) is int and 0 <= token < 256 for token in ids)
    try:
        stream.feed(ids)  # type: ignore[arg-type]
    except TokenError as error:
        assert not good
        assert stream.position == 0
        assert str(error).isprintable()
    else:
        assert good
        assert stream.position == len(ids)


@STEADY
@given(st.binary(min_size=2, max_size=80), st.lists(st.integers(0, 80), max_size=4))
def test_any_bytes_score_alike_in_any_pieces(raw: bytes, cuts: list[int]) -> None:
    model = open_golden(EMPTY)
    whole = model.stream().feed(raw).log_probs
    stream, edges = model.stream(), sorted([0, *(min(cut, len(raw)) for cut in cuts), len(raw)])
    pieces = [stream.feed(raw[a:b]).log_probs for a, b in itertools.pairwise(edges)]
    # float32 sums in another order: 2e-6 seen.
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=2e-5)
