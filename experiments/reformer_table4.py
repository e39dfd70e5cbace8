"""Table 4 of the Reformer paper: translation with reversible layers against ordinary ones, by sacreBLEU.

The paper trains on WMT14 from English to German, 4.5 million pairs. Here --data names prepared pairs with the splits
`valid` and `test`, for instance of `python -m experiments.catalogues`. Each model becomes a bundle, which is verified,
and which translates the test. BLEU compares with the test's text, so subwords must keep it (--unit bpe).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from experiments.bleu import bleu
from experiments.paper_scales import WMT14
from experiments.running import (
    Experiment,
    Ordering,
    Scale,
    Variant,
    experiment_options,
    mean_and_error,
    print_orderings,
    print_rows,
)
from xlexport import convert
from xlexport.extras import require
from xlruntime import SearchOptions, load_translator
from xltraining.data.pairs import prepared_pairs
from xltraining.data.token_shards import is_prepared, read_prepared
from xltraining.encoder_decoder import EncoderDecoderConfig

__all__ = ["SCALES", "config_of", "main"]

SCALES = {
    "tiny": Scale(
        {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "source_len": 256, "dropout": 0.0},
        tgt_len=256, steps=60, batch_size=16, learning_rate=4e-3, warmup_steps=10, seeds=2,
    ),
    "quick": Scale(
        {"d_model": 128, "n_head": 4, "d_head": 32, "d_inner": 512, "source_len": 256, "dropout": 0.1},
        tgt_len=256, steps=3500, batch_size=64, learning_rate=2e-3, warmup_steps=350, seeds=2, bf16=True,
        reversible=False,
    ),
    "paper": WMT14,
}  # fmt: skip
TRAINING = (("clip", 1.0),)
UNSHARED = (("tie_weight", False),)
# BLEU of newstest2014: of Vaswani et al. 2017, base, and of the reversible base model after 100,000 updates; then of
# those without weight sharing, base after 500,000 updates and big after 300,000.
VARIANTS = (
    Variant("ordinary", model=(("residual", "ordinary"),), training=TRAINING, paper=(27.3,)),
    Variant("reversible", training=TRAINING, paper=(27.6,)),
    Variant("reversible unshared", model=UNSHARED, training=TRAINING, paper=(28.0,), optional=True),
    Variant("reversible big unshared", model=UNSHARED, training=TRAINING, paper=(29.1,), optional=True),
)
ORDERINGS = (Ordering("reversible no worse", "reversible", "ordinary"),)
SEARCH = SearchOptions(beams=4, length_penalty=0.6)  # Vaswani et al. 2017, section 6.1


def config_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> EncoderDecoderConfig:
    """Return the configuration of a model; those of the first two rows have equally many weights."""
    config = EncoderDecoderConfig(n_token=n_token, tgt_len=scale.tgt_len, **scale.model)
    return replace(config, **{**dict(variant.model), **scale.row(variant, training=False)})


def scores(run: Path, data: Path) -> dict[str, Any]:
    """Return the held-out bits of a run at its end, BLEU of the test, and its translations."""
    bundle, threads = run / "bundle", torch.get_num_threads()
    if not bundle.exists():
        convert(run / "checkpoint.pt", bundle, threads=threads)
    translator = load_translator(bundle, threads=threads)
    sources, targets = zip(*prepared_pairs(read_prepared(data).splits["test"]), strict=True)
    references = list(map(translator.tokenizer.decode, targets))
    texts = [target.text for target in translator.translate(sources, options=SEARCH)]
    (cased, signature), (uncased, _) = (bleu(texts, references, lower_case=lower) for lower in (False, True))
    bits = json.loads((run / "log.jsonl").read_text("utf-8").splitlines()[-1])["valid_bits_per_token"]
    return {"bleu": cased, "uncased": uncased, "bits": bits, "signature": signature, "translations": texts}


@experiment_options(SCALES, config_of)
def main(experiment: Experiment) -> None:
    """Table 4: translation with reversible layers against ordinary ones of equal size, by sacreBLEU.

    Bits are those of a subword of a held-out target. Translations are in RUNS/SCALE/reformer_table4.json.
    """
    require(None, "sacrebleu", "tokenizers")
    if not is_prepared(experiment.files[0]) or "test" not in read_prepared(experiment.files[0]).splits:
        raise click.UsageError("Give --data pairs with a test split: xlexport prepare --documents pair --test FILE.")
    chosen = experiment.chosen(VARIANTS)
    experiment.run(chosen)
    runs = {one.name: [experiment.checkpoint(one, seed).parent for seed in range(experiment.seeds)] for one in chosen}
    results = {name: [scores(run, experiment.files[0]) for run in of_name] for name, of_name in runs.items()}
    experiment.keep("reformer_table4", results)
    figures = {
        name: [[one[kind] for one in of_name] for kind in ("bleu", "uncased", "bits")]
        for name, of_name in results.items()
    }
    rows = [(one.name, *one.paper, *map(mean_and_error, figures[one.name])) for one in chosen]
    print_rows(("layers", "paper: BLEU", "ours: BLEU", "uncased", "bits"), rows)
    print_orderings(ORDERINGS, {name: bits for name, (*_, bits) in figures.items()})
    click.echo(results[chosen[0].name][0]["signature"])
