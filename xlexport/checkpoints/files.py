"""Read the files of checkpoints. Nothing outside a checkpoint's folder is read, even if its files refer to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlexport.checkpoints.safe_pickle import PICKLE_LIMITS, read, summarize
from xlexport.errors import CheckpointError
from xlruntime.hub_cache import real_folders
from xlruntime.limits import Limits, parse_json
from xlruntime.limits import read_json as read_json_within
from xlruntime.messages import first_line, listed

__all__ = [
    "CONFIG",
    "HEADER_LIMITS",
    "JSON_LIMITS",
    "TOKENIZERS",
    "WEIGHTS",
    "holds_tensor",
    "inside",
    "read_json",
    "read_tensors",
    "read_weights",
    "refuse_adapter",
    "safetensors_names",
]

JSON_LIMITS = Limits(bytes=1 << 27, operations=1_000_000)
"""For a configuration or an index of tensors. The index of the largest models takes a fifth of this."""
HEADER_LIMITS = JSON_LIMITS
"""For the header of a safetensors file, which lists its tensors."""
MOST_TENSORS = 50_000  # in a safetensors file; the largest models have a tenth of this
HEADER_SIZE = 8  # bytes that say how long the header is
# Of Hugging Face folders; where there are several, in the order of preference.
CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("spiece.model", "tokenizer.json", "tokenizer.model")  # files of libraries
SPECIAL_FLOATS = ("Infinity", "-Infinity", "NaN")
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")  # of PEFT
INDEX = ".index.json"  # lists the parts if the weights are in several files


def inside(folder: Path, name: str) -> Path:
    """Return the path of the file `name` in `folder`, which need not exist.

    In the cache of Hugging Face's hub, the files of `snapshots/REVISION/` are links into the sibling folder `blobs/`.

    Raises:
        CheckpointError: the name, or a link of that name, leads out of the folder, or to something other than a file.
    """
    path = folder / name
    if not name or "\0" in name or Path(name).name != name:
        wrong = "leads out of the folder"
    else:
        wrong = _wrong_target(path, real_folders(folder))
    if wrong:
        raise CheckpointError(f"{folder}: {name[:60]!a} {wrong}.", hint="Put the file itself into it.")
    return path


def _wrong_target(path: Path, roots: list[Path]) -> str:
    """Return what is wrong with the target of a path, or an empty text."""
    try:
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in roots):
            return "leads out of the folder"
        if path.is_symlink() and not path.exists():
            return "leads nowhere"
        return "is not a file" if target.exists() and not target.is_file() else ""
    except (OSError, RuntimeError):  # a name that is too long, or (before Python 3.13) links in a circle
        return "leads nowhere"


def read_json(path: Path, limits: Limits = JSON_LIMITS) -> dict[str, Any]:
    """Read a file with one JSON object. Its floats may be spelled as transformers 5 does: `{"__float__": "Infinity"}`.

    Raises:
        CheckpointError: it is something else, or takes more than a limit.
        OSError: it cannot be read.
    """
    content = read_json_within(path, limits, CheckpointError)
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path}: expected a JSON object, found {type(content).__name__}.", hint="Write it again."
        )
    try:
        return {key: _with_floats(value) for key, value in content.items()}
    except RecursionError as error:
        raise CheckpointError(f"{path}: nested too deeply.", hint="Write it again.") from error


def _with_floats(value: Any) -> Any:
    """Return a value of JSON with the floats that JSON cannot write."""
    if isinstance(value, list):
        return [_with_floats(inner) for inner in value]
    if isinstance(value, dict):
        text = value.get("__float__") if len(value) == 1 else None
        if isinstance(text, str) and text in SPECIAL_FLOATS:
            return float(text)
        return {key: _with_floats(inner) for key, inner in value.items()}
    return float(value) if isinstance(value, str) and value in SPECIAL_FLOATS else value


def read_tensors(file: Path, limits: Limits | None = None) -> dict[Any, Any]:
    """Read a file of weights: safetensors, or a dict that `torch.save` wrote.

    Args:
        limits: for the header or the pickle that describes the tensors; by default `HEADER_LIMITS` or `PICKLE_LIMITS`.

    Raises:
        CheckpointError: the file is damaged, does not hold a dict, could run code, or would take more than a limit.
    """
    if file.suffix == ".safetensors":
        import safetensors
        from safetensors.torch import load_file

        _check_header(file, limits or HEADER_LIMITS)
        try:
            return load_file(file)
        except (safetensors.SafetensorError, ValueError) as error:
            raise CheckpointError(f"{file}: damaged ({first_line(error)}).", hint="Copy it again.") from error
    content = read(file, limits or PICKLE_LIMITS)
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{file}: holds a {type(content).__name__}, expected tensors by name.", hint="Check the path."
        )
    return content


def read_weights(folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """Return the files with the weights in a Hugging Face folder, and their tensors by name.

    Raises:
        CheckpointError: the folder has no such files or an adapter, or they are damaged or could run code.
    """
    refuse_adapter(folder)
    for name in WEIGHTS:
        if (folder / name).exists():
            file = inside(folder, name)
            return [file], read_tensors(file)
        index = inside(folder, f"{name}{INDEX}")
        if index.is_file():
            return _read_parts(folder, index)
    contents = ", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "nothing"
    raise CheckpointError(
        f"{folder}: no {' or '.join(WEIGHTS)} in it, only {ascii(contents)[1:-1]}.", hint="Save it with PyTorch."
    )


def refuse_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter, such as LoRA's: it changes what the weights beside it compute."""
    if adapter := next((name for name in ADAPTERS if (folder / name).exists()), None):
        raise CheckpointError(
            f"{folder}: holds an adapter ({adapter}), which changes the weights of its base model.",
            hint="Merge it in Python: from peft import AutoPeftModelForCausalLM; AutoPeftModelForCausalLM."
            f"from_pretrained({str(folder)!a}).merge_and_unload().save_pretrained('NEW'). Then give NEW.",
        )


