"""Texts and tokens as batches, and the tasks that a model trains on."""
