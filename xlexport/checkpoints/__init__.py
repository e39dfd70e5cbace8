"""Read files of strangers: restricted pickles, tensors, vocabularies. Nothing here knows a family of models."""
