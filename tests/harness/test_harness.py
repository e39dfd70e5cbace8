"""lm-evaluation-harness gets the sums of `xlexport score`, from the class and over HTTP."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import EMPTY, golden_bundle
from tests.serve.conftest import Start, start
from xlruntime import Model, Sampling, load

__all__ = ["start"]

TEXTS = ["It was the best of times, it was the worst of times.\n" * 30, "a", "Über den Wolken\n\n", "x" * 400]
SAME = 1e-6  # relative: sums in 64 bits of scores in 32 bits


@pytest.fixture(scope="module")
def model() -> Model:
    return load(golden_bundle(EMPTY), threads=1)


@pytest.fixture(scope="module")
def lm() -> Iterator[Any]:
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that the harness imports
        from xlexport.harness.model import XlexportLM
    yield XlexportLM(str(golden_bundle(EMPTY)), batch_size=3, threads=1)


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


@pytest.mark.full
def test_documents_against_score(lm: Any, model: Model) -> None:
    found = lm.loglikelihood_rolling(requests("loglikelihood_rolling", *((text,) for text in TEXTS)))
    expected = [-score.nats for score in model.score(TEXTS, bos=10)]
    assert found == pytest.approx(expected, rel=SAME)


@pytest.mark.full
def test_device_that_the_harness_gives_unasked(lm: Any) -> None:
    assert type(lm)(str(golden_bundle(EMPTY)), device="cuda:0", threads=1).loglikelihood_rolling([]) == []


@pytest.mark.full
def test_document_without_a_token_before_it(model: Model) -> None:
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    from xlexport.harness.model import XlexportLM
    from xlruntime import OptionError

    lm = XlexportLM(str(golden_bundle(EMPTY)), bos="none", threads=1)
    found = lm.loglikelihood_rolling(requests("loglikelihood_rolling", *((text,) for text in [*TEXTS, ""])))
    assert found == pytest.approx([-score.nats for score in model.score([*TEXTS, ""])], rel=SAME)
    with pytest.raises(OptionError, match="no token to begin with"):
        lm.loglikelihood(requests("loglikelihood", ("", "a")))


@pytest.mark.full
def test_continuations_against_streams(lm: Any, model: Model) -> None:
    pairs = [("It was", " the best"), ("It was ", "the best"), ("", "b"), (TEXTS[0], " It")]
    found = lm.loglikelihood(requests("loglikelihood", *pairs))
    for (context, continuation), (total, greedy) in zip(pairs, found, strict=True):
        stream = model.stream()
        moved = context[len(context.rstrip()) :]  # the harness moves spaces to the continuation
        stream.feed(context.rstrip() or "\n")
        likeliest = list(stream.fork().generate(max_tokens=len(moved + continuation), sampling=Sampling(0)))
        assert total == pytest.approx(stream.feed(moved + continuation).log_probs.sum(), rel=1e-5)
        assert greedy == (likeliest == list((moved + continuation).encode()))
    ids = list(model.generate("It was", max_tokens=3, sampling=Sampling(0)))
    if all(token < 128 for token in ids):  # these bytes are a text
        ((_, greedy),) = lm.loglikelihood(requests("loglikelihood", ("It was", bytes(ids).decode())))
        assert greedy


@pytest.mark.full
def test_generation_against_generate(lm: Any, model: Model) -> None:
    options = {"until": ["zz"], "max_gen_toks": 9, "do_sample": False}
    drawn = {"until": [], "max_gen_toks": 9, "temperature": 0.5, "seed": 3}
    found = lm.generate_until(requests("generate_until", ("It was", options), ("It was", drawn)))
    for text, sampling in zip(found, (Sampling(0), Sampling(0.5, seed=3)), strict=True):
        assert text == bytes(model.generate("It was", max_tokens=9, sampling=sampling)).decode("utf-8", "replace")
    stop = found[0][2]
    (cut,) = lm.generate_until(requests("generate_until", ("It was", options | {"until": stop})))
    assert cut == found[0][: found[0].index(stop)]


@pytest.mark.full
def test_context_of_white_space_comes_after_the_prefix(lm: Any, model: Model) -> None:
    found = lm.loglikelihood(requests("loglikelihood", (" ", "river"), ("", " river"), ("\n", "x")))
    expected = [model.stream().feed(text).log_probs.sum() for text in ("\n river", "\n river", "\nx")]
    assert [total for total, _ in found] == pytest.approx(
        expected, rel=1e-5
    )  # the prefix stands for the last's newline


@pytest.mark.full
@pytest.mark.parametrize("pair", [("It was", ""), ("", "")])
def test_continuation_without_tokens_is_named(lm: Any, pair: tuple[str, str]) -> None:
    from xlruntime import OptionError

    with pytest.raises(OptionError, match=f"request 1: the continuation '' after '{pair[0]}' has no tokens"):
        lm.loglikelihood(requests("loglikelihood", ("a", "b"), pair))


@pytest.mark.full
def test_tokens_that_begin_and_end_texts(lm: Any, model: Model, tmp_path: Path) -> None:
    def token(number: int, name: str) -> dict[str, Any]:
        return {"id": number, "name": name, "source": "a test"}

    free = list(model.generate("\tIt was", max_tokens=9, sampling=Sampling(0)))
    fields: dict[str, Any] = {"begin": token(9, "<s>"), "adds_begin": True, "ends": [token(free[3], "</s>")]}
    bundle = with_tokenizer(model.folder, tmp_path / "bundle", **fields)
    own, plain = (type(lm)(str(bundle), batch_size=1, threads=1, add_bos_token=adds) for adds in (None, False))
    assert (own.prefix_token_id, own.eot_token_id) == (9, free[3])
    assert own.tok_encode("a") == [9, 97]
    assert own.tok_encode("<s>a") == list(b"<s>a")
    assert own.tok_encode("a", add_special_tokens=False) == plain.tok_encode("a") == [97]
    rolling = requests("loglikelihood_rolling", ("It was",))
    for one, text in ((own, "\t\tIt was"), (plain, "\tIt was")):
        assert one.loglikelihood_rolling(rolling) == pytest.approx(
            [model.stream().feed(text).log_probs.sum()], rel=1e-5
        )
    (text,) = own.generate_until(requests("generate_until", ("It was", {"until": [], "max_gen_toks": 9})))
    assert text == bytes(free[: free.index(free[3])]).decode("utf-8", "replace")


@pytest.mark.native  # the harness takes a minute to describe the machine
def test_both_routes_on_a_task(start: Start, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm_eval = pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    from lm_eval.tasks import TaskManager

    importlib.import_module("xlexport.harness.model")  # registers the model
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    task = {
        "task": "documents",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "documents.jsonl")}, "cache_dir": str(tmp_path)},
        "output_type": "loglikelihood_rolling",
        "test_split": "test",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    address = start().base_url
    routes = {
        "xlexport": f"bundle={golden_bundle(EMPTY)},threads=1",
        "local-completions": f"model={EMPTY},base_url={address}/v1/completions,max_length=1000000,num_concurrent=4",
    }
    scores = list(model.score(TEXTS, bos=10))
    expected = sum(score.nats for score in scores) / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    for name, arguments in routes.items():
        answer = lm_eval.simple_evaluate(
            model=name,
            model_args=arguments,
            tasks=[task],
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
        )
        found = answer["results"]["documents"]["bits_per_byte,none"]
        assert found == pytest.approx(expected, abs=1e-6), name
