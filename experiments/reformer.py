"""Figures 3 to 5 of the Reformer paper: `python -m experiments NAME --help`.

Models of all scales but `long` and `paper` have rotary positions: a short training does not learn to use other ones.
Held-out scores have their standard error over the seeds. Pictures and numbers are in RUNS/SCALE/NAME.png and .json.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from experiments.paper_scales import ENWIK8, IMAGENET64
from experiments.running import (
    Experiment,
    Ordering,
    Point,
    Scale,
    Variant,
    draw,
    experiment_options,
    mean_and_error,
    point,
    print_orderings,
    print_rows,
)
from xlexport.figures import check_picture
from xltraining.language_model import LanguageModel
from xltraining.reformer import Reformer, ReformerConfig

__all__ = ["COMMANDS", "SCALES", "VARIANTS", "Attending", "config_of", "depths", "with_attention"]

Attending = int | Literal["full", "separate"]
"""Attention at evaluation: rounds of hashing, full, or `separate`: a Transformer's, where a token also sees itself."""
SCALES = {
    "tiny": Scale(
        {"d_model": 64, "n_head": 2, "d_head": 32, "d_inner": 128, "n_buckets": (16,), "chunk_length": 16},
        tgt_len=128, steps=300, batch_size=8, learning_rate=4e-3, warmup_steps=30, seeds=2, most=400_000,
    ),
    "quick": Scale(
        {"d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 512, "n_buckets": (32,), "chunk_length": 32},
        tgt_len=512, steps=500, batch_size=2, learning_rate=3e-3, warmup_steps=50, seeds=3, held_out=32_768, bf16=True,
        reversible=False,
    ),
    "small": Scale(
        {"d_model": 256, "n_head": 4, "d_head": 64, "d_inner": 1024, "n_buckets": (64,), "chunk_length": 64},
        tgt_len=1024, steps=4000, batch_size=8, learning_rate=2e-3, warmup_steps=300, seeds=3,
    ),
    "long": Scale(
        {"d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 512, "n_buckets": (16, 32), "chunk_length": 64,
         "position": "axial", "axial_shape": (128, 128), "axial_dims": (32, 96), "max_positions": 16_384,
         "attn_layers": ("local", "lsh"), "ff_chunk": 512, "full_chunk": 512},
        tgt_len=16_384, steps=400, batch_size=1, learning_rate=3e-3, warmup_steps=30, seeds=2, held_out=65_540,
        bf16=True, checkpoint_every=25,
    ),
    "large": Scale(
        {"d_model": 1024, "n_head": 8, "d_head": 128, "d_inner": 4096, "n_buckets": (32, 32), "chunk_length": 128},
        tgt_len=65_536, steps=20_000, batch_size=8, learning_rate=5e-4, warmup_steps=1000, seeds=1,
    ),
}  # fmt: skip


def config_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> ReformerConfig:
    """Return the configuration of a model; all its layers are of one `kind`, and no memory is between segments."""
    fields = dict(variant.model)
    if kind := fields.pop("kind", ""):
        fields["attn_layers"] = (kind,) * scale.layers
    config = ReformerConfig(
        n_token=n_token, tgt_len=scale.tgt_len, mem_len=scale.tgt_len, rule="paper", streams="mean", dropout=0.0,
        **{"position": "rotary", "max_positions": 0, "attn_layers": ("lsh",) * scale.layers, **scale.model},
    )  # fmt: skip
    return replace(config, **fields)


def variant(name: str, *, run: str = "", training: tuple[tuple[str, Any], ...] = (), **model: Any) -> Variant:
    """Return a model of a figure with further fields of its configuration; `run` and `training` as in `Variant`."""
    return Variant(name, model=tuple(model.items()), training=training, run=run)


RECOMPUTED = (("reversible", True),)  # also at a scale that keeps activations, because this is what is compared
ROUNDS = (1, 2, 4, 8)
SHARED_REVERSIBLE = variant("shared reversible", kind="full", training=RECOMPUTED)


def depths(scale: Scale) -> tuple[Variant, ...]:
    """Return the models of Figure 5, left; the one as deep as the models of Figure 4 is one of them."""
    return tuple(
        variant(f"{n} layers", run="LSH-2")
        if n == scale.layers
        else variant(f"{n} layer{'s' * (n > 1)}", attn_layers=("lsh",) * n)
        for n in scale.depths
    )


# Figures 4 and 5 take models of Figures 3 and 4 that are equal.
VARIANTS = {
    "reformer_figure3": (
        variant("separate ordinary", kind="separate", residual="ordinary"),
        variant("shared ordinary", kind="full", residual="ordinary"),
        variant("separate reversible", kind="separate", training=RECOMPUTED),
        SHARED_REVERSIBLE,
    ),
    "reformer_figure4": (
        *(variant(f"LSH-{rounds}", n_hashes=rounds) for rounds in ROUNDS),
        variant("LSH-4 redrawn", n_hashes=4, redraw_hashes=True),
        replace(SHARED_REVERSIBLE, name="full", run="shared reversible"),
    ),
}
ORDERINGS = {
    "reformer_figure3": (
        Ordering("shared no worse, ordinary", "shared ordinary", "separate ordinary"),
        Ordering("shared no worse, reversible", "shared reversible", "separate reversible"),
        Ordering("reversible no worse, separate", "separate reversible", "separate ordinary"),
        Ordering("reversible no worse, shared", "shared reversible", "shared ordinary"),
    ),
    "reformer_figure4": tuple(
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
    ),
}


def compare(
    experiment: Experiment,
    figure: str,
    columns: tuple[str, ...],
    variants: Sequence[Variant],
    orderings: Sequence[Ordering],
    cells: Callable[[str], Sequence[str]] = lambda name: [name],
) -> None:
    """Train the models; print bits of the held-out text and differences, and draw curves of the training text.

    Args:
        columns: titles; cells: what they hold for the name of a model, without the bits at the end.
    """
    picture = experiment.folder / f"{figure}.png"
    check_picture(picture)
    chosen = experiment.chosen(variants)
    experiment.run(chosen)
    seeds = range(experiment.seeds)
    scores = {one.name: [experiment.bits(experiment.trained(one, seed)) for seed in seeds] for one in chosen}
    lines = _curves(experiment, chosen)
    experiment.keep(figure, {"bits": scores, "curves": lines})
    print_rows((*columns, "bits"), [(*cells(name), mean_and_error(one)) for name, one in scores.items()])
    print_orderings(orderings, scores)
    draw(picture, lines, "updates", "bits per unit of the training text")


def _curves(experiment: Experiment, variants: Sequence[Variant]) -> dict[str, list[Point]]:
    """Return bits of the training text by number of updates, as means of the seeds, by name of the model."""
    curves = {}
    for one in variants:
        seeds = [experiment.curve(one, seed) for seed in range(experiment.seeds)]
        curves[one.name] = [point(same[0][0], [bits for _, bits in same]) for same in zip(*seeds, strict=True)]
    return curves


@experiment_options(ChainMap({"paper": ENWIK8, "paper_imagenet64": IMAGENET64}, SCALES), config_of)
def figure3(experiment: Experiment) -> None:
    """Figure 3: shared queries and keys, and reversible layers, against those of a Transformer.

    All models have full attention. Shared models have fewer weights: one matrix takes the place of two.
    """
    name = "reformer_figure3"
    compare(experiment, name, ("queries and keys", "layers"), VARIANTS[name], ORDERINGS[name], str.split)


@experiment_options(ChainMap({"paper": IMAGENET64}, SCALES), config_of)
def figure4(experiment: Experiment) -> None:
    """Figure 4: rounds of hashing, in training and in evaluation.

    A row is a model, trained with some rounds of hashing or with full attention; a column is the number of rounds that
    it is evaluated with. The paper's figure has equal rounds in both; its Table 2 crosses them for another task.
    Rotations are fixed, but for a model `redrawn` each update of training draws others, as the code bases do. `A by B`
    is model A with the attention B.
    """
    picture = experiment.folder / "reformer_figure4.png"
    check_picture(picture)
    chosen = experiment.chosen(VARIANTS["reformer_figure4"])
    experiment.run(chosen)
    scores_by_model, rows = {}, []
    scores: dict[str, list[float]] = {}
    lines: dict[str, list[Point]] = {}
    for one in chosen:
        bits_by_rounds = {
            "full" if attention == "full" else f"LSH-{attention}": [
                experiment.bits(with_attention(experiment.trained(one, seed), attention))
                for seed in range(experiment.seeds)
            ]
            for attention in (*ROUNDS, "full")
        }
        scores_by_model[one.name] = bits_by_rounds
        rows.append((one.name, *map(mean_and_error, bits_by_rounds.values())))
        scores |= {f"{one.name} by {attention}": seeds for attention, seeds in bits_by_rounds.items()}
        lines[f"trained with {one.name}"] = [point(rounds, bits_by_rounds[f"LSH-{rounds}"]) for rounds in ROUNDS]
    experiment.keep("reformer_figure4", scores_by_model)
    print_rows(("trained with", *(f"LSH-{rounds}" for rounds in ROUNDS), "full"), rows)
    print_orderings(ORDERINGS["reformer_figure4"], scores)
    draw(picture, lines, "rounds of hashing at evaluation", "bits of held-out text")


def with_attention(model: LanguageModel, attention: Attending, seed: int = 0) -> Reformer:
    """Return a model that is evaluated with another attention.

    Args:
        seed: of the rotations; models of the experiments are made with 0.
    """
    assert isinstance(model, Reformer)
    kind, rounds = ("lsh", attention) if isinstance(attention, int) else (attention, 1)
    layers = tuple("local" if each == "local" else kind for each in model.config.attn_layers)
    other = Reformer(replace(model.config, attn_layers=layers, n_hashes=rounds, hash_seed=seed))
    # Rotations follow from the seed, and their first rounds are those of training.
    weights = {name: weight for name, weight in model.state_dict().items() if not model.is_drawn(name)}
    for name in [name for name in weights if kind == "separate" and name.endswith("query_key.weight")]:
        shared = weights.pop(name)
        weights |= {name.replace("query_key", part): shared for part in ("query", "key")}
    other.load_state_dict({**other.state_dict(), **weights})
    return other.eval()


@experiment_options(ChainMap({"paper": ENWIK8}, SCALES), config_of)
def figure5_layers(experiment: Experiment) -> None:
    """Figure 5, left: models of 1, 2 and 4 LSH layers; at scale `paper` up to 20."""
    variants = depths(experiment.scale)
    orderings = [
        Ordering(f"{more.name} better than {less.name.split()[0]}", more.name, less.name)
        for less, more in itertools.pairwise(variants)
    ]
    compare(experiment, "reformer_figure5_layers", ("LSH layers",), variants, orderings)


COMMANDS = {
    "reformer_figure3": figure3,
    "reformer_figure4": figure4,
    "reformer_figure5_layers": figure5_layers,
}
