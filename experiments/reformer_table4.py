"""Table 4 of the Reformer paper: translation with reversible layers against ordinary ones, by sacreBLEU.

The paper trains on WMT14 from English to German, 4.5 million pairs. Here the pairs are a folder with train.tsv,
valid.tsv and test.tsv, for instance of `python -m experiments.catalogues`. Both sides share subwords. Each model becomes
a bundle, which is verified, and which translates test.tsv.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import torch

from experiments.running import (
    Experiment,
    ExperimentCommand,
    Scale,
    Variant,
    difference,
    mean_and_error,
    print_rows,
)
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlexport.extras import require
from xlexport.prepare.units import trained
from xlexport.prepare.writing import prepare_data
from xlexport.scoring.bleu import bleu
from xlruntime import SearchOptions, load_translator
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
    "paper": Scale(
        {"d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048, "n_encoder_layer": 6, "n_decoder_layer": 6,
         "source_len": 256, "dropout": 0.1},
        tgt_len=256, steps=100_000, batch_size=1024, learning_rate=7e-4, warmup_steps=4000, seeds=1,
    ),
}  # fmt: skip
VOCABULARY = {"tiny": 1000, "quick": 2000, "paper": 32_000}
TRAINING = (("task", "pairs"), ("clip", 1.0))
# BLEU of newstest2014: of Vaswani et al. 2017, base, and of the reversible base model after 100,000 updates.
ROWS = (
    (Variant("ordinary", model=(("residual", "ordinary"),), training=TRAINING), 27.3),
    (Variant("reversible", training=TRAINING), 27.6),
)
SEARCH = SearchOptions(beams=4, length_penalty=0.6)  # Vaswani et al. 2017, section 6.1


def config_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> EncoderDecoderConfig:
    """Return the configuration of a model; all of a scale have equally many weights."""
    config = EncoderDecoderConfig(n_token=n_token, tgt_len=scale.tgt_len, **scale.model)
    return replace(config, **dict(variant.model))


def prepared(pairs: Path, folder: Path, vocabulary: int) -> Path:
    """Return the folder of the pairs as subwords; prepare them on first use."""
    if not is_prepared(folder):
        train, valid = pairs / "train.tsv", pairs / "valid.tsv"
        prepare_data(
            {"train": [train], "valid": [valid]},
            folder,
            lambda inside: trained([train], "bpe", vocabulary, inside, pairs=True),
            document="pair",
            clusters=1,
        )
    return folder


def translated(checkpoint: Path, bundle: Path, test: Path) -> dict[str, Any]:
    """Convert and verify a model, and translate the test's sources; return BLEU and translations."""
    if not bundle.exists():
        convert(load(checkpoint), bundle, ConversionOptions(threads=torch.get_num_threads(), verify_text=test))
    sources, references = zip(*(line.split("\t") for line in test.read_text("utf-8").splitlines()), strict=True)
    translator = load_translator(bundle, threads=torch.get_num_threads())
    texts = [target.text for target in translator.translate(sources, options=SEARCH)]
    scores = {"bleu": bleu(texts, references), "uncased": bleu(texts, references, lower_case=True)}
    return {name: asdict(score) for name, score in scores.items()} | {"translations": texts}


@click.command(cls=ExperimentCommand)
@click.option("--pairs", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder with train.tsv, valid.tsv and test.tsv: lines of a source, a tab and a target.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of runs and results.")
@click.option("--scale", type=click.Choice(list(SCALES)), default="tiny", show_default=True, help="Size (README.md).")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N, to train on.")
@click.option("--seeds", type=click.IntRange(1), help="Seeds of each model.  [default: those of the scale]")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads.")
def main(pairs: Path, out: Path, scale: str, device: str, seeds: int | None, threads: int) -> None:
    """Table 4: translation with reversible layers against ordinary ones of equal size, by sacreBLEU.

    Held-out bits are those of a subword of a target in valid.tsv. Translations are in RUNS/SCALE/reformer_table4.json.
    """
    require(None, "sacrebleu", "tokenizers")
    torch.set_num_threads(threads)
    size, folder = SCALES[scale], out / scale
    folder.mkdir(parents=True, exist_ok=True)
    data = prepared(pairs, folder / "data", VOCABULARY[scale])
    n_token = read_prepared(data).n_token
    number = seeds or size.seeds
    experiment = Experiment(size, folder, (data,), torch.empty(0), n_token, device, number, config_of)
    experiment.run([variant for variant, _ in ROWS])
    results: dict[str, list[dict[str, Any]]] = {}
    rows = []
    for variant, paper in ROWS:
        runs = [folder / f"{variant.name}-{seed}" for seed in range(number)]
        results[variant.name] = [
            {**translated(run / "checkpoint.pt", run / "bundle", pairs / "test.tsv"), "bits": _held_out_bits(run)}
            for run in runs
        ]
        cased, uncased = ([one[kind]["score"] for one in results[variant.name]] for kind in ("bleu", "uncased"))
        bits = [one["bits"] for one in results[variant.name]]
        rows.append((variant.name, paper, *map(mean_and_error, (cased, uncased, bits))))
    experiment.keep("reformer_table4", results)
    print_rows(("layers", "paper: BLEU", "ours: BLEU", "uncased", "bits"), rows)
    print_rows(("signature",), [(results["reversible"][0]["bleu"]["signature"],)])
    if number > 1:
        reversible, ordinary = ([one["bleu"]["score"] for one in results[name]] for name in ("reversible", "ordinary"))
        gained = difference(ordinary, reversible)
        click.echo(f"reversible − ordinary: {gained.bits:.2f} ± {gained.error:.2f} BLEU")


def _held_out_bits(run: Path) -> float:
    """Return bits per subword of held-out targets at the end of a run."""
    last = json.loads((run / "log.jsonl").read_text("utf-8").splitlines()[-1])
    return float(last["valid_bits_per_token"])
