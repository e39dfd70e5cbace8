"""Change the `config.json` of a folder that a library wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["change_config"]


def change_config(folder: Path, **changes: Any) -> None:
    """Replace keys of `config.json`; None leaves one out."""
    file = folder / "config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
