"""Reformer (Kitaev et al. 2020, arXiv:2001.04451): its configuration and its model."""

from xltraining.reformer.config import ReformerConfig
from xltraining.reformer.model import LSHTrace, Reformer, ReformerFeedForward, ReformerMemory

__all__ = ["LSHTrace", "Reformer", "ReformerConfig", "ReformerFeedForward", "ReformerMemory"]
