"""Everything about Transformer-XL that the rest of xlexport must not know."""
