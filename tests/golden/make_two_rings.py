"""Make the golden bundle `two_rings`: an artificial model with two rings of different capacities, and a state.

    python tests/golden/make_two_rings.py

Its rings hold the latest tokens, each a different number of them. Its state is its first value plus the sum of all
tokens. The model "scores" each target as -(near + 100 far + 10000 state): `near` and `far` are the sums of the tokens
that a query sees in each ring, its own included, and `state` is the state before the segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from xlexport.export.onnx import export_onnx
from xlexport.families import Form, StepTensor
from xlexport.families.ring import RingStep
from xlexport.families.step import FixedSizes, carried_inputs, carried_outputs
from xlexport.manifest import digests, fingerprint, requirements, write_manifest
from xlexport.meanings import meanings_of
from xlruntime.bundle import FIRST_MEMORY_FILE, Bundle, Feed, MemoryEntry, TokenizerEntry
from xlruntime.evaluation import EvaluationRules, Ring, Setting

FOLDER = Path(__file__).resolve().parent / "two_rings" / "bundle"
TOKENS = ("batch", "segment")
OF_RINGS: tuple[Literal["offset"], Literal["window"]] = ("offset", "window")
RULES = EvaluationRules(
    segment_len=4,
    settings={"mem_len": Setting(3, "rows of the near ring, a third of the far one's", minimum=1)},
    rings={name: Ring((a, 0, 0), slots=(a, 1, 0), window=(a, 0, 1)) for name, a in (("near", 1), ("far", 3))},
)


class TwoRings(nn.Module):
    """The step of the model."""

    traceable = True
    fixed: FixedSizes | None = None
    inline = False
    forms: ClassVar[Mapping[str, Form]] = {}
    memory = (
        *(MemoryEntry(name, f"new_{name}", "float32", ("batch", name, 1)) for name in ("near", "far")),
        MemoryEntry("total", "new_total", "float32", ("batch", 1), first_value="total", layout="state"),
    )
    inputs = (
        StepTensor("tokens", "int64", TOKENS, Feed("tokens")),
        StepTensor("position", "int64", ("batch",), Feed("position")),
        *(StepTensor(f"{n}_{what}", "int64", (1,), Feed(what, ring=n)) for n in ("near", "far") for what in OF_RINGS),
        *carried_inputs(memory),
    )
    purposes: ClassVar[dict[str, tuple[StepTensor, ...]]] = {
        "score": (StepTensor("log_prob", "float32", TOKENS), *carried_outputs(memory))
    }

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs to trace with."""
        sizes = {"batch": 2, "segment": 5, "near": 8, "far": 14}
        shapes = [[axis if isinstance(axis, int) else sizes[axis] for axis in entry.shape] for entry in self.inputs]
        kinds = [getattr(torch, entry.dtype) for entry in self.inputs]
        return tuple(torch.ones(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True))

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return no first rows: rings begin with zeros."""
        return {}

    def discard(self) -> None:
        """Do nothing: this model has no weights."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Write both rings, and sum the tokens that each query sees."""
        given = dict(zip((entry.name for entry in self.inputs), inputs, strict=True))
        tokens = given["tokens"].to(torch.float32)
        S = tokens.shape[1]
        steps = torch.arange(S)
        scores, written = given["total"] * 10000, []
        for name, factor in (("near", 1.0), ("far", 100.0)):
            ring = RingStep(S, given[name].shape[1], given[f"{name}_offset"])
            memory = ring.write(given[name], tokens.unsqueeze(2), axis=1)  # (B, C, 1)
            distance = ring.newest_first + steps.unsqueeze(1) - (S - 1)  # (S, C)
            own = given["position"].view(-1, 1, 1) + steps.view(1, -1, 1)  # tokens before each query
            seen = (distance >= 0) & (distance < given[f"{name}_window"]) & (distance <= own)  # (B, S, C)
            scores = scores + factor * torch.where(seen, memory.transpose(1, 2), 0.0).sum(dim=2)
            written.append(memory)
        return (-scores, *written, given["total"] + tokens.sum(dim=1, keepdim=True))


def main() -> None:
    """Write the bundle."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({"total": torch.tensor([7.0]).numpy()}, FOLDER / FIRST_MEMORY_FILE)
    written = export_onnx(TwoRings(), FOLDER)
    graphs = written.graphs.values()
    bundle = Bundle(
        architecture="two_rings",
        config={},
        vocab_size=10,
        tokenizer=TokenizerEntry("none"),
        precision="float32",
        evaluation=RULES,
        memory=TwoRings.memory,
        **vars(written),
        meaning=meanings_of(graphs, TwoRings.memory),
        provenance=dict.fromkeys(("licence", "data", "intended_use")),
        files=(files := digests(FOLDER)),
        fingerprint=fingerprint(files, graphs),
        requires=requirements(FOLDER, graphs),
    )
    write_manifest(FOLDER, bundle)


if __name__ == "__main__":
    main()
