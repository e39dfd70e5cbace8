"""Transformer-XL and Reformer models in PyTorch, how they are trained and how their checkpoints are kept."""
