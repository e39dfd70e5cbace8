"""Regularisation, as in Table 5 of the Transformer-XL paper: variational dropout and averaged weights on little text.

python -m experiments.table5 --out RUNS --text wikitext2_valid.txt

The paper gives no figures without regularisation, and no recipe; `recipes/penn_treebank.toml` has the settings here.
"""

from __future__ import annotations

from experiments.running import Experiment, bits_at_length, experiment_options, mean_and_error, print_rows
from experiments.scales import Variant

__all__ = ["VARIANTS", "main"]

PLAIN = (("dropout", 0.3), ("dropatt", 0.1))
VARIATIONAL = (*PLAIN, ("variational", True), ("dropemb", 0.1))
AVERAGE = (("average_from", 0.6),)
VARIANTS = (
    Variant("plain dropout", model=PLAIN),
    Variant("variational dropout", model=VARIATIONAL),
    Variant("variational dropout averaged", model=VARIATIONAL, training=AVERAGE, paper=(56.72, 54.52)),
)


@experiment_options()
def main(experiment: Experiment) -> None:
    """Train with plain dropout, variational dropout, and averaged weights; print bits per token of held-out text."""
    chosen = experiment.chosen(VARIANTS)
    experiment.run(chosen)
    length = experiment.scale.tgt_len
    kept, rows = {}, []
    for variant in chosen:
        models = [experiment.model(variant, seed) for seed in range(experiment.seeds)]
        found = [bits_at_length(model, experiment.held_out, length, recurrence=True) for model in models]
        kept[variant.name] = found
        rows.append((variant.name, *(variant.paper or (None, None)), mean_and_error(found)))
    experiment.keep("table5", kept)
    print_rows(("model", "paper: valid", "test", "bits"), rows)


if __name__ == "__main__":
    main()
