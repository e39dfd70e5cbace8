"""Language models with carried memory in PyTorch: models, training and checkpoints."""
