"""Score corpora on a Ray cluster. Ray is imported only when a function runs."""

from xlexport.ray.dataset import score_dataset

__all__ = ["score_dataset"]
