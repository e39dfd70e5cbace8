"""Figure 4 of the Reformer paper: rounds of hashing, in training and in evaluation.

python -m experiments.reformer_figure4 --out RUNS --text war_and_peace.txt

A row is a model, trained with some rounds of hashing or with full attention; a column is the number of rounds that it
is evaluated with. The paper's figure has equal rounds in both; its Table 2 crosses them for another task.
Rotations are fixed, but for a model `redrawn` each update of training draws others, as the paper does.
Below the table are differences in standard errors; `A by B` is model A with the attention B.
RUNS/SCALE/reformer_figure4.png draws the rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from experiments import reformer_figure3
from experiments.orderings import Ordering, print_orderings
from experiments.reformer_scales import SCALES, Point, bits, config_of, draw, point, variant
from experiments.running import Experiment, experiment_options, mean_and_error, print_rows
from experiments.scales import Variant
from xlexport.figures import check_picture
from xltraining.language_model import LanguageModel
from xltraining.reformer import Reformer

__all__ = ["ORDERINGS", "ROUNDS", "VARIANTS", "main", "with_attention"]

ROUNDS = (1, 2, 4, 8)
VARIANTS = (
    *(variant(f"LSH-{rounds}", n_hashes=rounds) for rounds in ROUNDS),
    variant("LSH-4 redrawn", n_hashes=4, redraw_hashes=True),
    replace(reformer_figure3.VARIANTS[-1], name="full", run="shared reversible"),
)
ORDERINGS = tuple(
    Ordering(f"{better} better than {worse}", better, worse)
    for better, worse in (
        ("LSH-2 by LSH-2", "LSH-1 by LSH-1"),
        ("LSH-4 by LSH-4", "LSH-2 by LSH-2"),
        ("LSH-8 by LSH-8", "LSH-4 by LSH-4"),
        ("full by full", "LSH-8 by LSH-8"),
        ("LSH-4 by LSH-8", "LSH-4 by LSH-4"),
        ("LSH-4 redrawn by LSH-8", "LSH-4 redrawn by LSH-4"),
        ("LSH-4 redrawn by LSH-4", "LSH-4 by LSH-4"),
        ("full by full", "full by LSH-8"),
    )
)


def with_attention(model: LanguageModel, rounds: int | None) -> Reformer:
    """Return a model that is evaluated with some rounds of hashing, or None: with full attention."""
    assert isinstance(model, Reformer)
    kind = "full" if rounds is None else "lsh"
    config = replace(model.config, attn_layers=(kind,) * model.config.n_layer, n_hashes=rounds or 1)
    other = Reformer(config)
    other.load_state_dict({**other.state_dict(), **_without_rotations(model)})
    return other.eval()


def _without_rotations(model: Reformer) -> dict[str, torch.Tensor]:
    """Return the weights alone: rotations follow from the seed, and their first rounds are those of training."""
    return {name: weight for name, weight in model.state_dict().items() if not model.is_drawn(name)}


@experiment_options(scales=SCALES, config_of=config_of)
def main(experiment: Experiment) -> None:
    """Train with some rounds of hashing, evaluate with others, and print bits of held-out text."""
    picture = experiment.folder / "reformer_figure4.png"
    check_picture(picture)
    chosen = experiment.chosen(VARIANTS)
    experiment.run(chosen)
    kept, rows = {}, []
    scores: dict[str, list[float]] = {}
    lines: dict[str, list[Point]] = {}
    for one in chosen:
        found = {
            f"LSH-{rounds}" if rounds else "full": [
                _bits(experiment, one, seed, rounds) for seed in range(experiment.seeds)
            ]
            for rounds in (*ROUNDS, None)
        }
        kept[one.name] = found
        rows.append((one.name, *map(mean_and_error, found.values())))
        scores |= {f"{one.name} by {attention}": seeds for attention, seeds in found.items()}
        lines[f"trained with {one.name}"] = [point(rounds, found[f"LSH-{rounds}"]) for rounds in ROUNDS]
    experiment.keep("reformer_figure4", kept)
    print_rows(("trained with", *(f"LSH-{rounds}" for rounds in ROUNDS), "full"), rows)
    print_orderings(ORDERINGS, scores)
    draw(picture, lines, "rounds of hashing at evaluation", "bits of held-out text")


def _bits(experiment: Experiment, one: Variant, seed: int, rounds: int | None) -> float:
    return bits(experiment, with_attention(experiment.trained(one, seed), rounds))


if __name__ == "__main__":
    main()
