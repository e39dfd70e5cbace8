"""Download models and bundles from Hugging Face's hub into its cache; only `--download` does this."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlexport.errors import CheckpointNotFoundError
from xlexport.extras import require
from xlruntime.bundle import DIGEST, MANIFEST
from xlruntime.bundle_files import check_digests, read_bundle
from xlruntime.errors import BundleDamagedError
from xlruntime.hub_cache import MAIN, cache_folder, download_command, split_name
from xlruntime.messages import listed

__all__ = ["download"]

MODEL_FILE = re.compile(r"[^/]+\.(safetensors|json|model)|vocab\.txt")


def download(name: str) -> Path:
    """Put `ORG/NAME` or `ORG/NAME@REVISION` into the hub's cache, and return the folder of its commit.

    Of a bundle, this fetches its manifest, then exactly the files that this lists, and compares sizes and digests. Of
    a model, it fetches safetensors, JSON and tokenizers: never code or pickles. If the user has a token, the client
    `huggingface_hub` sends it to the hub; xlexport does not read it.

    Raises:
        MissingDependencyError: `huggingface_hub` is not installed.
        CheckpointNotFoundError: the client failed, or the hub has no such files.
        BundleError: the bundle is damaged; it stays in the cache, but does not open.
    """
    require("hub")
    from huggingface_hub import HfApi, hf_hub_download

    repository, revision = split_name(name)

    def fetched(file: str, revision: str) -> Path:
        options = {"revision": revision, "cache_dir": str(cache_folder())}
        return Path(_ask(name, hf_hub_download, repository, file, **options))

    info = _ask(name, HfApi().model_info, repository, revision=revision or MAIN, files_metadata=True)
    commit, sizes = str(info.sha), {file.rfilename: file.size for file in info.siblings or []}
    wanted = [MANIFEST, DIGEST] if MANIFEST in sizes else [file for file in sorted(sizes) if MODEL_FILE.fullmatch(file)]
    if MANIFEST not in sizes and not any(file.endswith(".safetensors") for file in wanted):
        what = f"{name}: no bundle and no safetensors on the hub; other weights are not downloaded."
        raise CheckpointNotFoundError(what, hint=f"If you want all its files, run `{download_command(name)}`.")
    first, *others = wanted
    snapshot = fetched(first, revision or MAIN).parent  # by name, so that the cache records the name's commit
    if snapshot.name != commit:
        raise CheckpointNotFoundError(f"{name}: changed on the hub meanwhile.", hint="Download it again.")
    for file in others:
        fetched(file, commit)
    if first == MANIFEST:
        files = read_bundle(snapshot, check_files=False).files
        if wrong := [file for file, digest in files.items() if sizes.get(file) != digest.size]:
            what = f"{name}: on the hub, {listed(wrong)} is missing or not of the size in {MANIFEST}."
            raise BundleDamagedError(what, hint="Ask its author to upload all its files.")
        for file in files:
            fetched(file, commit)
        check_digests(snapshot, files)
    return snapshot


def _ask(name: str, function: Callable[..., Any], *given: str, **options: Any) -> Any:
    """Return what a function of the client returns; an error has not its text, which may hold an address with a key."""
    try:
        return function(*given, **options)
    except Exception as error:  # of the client, or of its HTTP library, which depends on its version
        what = f"{name}: the hub's client failed ({type(error).__name__})."
        hint = f"Check name, connection and access; `{download_command(name)}` says more."
        hint += " A model that is in the cache needs no --download."
        raise CheckpointNotFoundError(what, hint=hint) from None
