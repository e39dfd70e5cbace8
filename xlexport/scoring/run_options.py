"""Name the replacements of what was here."""

from xltraining.messages import renamed

MOVED = {
    "RunOptions": "score_options.ScoreOptions",
    "make_scorer": "chunks.make_scorer",
    "bos_token": "begin_token.bos_token",
    "chosen_bos": "begin_token.chosen_bos",
}

__getattr__ = renamed(__name__, {old: f"xlexport.scoring.{new}" for old, new in MOVED.items()})
