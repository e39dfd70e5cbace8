"""Figure 3 of the Reformer paper: shared queries and keys, and reversible layers, against those of a Transformer.

python -m experiments.reformer_figure3 --out RUNS --text war_and_peace.txt

All models have full attention. Each held-out score has its standard error over the seeds. The curves on the training
text are in RUNS/SCALE/reformer_figure3.png and .json. Shared models have fewer weights: one matrix takes the place of
two. Below the table are the differences between models, in standard errors.
"""

from __future__ import annotations

from experiments.orderings import Ordering
from experiments.reformer_scales import SCALES, compare, config_of, variant
from experiments.running import Experiment, experiment_options

__all__ = ["ORDERINGS", "VARIANTS", "main"]

RECOMPUTED = (("reversible", True),)  # also at a scale that keeps activations, because this is what is compared
SEPARATE, SHARED = ("separate",) * 2, ("full",) * 2
VARIANTS = (
    variant("separate ordinary", attn_layers=SEPARATE, residual="ordinary"),
    variant("shared ordinary", attn_layers=SHARED, residual="ordinary"),
    variant("separate reversible", attn_layers=SEPARATE, training=RECOMPUTED),
    variant("shared reversible", attn_layers=SHARED, training=RECOMPUTED),
)
ORDERINGS = (
    Ordering("shared no worse, ordinary", "shared ordinary", "separate ordinary"),
    Ordering("shared no worse, reversible", "shared reversible", "separate reversible"),
    Ordering("reversible no worse, separate", "separate reversible", "separate ordinary"),
    Ordering("reversible no worse, shared", "shared reversible", "shared ordinary"),
)


@experiment_options(scales=SCALES, config_of=config_of)
def main(experiment: Experiment) -> None:
    """Compare shared with separate queries and keys, and reversible with ordinary layers, in bits of held-out text."""
    compare(experiment, "reformer_figure3", VARIANTS, ORDERINGS, ("queries and keys", "layers"), _kinds)


def _kinds(name: str) -> tuple[str, ...]:
    return tuple(name.split())


if __name__ == "__main__":
    main()
