"""The cases of step models: the policies in samples/models, in pieces, forked, reset, saved and against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.families.recurrent.trial import many_calls
from xlexport.families.step_model.inputs import input_specs
from xlexport.fixed_shapes import FixedShapes
from xlexport.model_names import load_source

from .actions import Case, Files, answer_actions, opening, refused
from .player import values

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "models"
POLICIES = ("gated_transformer_xl_policy", "lstm_policy")
SEGMENT, CARRIED, ROWS = 16, 1000, 2
PIECES = (1, 5, SEGMENT + 4, 2)  # steps

# Changes of the manifest that every runtime refuses: a name of the case, and the edit.
WRONG = {
    "vocabulary": lambda m: m["model"].update(vocab_size=1),
    "no_shape": lambda m: m["graphs"]["run"]["inputs"]["observation"].pop("shape"),
    "no_dtype": lambda m: m["graphs"]["run"]["inputs"]["observation"].pop("dtype"),
    "half": lambda m: m["graphs"]["run"]["inputs"]["observation"].update(dtype="float16"),
    "axes": lambda m: m["graphs"]["run"]["inputs"]["observation"].update(shape=["segment", "batch", 8]),
    "free": lambda m: m["graphs"]["run"]["outputs"]["value"].update(shape=["batch", "segment", "batch"]),
    "tokens": lambda m: m["graphs"]["run"]["inputs"].update(observation={"feed": "tokens"}),
    "shape_of_memory": lambda m: m["graphs"]["run"]["inputs"]["h"].update(dtype="float32", shape=["batch"]),
}


def write_policy(folder: Path, name: str, fixed: str | None = None) -> None:
    """Convert a policy, verified, to the bundle `NAME`, or `fixed_NAME` with shapes."""
    shapes = None if fixed is None else FixedShapes.parse(fixed)
    options = ConversionOptions.of(tokenizer="none", threads=1, segment_len=SEGMENT, segments=20, fixed=shapes)
    convert(_source(name), folder / (f"fixed_{name}" if fixed else name), options)


def _source(name: str) -> Any:
    return load_source(f"{SAMPLES / name}.py:model", trust=True)


def _inputs(config: Any, rows: int, steps: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return {name: spec.random(rows, steps, random) for name, spec in input_specs(config["inputs"]).items()}


def _changes(answers: Any) -> tuple[Any, Any]:
    """Return answers of which one is wrong, and answers that break a rule."""
    output = next(iter(answers["outputs"]))
    beyond = answers["outputs"][output][-1] - 2 * answers["bounds"][output]
    outputs = {**answers["outputs"], output: [*answers["outputs"][output][:-1], beyond]}
    return {**answers, "outputs": outputs}, {**answers, "steps": answers["steps"] + 1}


def step_cases(files: Files, name: str, config: Any, rows: int) -> Iterator[Case]:
    """Yield the cases of a bundle; what they expect is recorded from `xlruntime`, but for refusals."""
    inputs, begin = _inputs(config, rows, sum(PIECES)), 0

    def run(stream: str, part: slice) -> Case:
        arrays = {key: values(value[:, part].numpy()) for key, value in inputs.items()}
        return {"do": "run", "stream": stream, "inputs": arrays}

    actions = [opening(name), {"do": "stream", "as": "s", "rows": rows}]
    for steps in PIECES:
        actions.append(run("s", slice(begin, begin + steps)))
        begin += steps
    again = slice(0, 7)
    actions += [{"do": "fork", "stream": "s", "as": "t"}, {"do": "reset", "stream": "s", "row": rows - 1}]
    actions += [run("s", again), {"do": "save", "stream": "s", "as": f"{name}_run", "keep": f"{name}_run"}]
    actions += [{"do": "restore", "state": f"{name}_run", "as": "r"}, run("r", again), run("t", again)]
    actions += [refused({**run("t", again), "inputs": {}}, "argument"), {"do": "reset", "stream": "s"}, run("s", again)]
    yield {"name": f"run_{name}", "actions": actions}
    yield {"name": f"answers_{name}", "actions": [opening(name), *answer_actions(name, _changes, files)]}
    if not name.startswith("fixed_") and name == POLICIES[-1]:
        for wrong, change in WRONG.items():
            edited = files.edited(name, f"{name}_{wrong}", change)
            yield {"name": f"step_model_{wrong}", "actions": [refused(opening(name, edited), "bundle_format")]}


def carried_run(name: str) -> Case:
    """Return the case of 1,000 segments in a stream, which expects what the module gives in PyTorch."""
    source = _source(name)
    model = source.build_model()
    inputs = _inputs(source.config, ROWS, SEGMENT * CARRIED)
    state, parts = model.first_memory(ROWS), []
    with many_calls(model):
        for begin in range(0, SEGMENT * CARRIED, SEGMENT):
            part, state = model({key: value[:, begin : begin + SEGMENT] for key, value in inputs.items()}, state)
            parts.append(part)
    outputs = {key: torch.cat([part[key] for part in parts], dim=1) for key in parts[0]}
    arrays = {key: values(value.numpy()) for key, value in inputs.items()}
    expected = {"outputs": {key: values(value.numpy()) for key, value in outputs.items()}}
    run = {"do": "run", "stream": "s", "inputs": arrays, "expect": expected}
    return {"name": f"carried_{name}", "actions": [opening(name), {"do": "stream", "as": "s", "rows": ROWS}, run]}
