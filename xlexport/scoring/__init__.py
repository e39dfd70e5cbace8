"""The work of `score`: inputs become documents, scores become records, and records become files."""
