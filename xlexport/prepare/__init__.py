"""Convert texts to token ids in shards, and write them with their vocabulary (`xlexport prepare`)."""
