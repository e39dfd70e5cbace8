"""The source of a step model that a user has as a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from xlexport.checkpoints.source import SourceCheckpoint, digest_files
from xlexport.families.recurrent.source import MODULE_FORMAT, module_source, read_module
from xlexport.families.segment_length import DEFAULT_SEGMENT_LEN
from xlexport.families.step_model.inputs import input_specs

__all__ = ["step_source", "user_source"]


def user_source(
    module: Any, *, n_token: int | None = None, inputs: object = None, files: Iterable[Path] = ()
) -> SourceCheckpoint:
    """Make the source of a module over numbers, which has or gets `inputs`, or else of one over tokens.

    Args:
        n_token: as in `module_source`; inputs, files: as in `step_source`.

    Raises:
        ExportError: as both.
    """
    from xlexport.families.recurrent.own_copy import unwrapped

    if inputs is None and not isinstance(getattr(unwrapped(module), "inputs", None), Mapping):
        return module_source(module, n_token=n_token, files=files)
    return step_source(module, inputs, files=files)


def step_source(module: Any, inputs: object = None, *, files: Iterable[Path] = ()) -> SourceCheckpoint:
    """Make the source of a user's module that satisfies `StatefulModule`; the module itself stays as it is.

    Args:
        inputs: the shape of each input by name; None: the module's attribute.
        files: files with its code and weights, for the provenance.

    Raises:
        ExportError: as `read_module`, `input_specs` and `output_specs`.
    """
    from xlexport.families.recurrent.own_copy import own_copy
    from xlexport.families.step_model.checks import own_words
    from xlexport.families.step_model.eager import StepEager, output_specs

    with own_words():
        own, form, limit = read_module(module)
    specs = input_specs(inputs if inputs is not None else getattr(own, "inputs", None))
    outputs = output_specs(own_copy(own), form, specs)
    config = {
        "model": type(own).__qualname__,
        "form": form,
        "n_token": 0,
        "tgt_len": getattr(own, "segment_len", None) or DEFAULT_SEGMENT_LEN,
        **({} if limit is None else {"max_positions": limit}),
        "inputs": {name: spec.to_dict() for name, spec in specs.items()},
        "outputs": {name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in outputs.items()},
    }
    return SourceCheckpoint(
        architecture=StepEager.ARCHITECTURE,
        format=MODULE_FORMAT,
        config=config,
        tokenizer="none",
        files=digest_files(*files),
        build_model=lambda: StepEager(own_copy(own), form, specs, outputs).eval(),
        parameters=sum(parameter.numel() for parameter in own.parameters()),
    )
