"""Files that checkpoints consist of. Of a folder nothing outside is read, whatever the files in it say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xlexport.errors import CheckpointError

__all__ = ["inside", "read_json", "read_tensors"]

LARGEST_JSON = 64 << 20  # an index of the tensors of the largest models is a tenth of it
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
        raise CheckpointError(f"{folder}: {name[:60]!a} {wrong}. Put the file itself into it.")
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
        raise CheckpointError(f"{path}: {path.stat().st_size:,} bytes, expected a JSON object. Check the path.")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:100]
        raise CheckpointError(f"{path}: not valid JSON ({reason}). Write it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(content).__name__}. Write it again.")
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
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{file}: damaged ({reason}). Copy it again.") from error
    from xlexport.checkpoints.torch_files import read_torch

    content = read_torch(file)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}, expected tensors by name. Check the path.")
    return content
