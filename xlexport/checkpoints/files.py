"""Files that checkpoints consist of. Of a folder nothing outside is read, whatever the files in it say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xlexport.errors import CheckpointError

__all__ = ["inside", "read_json", "read_tensors"]

LARGEST_JSON = 64 << 20  # an index of the tensors of the largest models is a tenth of it
HUB_SNAPSHOTS = "snapshots"


def inside(folder: Path, name: str) -> Path:
    """The path of the file `name` in `folder`.

    In the cache of Hugging Face's hub the files of `snapshots/REVISION/` are links into `blobs/` beside it.

    Raises:
        CheckpointError: the name, or a link of that name, leads out of the folder.
    """
    path, root = folder / name, folder.resolve()
    if root.parent.name == HUB_SNAPSHOTS:
        root = root.parent.parent
    if not name or "\0" in name or Path(name).name != name or not path.resolve().is_relative_to(root):
        raise CheckpointError(f"{folder}: {name[:60]!a} leads out of the folder. Put the file itself into it.")
    return path


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
