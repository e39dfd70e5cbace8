"""Paths of the checkout's files for tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
SHARED_DATA = ROOT.parent / "shared" / "data"  # long public-domain texts that are kept next to the checkout

BAND, CHUNK = "reformer_band", "reformer_chunk"
WHOLE = (CHUNK, "reformer_paper")  # read each document in one step
EMPTY, ZEROS = "post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros"  # both with same_length, on bytes


def is_moved(module: Path) -> bool:
    """Return whether a module moved, and only says so."""
    return module.read_text("utf-8").startswith('"""Moved to ')


def golden_bundle(name: str) -> Path:
    """Return the folder of a golden bundle."""
    return GOLDEN / name / "bundle"
