"""Table 6 and Figure 4 of the Transformer-XL paper: recurrence, encoding of positions, and loss.

python -m experiments.table6 --out RUNS --text war_and_peace.txt

`init` is the score with the attention length of training, `best` the best score over all lengths, and `length` the
shortest length with this score. All lengths are in RUNS/SCALE/table6.json, from which `experiments.figure4` draws them.
Below the table are the differences between `best` of two models, in standard errors over the seeds.
"""

from __future__ import annotations

from experiments.orderings import Ordering, print_orderings
from experiments.running import Experiment, bits_at_length, experiment_options, mean_and_error, print_rows
from experiments.scales import Variant
from xltraining.transformer_xl import TransformerXL

__all__ = ["ORDERINGS", "VARIANTS", "by_length", "compare", "main"]

AUXILIARY = (("auxiliary", True),)
VARIANTS = (
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
)

ORDERINGS = (
    Ordering("recurrence better than none", "recurrence relative full", "relative full"),
    Ordering("relative better than Shaw's", "recurrence relative full", "recurrence shaw full"),
    Ordering("full loss better for relative", "recurrence relative full", "recurrence relative half"),
    Ordering("half loss better for absolute", "sinusoidal half", "sinusoidal full"),
)


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


def compare(
    experiment: Experiment, name: str, variants: tuple[Variant, ...], orderings: tuple[Ordering, ...] = ()
) -> None:
    """Train the variants, print the table with the paper's figures and its orderings, and keep all scores."""
    chosen = experiment.chosen(variants)
    experiment.run(chosen)
    rows, kept, scores = [], {}, {}
    for variant in chosen:
        found = [by_length(experiment, variant, experiment.model(variant, seed)) for seed in range(experiment.seeds)]
        init = [one[round(experiment.scale.tgt_len * variant.length)] for one in found]
        best = [min(one.values()) for one in found]
        means = {length: sum(one[length] for one in found) / len(found) for length in found[0]}
        shortest = min(length for length, mean in means.items() if mean <= min(means.values()) + 1e-3)
        scores[variant.name] = best
        kept[variant.name] = {"paper": variant.paper, "bits": found}
        sign = "yes" if variant.recurrence else "no"
        figures = mean_and_error(init), mean_and_error(best), shortest
        rows.append((sign, variant.encoding, variant.loss, *variant.paper, *figures))
    experiment.keep(name, kept)
    heading = ("recurrence", "encoding", "loss", "paper: init", "best", "length", "bits: init", "best", "length")
    print_rows(heading, rows)
    print_orderings(orderings, scores)


@experiment_options()
def main(experiment: Experiment) -> None:
    """Train the models of Table 6, and print the paper's perplexities next to our bits per token."""
    compare(experiment, "table6", VARIANTS, ORDERINGS)


if __name__ == "__main__":
    main()
