"""Reformers that are compared with other code bases: the special property of each, and document lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReformerCase:
    """One model.

    Attributes:
        settings: the settings, under the names of the code base.
        lengths: of documents in tokens.
    """

    name: str
    settings: dict[str, Any]
    lengths: tuple[int, ...]
    batch_size: int = 2

    def __str__(self) -> str:
        return self.name


_ALL_LSH, _MIXED = ["lsh"] * 2, ["local", "lsh"] * 2

# Documents of two or more chunks, lengths that need padding, and short documents with full attention.
HUGGING_FACE = (
    ReformerCase("one round", {"attn_layers": _ALL_LSH, "num_hashes": 1}, (1, 15, 16, 17, 64, 500, 2048), 3),
    ReformerCase("two rounds", {"attn_layers": _MIXED, "num_hashes": 2, "num_buckets": 16}, (5, 8, 9, 16, 100, 512)),
    ReformerCase(
        "three rounds, two factors", {"attn_layers": _MIXED, "num_hashes": 3, "num_buckets": [4, 8]}, (33, 511, 1000), 3
    ),
    ReformerCase(
        "four rounds, three factors",
        {"attn_layers": _ALL_LSH, "num_hashes": 4, "num_buckets": [2, 4, 6], "lsh_attn_chunk_length": 32},
        (32, 33, 64, 700, 2048),
        1,
    ),
    ReformerCase(
        "longer local chunks",
        {"attn_layers": _MIXED, "num_hashes": 2, "local_attn_chunk_length": 64},
        (7, 16, 17, 48, 63, 64, 65, 128, 200),
        3,
    ),
    ReformerCase(
        "shorter local chunks",
        {"attn_layers": _MIXED, "num_hashes": 2, "lsh_attn_chunk_length": 64},
        (4, 8, 9, 40, 57, 64, 65, 130),
        3,
    ),
    ReformerCase(
        "chunks of no common length",
        {
            "attn_layers": _MIXED,
            "lsh_attn_chunk_length": 24,
            "local_attn_chunk_length": 16,
            "axial_pos_shape": [48, 40],
            "max_position_embeddings": 48 * 40,
        },
        (16, 17, 24, 25, 47, 48, 49, 300),
    ),
    ReformerCase(
        "two chunks before", {"attn_layers": _ALL_LSH, "num_hashes": 2, "lsh_num_chunks_before": 2}, (20, 32, 48, 333)
    ),
    ReformerCase(
        "no chunk before",
        {"attn_layers": _MIXED, "num_hashes": 3, "lsh_num_chunks_before": 0, "local_num_chunks_before": 0},
        (12, 40, 128),
    ),
    ReformerCase(
        "plain positions, gelu",
        {"attn_layers": _MIXED, "axial_pos_embds": False, "max_position_embeddings": 1024, "hidden_act": "gelu"},
        (31, 640, 1024),
        3,
    ),
    ReformerCase(
        "three axes, tanh, epsilon",
        {
            "attn_layers": ["lsh", "local", "lsh"],
            "axial_pos_shape": [8, 16, 16],
            "axial_pos_embds_dim": [8, 8, 16],
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-3,
            "num_hashes": 2,
        },
        (90, 2048),
        1,
    ),
    ReformerCase("local alone", {"attn_layers": ["local"] * 3, "local_num_chunks_before": 2}, (3, 8, 25, 26, 600), 3),
    ReformerCase(
        "as crime-and-punishment",
        {
            "attn_layers": ["local", "lsh"] * 3,
            "num_attention_heads": 2,
            "attention_head_size": 16,
            "num_buckets": [8, 16],
            "lsh_attn_chunk_length": 64,
            "local_attn_chunk_length": 64,
            "vocab_size": 320,
        },
        (63, 65, 2048),
        1,
    ),
    ReformerCase(
        "as enwik8",
        {
            "attn_layers": ["local", "local", "lsh", "local"] * 2,
            "num_attention_heads": 4,
            "num_hashes": 4,
            "num_buckets": 64,
            "lsh_attn_chunk_length": 256,
            "local_attn_chunk_length": 128,
            "vocab_size": 258,
        },
        (128, 250, 300, 1500),
        1,
    ),
)

# It takes only multiples of two buckets; the longest length decides the number of buckets.
REFORMER_PYTORCH = (
    ReformerCase("rotary", {"n_hashes": 4, "max_seq_len": 256}, (256,), 3),
    ReformerCase("axial", {"n_hashes": 2, "max_seq_len": 512, "axial_position_emb": True, "heads": 3}, (512,)),
    ReformerCase(
        "absolute, tied",
        {"n_hashes": 1, "max_seq_len": 128, "absolute_position_emb": True, "weight_tie_embedding": True},
        (128,),
        3,
    ),
    ReformerCase(
        "fixed, rotations a head",
        {
            "n_hashes": 3,
            "max_seq_len": 2048,
            "bucket_size": 32,
            "fixed_position_emb": True,
            "random_rotations_per_head": True,
        },
        (2048,),
        1,
    ),
    ReformerCase(
        "full attention",
        {"max_seq_len": 64, "absolute_position_emb": True, "use_full_attn": True},
        (5, 16, 64),
        3,
    ),
)
