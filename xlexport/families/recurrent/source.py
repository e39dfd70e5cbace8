"""Sources made of recurrent models: of families that are read from files, and of modules of users."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import inside
from xlexport.checkpoints.source import SourceCheckpoint, digest_files, float_notes, require_finite
from xlexport.checkpoints.tensor_mapping import Origin, TensorMapping
from xlexport.errors import CheckpointError, ExportError
from xlexport.families.segment_length import DEFAULT_SEGMENT_LEN
from xlruntime.evaluation import LARGEST_LENGTH
from xlruntime.messages import first_line, listed, shown
from xltraining.data.tokenizer_file import TokenizerFile

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = [
    "MODULE_FORMAT",
    "family_source",
    "module_source",
    "read_module",
    "recurrent_source",
    "refuse_config",
    "refuse_other_precisions",
    "shapes_of",
]

MODULE_FORMAT = "module"  # of a user's module, in place of a file format
IDS_ONLY = "No {} lies next to the weights, so the bundle takes token ids only. --tokenizer gives it one."


def recurrent_source(
    build: Callable[[], nn.Module],
    format: str,
    *,
    model: str,
    n_token: int,
    parameters: int,
    sizes: Mapping[str, Any],
    files: Iterable[Path],
    form: str = "segment",
    segment_len: int = DEFAULT_SEGMENT_LEN,
    tokenizer: str | Vocabulary | TokenizerFile | Path | None = None,
    notes: Iterable[str] = (),
) -> SourceCheckpoint:
    """Make the source of a module that satisfies `RecurrentModel`.

    Args:
        build: makes the module in evaluation mode, float32. Each call makes another one, as an export empties it.
        format: name of the format that read it.
        model: name of its family or class.
        parameters: how many trained numbers it has.
        sizes: further sizes, plain values.
        form: the method that becomes the graphs, `segment` or `step`.
    """
    from xlexport.families.recurrent.eager import RecurrentConfig, RecurrentEager

    config = RecurrentConfig(n_token, segment_len, model, form, sizes)
    return SourceCheckpoint(
        architecture=RecurrentEager.ARCHITECTURE,
        format=format,
        config=config.to_dict(),
        tokenizer=tokenizer,
        files=digest_files(*files),
        build_model=lambda: RecurrentEager(build(), config).eval(),
        notes=tuple(notes),
        parameters=parameters,
    )


def family_source(
    path: Path,
    format: str,
    family: Callable[[Any], nn.Module],
    sizes: Any,
    tensors: Mapping[str, Any],
    *,
    model: str,
    files: Iterable[Path],
    tokenizers: tuple[str, ...],
    other_names: Mapping[str, str] | None = None,
    unused: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> SourceCheckpoint:
    """Make the source of a model of `xlexport.families`, whose parameters have the names of a file's tensors.

    Args:
        family: makes the model from its sizes, a dataclass.
        tokenizers: names of files next to the weights; the first that exists is the tokenizer.
        other_names: a second name that a tensor may have, by the parameter's.
        unused: names of tensors that the model does not need.
        notes: on how the file holds its tensors.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape or not finite; the message names all.
    """
    import torch

    def empty() -> nn.Module:
        with torch.device("meta"):  # without memory for weights, as a file may claim any sizes
            return family(sizes).requires_grad_(False).eval()

    def filled() -> nn.Module:
        module = empty()
        parameters = [(names, torch.nn.Parameter(weight, requires_grad=False)) for names, weight in weights.items()]
        module.load_state_dict({name: one for names, one in parameters for name in names}, assign=True)
        return module

    names_of: dict[Tensor, list[str]] = {}  # tied parameters have several
    for name, parameter in empty().named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    mapping = TensorMapping(tensors, known=set(unused))
    weights: dict[tuple[str, ...], Tensor] = {}
    for empty_weight, names in names_of.items():
        others = [other for name, other in (other_names or {}).items() if name in names]
        weight = mapping.take(Origin((*names, *others), tuple(empty_weight.shape)))
        if weight is not None:
            weights[tuple(names)] = weight
    mapping.require_fit(path)
    require_finite(path, {names[0]: weight for names, weight in weights.items()})
    folder = path if path.is_dir() else path.parent
    tokenizer = next((inside(folder, name) for name in tokenizers if (folder / name).is_file()), None)
    return recurrent_source(
        filled,
        format,
        model=model,
        n_token=sizes.n_token,
        parameters=sum(weight.numel() for weight in weights.values()),
        sizes=asdict(sizes),
        files=[*files, *([tokenizer] if tokenizer else [])],
        tokenizer=tokenizer or "none",
        notes=[*notes, *float_notes(tensors), *([] if tokenizer else [IDS_ONLY.format(" or ".join(tokenizers))])],
    )


def refuse_config(path: Path, config: Mapping[str, Any] | None) -> None:
    """Refuse settings of the user for a folder that holds its own configuration."""
    if config:
        foreign = ", ".join(map(ascii, sorted(config)))
        raise CheckpointError(f"{path}: holds its own configuration.", hint=f"Leave out {foreign} of --config.")


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's tensors by name; anything else has none."""
    return {name: tuple(getattr(tensor, "shape", ())) for name, tensor in tensors.items()}


