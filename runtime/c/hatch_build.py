"""The build hook of hatchling: compile the library with ziglang, and put it into the wheel."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["NativeBuildHook"]

PLATFORM = "XLEXPORT_OPS_PLATFORM"  # the environment variable that chooses another platform than this one


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles the library for one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and set the tag of the wheel.

        Args:
            version: `standard`, or `editable` for a wheel that leads to this folder.
            build_data: what hatchling puts into the wheel.
        """
        sys.path.insert(0, self.root)  # an isolated build does not see the files next to this one
        from build_library import build_for
        from platforms import PLATFORMS, this_platform

        name = os.environ.get(PLATFORM) or this_platform()
        if name not in PLATFORMS:
            raise ValueError(f"{PLATFORM}: no library can be built for {name}, only for {', '.join(PLATFORMS)}.")
        self._scratch = tempfile.TemporaryDirectory()
        library = f"xlexport_ops/libxlexport_ops{PLATFORMS[name].suffix}"
        output = Path(self.root if version == "editable" else self._scratch.name, library)
        output.parent.mkdir(exist_ok=True)
        build_for(PLATFORMS[name].target, output, self.metadata.version)
        if version != "editable":
            build_data["force_include"][str(output)] = library
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORMS[name].tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled library, which the wheel has now."""
        self._scratch.cleanup()
