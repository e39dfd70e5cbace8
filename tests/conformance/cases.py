"""The cases in which nothing is refused: scores, streams, generation, saved states and tokenizers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from xlruntime.bundle import RUN, Bundle
from xlruntime.bundle_files import read_bundle
from xlruntime.known_answers import ANSWERS_FILE

from .actions import Case, Files, answer_actions, opening, refused
from .bundles import GOLDEN, ROOT, SAMPLES, WITHIN
from .player import floats
from .step_models import step_cases

CHOSEN = ("segment_len", "mem_len")  # all other settings are chosen in a bundle

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"seed": 1},
    {"temperature": 0.7, "top_k": 5, "seed": 2},
    {"temperature": 1.3, "top_p": 0.8, "seed": "12345678901234567890"},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.6, "seed": 0},
    {"min_p": 0.2, "top_p": 0.9, "top_k": 50, "seed": 4},
    {"repetition_penalty": 1.8, "repetition_window": 3, "min_p": 0.1, "seed": 5},
    {"temperature": 0, "repetition_penalty": 5},
)
GROWING = (
    "The old man walked slowly down to the river, and it's  raining.\n\nThen they'll rest;\r\n"
    "    return 12345 + 3.14\tend\n 日本語の文章。\nСтарик шёл e\u0301 — 🙂👍🏽\u200d <|end|> and <|en of it. They walk"
)
MOLECULES = "CC(=O)ClBrCl[C@@H]c1[n2O]  N\nBC。\nClC[C@H"
TEXTS = {
    "words": "the cat saw a dog .\nthe  zebra\tsat on É\r\n\r\nnaïve cat",
    "lines": "the cat\na b c\n\nthe",
    "characters": "The old Café\nsat, zig zag!",
    "byte_symbols": "Two lines\nand a half é",
    "byte_pairs": "the cat and the otter, then rain.",
    "sentence_pieces": "the cat and the dog sat under it",
    "first_id": "Bytes: é\n\0.",
}


def honest_cases(kit: Path, numbers_only: bool = False) -> Iterator[Case]:
    """Yield the cases of all bundles in `kit`, without what they expect; those against eager models have it.

    Args:
        numbers_only: of bundles with numbers of an eager model, yield only the comparison with them; of the others,
            leave out streams and generated texts.
    """
    files = Files(kit)
    for folder in sorted((kit / "bundles").iterdir()):
        bundle = read_bundle(folder)
        name = folder.name
        if bundle.purpose == RUN:
            yield from step_cases(files, name, bundle.config, bundle.fixed.get("batch", 2))
            continue
        if name.startswith("text_"):
            yield _case("growing", name, _growing_text(name))
            continue
        if bundle.fixed.get("batch", 1) != 1:  # of which only the refusal is a case
            continue
        if (GOLDEN / name / "expected.safetensors").is_file():
            yield _case("eager", name, _eager(name, files))
            if numbers_only:
                continue
        documents = _documents(name, bundle)
        yield _case("scores", name, _scores(name, bundle, documents, files))
        if ANSWERS_FILE in bundle.files:
            yield _case("answers", name, answer_actions(name, _changes, files))
        if not bundle.evaluation.full_document:
            if not numbers_only:
                yield _case("stream", name, _stream(documents[-1]))
            yield _case("state", name, _states(name, documents[-1]))
        if "generate" in bundle.graphs and not (numbers_only or name in WITHIN):  # one other token changes all
            yield _case("generate", name, _generate(bundle, documents))
        if name in TEXTS:
            yield _case("text", name, _text(name))
    changed = files.edited("two_rings", "passed_over", _prefer_unknown_kernels)
    yield {
        "name": "passed_over",
        "actions": [opening("two_rings", changed), {"do": "score", "document": {"ids": [3, 1, 4, 1, 5]}}],
    }


def _prefer_unknown_kernels(manifest: Case) -> None:
    """Prefer a graph that needs a kernel which no runtime has; its file is not a graph, so it cannot open."""
    manifest["graphs"]["other"] = {**manifest["graphs"]["score"], "file": "first_memory.safetensors"}
    choice = {"graph": "other", "max_segment": None, "kernels": ["LSHSort", "Unknown"], "device": None}
    manifest["steps"]["score"].insert(0, choice)


def _case(what: str, name: str, actions: Iterable[Case]) -> Case:
    bounds = {"within": WITHIN[name]} if name in WITHIN else {}
    return {"name": f"{what}_{name}", **bounds, "actions": [opening(name), *actions]}


def _documents(name: str, bundle: Bundle) -> list[list[int]]:
    """Return token ids of documents that the model can read, the longest last."""
    if name in SAMPLES:
        text = (ROOT / "LICENSE").read_bytes()
        return [list(text[:2]), list(text[200:1500])]
    longest = bundle.settings.longest_document or 150
    random = np.random.default_rng(len(name))
    return [random.integers(0, bundle.vocab_size, length).tolist() for length in (1, 2, min(longest, 150))]


def _configured(name: str, settings: Mapping[str, Any], files: Files) -> Case:
    """Return an action that opens a bundle with other values of settings."""

    def change(manifest: Case) -> None:
        for setting, value in settings.items():
            if setting == "restart":
                manifest["document"]["restart"] = value
            else:
                manifest["settings"][setting]["value"] = value

    chosen = "_".join(f"{setting}_{value}" for setting, value in settings.items())
    return opening(name, files.edited(name, f"{name}_{chosen}".lower(), change))


def _scores(name: str, bundle: Bundle, documents: list[list[int]], files: Files) -> Iterator[Case]:
    long = documents[-1]
    yield from ({"do": "score", "document": {"ids": ids}} for ids in documents)
    if "detail" in bundle.graphs and name not in WITHIN:  # ranks move with any rounding
        yield from ({"do": "score", "document": {"ids": long}, "detail": k} for k in (0, 3))
    yield {"do": "score", "document": {"ids": long[:20]}, "bos": 1}
    if name in SAMPLES:
        yield {"do": "score", "document": {"text": "Zwölf Boxkämpfer\njagen 🦊 quer.\n"}}
    beyond = long + long[:57]
    if not bundle.evaluation.full_document:
        for length in (1, 3, bundle.evaluation.segment_len + 5):
            score = {"do": "score", "document": {"ids": long[:60]}, "settings": {"segment_len": length}}
            changes_scores = bundle.settings.segmentation_matters and length > bundle.evaluation.segment_len
            yield refused(score, "option") if bundle.fixed and changes_scores else score
        if bundle.evaluation.restart:
            yield from ({"do": "stream", "as": "a"}, {"do": "feed", "stream": "a", "piece": {"ids": beyond}})
            yield {"do": "score_continuation", "stream": "a", "piece": {"ids": long}}
    others = [
        {setting: other}
        for setting, declared in bundle.evaluation.settings.items()
        for other in _others(declared.value, declared.off)
        if declared.problem(other) is None
    ]
    for settings in sorted(others, key=lambda each: "mem_len" not in each):  # the others open the bundle again
        if "mem_len" not in settings:
            yield _configured(name, settings, files)
        yield {"do": "score", "document": {"ids": long}, **({"settings": settings} if "mem_len" in settings else {})}
    if bundle.settings.longest_part is not None:
        yield _configured(name, {"restart": True}, files)
        yield {"do": "score", "document": {"ids": beyond}}


def _changes(answers: Any) -> tuple[Any, Any]:
    """Return answers of which one is wrong, and answers that break a rule."""
    beyond = answers["log_probs"][-1] - 2 * max(answers["bounds"])
    tokens = [1 << 20, *answers["tokens"][1:]]  # outside of every vocabulary here
    return {**answers, "log_probs": [*answers["log_probs"][:-1], beyond]}, {**answers, "tokens": tokens}


def _others(value: int, off: int | None) -> list[int]:
    """Return other values of a setting."""
    if isinstance(value, bool):
        return [not value]
    return [max(1, value // 2), abs(value) + 3, *([] if off is None else [off])]


def _stream(ids: list[int]) -> list[Case]:
    half, rest = len(ids) // 2, ids[len(ids) // 2 :]
    pieces = [ids[:1], [], ids[1:4], ids[4:half]]
    return [
        {"do": "stream", "as": "a"},
        *({"do": "feed", "stream": "a", "piece": {"ids": piece}} for piece in pieces),
        {"do": "score_continuation", "stream": "a", "piece": {"ids": rest[:3]}},
        {"do": "score_continuation", "stream": "a", "piece": {"ids": rest}},
        {"do": "fork", "stream": "a", "as": "b"},
        {"do": "feed", "stream": "b", "piece": {"ids": ids[:9]}},
        {"do": "feed", "stream": "a", "piece": {"ids": rest}},
        {"do": "score_continuation", "stream": "b", "piece": {"ids": []}},
        {"do": "reset", "stream": "a"},
        {"do": "feed", "stream": "a", "piece": {"ids": ids[:9]}},
    ]


def _states(name: str, ids: list[int]) -> list[Case]:
    """Return actions that save a state, go on with it, and go on with states that another runtime has saved.

    The states of the kit are saved by the writer of the kit at the same place: `keep` says under which name. Two
    streams with other documents before this one then save the same bytes.
    """
    half = len(ids) // 2
    return [
        {"do": "stream", "as": "a", "capacity": None},
        {"do": "save", "stream": "a", "as": "fresh", "keep": f"{name}_fresh"},
        {"do": "feed", "stream": "a", "piece": {"ids": ids[:half]}},
        {"do": "save", "stream": "a", "as": "half", "keep": f"{name}_half"},
        {"do": "restore", "state": "half", "as": "own"},
        {"do": "feed", "stream": "own", "piece": {"ids": ids[half:]}},
        {"do": "restore", "state": f"{name}_fresh", "as": "begun"},
        {"do": "feed", "stream": "begun", "piece": {"ids": ids[:half]}},
        {"do": "restore", "state": f"{name}_half", "as": "other"},
        {"do": "feed", "stream": "other", "piece": {"ids": ids[half:]}},
        {"do": "feed", "stream": "a", "piece": {"ids": ids[half:]}},
        {"do": "reset", "stream": "a"},
        {"do": "feed", "stream": "a", "piece": {"ids": ids[:3]}},
        {"do": "save", "stream": "a", "as": "one"},
        {"do": "restore", "state": "half", "as": "two"},
        {"do": "feed", "stream": "two", "piece": {"ids": ids[half:][::-1]}},
        {"do": "reset", "stream": "two"},
        {"do": "feed", "stream": "two", "piece": {"ids": ids[:3]}},
        {"do": "score_continuation", "stream": "two", "piece": {"ids": ids[:2]}},
        {"do": "save", "stream": "two", "as": "two", "same_as": "one", "expect": {"same": True}},
    ]


def _generate(bundle: Bundle, documents: list[list[int]]) -> list[Case]:
    prompt = {"ids": documents[-1][:30]}
    each = 20
    actions: list[Case] = [
        {"do": "generate", "prompt": prompt, "max_tokens": each, "sampling": sampling} for sampling in SAMPLINGS
    ]
    if not bundle.evaluation.full_document:
        actions += [
            {"do": "stream", "as": "a"},
            {"do": "feed", "stream": "a", "piece": prompt},
            {"do": "generate", "stream": "a", "max_tokens": 5, "sampling": {"temperature": 0}},
            {"do": "generate", "stream": "a", "prompt": {"ids": [1, 2]}, "max_tokens": 3, "sampling": {"seed": 3}},
            {"do": "feed", "stream": "a", "piece": {"ids": [0, 1, 2]}},
        ]
    return actions


def _text(name: str) -> list[Case]:
    text = TEXTS[name]
    actions: list[Case] = [
        {"do": "encode", "text": {"text": text}},
        {"do": "score", "document": {"text": text}},
        {"do": "decode", "ids": [3, 5, 8, 13]},
    ]
    if name not in ("byte_pairs", "sentence_pieces"):  # pieces may have other tokens than the whole
        cut = text.index(" ") + 1
        actions += [
            {"do": "stream", "as": "a"},
            {"do": "feed", "stream": "a", "piece": {"text": text[:cut]}},
            {"do": "feed", "stream": "a", "piece": {"text": text[cut:]}},
        ]
    return actions


def _growing_text(name: str) -> Iterator[Case]:
    """Yield actions in which a text comes in pieces, cut anywhere: all have the tokens of the whole."""
    text = MOLECULES if name == "text_symbols" else GROWING
    raw = text.encode()
    yield {"do": "encode", "text": {"text": text}}
    yield {"do": "score", "document": {"text": text.replace("e\u0301", "e")}}  # marks have no place in some libraries
    for start in ("é", "<|end|>"):  # the first token of a document has no score
        yield {"do": "score", "document": {"text": f"{start} old"}}
    random = np.random.default_rng(len(name))
    for stream, inner in (("a", random.choice(len(raw), 12, replace=False)), ("b", np.arange(1, len(raw)))):
        cuts = [0, *sorted(inner.tolist()), len(raw)]
        pieces = [{"base64": base64.b64encode(raw[start:end]).decode()} for start, end in pairwise(cuts)]
        yield {"do": "stream", "as": stream}
        yield {"do": "grow", "stream": stream, "pieces": pieces}
        yield {"do": "feed", "stream": stream, "piece": {"text": " Some"}}
        yield {"do": "score_continuation", "stream": stream, "piece": {"text": "thing else"}}
        more: list[Case] = [{"text": "what later"}, {"ids": [1, 2]}, {"text": " It goes on"}]
        yield {"do": "grow", "stream": stream, "pieces": more}
    yield {"do": "stream", "as": "c"}
    for piece in (text[: len(text) // 2], text[len(text) // 2 : -3]):
        yield {"do": "feed", "stream": "c", "piece": {"text": piece}, "expect": {}}
    yield {"do": "leave", "stream": "c", "as": "own", "keep": f"held_{name}"}
    yield {"do": "restore", "state": f"held_{name}", "as": "d"}
    yield {"do": "grow", "stream": "d", "pieces": [{"text": text[-3:]}]}
    yield {"do": "generate", "stream": "d", "prompt": {"text": "The"}, "max_tokens": 20, "sampling": {"seed": 1}}


def _eager(name: str, files: Files) -> Iterator[Case]:
    """Yield actions whose expected scores are those of the trained model in PyTorch."""
    with safe_open(GOLDEN / name / "expected.safetensors", "numpy") as opened:
        cases: list[tuple[int, Mapping[str, Any]]] = json.loads(opened.metadata()["cases"])
        configured: dict[str, Any] = {}
        for number, (document, settings) in enumerate(cases):
            chosen = {setting: value for setting, value in settings.items() if setting in CHOSEN}
            rest = {setting: value for setting, value in settings.items() if setting not in CHOSEN}
            if rest != configured:
                yield _configured(name, rest, files)
                configured = rest
            yield {
                "do": "score",
                "document": {"ids": opened.get_tensor(f"ids.{document}").tolist()},
                "settings": chosen,
                "expect": {"log_probs": floats(opened.get_tensor(f"log_probs.{number}"))},
            }
