"""The parts of the training loop, which `xltraining.train` runs."""
