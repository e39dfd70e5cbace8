"""Choices that options and the library share. This module imports nothing, so that `--help` stays quick."""

__all__ = ["DTYPES", "FORMATS", "PROTOCOLS", "SUBWORDS", "TEXT_UNITS", "VOCAB_STYLES"]

FORMATS = (
    *("xltraining", "kimiyoung", "nvidia", "huggingface", "reformer_pytorch"),
    *("trax", "rwkv", "tensorflow", "state_dict"),
)
"""Formats of checkpoints, as in `xlexport.checkpoints`."""

DTYPES = ("int8", "weight-int8", "weight-int4", "float16")
"""Precisions other than float32, as in `xlexport.quantization`."""

PROTOCOLS = ("kimiyoung", "nvidia", "document")
"""Ways to evaluate, as in `xlruntime.protocols`, which is too slow to import here; the first is the default."""

SUBWORDS = {"bpe": "tokenizers", "sentencepiece": "sentencepiece"}
"""Tokens that `prepare` trains."""

TEXT_UNITS = ("bytes", "characters", "words", *SUBWORDS)
"""Tokens that `prepare` makes by itself."""

VOCAB_STYLES = ("wikitext", "ptb", "lm1b", "enwik8", "text8", "characters", "symbols")
"""Ways to read a vocabulary."""
