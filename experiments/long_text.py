"""Long text (Dai et al. 2019, arXiv version 3, Appendix E): `python -m experiments long_text --help`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

import xlexport
from experiments.running import Experiment, difference, experiment_options, mean_and_error, print_rows
from experiments.transformer_xl import SCALES, VARIANTS, model_of
from xlruntime import Model, Sampling, load

__all__ = ["MODELS", "Passage", "bits_after", "by_passage", "continuations", "long_text", "ngram_figures", "passages"]

MODELS = [v for v in VARIANTS["table6"] if v.name in {"recurrence relative full", "recurrence shaw full"}]
PASSAGES = 20
TOP_K = 40  # of the paper
HELD_OUT = "held out"

Passage = tuple[list[int], list[int]]
"""The tokens of a context, and of the text that follows it."""


def passages(text: list[int], length: int) -> list[Passage]:
    """Return passages at even distances that do not overlap, with `length` tokens of context and as many after it.

    Raises:
        click.UsageError: the text has fewer than two, so there would be no standard error.
    """
    number = min(PASSAGES, len(text) // (2 * length))
    if number < 2:
        raise click.UsageError(f"the held-out text has {len(text):,} tokens, and two passages need {4 * length:,}.")
    starts = [place * (len(text) // number) for place in range(number)]
    return [(text[start : start + length], text[start + length : start + 2 * length]) for start in starts]


def ngram_figures(text: list[int], context: list[int]) -> dict[str, float]:
    """Return shares of the n-grams of a text.

    `repeated 4` is the share of 4-grams that the text has before (Welleck et al. 2020), `distinct n` that of n-grams
    that it has not (Li et al. 2016), and `of context 4` that of 4-grams that the context has.
    """
    grams = {n: list(zip(*(text[start:] for start in range(n)), strict=False)) for n in (1, 2, 3, 4)}
    read = set(zip(*(context[start:] for start in range(4)), strict=False))
    distinct = {n: len(set(grams[n])) / len(grams[n]) for n in grams}
    of_context = sum(gram in read for gram in grams[4]) / len(grams[4])
    return {
        "repeated 4": 1 - distinct[4],
        "of context 4": of_context,
        **{f"distinct {n}": distinct[n] for n in (1, 2, 3)},
    }


def continuations(model: Model, passage: Passage, memories: list[int], seed: int) -> dict[str, list[int]]:
    """Continue a context with each length of memory; return the texts, and the one that follows it."""
    context, following = passage
    texts = {}
    for memory in memories:
        drawn = model.stream(mem_len=memory, same_length=True).generate(
            context, max_tokens=len(following), sampling=Sampling(top_k=TOP_K, seed=seed)
        )
        texts[f"memory {memory}"] = list(drawn)
    return {**texts, HELD_OUT: following}


def bits_after(model: Model, context: list[int], texts: Iterable[list[int]], memory: int) -> list[float]:
    """Return the bits per token of each text after the same context."""
    stream = model.stream(mem_len=memory, same_length=True)
    stream.feed(context)
    return [float(stream.score_continuation(text).bits.mean()) for text in texts]


@experiment_options(SCALES, model_of)
def long_text(experiment: Experiment) -> None:
    """Appendix E: continue held-out texts with memories of several lengths, and measure the texts.

    As in the paper, each token is drawn from the 40 likeliest. The first model of --only writes, and every model reads
    the texts after their contexts, with the longest memory: `bits` are those of a token. Context and text are as long
    as the longest memory. All texts are in RUNS/SCALE/long_text.json.
    """
    group = experiment.chosen(MODELS)
    experiment.run(group)
    memories = [round(experiment.scale.tgt_len * factor) for factor in experiment.scale.lengths if factor >= 1]
    chosen = passages(experiment.held_out.tolist(), max(memories))
    texts: list[dict[str, Any]] = []
    for seed in range(experiment.seeds):
        with tempfile.TemporaryDirectory() as folder:
            models = {}
            for variant in group:
                bundle = Path(folder) / variant.name
                xlexport.convert(experiment.checkpoint(variant, seed), bundle)
                models[variant.name] = load(bundle, threads=1)
            writer = models[group[0].name]
            for number, passage in enumerate(tqdm(chosen, unit="passage", disable=None)):
                written = continuations(writer, passage, memories, number)
                bits = {
                    f"bits: {name}": bits_after(model, passage[0], written.values(), max(memories))
                    for name, model in models.items()
                }
                for place, (source, text) in enumerate(written.items()):
                    figures = {name: each[place] for name, each in bits.items()} | ngram_figures(text, passage[0])
                    decoded = {"context": writer.tokenizer.decode(passage[0]), "text": writer.tokenizer.decode(text)}
                    texts.append({"source": source, "passage": number, "seed": seed, "figures": figures, **decoded})
    experiment.keep("long_text", texts)
    _print(texts, f"memory {min(memories)}", f"memory {max(memories)}")


def _print(texts: list[dict[str, Any]], shortest: str, longest: str) -> None:
    """Print each figure's mean and its standard error over the passages, and below what the longest memory changes."""
    names = list(texts[0]["figures"])
    rows = []
    for source in dict.fromkeys(text["source"] for text in texts):
        rows.append((source, *(mean_and_error(by_passage(texts, source, name)) for name in names)))
    changes = [difference(by_passage(texts, longest, name), by_passage(texts, shortest, name)) for name in names]
    rows.append(("longest − shortest", *(f"{-change.bits:+.4f} ± {change.paired:.4f}" for change in changes)))
    print_rows(("text", *names), rows)


def by_passage(texts: list[dict[str, Any]], source: str, name: str) -> list[float]:
    """Return a figure of the texts of a source, one value for each passage: the mean over the seeds."""
    seeds: dict[int, list[float]] = {}
    for text in texts:
        if text["source"] == source:
            seeds.setdefault(text["passage"], []).append(text["figures"][name])
    return [statistics.fmean(values) for values in seeds.values()]
