"""What `score` does: inputs become documents, scores become records, and records become files."""
