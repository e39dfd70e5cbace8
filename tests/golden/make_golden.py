"""Make the golden bundles and the eager model's scores, for runtime tests without PyTorch.

    python tests/golden/make_golden.py [NAME ...]

Each `tests/golden/NAME/` then has `bundle/`, which `xlexport convert` wrote, and `expected.safetensors`. The latter has
token ids `ids.D` of documents, and log-probabilities in nats `log_probs.N` of the cases that its metadata lists. The
eager model computed them in the paper's form, segment by segment with carried hidden states. The models are tiny; their
weights are random and large, so that an error in any weight shows. Run this again only if the bundle format changes.

The folders whose names begin with `reformer` have Reformers, one of each rule of LSH attention. Graphs of
`relative_attention` have the custom operators of attention. Those of `shaw_distances` and `learned_places`, which have
other encodings of positions, need none. Those of the other Transformer-XLs have none, because older code wrote them. Do
not make them again: such bundles must stay readable.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from xlexport import formats
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

FOLDER = Path(__file__).resolve().parent
DOCUMENT_LENGTHS = (2, 37, 400)  # one step, a few steps, and enough to wrap the ring twenty times


@dataclass(frozen=True)
class Golden:
    """One variant: a model, the tokenizer of its bundle, and further settings to evaluate it with."""

    config: TransformerXLConfig | ReformerConfig
    tokenizer: str
    seed: int
    settings: tuple[dict[str, Any], ...]
    lengths: tuple[int, ...] = DOCUMENT_LENGTHS


# What most variants have in common.
XL = partial(TransformerXLConfig, n_layer=2, n_head=2, tgt_len=8, mem_len=12)
REFORMER = partial(
    ReformerConfig,
    d_model=16,
    n_head=2,
    d_head=8,
    d_inner=24,
    n_buckets=(4,),
    local_chunk_length=4,
    tgt_len=8,
    mem_len=8,
)
VARIANTS = {
    "post_lnorm_same_length_empty": Golden(
        XL(n_token=256, d_model=16, d_head=8, d_inner=24, clamp_len=7, same_length=True, first_memory="empty"),
        tokenizer="bytes",
        seed=1,
        settings=({"mem_len": 5}, {"mem_len": 30}, {"clamp_len": 3}, {"clamp_len": -1}, {"same_length": False}),
    ),
    "pre_lnorm_same_length_zeros": Golden(
        XL(n_token=256, d_model=16, d_head=7, d_inner=24, same_length=True, pre_lnorm=True, first_memory="zeros"),
        tokenizer="bytes",
        seed=2,
        settings=({"mem_len": 5}, {"mem_len": 30}, {"clamp_len": 4}, {"same_length": False}),
    ),
    "pre_lnorm_empty": Golden(
        XL(
            n_token=29,
            n_head=3,
            d_model=18,
            d_head=6,
            d_inner=20,
            tgt_len=10,
            pre_lnorm=True,
            untie_r=False,
            first_memory="empty",
        ),
        tokenizer="none",
        seed=3,
        settings=({"segment_len": 3}, {"segment_len": 31}, {"mem_len": 25}, {"clamp_len": 6}, {"same_length": True}),
    ),
    "post_lnorm_zeros": Golden(
        XL(n_token=40, d_model=24, d_head=12, d_inner=32, clamp_len=10, tie_weight=False, first_memory="zeros"),
        tokenizer="none",
        seed=4,
        settings=({"segment_len": 5}, {"segment_len": 31}, {"mem_len": 4}, {"mem_len": 25}, {"same_length": True}),
    ),
    "relative_attention": Golden(
        XL(n_token=256, n_head=3, d_model=16, d_head=6, d_inner=24, clamp_len=9, pre_lnorm=True, first_memory="zeros"),
        tokenizer="bytes",
        seed=7,
        settings=({"segment_len": 1}, {"mem_len": 5}, {"mem_len": 30}, {"clamp_len": -1}, {"same_length": True}),
    ),
    "shaw_distances": Golden(
        XL(n_token=29, d_model=12, d_head=5, d_inner=16, encoding="shaw", max_klen=15, first_memory="zeros"),
        tokenizer="none",
        seed=8,
        settings=({"segment_len": 3}, {"mem_len": 5}, {"mem_len": 30}, {"clamp_len": 6}, {"same_length": True}),
    ),
    "learned_places": Golden(
        XL(n_token=29, d_model=12, d_head=5, d_inner=16, tgt_len=9, mem_len=0, encoding="learned", pre_lnorm=True),
        tokenizer="none",
        seed=9,
        settings=({"segment_len": 1}, {"segment_len": 4}, {"segment_len": 20}),
    ),
    "reformer_band": Golden(
        REFORMER(
            n_token=258,
            attn_layers=("local", "lsh"),
            n_hashes=3,
            chunk_length=6,
            mem_len=12,
            axial_shape=(10, 20),
            axial_dims=(6, 10),
            max_positions=200,
        ),
        tokenizer="none",
        seed=5,
        settings=({"mem_len": 5}, {"mem_len": 30}, {"n_hashes": 1}, {"n_hashes": 2, "mem_len": 20}),
        lengths=(2, 37, 201),
    ),
    "reformer_chunk": Golden(
        REFORMER(
            n_token=40,
            attn_layers=("lsh", "local"),
            n_hashes=2,
            chunk_length=8,
            rule="chunk",
            position="absolute",
            max_positions=96,
        ),
        tokenizer="none",
        seed=6,
        settings=(),
        lengths=(2, 6, 37, 64, 97),
    ),
    "reformer_paper": Golden(
        REFORMER(
            n_token=40,
            attn_layers=("lsh", "full", "local", "lsh"),
            n_hashes=3,
            n_buckets=(4, 2),
            chunk_length=7,
            rule="paper",
            position="rotary",
            max_positions=0,
        ),
        tokenizer="none",
        seed=8,
        settings=(),
        lengths=(2, 7, 8, 41, 151),
    ),
}


def random_model(golden: Golden) -> Any:
    """Make a model in which every weight matters: standard deviation 0.3, scales of LayerNorm around 1."""
    config = golden.config
    model = (Reformer(config) if isinstance(config, ReformerConfig) else TransformerXL(config)).eval()
    random = torch.Generator().manual_seed(golden.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
            if name.endswith("norm.weight"):
                parameter.add_(1.0)
    return model


@torch.inference_mode()
def eager_log_probs(model: Any, ids: Tensor, settings: dict[str, Any]) -> Tensor:
    """Return log-probabilities (n - 1,) of all but the first of ids (n,), with carried hidden states."""
    settings = dict(settings)
    whole = getattr(model.config, "whole", False)
    segment_len = len(ids) if whole else settings.pop("segment_len", model.config.tgt_len)
    model = model.with_evaluation(**settings)
    if getattr(model.config, "is_absolute", False):
        segment_len = model.config.tgt_len  # steps of all lengths give the same scores
    memory = None if whole else model.first_memory(1)
    parts = []
    for start in range(0, len(ids) - 1, segment_len):
        targets = ids[start + 1 : start + 1 + segment_len]
        memory = model.memory_before(memory, len(targets))
        hidden, memory = model(ids[None, start : start + len(targets)], memory)
        parts.append(model.log_probs(hidden, targets[None])[0])
    return torch.cat(parts)


def make(name: str, golden: Golden) -> None:
    """Write the bundle and the expected numbers of one variant."""
    model = random_model(golden)
    (FOLDER / name).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, name)
        save_checkpoint(checkpoint, golden.config, model.state_dict())
        source = formats.load(checkpoint)
        report = convert(
            source, FOLDER / name / "bundle", ConversionOptions(tokenizer=golden.tokenizer), force=True
        ).report

    random = np.random.default_rng(golden.seed)
    documents = [random.integers(0, golden.config.n_token, length) for length in golden.lengths]
    cases: list[tuple[int, dict[str, Any]]] = [(document, {}) for document in range(len(documents))]
    cases += [(len(documents) - 1, settings) for settings in golden.settings]
    tensors = {f"ids.{document}": ids for document, ids in enumerate(documents)}
    for number, (document, settings) in enumerate(cases):
        log_probs = eager_log_probs(model, torch.from_numpy(documents[document]), settings)
        tensors[f"log_probs.{number}"] = log_probs.numpy()
    save_file(tensors, FOLDER / name / "expected.safetensors", metadata={"cases": json.dumps(cases)})
    print(f"{name}: {report.max_abs_log_prob_diff:.1e} nats from the eager model")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or VARIANTS:
        make(chosen, VARIANTS[chosen])
