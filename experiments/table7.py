"""Table 7 of the Transformer-XL paper: text without long dependencies, here the sentences of a text in random order.

python -m experiments.table7 --out RUNS --text war_and_peace.txt
"""

from __future__ import annotations

import random
import re

from experiments.orderings import Ordering
from experiments.running import Experiment, experiment_options
from experiments.scales import Variant
from experiments.table6 import compare

__all__ = ["ORDERINGS", "VARIANTS", "main", "shuffled_sentences"]

VARIANTS = (
    Variant("sentences relative", True, "relative", paper=(25.2, None, None)),
    Variant("sentences shaw", True, "shaw", paper=(25.7, None, None)),
    Variant("sentences relative alone", False, "relative", paper=(27.1, None, None)),
)
ORDERINGS = (
    Ordering("relative better than Shaw's", "sentences relative", "sentences shaw"),
    Ordering("recurrence better than none", "sentences relative", "sentences relative alone"),
)


def shuffled_sentences(text: bytes) -> bytes:
    """Return the sentences of a text, each on its line, in an order that is always the same."""
    sentences = [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text.decode("utf-8", "replace"))]
    kept = [sentence for sentence in sentences if sentence]
    random.Random(0).shuffle(kept)
    return "".join(f"{sentence}\n" for sentence in kept).encode()


@experiment_options(shuffled_sentences)
def main(experiment: Experiment) -> None:
    """Train the models of Table 7 on shuffled sentences, and print the paper's perplexities next to our bits."""
    compare(experiment, "table7", VARIANTS, ORDERINGS)


if __name__ == "__main__":
    main()
