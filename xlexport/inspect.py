"""What is in a bundle or a checkpoint, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.vocabularies import describe_vocabulary
from xlruntime.spec import Bundle
from xlruntime.tokenizing import make_tokenizer
from xlruntime.vocabulary import Vocabulary
from xlruntime.vocabulary_tokenizer import VocabularyTokenizer

if TYPE_CHECKING:
    from xlexport.checkpoints import SourceCheckpoint

__all__ = ["bundle_rows", "checkpoint_object", "checkpoint_rows"]

SETTINGS = {"segment_len": "tgt_len", "mem_len": "mem_len", "clamp_len": "clamp_len", "same_length": "same_length"}


def bundle_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    """Names and values for a table, of the bundle in `folder`."""
    config, evaluation = bundle.config, bundle.evaluation
    row_bytes = sum(4 * _numbers(entry.shape) for entry in bundle.memory)
    rows = [
        ("architecture", bundle.architecture),
        ("config", _listed(config)),
        ("tokenizer", _tokenizer(bundle, folder)),
        ("precision", bundle.precision),
        ("segment, memory, clamp", f"{evaluation.segment_len}, {evaluation.mem_len}, {evaluation.clamp_len}"),
        ("same_length", str(evaluation.same_length).lower()),
        ("first memory", evaluation.first_memory),
        ("memory of a stream", f"{row_bytes * evaluation.capacity() / 1e6:,.1f} MB in {len(bundle.memory)} tensors"),
        ("fingerprint", bundle.fingerprint),
    ]
    rows += [(f"converted from {name}", f"SHA-256 {sha256}") for name, sha256 in bundle.provenance["sources"].items()]
    rows += [("versions", ", ".join(f"{name} {version}" for name, version in bundle.provenance["versions"].items()))]
    rows += [("note", note) for note in bundle.provenance.get("notes", [])]
    for purpose, graph in bundle.graphs.items():
        carried = {entry.output for entry in bundle.memory}
        outputs = [tensor for tensor in graph.outputs if tensor.name not in carried]
        shown = ", ".join(f"{tensor.name} {_shape(tensor.shape)} {tensor.dtype}" for tensor in outputs[:5])
        rows.append((f"graph {purpose}", shown + (", …" if len(outputs) > 5 else "")))
    rows += [(name, f"{digest.size:,} bytes, SHA-256 {digest.sha256[:16]}…") for name, digest in bundle.files.items()]
    return rows


def _tokenizer(bundle: Bundle, folder: Path) -> str:
    if bundle.tokenizer.kind == "vocabulary":
        tokenizer = make_tokenizer(bundle.tokenizer, folder)
        assert isinstance(tokenizer, VocabularyTokenizer)
        return describe_vocabulary(tokenizer.vocabulary)
    return f"{bundle.tokenizer.kind}, vocabulary {bundle.vocab_size:,}"


def checkpoint_rows(source: SourceCheckpoint) -> list[tuple[str, str]]:
    """Names and values for a table: what it is, and under `note` what was chosen for the user or would be lost."""
    evaluation = _evaluation(source)
    hyper_parameters = {name: value for name, value in source.config.items() if name not in SETTINGS.values()}
    return [
        ("checkpoint", f"{source.format}, {source.architecture}"),
        ("config", _listed(hyper_parameters)),
        ("parameters", f"{source.parameters:,}"),
        ("vocabulary", _vocabulary(source.tokenizer, source.config["n_token"])),
        *((name, _setting(name, evaluation[name])) for name in SETTINGS),
        ("keys that a token sees", _window(evaluation)),
        ("first memory", evaluation["first_memory"]),
        *((path.name, f"{digest.size:,} bytes, SHA-256 {digest.sha256}") for path, digest in source.files.items()),
        *(("note", note) for note in source.notes),
    ]


def checkpoint_object(source: SourceCheckpoint) -> dict[str, Any]:
    """The same as one object. An evaluation setting that the checkpoint does not hold is None, and in `needs`."""
    tokenizer = source.tokenizer
    if isinstance(tokenizer, Vocabulary):
        rules = {name: value for name, value in asdict(tokenizer).items() if name != "symbols"}
        tokenizer_object: Any = {**rules, "size": len(tokenizer)}
    else:
        tokenizer_object = tokenizer
    return {
        "format": source.format,
        "architecture": source.architecture,
        "config": dict(source.config),
        "parameters": source.parameters,
        "tokenizer": tokenizer_object,
        "evaluation": _evaluation(source),
        "needs": source.needs,
        "notes": source.notes,
        "files": {path.name: asdict(digest) for path, digest in source.files.items()},
    }


def _evaluation(source: SourceCheckpoint) -> dict[str, Any]:
    """The settings of an evaluation, None where the user must give one."""
    settings = {name: None if name in source.needs else source.config[field] for name, field in SETTINGS.items()}
    return {**settings, "first_memory": source.config["first_memory"], "window_extra": source.config["window_extra"]}


def _setting(name: str, value: Any) -> str:
    if value is None:
        return f"not in the checkpoint: give --{name.replace('_', '-')}"
    return str(value).lower()


def _window(evaluation: Mapping[str, Any]) -> str:
    wider = "mem_len + 1" if evaluation["window_extra"] else "mem_len"
    otherwise = "all of memory and of its segment before it"
    if evaluation["same_length"] is None:
        return f"{wider} with same_length, else {otherwise}"
    return wider if evaluation["same_length"] else otherwise


def _vocabulary(tokenizer: str | Vocabulary | None, n_token: int) -> str:
    if isinstance(tokenizer, Vocabulary):
        if len(tokenizer) != n_token:
            return f"{len(tokenizer):,} symbols, but the model has {n_token:,} tokens: give its own with --tokenizer"
        return describe_vocabulary(tokenizer)
    if tokenizer is None:
        return f"not in the checkpoint: give that of its {n_token:,} tokens with --tokenizer"
    return f"{tokenizer}, {n_token:,} tokens"


def _listed(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in config.items())


def _numbers(shape: tuple[int | str, ...]) -> int:
    """Numbers in one slot of one batch row."""
    product = 1
    for axis in shape:
        product *= axis if isinstance(axis, int) else 1
    return product


def _shape(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(axis) for axis in shape) + ")"
