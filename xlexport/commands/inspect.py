"""What is in a bundle or a checkpoint, for people and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from xlexport.architectures.settings import layer_kinds
from xlexport.checkpoints.vocabularies import describe_vocabulary
from xlexport.commands.options import PATH, checkpoint_options
from xlexport.commands.quantize import quantization_rows
from xlexport.terminal import print_json, print_table
from xlruntime.bundle import MANIFEST
from xlruntime.errors import BundleError
from xlruntime.evaluation import EvaluationSettings
from xlruntime.model import load
from xlruntime.spec import Bundle
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

if TYPE_CHECKING:
    from xlexport.checkpoints import SourceCheckpoint

__all__ = ["bundle_rows", "checkpoint_object", "checkpoint_rows", "inspect", "placement_of", "placement_rows"]

Placement = dict[str, dict[str, dict[str, int]]]  # by graph, execution provider and operator: how many nodes

SETTINGS = {"segment_len": "tgt_len", "mem_len": "mem_len", "clamp_len": "clamp_len", "same_length": "same_length"}
REFORMER_SETTINGS = {"segment_len": "tgt_len", "mem_len": "mem_len"}


def bundle_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    """Names and values for a table, of the bundle in `folder`.

    Raises:
        BundleError: the manifest's paperwork is not what xlexport writes.
    """
    try:
        return _bundle_rows(bundle, folder)
    except (AttributeError, KeyError, TypeError) as error:
        what = ascii(f"{type(error).__name__}: {error}")[1:200]
        raise BundleError(
            f"{folder / MANIFEST}: config, provenance or memory are not what xlexport writes ({what}). "
            "Convert it again."
        ) from error


def _bundle_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    rows = [
        ("architecture", bundle.architecture),
        ("config", _listed(bundle.config)),
        ("tokenizer", _tokenizer(bundle, folder)),
        ("precision", bundle.precision),
        *(quantization_rows(quantized) if (quantized := bundle.provenance.get("quantization")) else []),
        ("graphs are", ", ".join(sorted({graph.format for graph in bundle.graphs.values()}))),
        *(_reformer_rows(bundle, folder) if bundle.architecture == "reformer" else _transformer_xl_rows(bundle)),
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


def placement_of(folder: Path, device: str) -> Placement:
    """Where ONNX Runtime runs the nodes of each graph of the bundle in `folder` on this machine.

    Raises:
        ProviderError, OptionError, BundleError: as `xlruntime.load`.
    """
    model = load(folder, device=device, check_files=False)
    return {purpose: model.placement(purpose) for purpose in model.bundle.graphs}


def placement_rows(placement: Placement) -> list[tuple[str, str]]:
    """Names and values for a table; operators are named where they do not all run in one place."""
    rows = []
    for purpose, providers in placement.items():
        for provider, operators in providers.items():
            listed = _listed(operators) if len(providers) > 1 else ""
            rows.append((f"nodes of {purpose}", f"{sum(operators.values()):,} on {provider}{listed and ': ' + listed}"))
    return rows


def _transformer_xl_rows(bundle: Bundle) -> list[tuple[str, str]]:
    evaluation = bundle.settings
    return [
        ("segment, memory, clamp", f"{evaluation.segment_len}, {evaluation.most_rows}, {evaluation['clamp_len']}"),
        ("same_length", str(evaluation["same_length"]).lower()),
        ("first memory", evaluation.first_memory),
        ("memory of a stream", _stream_memory(bundle)),
    ]


def _reformer_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    evaluation = bundle.settings
    rows = _attention_rows(bundle.config)
    if evaluation.whole:
        rows.append(("documents", f"whole, {_longest(evaluation)}"))
    else:
        rows += [
            ("segment, memory", f"{evaluation.segment_len:,}, {evaluation.most_rows:,}"),
            ("documents", _longest(evaluation)),
            ("memory of a stream", _stream_memory(bundle)),
        ]
    overflow = _overflow(folder)
    return (
        [*rows, ("overflow, by LSH layer", ", ".join(f"{fraction:.2%}" for fraction in overflow))] if overflow else rows
    )


def _longest(evaluation: EvaluationSettings) -> str:
    """How many tokens of a document can be read."""
    if evaluation.longest_part is None:
        return "of any length"
    most = f"of at most {evaluation.longest_part:,} tokens"
    return f"{most}; longer ones start afresh there" if evaluation.restart else most


def _attention_rows(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values for a table: what kinds of layers a Reformer has, and how they hash."""
    rows = [("layers", f"{layer_kinds(config)}: {', '.join(config['attn_layers'])}")]
    if "lsh" in config["attn_layers"]:
        buckets = "×".join(map(str, config["n_buckets"]))
        rows.append(("LSH", f"rule {config['rule']}, {config['n_hashes']} rounds of {buckets} buckets"))
        rows.append(("LSH chunks", f"{config['chunk_length']} tokens, {config['chunks_before']} before"))
    if "local" in config["attn_layers"]:
        rows.append(("local chunks", f"{config['local_chunk_length']} tokens, {config['local_chunks_before']} before"))
    return rows


