"""The options of `xlexport train` for a Transformer-XL: fields of its configurations with their defaults."""

from xlexport.architectures.options import Option

__all__ = ["RUN_OPTIONS", "TRAINING_OPTIONS"]

TRAINING_OPTIONS = (
    Option("n_layer", "integer", "Layers.", 6),
    Option("n_head", "integer", "Attention heads.", 8),
    Option("d_model", "integer", "Width of the hidden states.", 256),
    Option("d_head", "integer", "Width of a head.", 32),
    Option("d_inner", "integer", "Width inside the feed-forward blocks.", 1024),
    Option("d_embed", "integer", "Width of the embeddings.  [default: that of the hidden states]"),
    Option(
        "cutoffs",
        "integers",
        "Token ids at which a new cluster begins, such as 128,192.  [default: one cluster]",
        (),
    ),
    Option("div_val", "integer", "Divisor of the embedding width from each cluster to the next.", 1),
    Option("tgt_len", "integer", "Tokens in a segment.", 128),
    Option("mem_len", "integer", "Earlier tokens that each layer remembers.", 128),
    Option("clamp_len", "integer", "Largest distinct distance in tokens; -1: no limit.", -1),
    Option("dropout", "number", "Dropout.", 0.1),
    Option("dropatt", "number", "Dropout of attention weights.", 0.0),
    Option("dropinp", "number", "Dropout of the first layer's inputs.  [default: that of --dropout]"),
    Option("dropemb", "number", "Dropout of words: all of a dropped word's embeddings are zero.", 0.0),
    Option("variational", "boolean", "Whether dropout masks stay the same for a whole segment.", False),
    Option(
        "encoding",
        "choice",
        "Encoding of positions: attn_type 0, 1, 2 or 3 of the authors' code.",
        "relative",
        choices=("relative", "shaw", "sinusoidal", "learned"),
    ),
    Option("max_klen", "integer", "Distances or places with a learned embedding.  [default: segment and memory]"),
    Option("first_memory", "choice", "Memory at the start of a document.", "empty", choices=("empty", "zeros")),
    Option("same_length", "boolean", "Whether every token sees the same number of others.", False),
    Option("untie_r", "boolean", "Whether each layer has its own u and v.", True),
    Option("pre_lnorm", "boolean", "Whether layers normalise their inputs instead of their outputs.", False),
)
RUN_OPTIONS = (
    Option("auxiliary", "boolean", "Whether intermediate layers also predict, in the first half of the run.", False),
)
