"""Regularisation, as in Table 5 of the Transformer-XL paper: variational dropout and averaged weights on little text.

python -m experiments.table5 --out RUNS --text wikitext2_valid.txt

A run keeps its last weights and the average of its weights, so one run gives the scores of both. The paper's text is
words: `xlexport prepare` makes the folder for --data. The paper gives no figures without regularisation, and no recipe;
`recipes/penn_treebank.toml` has the settings here.
"""

from __future__ import annotations

from experiments.orderings import Ordering, print_orderings
from experiments.running import Experiment, bits_at_length, experiment_options, mean_and_error, print_rows
from experiments.scales import Variant

__all__ = ["ORDERINGS", "VARIANTS", "main"]

PLAIN = (("dropout", 0.3), ("dropatt", 0.1))
VARIATIONAL = (*PLAIN, ("variational", True), ("dropemb", 0.1))
AVERAGE = (("average_from", 0.6),)
VARIANTS = (
    Variant("plain dropout", model=PLAIN, training=AVERAGE),
    Variant("variational dropout", model=VARIATIONAL, training=AVERAGE),
)
AVERAGED = "{}, averaged"
PAPER = {"variational dropout, averaged": (56.72, 54.52)}
ORDERINGS = (
    Ordering("variational and averaged better than plain", "variational dropout, averaged", "plain dropout"),
    Ordering("averaged better than the last weights", "variational dropout, averaged", "variational dropout"),
)


@experiment_options()
def main(experiment: Experiment) -> None:
    """Train with plain and with variational dropout; print bits per token of the last weights and of their average."""
    chosen = experiment.chosen(VARIANTS)
    experiment.run(chosen)
    length = experiment.scale.tgt_len
    kept: dict[str, list[float]] = {}
    rows = []
    for variant in chosen:
        for name, averaged in ((variant.name, False), (AVERAGED.format(variant.name), True)):
            models = [experiment.model(variant, seed, averaged) for seed in range(experiment.seeds)]
            kept[name] = [bits_at_length(model, experiment.held_out, length, recurrence=True) for model in models]
            rows.append((name, *PAPER.get(name, (None, None)), mean_and_error(kept[name])))
    experiment.keep("table5", kept)
    print_rows(("model", "paper: valid", "test", "bits"), rows)
    print_orderings(ORDERINGS, kept)


if __name__ == "__main__":
    main()