def _read_parts(folder: Path, index: Path) -> tuple[list[Path], dict[str, Any]]:
    """Read weights from several files; the index says which tensor is in which file."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: no weight_map of file names in it.", hint="Copy the folder again.")
    files = [inside(folder, name) for name in sorted(set(weight_map.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: no {listed(map(ascii, missing))}, which {index.name} lists.", hint="Copy it again."
        )
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= read_tensors(file)
    return [index, *files], tensors


def _check_header(path: Path, limits: Limits) -> None:
    """Refuse a header that would cost the safetensors library too much memory or time; the library checks the rest."""
    budget = limits.budget(str(path), CheckpointError)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_SIZE), "little")
        budget.charge(length)
        header = file.read(length)
    tensors = parse_json(header, budget, strict=True) if len(header) == length else None
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{path}: damaged (its header is cut off or not an object).", hint="Copy it again.")
    if len(tensors) > MOST_TENSORS:
        raise CheckpointError(
            f"{path}: {len(tensors):,} tensors, expected at most {MOST_TENSORS:,}.", hint="Check the path."
        )


def safetensors_names(path: Path, limits: Limits = HEADER_LIMITS) -> list[str]:
    """Return the names of the tensors in a file: none if it is damaged or would take more than a limit."""
    import safetensors

    try:
        _check_header(path, limits)
        with safetensors.safe_open(path, framework="numpy") as file:
            return list(file.keys())
    except (safetensors.SafetensorError, CheckpointError):
        return []


def holds_tensor(path: Path, anchors: tuple[str, ...]) -> bool:
    """Return whether a path is a file of tensors, safetensors or of PyTorch, with a name that ends in an anchor."""
    if path.is_dir():
        return False
    if path.suffix == ".safetensors":
        return any(name.endswith(anchors) for name in safetensors_names(path))
    summary = summarize(path)
    return summary is not None and any(text.endswith(anchors) for text in summary.strings)
