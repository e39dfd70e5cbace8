"""Name the replacements of what was here."""

from typing import NoReturn

MOVED = {
    "RunOptions": "score_options.ScoreOptions",
    "make_scorer": "chunks.make_scorer",
    "bos_token": "begin_token.bos_token",
    "chosen_bos": "begin_token.chosen_bos",
}


def __getattr__(name: str) -> NoReturn:
    """Name the replacement of what has moved."""
    if name in MOVED:
        raise ImportError(f"xlexport.scoring.run_options.{name} has moved: use xlexport.scoring.{MOVED[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
