"""Numbers in the bodies of several operators; scripted bodies can read them from a module, but not as global names."""

from __future__ import annotations

__all__ = ["BARRIER", "BEHIND_ALL", "EXCLUDED", "HEADS_AT_ONCE", "NEVER"]

EXCLUDED = -1e30  # below the score of any key; finite, so that rows without keys stay finite
NEVER = -(2**30)  # a priority below that of every key
BEHIND_ALL = 1 << 22  # position of padding; twice it and one more is exact in float32
BARRIER = 2.0**30  # beyond every score; its multiples by small whole numbers are exact in float32
HEADS_AT_ONCE = 2  # the scores of all heads would be the largest tensor of a long segment