def module_source(
    module: Any,
    *,
    n_token: int | None = None,
    files: Iterable[Path] = (),
) -> SourceCheckpoint:
    """Make the source of a user's module that satisfies `RecurrentModel`; the module itself stays as it is.

    Args:
        n_token: size of the vocabulary; None: the module's attribute, or the last axis of its logits.
        files: files with its code and weights, for the provenance.

    Raises:
        ExportError: as `read_module`.
    """
    from xlexport.families.recurrent.own_copy import own_copy

    own, form, limit = read_module(module)
    return recurrent_source(
        lambda: own_copy(own),
        MODULE_FORMAT,
        model=type(own).__qualname__,
        n_token=_size_of_logits(own_copy(own), form, n_token or getattr(own, "n_token", None)),
        parameters=sum(parameter.numel() for parameter in own.parameters()),
        sizes={} if limit is None else {"max_positions": limit},
        files=files,
        form=form,
        segment_len=getattr(own, "segment_len", None) or DEFAULT_SEGMENT_LEN,
    )


def read_module(module: Any) -> tuple[Any, str, int | None]:
    """Return a copy of a user's module, the method that becomes its graphs, and the most tokens of a document.

    Raises:
        ExportError: it lacks `first_state`, or both of `segment` and `step`; no copy of it can be exported; or its
            `max_positions` or `segment_len` is no length.
    """
    from torch import nn

    from xlexport.families.recurrent.own_copy import own_copy, unwrapped

    module = unwrapped(module)
    name = type(module).__qualname__
    own: Any = own_copy(module) if isinstance(module, nn.Module) else None
    forms = [form for form in ("segment", "step") if callable(getattr(module, form, None))]
    problems = {
        "is not a torch.nn.Module": own is None,
        "has no method first_state": not callable(getattr(module, "first_state", None)),
        "has neither a method segment nor a method step": not forms,
    }
    if problem := next((text for text, holds in problems.items() if holds), None):
        raise ExportError(f"{name} {problem}.", hint="Give a module as docs/own_models.md describes.")
    floats = {key: value for key, value in own.state_dict().items() if value.is_floating_point() and value.numel()}
    require_finite(Path(name), {key: value.amax().clamp(min=0) for key, value in floats.items()})  # -inf masks scores
    limit = getattr(module, "max_positions", None)
    if limit is not None and (type(limit) is not int or limit < 2):
        problem = f"{name}.max_positions is {shown(limit)}, expected a whole number from 2 on."
        raise ExportError(problem, hint="It is the most tokens of a document. Leave it out if there is no limit.")
    length = getattr(module, "segment_len", None)
    if length is not None and (type(length) is not int or not 1 <= length <= LARGEST_LENGTH):
        problem = f"{name}.segment_len is {shown(length)}, expected a whole number from 1 to {LARGEST_LENGTH:,}."
        raise ExportError(problem, hint="It is the tokens of a usual segment. Leave it out if any number will do.")
    return own, forms[0], None if limit is None else min(limit, LARGEST_LENGTH)


def _size_of_logits(module: Any, form: str, n_token: int | None) -> int:
    """Return the size of the vocabulary: `n_token`, or the last axis of the logits of one token.

    Raises:
        ExportError: the module computes in another dtype, or the size is unknown and the call fails.
    """
    import torch

    from xlexport.families.recurrent.eager import batched
    from xlexport.families.recurrent.trial import Trial

    name, token = type(module).__qualname__, torch.zeros((1, 1) if form == "segment" else (1,), dtype=torch.int64)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            Trial(module, 1)  # which checks the first state
            logits, _ = getattr(module, form)(token, batched(module.first_state(), 1))
        if logits.dtype != torch.float32:
            raise TypeError(f"the logits are {logits.dtype}")
        return n_token or int(logits.shape[-1])
    except Exception as error:
        refuse_other_precisions(name, module, error)
        if isinstance(error, ExportError):
            raise
        if n_token:
            return n_token  # the checks say what is wrong with the call
        raise ExportError(
            f"{name}.{form}: one token after first_state raises {type(error).__name__} ({first_line(error)}).",
            hint="first_state() returns one row of each state, without the batch axis, which is the first one of what "
            f"{form} takes. {form} returns (logits, new_state). A module over numbers says what it takes in `inputs`. "
            "docs/own_models.md has examples.",
        ) from error


def refuse_other_precisions(name: str, module: Any, error: Exception) -> None:
    """Raise ExportError if a module that fails has weights in another precision than float32."""
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in module.parameters() if tensor.is_floating_point()}
    if others := listed(sorted(dtypes - {"float32"})):
        problem = f"{name}: its weights are {others}, and xlexport needs float32."
        raise ExportError(problem, hint="Call model.float() first.") from error
