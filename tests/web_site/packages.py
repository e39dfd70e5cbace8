"""Folders that look as npm leaves them, with files that hold nothing."""

from __future__ import annotations

import json
from pathlib import Path

from xlexport.web.javascript import NEEDED

__all__ = ["fake_packages"]


def fake_packages(folder: Path) -> Path:
    """Make `node_modules` with all packages that sites may need, and return `folder`."""
    for name, (files, oldest) in NEEDED.items():
        root = folder / "node_modules" / name
        (root / "dist").mkdir(parents=True)
        manifest = {"name": name, "version": ".".join(map(str, oldest))}
        (root / "package.json").write_text(json.dumps(manifest), "utf-8")
        for file in files:
            (root / "dist" / file).write_text(f"// {name}/{file}\n", "utf-8")
    (folder / "node_modules/xlruntime/dist/tokenizers").mkdir()
    (folder / "node_modules/xlruntime/dist/tokenizers/plain.js").write_text("// tokenizers\n", "utf-8")
    (folder / "node_modules/xlruntime/dist/model.d.ts").write_text("// types\n", "utf-8")
    return folder
