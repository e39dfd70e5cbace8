"""Moved to `experiments/photos.py` in a clone of xlexport; this module says so until the next version."""

raise ImportError("xltraining.data.photos moved to experiments/photos.py in a clone of xlexport.", name=__name__)
