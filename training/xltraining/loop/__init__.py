"""The training loop (`train.py`) and its parts."""
