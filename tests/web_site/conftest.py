"""Fixtures of the tests of sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.invoking import invoke
from xlexport.web.javascript import NEEDED


@pytest.fixture
def npm(tmp_path: Path) -> Path:
    """Return a folder in which npm seems to have installed what a site needs, with files that hold nothing."""
    folder = tmp_path / "app"
    for name, (files, oldest) in NEEDED.items():
        dist = folder / "node_modules" / name / "dist"
        dist.mkdir(parents=True)
        manifest = {"name": name, "version": ".".join(map(str, oldest))}
        (dist.parent / "package.json").write_text(json.dumps(manifest), "utf-8")
        for file in files:
            (dist / file).write_text(f"// {name}/{file}\n", "utf-8")
    dist = folder / "node_modules/xlruntime/dist"
    (dist / "tokenizers").mkdir()
    (dist / "tokenizers/plain.js").write_text("// tokenizers\n", "utf-8")
    (dist / "model.d.ts").write_text("// types\n", "utf-8")
    return folder
