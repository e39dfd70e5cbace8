"""Moved to `experiments/duplication.py` in a clone of xlexport; this module says so until the next version."""

raise ImportError(
    "xltraining.data.duplication moved to experiments/duplication.py in a clone of xlexport.", name=__name__
)
