"""Files that checkpoints consist of. Of a folder nothing outside is read, whatever the files in it say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xlexport.errors import CheckpointError
from xlruntime.messages import first_line, named

__all__ = ["WEIGHTS", "inside", "read_json", "read_tensors", "read_weights", "safetensors_names", "state_dict_in"]

LARGEST_JSON = 64 << 20  # an index of the tensors of the largest models is a tenth of it
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # of Hugging Face folders, in the order of preference
INDEX = ".index.json"  # lists the parts where weights are in several files
HUB_SNAPSHOTS, HUB_BLOBS = "snapshots", "blobs"


def inside(folder: Path, name: str) -> Path:
    """The path of the file `name` in `folder`, whether there is one or not.

    In the cache of Hugging Face's hub the files of `snapshots/REVISION/` are links into `blobs/` beside `snapshots/`.

    Raises:
        CheckpointError: the name, or a link of that name, leads out of the folder, or to something that is no file.
    """
    path, root = folder / name, folder.resolve()
    roots = [root, root.parent.parent / HUB_BLOBS] if root.parent.name == HUB_SNAPSHOTS else [root]
    if not name or "\0" in name or Path(name).name != name:
        wrong = "leads out of the folder"
    else:
        wrong = _wrong_target(path, roots)
    if wrong:
        raise CheckpointError(f"{folder}: {name[:60]!a} {wrong}.", repair="Put the file itself into it.")
    return path


def _wrong_target(path: Path, roots: list[Path]) -> str:
    """What is wrong with where a path leads, if anything."""
    try:
        target = path.resolve()
        if not any(target.is_relative_to(root) for root in roots):
            return "leads out of the folder"
        if path.is_symlink() and not path.exists():
            return "leads nowhere"
        return "is not a file" if target.exists() and not target.is_file() else ""
    except (OSError, RuntimeError):  # a name that is too long, or what Python before 3.13 makes of links in a circle
        return "leads nowhere"


def read_json(path: Path) -> dict[str, Any]:
    """A file with one JSON object.

    Raises:
        CheckpointError: it is something else.
        OSError: it cannot be read.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise CheckpointError(
            f"{path}: {path.stat().st_size:,} bytes, expected a JSON object.", repair="Check the path."
        )
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = first_line(error)[:100]
        raise CheckpointError(f"{path}: not valid JSON ({reason}).", repair="Write it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path}: expected a JSON object, found {type(content).__name__}.", repair="Write it again."
        )
    return content


def read_tensors(file: Path) -> dict[Any, Any]:
    """What a file of weights holds by name: safetensors, or what `torch.save` wrote of a dict.

    Raises:
        CheckpointError: it is damaged, holds no dict, or could run code.
    """
    if file.suffix == ".safetensors":
        import safetensors
        from safetensors.torch import load_file

        try:
            return load_file(file)
        except (safetensors.SafetensorError, ValueError) as error:
            raise CheckpointError(f"{file}: damaged ({first_line(error)}).", repair="Copy it again.") from error
    from xlexport.checkpoints.safe_pickle import read

    content = read(file)
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{file}: holds a {type(content).__name__}, expected tensors by name.", repair="Check the path."
        )
    return content


def read_weights(folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """The files that hold the weights in a Hugging Face folder, and their tensors by name.

    Raises:
        CheckpointError: there are none, they are damaged, or could run code.
    """
    for name in WEIGHTS:
        if (folder / name).exists():
            file = inside(folder, name)
            return [file], read_tensors(file)
        index = inside(folder, f"{name}{INDEX}")
        if index.is_file():
            return _read_parts(folder, index)
    found = ", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "nothing"
    raise CheckpointError(
        f"{folder}: none of {', '.join(WEIGHTS)} in it, only {ascii(found)[1:-1]}.", repair="Save it with PyTorch."
    )


def _read_parts(folder: Path, index: Path) -> tuple[list[Path], dict[str, Any]]:
    """Weights in several files; the index says which tensor is in which."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: no weight_map of file names in it.", repair="Copy the folder again.")
    files = [inside(folder, name) for name in sorted(set(weight_map.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: no {', '.join(map(ascii, missing))}, which {index.name} lists.", repair="Copy it again."
        )
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= read_tensors(file)
    return [index, *files], tensors


def safetensors_names(path: Path) -> list[str]:
    """Names of the tensors in a file; none where it is damaged."""
    import safetensors

    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return list(file.keys())
    except safetensors.SafetensorError:
        return []


def state_dict_in(
    path: Path, content: Mapping[Any, Any], is_anchor: Callable[[object], bool], missing: str
) -> dict[str, Any]:
    """The tensors by name: the content itself, or the one in a wrapper such as `{"state_dict": …}`.

    Args:
        is_anchor: whether a name shows that the dict around it is the one.
        missing: what to say of a file without one.

    Raises:
        CheckpointError: there is none, or several.
    """
    inner = {key: value for key, value in content.items() if isinstance(value, dict)}
    found = {key: value for key, value in {None: content, **inner}.items() if any(map(is_anchor, value))}
    if len(found) > 1:
        keys = ", ".join(named(key) for key in found)
        raise CheckpointError(f"{path}: holds several models ({keys}).", repair="Save the state dict of one.")
    if not found:
        raise CheckpointError(f"{path}: {missing}.", repair="Check the path.")
    (tensors,) = found.values()
    return {str(name): tensor for name, tensor in tensors.items()}
