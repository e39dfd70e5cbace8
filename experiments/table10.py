"""Table 10 of the Transformer-XL paper: models that take equal memory of the device, which recurrence shares.

python -m experiments.table10 --out RUNS --text war_and_peace.txt

Without recurrence, gradients flow through 176 or 172 tokens instead of 128, here in proportion.
"""

from __future__ import annotations

from experiments.orderings import Ordering
from experiments.running import Experiment, experiment_options
from experiments.scales import Variant
from experiments.table6 import compare

__all__ = ["ORDERINGS", "VARIANTS", "main"]

VARIANTS = (
    Variant("recurrence relative full", True, "relative", "full", (27.02, 26.77, 500)),
    Variant("recurrence relative half", True, "relative", "half", (28.69, 28.33, 460)),
    Variant("longer relative full", False, "relative", "full", (28.43, 27.98, 400), length=176 / 128),
    Variant("longer relative half", False, "relative", "half", (28.83, 28.83, 120), length=172 / 128),
)
ORDERINGS = (
    Ordering("recurrence better at equal memory, full loss", "recurrence relative full", "longer relative full"),
    Ordering("recurrence better at equal memory, half loss", "recurrence relative half", "longer relative half"),
)


@experiment_options()
def main(experiment: Experiment) -> None:
    """Train the models of Table 10, and print the paper's perplexities next to our bits per token."""
    compare(experiment, "table10", VARIANTS, ORDERINGS)


if __name__ == "__main__":
    main()
