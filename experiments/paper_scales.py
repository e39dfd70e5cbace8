"""The scale `paper` of each experiment: the papers' sizes, each number with its place in the text.

"Authors" names what the text leaves open and the authors' published programs have. "Ours" names what neither has.
Nobody has run these scales here. A test compares them with the numbers that the papers print.
"""

from __future__ import annotations

from dataclasses import replace

from experiments.running import Scale

__all__ = ["ENWIK8", "IMAGENET64", "ONE_BILLION", "PENN_TREEBANK", "RECL", "WIKITEXT", "WMT14"]

# Dai et al. 2019, Tables 6 and 10: 128 million weights with WikiText-103's vocabulary of 267,735 words. The text gives
# the models no shape; 7 layers of the standard model's width (authors) have 128.0 million. Its 151 million are 16
# layers of 10 heads (Appendix D). The largest attention lengths are those of the tables' last column.
WIKITEXT = Scale(
    {"n_layer": 7, "n_head": 10, "d_model": 410, "d_head": 41, "d_inner": 2100, "dropout": 0.1},
    tgt_len=128,  # "the backpropagation length during training is only 128" (section 4.2)
    steps=200_000, batch_size=60, learning_rate=2.5e-4, warmup_steps=0,  # authors, standard model; the text: none
    seeds=1,
    lengths=tuple(length / 128 for length in (120, 128, 256, 260, 300, 400, 450, 460, 500, 640)),
    rows={"standard recurrence relative full": {"n_layer": 16}},  # Table 6: "Transformer-XL (151M)"
    lstm={"n_layer": 2, "d_model": 545},  # Table 8's first group has 151 million; the text names no LSTM's shape
    mamba={"n_layer": 14, "d_model": 416},  # ours: 127 million
)  # fmt: skip
# Table 8: RECL up to 900. All but one figure are multiples of 100; the text names no step of Appendix C's algorithm.
RECL = replace(WIKITEXT, lengths=(1000 / 128,), recl_step=100)
# Table 7: "a 20-layer Transformer-XL with 0.3B parameters for 400K steps" on One Billion Word (section 4.2). The text
# has no shape; with its 793,471 words and the cutoffs 60000,100000,640000 (authors) this one has 301 million.
ONE_BILLION = Scale(
    {"n_layer": 20, "n_head": 16, "d_model": 1024, "d_head": 64, "d_inner": 2048, "div_val": 4, "dropout": 0.0},
    tgt_len=32, batch_size=224, learning_rate=2.5e-4, warmup_steps=20_000,  # authors, base model of this corpus
    steps=400_000, seeds=1,
)  # fmt: skip
# Table 5: "24M", variational dropout and weight averages (section 4.1); all else is ours, as in recipes/
# penn_treebank.toml: 26.4 million with 10,000 words.
PENN_TREEBANK = Scale(
    {"n_layer": 16, "n_head": 10, "d_model": 380, "d_head": 38, "d_inner": 900},
    tgt_len=70, steps=40_000, batch_size=30, learning_rate=3.5e-4, warmup_steps=1000, seeds=1,
)  # fmt: skip
# Kitaev et al. 2020, section 5, Figures 3 to 5: "3-layer models for our ablations", "d_model = 1024, d_ff = 4096,
# n_heads = 8, and a total batch size of 8 sequences", "the Adafactor optimizer", "subsequences of 2^16 = 64K tokens".
# "20K steps" is said of a model of 12 layers only. Buckets are 2 l / m (section 2) for "chunks of 128 tokens". The text
# has no rate, warm-up or positions: axial ones of the authors' programs, and a rate of ours.
ENWIK8 = Scale(
    {
        "d_model": 1024, "n_head": 8, "d_head": 128, "d_inner": 4096, "n_buckets": (32, 32), "chunk_length": 128,
        "position": "axial", "axial_shape": (128, 512), "axial_dims": (256, 768), "max_positions": 65_536,
        "scale_scores": True, "ff_chunk": 512, "full_chunk": 128,
    },
    tgt_len=65_536, steps=20_000, batch_size=8, learning_rate=0.01, warmup_steps=1000, seeds=1, layers=3,
    depths=(3, 6, 12, 20),  # Figure 5: "up to 20-layer big Reformers"; 3 and 12 are named, 6 is ours
    training={"optimizer": "adafactor", "schedule": "inverse_sqrt"},
)  # fmt: skip
# Figures 3 and 4: imagenet64, 64 x 64 pixels of three bytes. --text holds raw pixels, a multiple of 80 images, so that
# each segment is one: a tenth is held out, and 8 streams are read.
IMAGENET64 = replace(
    ENWIK8,
    model={
        **ENWIK8.model, "n_buckets": (12, 16), "axial_shape": (64, 64, 3), "axial_dims": (384, 384, 256),
        "max_positions": 12_288,
    },
    tgt_len=12_288,
)  # fmt: skip
# Kitaev et al. 2020, Table 4: base, 100K and 500K steps, and big, 300K steps, "following the hyperparameters of"
# Vaswani et al. 2017: their Table 3 has the sizes and dropout, sections 5.3 and 5.4 the optimizer, its rate
# d_model^-0.5 min(step^-0.5, step 4000^-1.5) and label smoothing. A batch there is about 25,000 tokens of each text;
# 1,024 pairs are ours.
BIG = {
    "d_model": 1024, "n_head": 16, "d_inner": 4096, "dropout": 0.3, "learning_rate": 1024**-0.5 * 4000**-0.5,
}  # fmt: skip
WMT14 = Scale(
    {
        "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048, "n_encoder_layer": 6, "n_decoder_layer": 6,
        "source_len": 256, "dropout": 0.1,
    },
    tgt_len=256, steps=100_000, batch_size=1024, learning_rate=512**-0.5 * 4000**-0.5, warmup_steps=4000, seeds=1,
    training={
        "label_smoothing": 0.1, "schedule": "inverse_sqrt", "min_lr_ratio": 0.0, "betas": (0.9, 0.98),
    },
    rows={"reversible unshared": {"steps": 500_000}, "reversible big unshared": {"steps": 300_000, **BIG}},
)  # fmt: skip
