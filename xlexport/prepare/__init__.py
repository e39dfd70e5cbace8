"""What `xlexport prepare` does: texts to token ids in shards, with the vocabulary that made them."""
