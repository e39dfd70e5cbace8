"""Table 8 of the Transformer-XL paper: relative effective context length (RECL) of one group of models.

python -m experiments.table8 --out RUNS --text war_and_peace.txt

The four models of 128 million parameters are one group. The models with recurrence and without are those of Table 6, so
a folder of that table is used again. A model's context ends with its places.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from experiments.running import Experiment, experiment_options, print_rows
from experiments.table6 import VARIANTS as TABLE_6
from xlexport.analysis.recl import find_recl
from xltraining.transformer_xl import TransformerXL

__all__ = ["VARIANTS", "last_token_nats", "main"]

SHARES = (0.1, 0.5, 1.0)
NAMES = {
    "recurrence relative full": (700, 600, 500),
    "recurrence shaw full": (400, 400, 300),
    "relative full": (300, 300, 300),
    "learned half auxiliary": (128, 128, 128),
}
VARIANTS = tuple(variant for variant in TABLE_6 if variant.name in NAMES)
TOKENS = 2000
ROWS = 32


@torch.no_grad()
def last_token_nats(model: TransformerXL, text: Tensor, context: int, longest: int) -> npt.NDArray[np.float64]:
    """Return the loss of the same tokens in nats, each predicted from the `context` tokens before it.

    Args:
        longest: the longest context of the comparison, which decides on the tokens.
    """
    limit = model.config.position_limit
    context = context if limit is None else min(context, limit)
    places = np.linspace(longest, len(text) - 1, min(TOKENS, len(text) - longest), dtype=np.int64)
    found = []
    for part in torch.from_numpy(places).split(ROWS):
        rows = torch.stack([text[place - context : place + 1].long() for place in part.tolist()])
        rows = rows.to(next(model.parameters()).device)
        hidden, _ = model(rows[:, :-1])
        found.append(-model.log_probs(hidden[:, -1:], rows[:, -1:])[:, 0].double().cpu())
    return torch.cat(found).numpy()


def _losses(models: list[TransformerXL], text: Tensor, longest: int, context: int) -> list[npt.NDArray[np.float64]]:
    return [last_token_nats(model, text, context, longest) for model in models]


@experiment_options()
def main(experiment: Experiment) -> None:
    """Train one group of models, and print the paper's context lengths next to ours."""
    group = experiment.chosen(VARIANTS)
    experiment.run(group)
    step = max(1, experiment.scale.tgt_len // 4)
    longest = round(experiment.scale.tgt_len * max(experiment.scale.lengths))
    kept = {}
    results: list[list[int]] = [[0, 0, 0] for _ in group]
    for seed in range(experiment.seeds):
        models = [experiment.model(variant, seed) for variant in group]
        recl = find_recl(
            functools.partial(_losses, models, experiment.held_out, longest),
            start=step,
            step=step,
            longest=longest,
            shares=SHARES,
        )
        for row, found in enumerate(recl):
            results[row] = [before + one.at_least for before, one in zip(results[row], found, strict=True)]
            kept[f"{group[row].name}-{seed}"] = [one.at_least for one in found]
    experiment.keep("table8", {"shares": SHARES, "paper": NAMES, "recl": kept})
    rows = [
        (variant.name, *NAMES[variant.name], *(f"{total / experiment.seeds:.0f}" for total in found))
        for variant, found in zip(group, results, strict=True)
    ]
    shares = tuple(f"r = {share}" for share in SHARES)
    print_rows(("model", *(f"paper: {shares[0]}", *shares[1:]), *(f"ours: {shares[0]}", *shares[1:])), rows)


if __name__ == "__main__":
    main()
