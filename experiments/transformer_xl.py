"""Tables 5 to 8 and 10, and Figure 4, of the Transformer-XL paper: `python -m experiments NAME --help`.

Tables print the paper's figures next to ours. Below them are the differences between two models, in standard errors
over the seeds.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections import ChainMap
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from experiments.paper_scales import ONE_BILLION, PENN_TREEBANK, RECL, WIKITEXT
from experiments.running import (
    Experiment,
    Ordering,
    Scale,
    Variant,
    bits_at_length,
    draw,
    experiment_options,
    mean_and_error,
    point,
    print_orderings,
    print_rows,
)
from xlexport.analysis.recl import find_recl
from xlexport.figures import check_picture
from xltraining.config_fields import ModelConfig
from xltraining.language_model import LanguageModel
from xltraining.recurrent import LSTMConfig, MambaConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

__all__ = ["COMMANDS", "ORDERINGS", "SCALES", "VARIANTS", "model_of", "shuffled_sentences"]

STANDARD = "standard recurrence relative full"
_QUICK = {"n_layer": 2, "n_head": 4, "d_model": 128, "d_head": 32, "d_inner": 512, "dropout": 0.0}
_QUICK_BASELINES: dict[str, Any] = {"lstm": {"n_layer": 2, "d_model": 160}, "mamba": {"n_layer": 4, "d_model": 128}}
SCALES = {
    "tiny": Scale(
        {"n_layer": 2, "n_head": 2, "d_model": 32, "d_head": 16, "d_inner": 64, "dropout": 0.0},
        tgt_len=32, steps=60, batch_size=8, learning_rate=4e-3, warmup_steps=10, seeds=2, lengths=(0.5, 1, 2),
        most=40_000, rows={STANDARD: {"n_layer": 3}}, lstm={"n_layer": 1, "d_model": 32},
        mamba={"n_layer": 2, "d_model": 32},
    ),
    "quick32": Scale(
        _QUICK, tgt_len=32, steps=2500, batch_size=32, learning_rate=3e-3, warmup_steps=300, seeds=3, held_out=65_536,
        bf16=True, **_QUICK_BASELINES,
    ),
    "quick128": Scale(
        _QUICK, tgt_len=128, steps=1500, batch_size=8, learning_rate=3e-3, warmup_steps=200, seeds=3, held_out=32_768,
        bf16=True, **_QUICK_BASELINES,
    ),
    "small": Scale(
        {"n_layer": 6, "n_head": 8, "d_model": 192, "d_head": 24, "d_inner": 768, "dropout": 0.1},
        tgt_len=128, steps=8000, batch_size=16, learning_rate=2e-3, warmup_steps=300, seeds=3,
        lstm={"n_layer": 2, "d_model": 416}, mamba={"n_layer": 10, "d_model": 192},
    ),
    "words": Scale(
        {
            "n_layer": 4, "n_head": 4, "d_model": 192, "d_head": 48, "d_inner": 768, "dropout": 0.1,
            "pre_lnorm": True,
        },
        tgt_len=64, steps=5000, batch_size=8, learning_rate=1.5e-3, warmup_steps=200, seeds=2, bf16=True,
    ),
    "subwords": Scale(
        {
            "n_layer": 6, "n_head": 4, "d_model": 256, "d_head": 64, "d_inner": 1024, "dropout": 0.1,
            "pre_lnorm": True,
        },
        tgt_len=64, memory=4, steps=4000, batch_size=8, learning_rate=1.5e-3, warmup_steps=200, seeds=2,
        lengths=(0.5, 1, 2, 4, 8), held_out=65_536, bf16=True,
        lstm={"n_layer": 2, "d_model": 512}, mamba={"n_layer": 8, "d_model": 256, "d_state": 8},
    ),
    "large": Scale(
        {"n_layer": 16, "n_head": 10, "d_model": 410, "d_head": 41, "d_inner": 2100, "dropout": 0.1},
        tgt_len=128, steps=200_000, batch_size=60, learning_rate=2.5e-4, warmup_steps=0, seeds=1,
        lengths=(0.5, 1, 2, 3, 4, 5), lstm={"n_layer": 2, "d_model": 1600}, mamba={"n_layer": 12, "d_model": 768},
    ),
}  # fmt: skip


def model_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> ModelConfig:
    """Return the configuration of a model; `cutoffs` divide the vocabulary of a Transformer-XL into clusters."""
    tgt_len = round(scale.tgt_len * variant.length)
    if variant.architecture == "lstm":
        return LSTMConfig(n_token=n_token, tgt_len=tgt_len, dropout=scale.model["dropout"], **scale.lstm)
    if variant.architecture == "mamba":
        return MambaConfig(n_token=n_token, tgt_len=tgt_len, dropout=scale.model["dropout"], **scale.mamba)
    mem_len = tgt_len * scale.memory if variant.recurrence else 0
    sizes: dict[str, Any] = {**scale.model, **dict(variant.model), **scale.row(variant, training=False)}
    return TransformerXLConfig(
        n_token=n_token, cutoffs=cutoffs, tgt_len=tgt_len, mem_len=mem_len, encoding=variant.encoding, **sizes
    )


PLAIN = (("dropout", 0.3), ("dropatt", 0.1))
VARIATIONAL = (*PLAIN, ("variational", True), ("dropemb", 0.1))
AVERAGE = (("average_from", 0.6),)
CONSTANT = (("schedule", "constant"),)
AUXILIARY = (("auxiliary", True),)
# The models of each table: recurrence, encoding of positions, loss, and the paper's figures.
VARIANTS = {
    "table5": (
        Variant("plain dropout", model=PLAIN, training=AVERAGE),
        Variant("variational dropout", model=VARIATIONAL, training=AVERAGE),
        Variant("variational dropout at a constant rate", model=VARIATIONAL, training=(*AVERAGE, *CONSTANT)),
    ),
    "table6": (
        Variant("recurrence relative full", True, "relative", "full", (27.02, 26.77, 500)),
        Variant("recurrence shaw full", True, "shaw", "full", (27.94, 27.94, 256)),
        Variant("recurrence relative half", True, "relative", "half", (28.69, 28.33, 460)),
        Variant("relative full", False, "relative", "full", (29.59, 29.02, 260)),
        Variant("relative half", False, "relative", "half", (30.10, 30.10, 120)),
        Variant("shaw full", False, "shaw", "full", (29.75, 29.75, 120)),
        Variant("shaw half", False, "shaw", "half", (30.50, 30.50, 120)),
        Variant("sinusoidal half", False, "sinusoidal", "half", (30.97, 30.97, 120)),
        Variant("learned half auxiliary", False, "learned", "half", (31.16, 31.16, 120), training=AUXILIARY),
        Variant("sinusoidal full", False, "sinusoidal", "full", (None, None, None)),
        Variant(
            "recurrence shaw full two terms", True, "shaw", "full", (None, None, None), model=(("shaw_biases", False),)
        ),
        Variant(STANDARD, True, "relative", "full", (23.43, 23.09, 640), optional=True),
    ),
    "table7": (
        Variant("sentences relative", True, "relative", paper=(25.2, None, None)),
        Variant("sentences shaw", True, "shaw", paper=(25.7, None, None)),
        Variant("sentences relative alone", False, "relative", paper=(27.1, None, None)),
    ),
    "table10": (
        Variant("recurrence relative full", True, "relative", "full", (27.02, 26.77, 500)),
        Variant("recurrence relative half", True, "relative", "half", (28.69, 28.33, 460)),
        Variant("longer relative full", False, "relative", "full", (28.43, 27.98, 400), length=176 / 128),
        Variant("longer relative half", False, "relative", "half", (28.83, 28.83, 120), length=172 / 128),
    ),
}
AVERAGED = "{}, averaged"
PAPER_5 = {"variational dropout, averaged": (56.72, 54.52)}
STANDARD_6 = {450: 23.16, 300: 23.35}  # Table 6: further attention lengths of the model of 151 million weights
# By group, because lengths compare within one only. The paper has no LSTM in the second group, and no Mamba.
PAPER_8: dict[str, dict[str, tuple[int | None, ...]]] = {
    "151M": {
        STANDARD: (900, 800, 700),
        "QRNN": (500, 400, 300),  # not trained here
        "LSTM": (400, 300, 200),
    },
    "128M": {
        "recurrence relative full": (700, 600, 500),
        "recurrence shaw full": (400, 400, 300),
        "relative full": (300, 300, 300),
        "learned half auxiliary": (128, 128, 128),
        "LSTM": (None, None, None),
        "Mamba": (None, None, None),
    },
}
VARIANTS["table8"] = (
    *(variant for variant in VARIANTS["table6"] if any(variant.name in group for group in PAPER_8.values())),
    Variant("LSTM", architecture="lstm"),
    Variant("Mamba", architecture="mamba"),
)
ORDERINGS = {
    "table5": (
        Ordering("variational and averaged better than plain", "variational dropout, averaged", "plain dropout"),
        Ordering("averaged better than the last weights", "variational dropout, averaged", "variational dropout"),
        Ordering(
            "the same at a constant rate",
            "variational dropout at a constant rate, averaged",
            "variational dropout at a constant rate",
        ),
    ),
    "table6": (
        Ordering("recurrence better than none", "recurrence relative full", "relative full"),
        Ordering("relative better than Shaw's", "recurrence relative full", "recurrence shaw full"),
        Ordering("full loss better for relative", "recurrence relative full", "recurrence relative half"),
        Ordering("half loss better for absolute", "sinusoidal half", "sinusoidal full"),
    ),
    "table7": (
        Ordering("relative better than Shaw's", "sentences relative", "sentences shaw"),
        Ordering("recurrence better than none", "sentences relative", "sentences relative alone"),
    ),
    "table10": (
        Ordering("recurrence better at equal memory, full loss", "recurrence relative full", "longer relative full"),
        Ordering("recurrence better at equal memory, half loss", "recurrence relative half", "longer relative half"),
    ),
}
SHARES = (0.1, 0.5, 1.0)
CELLS_8 = (*(f"r = {share}" for share in SHARES), "bits")


def scales_of(paper: Scale) -> ChainMap[str, Scale]:
    """Return the scales of an experiment: those of all, and its own `paper`."""
    return ChainMap({"paper": paper}, SCALES)


def encoding_of(variant: Variant) -> str:
    """Return a model's encoding in words; `shaw` has the authors' four terms, or the two that the text describes."""
    terms = "four" if dict(variant.model).get("shaw_biases", True) else "two"
    return f"shaw, {terms} terms" if variant.encoding == "shaw" else variant.encoding


TOKENS, ROWS = 2000, 32  # of Table 8


@experiment_options(scales_of(PENN_TREEBANK), model_of)
def table5(experiment: Experiment) -> None:
    """Table 5: regularisation, variational dropout and averaged weights on little text.

    A run keeps its last weights and the average of its weights, so one run gives the scores of both. The paper's text
    is words: `xlexport prepare` makes the folder for --data. The paper gives no figures without regularisation, and no
    recipe; recipes/penn_treebank.toml has the settings here.
    """
    chosen = experiment.chosen(VARIANTS["table5"])
    experiment.run(chosen)
    length = experiment.scale.tgt_len
    scores: dict[str, list[float]] = {}
    rows = []
    for variant in chosen:
        for name, averaged in ((variant.name, False), (AVERAGED.format(variant.name), True)):
            models = [experiment.model(variant, seed, averaged) for seed in range(experiment.seeds)]
            scores[name] = [bits_at_length(model, experiment.held_out, length, recurrence=True) for model in models]
            rows.append((name, *PAPER_5.get(name, (None, None)), mean_and_error(scores[name])))
    experiment.keep("table5", scores)
    print_rows(("model", "paper: valid", "test", "bits"), rows)
    print_orderings(ORDERINGS["table5"], scores)


def by_length(experiment: Experiment, variant: Variant, model: TransformerXL) -> dict[int, float]:
    """Return bits per token with each attention length that the model can have."""
    config, base = model.config, experiment.scale.tgt_len
    lengths = sorted({round(base * factor) for factor in experiment.scale.lengths} | {config.tgt_len})
    if config.is_absolute:
        lengths = [length for length in lengths if length <= config.tgt_len]
    return {
        length: bits_at_length(model, experiment.held_out, length, variant.recurrence)
        for length in lengths
        if length + 1 < len(experiment.held_out) // 8
    }


def compare(experiment: Experiment, name: str) -> None:
    """Train the models of a table, print it with the paper's figures and its orderings, and keep all scores.

    `init` is the score with the attention length of training, `best` the best score over all lengths, and `length` the
    shortest length with this score.
    """
    chosen = experiment.chosen(VARIANTS[name])
    experiment.run(chosen)
    rows, models, scores = [], {}, {}
    for variant in chosen:
        bits = [by_length(experiment, variant, experiment.model(variant, seed)) for seed in range(experiment.seeds)]
        init = [one[round(experiment.scale.tgt_len * variant.length)] for one in bits]
        best = [min(one.values()) for one in bits]
        means = {length: sum(one[length] for one in bits) / len(bits) for length in bits[0]}
        shortest = min(length for length, mean in means.items() if mean <= min(means.values()) + 1e-3)
        scores[variant.name] = best
        models[variant.name] = {"paper": variant.paper, "bits": bits}
        sign = "yes" if variant.recurrence else "no"
        figures = mean_and_error(init), mean_and_error(best), shortest
        rows.append((sign, encoding_of(variant), variant.loss, *variant.paper, *figures))
        if variant.optional:
            for length, perplexity in STANDARD_6.items():
                cell = mean_and_error([one[length] for one in bits]) if length in bits[0] else None
                rows.append((sign, encoding_of(variant), variant.loss, None, perplexity, length, None, cell, length))
    experiment.keep(name, models)
    heading = ("recurrence", "encoding", "loss", "paper: init", "best", "length", "bits: init", "best", "length")
    print_rows(heading, rows)
    print_orderings(ORDERINGS[name], scores)


@experiment_options(scales_of(WIKITEXT), model_of)
def table6(experiment: Experiment) -> None:
    """Table 6: recurrence, encoding of positions, and loss.

    All lengths are in RUNS/SCALE/table6.json, from which `figure4` draws them. The last rows are the standard model, of
    151 million weights in the paper. The paper's figures for Shaw's encoding are beside the authors' four terms.
    """
    compare(experiment, "table6")


def shuffled_sentences(text: bytes) -> bytes:
    """Return the sentences of a text, each on its line, in an order that is always the same."""
    sentences = [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text.decode("utf-8", "replace"))]
    lines = [sentence for sentence in sentences if sentence]
    random.Random(0).shuffle(lines)
    return "".join(f"{sentence}\n" for sentence in lines).encode()


@experiment_options(scales_of(ONE_BILLION), model_of, shuffled_sentences)
def table7(experiment: Experiment) -> None:
    """Table 7: text without long dependencies, here the sentences of a text in random order."""
    compare(experiment, "table7")


@experiment_options(scales_of(WIKITEXT), model_of)
def table10(experiment: Experiment) -> None:
    """Table 10: models that take equal memory of the device, which recurrence shares.

    Without recurrence, gradients flow through 176 or 172 tokens instead of 128, here in proportion.
    """
    compare(experiment, "table10")


@torch.no_grad()
def last_token_nats(model: LanguageModel, text: Tensor, context: int, longest: int) -> npt.NDArray[np.float64]:
    """Return the loss of the same tokens in nats, each predicted from the `context` tokens before it.

    Args:
        longest: the longest context of the comparison, which decides on the tokens.
    """
    limit = model.config.position_limit
    context = context if limit is None else min(context, limit)
    places = np.linspace(longest, len(text) - 1, min(TOKENS, len(text) - longest), dtype=np.int64)
    nats = []
    for part in torch.from_numpy(places).split(ROWS):
        rows = torch.stack([text[place - context : place + 1].long() for place in part.tolist()])
        rows = rows.to(next(model.parameters()).device)
        hidden, _ = model(rows[:, :-1])
        nats.append(-model.log_probs(hidden[:, -1:], rows[:, -1:])[:, 0].double().cpu())
    return torch.cat(nats).numpy()


def _losses(models: list[LanguageModel], text: Tensor, longest: int, context: int) -> list[npt.NDArray[np.float64]]:
    return [last_token_nats(model, text, context, longest) for model in models]


@experiment_options(scales_of(RECL), model_of)
def table8(experiment: Experiment) -> None:
    """Table 8: relative effective context length (RECL) of two groups of models, of 151 and of 128 million parameters.

    The models are those of Table 6, so a folder of that table is used again. A model's context ends with its places.
    Scales without a standard model have no first group of their own. `shaw` has the authors' four terms.
    """
    chosen = experiment.chosen(VARIANTS["table8"])
    experiment.run(chosen)
    kept, rows = {}, []
    for name, paper in PAPER_8.items():
        group = [variant for variant in chosen if variant.name in paper]
        results = _recl(experiment, group) if any(variant.name != "LSTM" for variant in group) else {}
        kept[name] = {"paper": paper, "ours": results}
        for model, theirs in paper.items():
            if model in results or (not experiment.only and any(theirs)):
                ours = results.get(model, {})
                means = (mean_and_error(ours[cell], 4 if cell == "bits" else 0) if ours else None for cell in CELLS_8)
                rows.append((name, model, *theirs, *means))
    experiment.keep("table8", kept)
    first, *others = CELLS_8
    print_rows(("group", "model", f"paper: {first}", *others[:-1], f"ours: {first}", *others), rows)


def _recl(experiment: Experiment, group: list[Variant]) -> dict[str, dict[str, list[float]]]:
    """Return by model its RECL for each share of hard tokens, and its bits, for each seed."""
    scale = experiment.scale
    step = scale.recl_step or max(1, scale.tgt_len * scale.memory // 4)
    longest = round(scale.tgt_len * max(scale.lengths))
    results: dict[str, dict[str, list[float]]] = {variant.name: {} for variant in group}
    for seed in range(experiment.seeds):
        models = [experiment.trained(variant, seed) for variant in group]
        losses = functools.partial(_losses, models, experiment.held_out, longest)
        recl = find_recl(losses, start=step, step=step, longest=longest, shares=SHARES)
        for figures, model, lengths in zip(results.values(), models, recl, strict=True):
            for one in lengths:
                figures.setdefault(f"r = {one.hard}", []).append(one.at_least)
            figures.setdefault("bits", []).append(experiment.bits(model))
    return results


@click.command()
@click.argument("scores", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Picture, .png or .svg.")
def figure4(scores: Path, out: Path) -> None:
    """Figure 4: draw score by attention length, which Table 6, 7 or 10 kept in SCORES, its JSON file."""
    check_picture(out)
    lines = {
        name: [
            point(int(length), [seed[length] for seed in model["bits"]]) for length in sorted(model["bits"][0], key=int)
        ]
        for name, model in json.loads(scores.read_text("utf-8")).items()
    }
    draw(out, lines, "attention length at evaluation, tokens", "bits per token", log="x")
    click.echo(f"wrote {out}")


COMMANDS = {"table5": table5, "table6": table6, "table7": table7, "table8": table8, "table10": table10}
COMMANDS["figure4"] = figure4
