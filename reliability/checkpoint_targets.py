"""Damage checkpoints of every format that can be read."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reliability.damage import damage_bytes, damage_json
from reliability.judging import Outcome, judged
from tests.checkpoints import test_reformer_pytorch_format
from tests.checkpoints.transformer_xl_files import VARIANTS, WAYS, make_oracle
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer
from xlexport.checkpoints import load
from xlexport.errors import XlexportError
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig

__all__ = ["Checkpoints"]

TENSORFLOW = Path(__file__).resolve().parents[1] / "tests" / "checkpoints" / "data" / "tensorflow"
REFORMER = ReformerConfig(d_model=16, n_head=2, d_head=4, d_inner=20, attn_layers=("lsh", "local"), axial_dims=(4, 12))
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sample:
    """An undamaged checkpoint.

    Attributes:
        path: the argument of `load`; folder: the folder whose files are damaged.
        checks: whether the format has checksums that are compared, so that all damage must be found.
    """

    path: Path
    folder: Path
    config: Mapping[str, Any] | None
    checks: bool
    content: Mapping[str, bytes]
    expected: Tensors


def _sample(path: Path, config: Mapping[str, Any] | None = None, checks: bool = False) -> Sample:
    folder = path if path.is_dir() else path.parent
    content = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    return Sample(path, folder, config, checks, content, load(path, config=config).build_model().state_dict())


def _samples(folder: Path) -> dict[str, Sample]:
    """Return a checkpoint of every format and container."""

    def place(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        return folder / name

    plain, cut = make_oracle(), make_oracle(**VARIANTS["div_val"])
    torch.manual_seed(0)
    reformer = Reformer(REFORMER).eval()
    made = {
        "kimiyoung": _sample(WAYS["kimiyoung"].write(cut, place("kimiyoung"))),
        "kimiyoung-legacy": _sample(WAYS["kimiyoung, legacy"].write(plain, place("legacy"))),
        "nvidia": _sample(WAYS["nvidia"].write(cut, place("nvidia"))),
        "huggingface": _sample(WAYS["huggingface"].write(WAYS["huggingface"].oracle(), place("huggingface"))),
        "huggingface-bin": _sample(
            WAYS["huggingface, torch"].write(WAYS["huggingface"].oracle(**VARIANTS["cutoffs"]), place("bin"))
        ),
        "huggingface-reformer": _sample(
            HuggingFaceReformer(
                ReformerCase("small", {"attn_layers": ["local", "lsh"], "num_buckets": [4, 6], "num_hashes": 2}, ())
            ).save(place("huggingface-reformer") / "x")
        ),
    }
    file = place("reformer-pytorch") / "model.pt"
    test_reformer_pytorch_format.saved(test_reformer_pytorch_format.make(), file)
    made["reformer-pytorch"] = _sample(file, test_reformer_pytorch_format.TOLD)
    state_dict = WAYS["state_dict"]
    made["state-dict"] = _sample(state_dict.write(plain, place("state-dict")), state_dict.config(plain))
    for name in ("checkpoint.pt", "checkpoint"):
        file = place(f"xltraining-{name}") / name
        save_checkpoint(file, REFORMER, reformer.state_dict())
        made[f"xltraining-{name}"] = _sample(file)
        file = place(f"xltraining-xl-{name}") / name
        save_checkpoint(file, cut.config, cut.state_dict())
        made[f"xltraining-xl-{name}"] = _sample(file)
    for name in ("plain", "adaptive"):
        shutil.copytree(TENSORFLOW / name, folder / f"tensorflow-{name}")
        settings = {"tgt_len": 5, "mem_len": 6, "clamp_len": 7, "same_length": True}
        made[f"tensorflow-{name}"] = _sample(folder / f"tensorflow-{name}", settings, checks=True)
    return made


class Checkpoints:
    """Checkpoints with damaged, exchanged or missing files, or with other values in their configurations.

    A format without checksums cannot show damage in its weights. Then another model of the same shape is allowed.
    """

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        import transformers

        transformers.logging.set_verbosity_error()
        self._samples = _samples(folder / "samples")
        self._copy = folder / "copy"

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"checkpoint {number}")
        kind = rng.choice(sorted(self._samples))
        sample = self._samples[kind]
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        content = dict(sample.content)
        names = [name for name in content if name != "expected.npz"]
        name, other = rng.choice(names), rng.choice(names)
        if rng.random() < 0.04:
            content[name], content[other] = content[other], content[name]
        elif rng.random() < 0.03:
            del content[name]
        elif name.endswith(".json") and rng.random() < 0.2:
            content[name] = _with_larger_number(content[name], rng)
        elif name.endswith(".json") and rng.random() < 0.8:
            content[name] = damage_json(json.loads(content[name]), rng).encode("utf-8", "surrogatepass")
        else:
            content[name] = damage_bytes(content[name], rng, content[other])
        for file, raw in content.items():
            (self._copy / file).write_bytes(raw)
        path = self._copy if sample.path.is_dir() else self._copy / sample.path.name
        changed_settings = name.endswith(".json") and content.get(name) != sample.content[name]
        outcome = judged(
            lambda: load(path, config=sample.config).build_model().state_dict(),
            (XlexportError,),
            lambda tensors: _same(tensors, sample.expected) and not changed_settings,
            may_differ=not sample.checks or changed_settings,
        )
        return replace(outcome, said=outcome.said or f"{kind}, {name}")


def _with_larger_number(content: bytes, rng: random.Random) -> bytes:
    """Return a JSON text with one larger number: a size in the configuration that no tensor has."""
    start, end = rng.choice([match.span() for match in re.finditer(rb"(?<![\w.-])\d+(?![\w.])", content)] or [(0, 0)])
    return content[:end] + b"0" * rng.choice((1, 3, 6, 9, 4000)) * (end > start) + content[end:]


def _same(found: Tensors, expected: Tensors) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
