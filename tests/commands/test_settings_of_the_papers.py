"""Settings that models of the papers need: each trains from the command line, converts and equals its bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.tiers import thinned
from xltraining.checkpoint import load_checkpoint

RUN = ("--steps=2", "--batch-size=2", "--set=training.warmup_steps=1", "--threads=1", "--n-head=2", "--d-model=8")
XL = ("--n-layer", "2", "--set=model.d_head=4", "--set=model.d_inner=8", "--tgt-len", "6", "--mem-len", "10", *RUN)
SHARED = (
    *("--architecture=reformer", "--set=model.d_head=4", "--set=model.d_inner=8", "--tgt-len=8", "--mem-len=12", *RUN),
    *("--set=model.n_buckets=4", "--set=model.chunk_length=4"),
)
PAIRS = ("--architecture", "encoder_decoder", "--set=model.d_head=4", "--set=model.d_inner=8", *RUN)
LAYERS = ("--set=model.n_encoder_layer=1", "--set=model.n_decoder_layer=1", "--set=model.source_len=8", "--tgt-len=8")
TWO_TERMS = ("model.encoding=shaw", "model.shaw_biases=false")
CLUSTERS = ("model.cutoffs=60,128", "model.div_val=2")
# Of each model: its options, its settings, and what the checkpoint then holds.
MODELS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, object]]] = {
    "shaw-two-terms": (XL, TWO_TERMS, {"shaw_biases": False}),
    "untied": (XL, ("model.tie_weight=false",), {"tie_weight": False}),
    "tied-projections": (XL, (*CLUSTERS, "model.tie_projs=false,true,true"), {"tie_projs": (False, True, True)}),
    "scaled": ((*SHARED, "--attn-layers=lsh,full"), ("model.scale_scores=true",), {"scale_scores": True}),
    "scaled-paper": (
        (*SHARED, "--attn-layers=lsh"),
        ("model.scale_scores=true", "model.rule=paper", "model.hash_turned=true", "training.label_smoothing=0.1"),
        {"scale_scores": True, "hash_turned": True},
    ),
    "hashed-turned": (
        (*SHARED, "--attn-layers=lsh"),
        ("model.hash_turned=true",),
        {"hash_turned": True, "position": "rotary"},
    ),
    "no-sharing": (
        (*PAIRS, *LAYERS),
        ("model.tie_weight=false", "training.label_smoothing=0.1"),
        {"tie_weight": False},
    ),
}


@pytest.mark.parametrize("name", thinned(MODELS, ["tied-projections", "hashed-turned"]))
@pytest.mark.release
def test_trains_and_converts(name: str, invoke: Invoke, tmp_path: Path, cached_exports: None) -> None:
    options, settings, expected = MODELS[name]
    text = tmp_path / "text.tsv"
    text.write_text("".join(f"{'ab' * (n % 3)}\t{'xyz' * (n % 2) or 'w'}\n" for n in range(40)), "utf-8")
    if "encoder_decoder" not in options:
        text.write_bytes(PROSE * 9)
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    invoke("train", text, "-o", run, *options, *(f"--set={setting}" for setting in settings)).succeeded()
    saved = load_checkpoint(run / "checkpoint.pt")
    assert {field: getattr(saved.config, field) for field in expected} == expected
    invoke("convert", run / "checkpoint.pt", "-o", bundle, "--threads", "1").succeeded()  # fails if it is not equal
    report = invoke("verify", bundle, run / "checkpoint.pt", "--json", "--segments", "4").succeeded().object
    assert report["passed"] and report["max_abs_log_prob_diff"] < 1e-5
