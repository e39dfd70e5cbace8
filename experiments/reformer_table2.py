"""Table 2 of the Reformer paper: train on the duplication task with full attention and with LSH, evaluate with others.

All models of a scale have equally many updates. As in the paper, each update draws new rotations, and so does each
evaluation: an accuracy is a mean over several draws. RUNS/SCALE/reformer_table2.json has the accuracies of each seed.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.duplication import N_TOKEN, DuplicationTask, duplication_scores
from experiments.reformer import Attending, with_attention
from experiments.running import Experiment, Scale, Variant, experiment_options, mean_and_error, print_rows
from xltraining.language_model import LanguageModel
from xltraining.reformer import ReformerConfig
from xltraining.reformer.attention import SharedAttention

__all__ = ["COLUMNS", "SCALES", "config_of", "main", "models"]

# The paper's: one layer, 4 heads, and on average half a chunk in each bucket.
WIDTHS = {"d_model": 256, "n_head": 4, "d_head": 64, "d_inner": 256}
SHORT = Scale(
    {**WIDTHS, "chunk_length": 16},
    tgt_len=128, steps=200, batch_size=8, learning_rate=2e-3, warmup_steps=50, seeds=2, bf16=True, reversible=False,
    checkpoint_every=100,
)  # fmt: skip
SCALES = {
    "tiny": Scale(
        {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 32, "chunk_length": 8},
        tgt_len=32, steps=20, batch_size=8, learning_rate=2e-3, warmup_steps=5, seeds=2,
    ),
    "short": SHORT,
    "quick": replace(SHORT, steps=1000, warmup_steps=100),
    # Section 2: "150K steps", words of 511 symbols in sequences of 1,024; the text has no batch, rate or warm-up.
    "paper": Scale(
        {**WIDTHS, "chunk_length": 64},
        tgt_len=1024, steps=150_000, batch_size=8, learning_rate=2e-3, warmup_steps=1000, seeds=1,
    ),
}  # fmt: skip
COLUMNS: dict[str, Attending] = {
    "full": "full",
    **{f"LSH-{rounds}": rounds for rounds in (8, 4, 2, 1)},
    "full, itself": "separate",  # a query also sees its own key, and keys have any length
}
PAPER = {  # per cent, by COLUMNS
    "full": (100.0, 94.8, 92.5, 76.9, 52.5),
    "LSH-8": (),
    "LSH-4": (0.8, 100.0, 99.9, 99.4, 91.9),
    "LSH-2": (0.8, 100.0, 99.9, 98.1, 86.8),
    "LSH-1": (0.8, 99.9, 99.6, 94.8, 77.9),
}
EXAMPLES, DRAWS = 64, 4  # examples on which accuracies are measured, and draws of rotations


def config_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> ReformerConfig:
    """Return the configuration of a model; `0w0w` has the length of the scale's segments."""
    length, rounds = scale.tgt_len, COLUMNS[variant.name]
    hashing: dict[str, Any] = {"n_hashes": rounds, "redraw_hashes": True} if isinstance(rounds, int) else {}
    return ReformerConfig(
        n_token=N_TOKEN, attn_layers=("lsh" if hashing else "full",), rule="paper",
        n_buckets=(2 * length // scale.model["chunk_length"],), tgt_len=length, mem_len=length, position="absolute",
        max_positions=length, dropout=0.0, **hashing, **scale.model,
    )  # fmt: skip


def models() -> list[Variant]:
    """Return the rows of the table."""
    return [Variant(name, paper=paper) for name, paper in PAPER.items()]


def accuracy(model: LanguageModel, attention: Attending, tokens: Tensor, targets: Tensor) -> float:
    """Return per cent of correct symbols of examples (B,S) with some attention, for LSH as a mean over its draws."""
    draws = DRAWS if isinstance(attention, int) else 1
    evaluated = (with_attention(model, attention, seed) for seed in range(1, 1 + draws))
    return 100 * statistics.fmean(duplication_scores(each, tokens, targets)[1] for each in evaluated)


@torch.no_grad()
def alignment(model: LanguageModel, tokens: Tensor) -> float:
    """Return the mean cosine of the queries in the second half of examples (B,S), each with the key that it needs.

    The chance that a query shares a bucket with this key follows from the cosine.
    """
    shown = with_attention(model, "full")  # on the CPU
    half, embedded = tokens.shape[1] // 2, shown.word_emb(tokens) + shown.positions(torch.arange(tokens.shape[1]))
    attention = shown.get_submodule("layers.0.attention")
    assert isinstance(attention, SharedAttention)
    heads = attention.query_key(attention.norm(embedded)).unflatten(-1, (shown.config.n_head, -1))  # (B,S,H,h)
    return F.cosine_similarity(heads[:, half:-1], heads[:, 1:half], dim=-1).mean().item()


@experiment_options(SCALES, config_of, task_of=DuplicationTask.of)
def main(experiment: Experiment) -> None:
    """Table 2: accuracy on the duplication task, by the attention of training and of evaluation.

    The paper's figures are in brackets; its own size (--scale paper) needs a GPU. The last column is the mean cosine of
    a query and the key that it needs.
    """
    chosen = experiment.chosen(models())
    experiment.run(chosen)
    examples = DuplicationTask(experiment.scale.tgt_len // 2 - 1, EXAMPLES, seed=0).held_out_examples(EXAMPLES)
    kept, rows = {}, []
    for one in chosen:
        trained = [experiment.trained(one, seed) for seed in range(experiment.seeds)]
        kept[one.name] = {
            column: [accuracy(model, attention, *examples) for model in trained]
            for column, attention in COLUMNS.items()
        }
        cells = [mean_and_error(seeds, 1) for seeds in kept[one.name].values()]
        paper = (f" ({theirs})" for theirs in one.paper)
        ours = (cell + theirs for cell, theirs in zip_longest(cells, paper, fillvalue=""))
        kept[one.name]["cosine"] = [alignment(model, examples[0]) for model in trained]
        rows.append((one.name, *ours, mean_and_error(kept[one.name]["cosine"], 2)))
    experiment.keep("reformer_table2", kept)
    print_rows(("trained with", *COLUMNS, "cosine"), rows)
