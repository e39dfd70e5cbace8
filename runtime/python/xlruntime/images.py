"""Moved to `experiments/pixels.py` in a clone of xlexport; this module says so until the next version."""

raise ImportError("xlruntime.images moved to experiments/pixels.py in a clone of xlexport.", name=__name__)
