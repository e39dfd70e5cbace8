"""Moved to `experiments/images.py` in a clone of xlexport; this module says so until the next version."""

raise ImportError("xltraining.data.images moved to experiments/images.py in a clone of xlexport.", name=__name__)