def _overflow(folder: Path) -> list[float]:
    """Of each LSH layer on the text that verified the bundle; empty where that was not counted, or is not known."""
    try:
        report = json.loads((folder / "parity.json").read_text("utf-8"))
    except (OSError, ValueError):
        return []
    found = report.get("overflow_fraction_per_layer") if isinstance(report, dict) else None
    return [float(fraction) for fraction in found or []]


def _stream_memory(bundle: Bundle) -> str:
    """What one stream's memory takes."""
    free = {"batch": 1, "capacity": bundle.settings.capacity()}
    total = sum(
        np.dtype(entry.dtype).itemsize
        * math.prod(axis if isinstance(axis, int) else free[axis] for axis in entry.shape)
        for entry in bundle.memory
    )
    return f"{total / 1e6:,.1f} MB in {len(bundle.memory)} tensors"


def _tokenizer(bundle: Bundle, folder: Path) -> str:
    if bundle.tokenizer.kind == "vocabulary":
        tokenizer = make_tokenizer(bundle.tokenizer, folder)
        assert isinstance(tokenizer, VocabularyTokenizer)
        return describe_vocabulary(tokenizer.vocabulary)
    return f"{bundle.tokenizer.kind}, vocabulary {bundle.vocab_size:,}"


def checkpoint_rows(source: SourceCheckpoint) -> list[tuple[str, str]]:
    """Names and values for a table: what it is, and under `note` what was chosen for the user or would be lost."""
    evaluation, settings = _evaluation(source), _settings(source)
    reformer = source.architecture == "reformer"
    hyper_parameters = {name: value for name, value in source.config.items() if name not in settings.values()}
    return [
        ("checkpoint", f"{source.format}, {source.architecture}"),
        ("config", _listed(hyper_parameters)),
        ("parameters", f"{source.parameters:,}"),
        ("vocabulary", _vocabulary(source.tokenizer, source.config["n_token"])),
        *((name, _setting(name, evaluation[name])) for name in settings),
        *(_attention_rows(source.config) if reformer else _memory_rows(evaluation)),
        *((path.name, f"{digest.size:,} bytes, SHA-256 {digest.sha256}") for path, digest in source.files.items()),
        *(("note", note) for note in source.notes),
    ]


def _memory_rows(evaluation: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [("keys that a token sees", _window(evaluation)), ("first memory", evaluation["first_memory"])]


def checkpoint_object(source: SourceCheckpoint) -> dict[str, Any]:
    """The same as one object. An evaluation setting that the checkpoint does not hold is None, and in `needs`."""
    tokenizer = source.tokenizer
    if isinstance(tokenizer, Vocabulary):
        rules = {name: value for name, value in asdict(tokenizer).items() if name != "symbols"}
        tokenizer_object: Any = {**rules, "size": len(tokenizer)}
    else:
        tokenizer_object = tokenizer.name if isinstance(tokenizer, Path) else tokenizer
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


def _settings(source: SourceCheckpoint) -> dict[str, str]:
    """Names of the evaluation settings of its architecture, and of the fields of the configuration that hold them."""
    return REFORMER_SETTINGS if source.architecture == "reformer" else SETTINGS


def _evaluation(source: SourceCheckpoint) -> dict[str, Any]:
    """The settings of an evaluation, None where the user must give one."""
    fields = _settings(source)
    settings = {name: None if name in source.needs else source.config[field] for name, field in fields.items()}
    if source.architecture == "reformer":
        return settings
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


def _vocabulary(tokenizer: str | Vocabulary | Path | None, n_token: int) -> str:
    if isinstance(tokenizer, Vocabulary):
        if len(tokenizer) != n_token:
            return f"{len(tokenizer):,} symbols, but the model has {n_token:,} tokens: give its own with --tokenizer"
        return describe_vocabulary(tokenizer)
    if tokenizer is None:
        return f"not in the checkpoint: give that of its {n_token:,} tokens with --tokenizer"
    return f"{tokenizer.name if isinstance(tokenizer, Path) else tokenizer}, {n_token:,} tokens"


def _listed(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_lower(value)}" for name, value in config.items())


def _lower(value: Any) -> str:
    """As JSON and the options have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shape(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(axis) for axis in shape) + ")"


@click.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest, or all that is known of a checkpoint.")
@click.option("--device", help="Open a bundle there, too, and show which execution provider computes how many nodes.")
@checkpoint_options
def inspect(
    path: Path, as_json: bool, device: str | None, format_name: str | None, config: dict[str, Any] | None
) -> None:
    """Check the bundle or checkpoint at PATH, and show what is in it."""
    from xlexport import checkpoints
    from xlruntime.bundle import is_bundle, read_bundle

    if is_bundle(path):
        manifest = read_bundle(path)
        found, rows = {**asdict(manifest), "fingerprint": manifest.fingerprint}, bundle_rows(manifest, path)
        if device is not None:
            found["placement"] = placement = placement_of(path, device)
            rows += placement_rows(placement)
    elif device is not None:
        raise click.UsageError("--device is for bundles: a checkpoint does not run.")
    else:
        source = checkpoints.load(path, format_name, config)
        found, rows = checkpoint_object(source), checkpoint_rows(source)
    if as_json:
        print_json(found)
    else:
        print_table(rows)
