"""Find bundles and models in the cache of Hugging Face's hub on this machine. Nothing here opens a connection."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .messages import quoted

__all__ = [
    "MAIN",
    "bundle_folder",
    "cache_folder",
    "download_advice",
    "download_command",
    "folder_name",
    "real_folders",
    "snapshots",
    "split_name",
]

MAIN = "main"  # the revision that is meant without @REVISION
REPOSITORY = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
LONGEST_COMMIT = 100  # bytes of a file in `refs`
MODELS, SNAPSHOTS, BLOBS = "models--", "snapshots", "blobs"


def bundle_folder(name: str | Path) -> Path:
    """Return the folder that a name means: a local one, else a bundle in the hub's cache.

    Args:
        name: a path, or `ORG/NAME` or `ORG/NAME@REVISION`. A `Path` is never anything else. The folder need not exist.
    """
    path = Path(name)
    if isinstance(name, Path) or os.path.lexists(path):
        return path
    commits, commit = snapshots(name)
    return commits.get(commit, path)


def cache_folder() -> Path:
    """Return the folder of the hub's cache on this machine, as its client `huggingface_hub` finds it."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def split_name(name: str) -> tuple[str, str]:
    """Return repository and revision, both maybe empty, of a name that the hub could have."""
    repository, _, revision = name.partition("@")
    return (repository, revision) if REPOSITORY.fullmatch(repository) else ("", "")


def snapshots(name: str) -> tuple[dict[str, Path], str]:
    """Return the folders of a cached model by commit, and the commit of the revision that a name means."""
    repository, revision = split_name(name)
    if not repository:
        return {}, ""
    folder, commit = cache_folder() / f"{MODELS}{repository.replace('/', '--')}", revision or MAIN
    if os.path.isfile(reference := folder / "refs" / commit):
        with reference.open("rb") as file:
            commit = file.read(LONGEST_COMMIT).decode("ascii", "replace").strip()
    return {path.name: path for path in sorted(folder.glob(f"{SNAPSHOTS}/*"))}, commit


def real_folders(folder: Path) -> list[Path]:
    """Return the folders, without links, in which files of `folder` may lie: itself, and in the hub's cache `blobs`.

    In that cache, the files of `snapshots/REVISION/` are links into the folder `blobs` of the same model.
    """
    real = folder.resolve()
    return [real, real.parent.parent / BLOBS] if real.parent.name == SNAPSHOTS else [real]


def folder_name(folder: Path) -> str:
    """Return the name of a folder, also for `.`; of a folder in the hub's cache, the name of its model."""
    path = Path(os.path.abspath(folder))
    if path.parent.name != SNAPSHOTS:
        return path.name
    repository = path.parent.parent.name.removeprefix(MODELS)
    return repository.partition("--")[2] or repository


def download_command(name: str) -> str:
    """Return the command that puts a model into the hub's cache."""
    repository, _, revision = name.partition("@")
    return " ".join(map(quoted, ["hf", "download", repository, *(["--revision", revision] if revision else [])]))


def download_advice(name: str) -> str:
    """Return how to have `ORG/NAME` in the cache; empty if it is rather the path of something local."""
    if "/" not in split_name(name)[0] or Path(name).parent.exists():
        return ""
    return f" To have a model of the hub in the cache, run `{download_command(name)}`."
