"""Everything about Reformer that the rest of xlexport must not know."""
