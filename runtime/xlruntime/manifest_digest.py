"""The digest of a manifest, by which a change after it was written is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .errors import BundleError

__all__ = ["DIGEST_KEY", "check_manifest_digest", "manifest_digest"]

DIGEST_KEY = "manifest_sha256"  # key of the SHA-256 of the rest of the manifest


def manifest_digest(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, independent of its layout."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_manifest_digest(fields: dict[str, Any], where: str) -> None:
    """Take the digest out of a manifest, and refuse the manifest if it was changed.

    Manifests of earlier versions have no digest.

    Raises:
        BundleError: the manifest was changed.
    """
    stated = fields.pop(DIGEST_KEY, None)
    try:
        intact = stated is None or stated == manifest_digest(fields)
    except RecursionError:
        intact = False
    if not intact:
        raise BundleError(
            f"{where}: was changed since it was written (its {DIGEST_KEY} differs).",
            repair=f"Copy it again; if you changed it on purpose, remove {DIGEST_KEY}.",
        )
