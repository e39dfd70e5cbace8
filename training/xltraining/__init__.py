"""Language models with carried memory in PyTorch, how they are trained and how their checkpoints are kept."""
