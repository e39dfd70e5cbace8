"""Describe a bundle or a checkpoint, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.architectures import architecture, find
from xlexport.checkpoints.vocabularies import describe_vocabulary
from xlexport.commands.options import PATH, checkpoint_options
from xlexport.commands.quantize import quantization_rows
from xlexport.terminal import print_json, print_table
from xlruntime.bundle import MANIFEST
from xlruntime.errors import BundleError
from xlruntime.model import load
from xlruntime.spec import Bundle
from xlruntime.tokenizers import make_tokenizer
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

if TYPE_CHECKING:
    from xlexport.checkpoints import SourceCheckpoint

__all__ = ["bundle_rows", "checkpoint_object", "checkpoint_rows", "inspect", "placement_of", "placement_rows"]

Placement = dict[str, dict[str, dict[str, int]]]  # number of nodes by graph, execution provider and operator


def bundle_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    """Return names and values that describe the bundle in `folder`, for a table.

    Raises:
        BundleError: the manifest's config, provenance or memory are not what xlexport writes.
    """
    try:
        return _bundle_rows(bundle, folder)
    except (AttributeError, KeyError, TypeError) as error:
        what = ascii(f"{type(error).__name__}: {error}")[1:200]
        raise BundleError(
            f"{folder / MANIFEST}: config, provenance or memory are not what xlexport writes ({what}).",
            repair="Convert it again.",
        ) from error


def _bundle_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    rows = [
        ("architecture", bundle.architecture),
        ("config", _listed(bundle.config)),
        ("tokenizer", _tokenizer(bundle, folder)),
        ("precision", bundle.precision),
        *(quantization_rows(quantized) if (quantized := bundle.provenance.get("quantization")) else []),
        ("graphs are", ", ".join(sorted({graph.format for graph in bundle.graphs.values()}))),
        *([] if (found := find(bundle.architecture)) is None else found.bundle_rows(bundle, folder)),
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
    """Return where ONNX Runtime runs the nodes of each graph of the bundle in `folder` on this machine.

    Raises:
        ProviderError, OptionError, BundleError: as `xlruntime.load`.
    """
    model = load(folder, device=device, check_files=False)
    return {purpose: model.placement(purpose) for purpose in model.bundle.graphs}


def placement_rows(placement: Placement) -> list[tuple[str, str]]:
    """Return names and values for a table, with operators if they do not all run on one provider."""
    rows = []
    for purpose, providers in placement.items():
        for provider, operators in providers.items():
            listed = _listed(operators) if len(providers) > 1 else ""
            rows.append((f"nodes of {purpose}", f"{sum(operators.values()):,} on {provider}{listed and ': ' + listed}"))
    return rows


def _tokenizer(bundle: Bundle, folder: Path) -> str:
    if bundle.tokenizer.kind == "vocabulary":
        tokenizer = make_tokenizer(bundle.tokenizer, folder)
        assert isinstance(tokenizer, VocabularyTokenizer)
        return describe_vocabulary(tokenizer.vocabulary)
    return f"{bundle.tokenizer.kind}, vocabulary {bundle.vocab_size:,}"


def checkpoint_rows(source: SourceCheckpoint) -> list[tuple[str, str]]:
    """Return names and values that describe a checkpoint, for a table.

    Rows `note` say what was chosen for the user or would be lost.
    """
    found = architecture(source.architecture)
    settings, fields = found.checkpoint_settings(source.config, source.needs), found.evaluation_fields
    hyper_parameters = {name: value for name, value in source.config.items() if name not in fields.values()}
    return [
        ("checkpoint", f"{source.format}, {source.architecture}"),
        ("config", _listed(hyper_parameters)),
        ("parameters", f"{source.parameters:,}"),
        ("vocabulary", _vocabulary(source.tokenizer, source.config["n_token"])),
        *((name, _setting(name, settings[name])) for name in fields),
        *found.checkpoint_rows(source.config, settings),
        *((path.name, f"{digest.size:,} bytes, SHA-256 {digest.sha256}") for path, digest in source.files.items()),
        *(("note", note) for note in source.notes),
    ]


def checkpoint_object(source: SourceCheckpoint) -> dict[str, Any]:
    """Return the same as one object. An evaluation setting that the checkpoint lacks is None and listed in `needs`."""
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
        "evaluation": architecture(source.architecture).checkpoint_settings(source.config, source.needs),
        "needs": source.needs,
        "notes": source.notes,
        "files": {path.name: asdict(digest) for path, digest in source.files.items()},
    }


def _setting(name: str, value: Any) -> str:
    if value is None:
        return f"not in the checkpoint: give --{name.replace('_', '-')}"
    return str(value).lower()


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
    """Return a boolean in lower case, as JSON and the options write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shape(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(axis) for axis in shape) + ")"


@click.command()
@click.argument("path", type=PATH)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the whole manifest, or everything known about a checkpoint."
)
@click.option(
    "--device", help="Also open a bundle on this device, and show how many nodes each execution provider computes."
)
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
