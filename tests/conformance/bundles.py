"""The bundles of a kit: golden ones, both samples, copies with each kind of tokenizer, and what the exporter makes now.

The golden ones were written by older code. The small ones have the operators for which there are kernels today, and
copies in lower precision.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers import tokenizer_kinds
from xlexport import formats
from xlexport.byte_pair_file import BYTE_PAIR_FILE, byte_pair_file
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.fixed_shapes import FixedShapes
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.run import quantize
from xlruntime.bundle import TextToken, TokenizerEntry
from xlruntime.bundle_files import digest_file
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

from .actions import MANIFEST, Edit, manifest_files

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
SAMPLES = ("transformer_xl_bytes", "reformer_bytes")
WORDS = (
    *("the", "a", "cat", "dog", "sat", "saw", "on", "under", "mat", "house", "and"),
    *("but", "then", "it", "was", "he", "she", "one", "two", "red", "old"),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def words() -> dict[str, Any]:
    """Return a vocabulary of 29 words, with a symbol for line ends and one for unknown words."""
    symbols = ("<eos>", "<unk>", *WORDS, "É", "naïve", ".", ",", "!", "?")
    return _vocabulary(Vocabulary("words", symbols, unk="<unk>", line_end="<eos>"))


def characters() -> dict[str, Any]:
    """Return a vocabulary of 29 characters: lower case, a mark for a space, no symbol for line ends."""
    return _vocabulary(Vocabulary("characters", ("_", *LETTERS, "é", "<unk>"), "<unk>", lower_case=True, space="_"))


def byte_symbols() -> dict[str, Any]:
    """Return a vocabulary of 256: a symbol for line ends, and all bytes but the newline."""
    symbols = ("<eos>", *(str(byte) for byte in range(256) if byte != 10))
    return _vocabulary(Vocabulary("bytes", symbols, line_end="<eos>"))


def lines() -> dict[str, Any]:
    """Return a vocabulary of words with one symbol before and after every line, without a symbol for unknown words."""
    return _vocabulary(Vocabulary("words", ("<S>", *LETTERS, "the", "cat"), line_start="<S>", line_end="<S>"))


def byte_pairs() -> dict[str, Any]:
    """Return a tokenizer.json of 40 tokens: letters, a space, and pairs."""
    pairs = ["t h", "th e", "i n", "a n", "an d", "e r", "o n", "Ġ the", "Ġ a", "r e"]
    tokens = ["Ġ", *LETTERS, ".", ",", "!", *(pair.replace(" ", "") for pair in pairs)]
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {token: number for number, token in enumerate(tokens)}
    parts: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    parts |= {"pre_tokenizer": level, "post_processor": None, "decoder": level}
    return parts | {"model": {**model, "vocab": vocabulary, "merges": pairs}}


def sentence_pieces() -> bytes:
    """Return a SentencePiece model of 40 pieces."""
    text = ["the cat and the dog sat on the mat", "then the other cat ran under the house", "it was a red house"] * 20
    return tokenizer_kinds.sentence_pieces(40, text)


# Name of the copy: the golden bundle, the kind of tokenizer, the name of its file, and its content.
TOKENIZERS: Mapping[str, tuple[str, str, str, Callable[[], Any]]] = {
    "words": ("pre_lnorm_empty", "vocabulary", "vocabulary.json", words),
    "lines": ("pre_lnorm_empty", "vocabulary", "vocabulary.json", lines),
    "characters": ("pre_lnorm_empty", "vocabulary", "vocabulary.json", characters),
    "byte_symbols": ("post_lnorm_same_length_empty", "vocabulary", "vocabulary.json", byte_symbols),
    "byte_pairs": ("post_lnorm_zeros", "tokenizers", "tokenizer.json", byte_pairs),
    "sentence_pieces": ("post_lnorm_zeros", "sentencepiece", "tokenizer.model", sentence_pieces),
}
BEGINNING = {"llama": 1, "trie": 0}  # the token that its own rule puts before each text
# Copies with a changed manifest: bytes whose ids begin with 2, long documents that begin again, and a last token that
# is read.
CHANGED: Mapping[str, tuple[str, Edit]] = {
    "first_id": ("reformer_band", lambda manifest: manifest["tokenizer"].update(kind="bytes", first_id=2)),
    "restarting": ("reformer_band", lambda manifest: manifest["document"].update(restart=True)),
    "bidirectional": ("reformer_chunk", lambda manifest: manifest["document"].update(bidirectional=True)),
}


def write_bundles(
    folder: Path, samples: Path | None, names: Iterable[str] = SAMPLES, numbers_only: bool = False
) -> None:
    """Write all bundles of a kit.

    Args:
        samples: a folder with both samples as bundles; None: convert their checkpoints.
        names: the samples that the kit has.
        numbers_only: leave out tokenizers and fixed shapes.
    """
    for golden in sorted(GOLDEN.iterdir()):
        if (golden / "bundle").is_dir():
            shutil.copytree(golden / "bundle", folder / golden.name)
    _write_small_bundles(folder, {} if numbers_only else FIXED)
    for name in names:
        if samples is not None:
            shutil.copytree(samples / name, folder / name)
        else:
            print(f"converting samples/{name}")
            source = formats.load(ROOT / "samples" / name / "checkpoint.pt")
            with contextlib.redirect_stdout(io.StringIO()):
                convert(source, folder / name, ConversionOptions(threads=1))
    if numbers_only:
        return
    _write_text_bundles(folder)
    for name, (golden_name, kind, file, make) in TOKENIZERS.items():
        shutil.copytree(GOLDEN / golden_name / "bundle", folder / name)
        content = make()
        raw = content if isinstance(content, bytes) else (json.dumps(content, ensure_ascii=False) + "\n").encode()
        (folder / name / file).write_bytes(raw)
        digest = digest_file(folder / name / file)
        manifest = json.loads((folder / name / MANIFEST).read_text("utf-8"))
        manifest["files"][file] = {"sha256": digest.sha256, "size": digest.size}
        size = make_tokenizer(TokenizerEntry(kind, file), folder / name).vocab_size  # type: ignore[arg-type]
        manifest["tokenizer"].update(kind=kind, file=file, size=size)
        _write_manifest(folder / name, manifest)
    for name, (golden_name, change) in CHANGED.items():
        shutil.copytree(GOLDEN / golden_name / "bundle", folder / name)
        manifest = json.loads((folder / name / MANIFEST).read_text("utf-8"))
        change(manifest)
        _write_manifest(folder / name, manifest)


def _write_text_bundles(folder: Path) -> None:
    """Write a bundle for each kind of tokenizer, all with one model: `text_KIND`."""
    first = folder / f"text_{tokenizer_kinds.KINDS[0]}"
    config = TransformerXLConfig(**{**XL, "n_token": 600}, same_length=True, first_memory="empty")
    print("converting a model for texts")
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        save_checkpoint(Path(work, "it"), config, random_model(config).state_dict())
        convert(formats.load(Path(work, "it")), first, ConversionOptions(tokenizer="none", threads=1))
    plain = json.loads((first / MANIFEST).read_text("utf-8"))
    for kind in tokenizer_kinds.KINDS:
        own = folder / f"text_{kind}"
        if own != first:
            shutil.copytree(first, own)
        entry = tokenizer_kinds.write_tokenizer(kind, own)
        pairs = byte_pair_file((own / str(entry.file)).read_bytes()) if entry.kind == "tokenizers" else None
        if pairs is not None:
            (own / BYTE_PAIR_FILE).write_bytes(pairs)
            entry = replace(entry, bpe=BYTE_PAIR_FILE)
        if kind in BEGINNING:
            begin = TextToken(BEGINNING[kind], "<s>", "the kit")
            entry = replace(entry, begin=begin, adds_begin=True)
        digests = {name: asdict(digest_file(own / name)) for name in sorted(entry.files)}
        tokenizer = {name: value for name, value in asdict(entry).items() if value or name in ("file", "first_id")}
        _write_manifest(own, {**plain, "tokenizer": tokenizer, "files": {**plain["files"], **digests}})


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    for name, content in manifest_files(manifest).items():
        (folder / name).write_bytes(content)


def _vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(vocabulary.to_json())
    return fields


SEED = 1
SPREAD = 0.15  # standard deviation of weights: with more, one rounding moves a token as far as a wrong memory does
ENOUGH_BITS = 100.0  # no product stays float32: these models know no text
TOKENS, SEGMENTS = 512, 20  # on which copies are measured, and which a conversion verifies
SIZES: dict[str, Any] = {"n_token": 256, "n_head": 2, "d_model": 64, "d_head": 32, "d_inner": 96, "tgt_len": 8}
MODELS: Mapping[str, TransformerXLConfig | ReformerConfig] = {
    "small_transformer_xl": TransformerXLConfig(**SIZES, n_layer=2, mem_len=12, clamp_len=15, first_memory="empty"),
    "small_reformer": ReformerConfig(
        **SIZES, attn_layers=("local", "lsh"), n_hashes=2, n_buckets=(4,), chunk_length=8, local_chunk_length=8,
        mem_len=24, position="rotary", max_positions=0,
    ),
}  # fmt: skip
Fixed = tuple[TransformerXLConfig | ReformerConfig, str]
# Graphs of fixed shapes: scores that depend on segments and scores that do not, and each layer of a Reformer.
FEW: dict[str, Any] = {"n_head": 2, "d_model": 16, "d_head": 8, "d_inner": 24, "tgt_len": 8}
XL: dict[str, Any] = {**FEW, "n_layer": 2, "mem_len": 12}
FIXED: Mapping[str, Fixed] = {
    "fixed_clusters": (
        TransformerXLConfig(**XL, clamp_len=7, same_length=True, first_memory="zeros", cutoffs=(50, 120)), "segment=8",
    ),
    "fixed_relative": (TransformerXLConfig(**XL), "batch=1,segment=8"),
    "fixed_shaw": (TransformerXLConfig(**XL, encoding="shaw"), "segment=5,mem_len=7"),
    "fixed_rows": (TransformerXLConfig(**XL), "batch=3,segment=8"),
    "fixed_reformer": (
        ReformerConfig(
            **FEW, attn_layers=("local", "lsh", "full"), n_hashes=2, n_buckets=(4,), chunk_length=6,
            local_chunk_length=5, mem_len=20, position="sinusoid", max_positions=0,
        ), "segment=8",
    ),
}  # fmt: skip
# Name of the copy: the bundle, its precision, that of its memories, and its bounds. These are some three times the
# largest differences (in the comments) between kernels and fallback on AVX-512, AVX2, SSE4.2 and ARM.
COPIES: Mapping[str, tuple[str, str, str, dict[str, float]]] = {
    "small_int8": ("small_transformer_xl", "int8", "float32", {"nats": 0.1, "totals": 0.001}),  # 0.034, 0.0003
    "small_int8_memories": ("small_transformer_xl", "int8", "int8", {"nats": 0.25, "totals": 0.01}),  # 0.104, 0.0033
    "small_int4": ("small_transformer_xl", "weight-int4", "float32", {"nats": 0.25, "totals": 0.05}),  # 0.087, 0.017
    "small_float16": ("small_transformer_xl", "float16", "float16", {"nats": 0.06, "totals": 0.006}),  # 0.019, 0.0019
    "small_reformer_int8": ("small_reformer", "int8", "float32", {"nats": 0.05, "totals": 0.001}),  # 0.014, 0.0001
}
WITHIN = {name: bounds for name, (*_, bounds) in COPIES.items()}


def _write_small_bundles(folder: Path, fixed: Mapping[str, Fixed]) -> None:
    """Write the bundles into `folder`."""
    free = ((name, config, None) for name, config in MODELS.items())
    of_fixed_shapes = ((name, config, FixedShapes.parse(shapes)) for name, (config, shapes) in fixed.items())
    for name, config, shapes in (*free, *of_fixed_shapes):
        print(f"converting {name}")
        with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
            save_checkpoint(Path(work, name), config, random_model(config).state_dict())
            options = ConversionOptions(tokenizer="bytes", threads=1, segments=SEGMENTS, fixed=shapes)
            convert(formats.load(Path(work, name)), folder / name, options)
    for name, (source, dtype, memory_dtype, _) in COPIES.items():
        choices = QuantizeOptions(
            dtype, max_delta_bits=ENOUGH_BITS, memory_dtype=memory_dtype, tokens=TOKENS, threads=1
        )
        found = quantize(folder / source, folder / name, choices)
        assert not found.kept and found.memory_dtype == memory_dtype, (name, found)


@torch.no_grad()
def random_model(config: TransformerXLConfig | ReformerConfig) -> TransformerXL | Reformer:
    """Return a model in eval mode in which every weight matters, from random numbers of NumPy."""
    model = (Reformer(config) if isinstance(config, ReformerConfig) else TransformerXL(config)).eval()
    random = np.random.default_rng(SEED)
    for name, parameter in model.named_parameters():
        drawn = random.normal(float(name.endswith("norm.weight")), SPREAD, tuple(parameter.shape))
        parameter.copy_(torch.from_numpy(drawn))
    return model
