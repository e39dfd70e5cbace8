"""Describe a bundle or a checkpoint, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.bundle_readme import CARD
from xlexport.bundles import PARITY_FILE, WEIGHTS_FILE, check_graphs, open_any_bundle, origin, stored_parity
from xlexport.checkpoints.vocabularies import describe_vocabulary
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import (
    checkpoint_options,
    json_option,
    ops_option,
    provider_option,
    reading_given,
    refuse,
    trust_option,
)
from xlexport.commands.quantize import quantization_rows
from xlexport.commands.values import MODEL
from xlexport.errors import MissingAnswerError
from xlexport.families import description_of, title_of
from xlexport.families.options import spellings
from xlexport.terminal import print_json, print_table
from xlexport.text_ends import text_ends_note
from xlruntime import BundleFormatError, Model, StepModel, Translator
from xlruntime.bundle import MANIFEST, RUN, Bundle
from xlruntime.messages import counted
from xlruntime.tokenizers import Vocabulary, VocabularyTokenizer, make_tokenizer

if TYPE_CHECKING:
    from xlexport.checkpoints.source import SourceCheckpoint
    from xltraining.data.token_shards import PreparedData
    from xltraining.data.tokenizer_file import TokenizerFile

__all__ = [
    "bundle_object",
    "bundle_rows",
    "checkpoint_object",
    "checkpoint_rows",
    "inspect",
    "placement_of",
    "placement_rows",
    "prepared_object",
]

CONFIG_WIDTH = 58  # characters, beside the names of rows on a terminal of 80
AUTHOR = "its author says"  # what no digest covers, and no check of ours shows
Placement = dict[str, dict[str, dict[str, int]]]  # number of nodes by graph, execution provider and operator


def bundle_rows(bundle: Bundle, folder: Path, verbose: bool = False) -> list[tuple[str, str]]:
    """Return names and values that describe the bundle in `folder`, for a table.

    Args:
        verbose: also return digests, versions, and the outputs of graphs.

    Raises:
        BundleFormatError: the manifest's config, provenance or memory are not what xlexport writes.
    """
    try:
        return [*_bundle_rows(bundle, folder), *(_detailed_rows(bundle) if verbose else [])]
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise BundleFormatError(
            f"{folder / MANIFEST}: config, provenance, memory or {PARITY_FILE} are not what xlexport writes "
            f"({type(error).__name__}: {error}).",
            hint="Convert it again.",
        ) from error


def _bundle_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    rule = bundle.tokenizer
    has_marks = rule.begin is not None or rule.ends or rule.kind in ("tokenizers", "sentencepiece")
    return [
        ("architecture", _architecture(bundle.architecture, bundle.config)),
        ("parameters", f"{parameters:,}" if (parameters := bundle.provenance.get("parameters")) else "not recorded"),
        ("size", _size(bundle)),
        ("precision", bundle.precision),
        *_parity_rows(bundle, folder),
        *(quantization_rows(quantized) if (quantized := bundle.provenance.get("quantization")) else []),
        *([("tokenizer", _tokenizer(bundle, folder))] if bundle.vocab_size else []),
        *([("texts", text_ends_note(rule.begin, rule.adds_begin, rule.ends))] if has_marks else []),
        *_config_rows({name: value for name, value in bundle.config.items() if name != "n_token" or value}),
        *description_of(bundle.architecture).bundle(bundle, folder),
        *([("fixed shapes", _fixed(bundle))] if bundle.fixed else []),
        ("graphs", f"{', '.join(bundle.graphs)} ({', '.join(sorted({g.format for g in bundle.graphs.values()}))})"),
        ("converted from", origin(bundle)),
        *_statement_rows(bundle.provenance),
        *(("note", str(note)) for note in bundle.provenance.get("notes", [])),
    ]


def _architecture(name: str, config: Mapping[str, Any]) -> str:
    """Return the identifier of an architecture, and the name of the family or class if it has several."""
    title = title_of(name, config)
    return name if title == title_of(name) else f"{name} ({title.removeprefix(title_of(name)).strip()})"


def _statement_rows(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the author or the training says of a model; what nobody said has no row."""
    rows = [(title.lower(), str(about[name])) for name, title in CARD.items() if about.get(name)]
    bits = about.get("held_out_bits_per_token")
    return rows if bits is None else [*rows, ("held-out text", f"{bits:.4f} bits per token, by its training")]


def _detailed_rows(bundle: Bundle) -> list[tuple[str, str]]:
    rows = [("digest", bundle.digest), ("fingerprint", bundle.fingerprint)]
    rows += [(f"converted from {name}", f"SHA-256 {sha256}") for name, sha256 in bundle.provenance["sources"].items()]
    rows += [("versions", ", ".join(f"{name} {version}" for name, version in bundle.provenance["versions"].items()))]
    for purpose, graph in bundle.graphs.items():
        outputs = [f"{name} ({', '.join(map(str, one.shape))}) {one.dtype}" for name, one in graph.outputs.items()]
        rows.append((f"graph {purpose}", ", ".join(outputs[:5]) + (", …" if len(outputs) > 5 else "")))
    rows += [(name, f"{digest.size:,} bytes, SHA-256 {digest.sha256}") for name, digest in bundle.files.items()]
    return rows


def _fixed(bundle: Bundle) -> str:
    segments = sorted({graph.fixed["segment"] for graph in bundle.graphs.values() if graph.fixed}, reverse=True)
    unit = "tokens" if bundle.vocab_size else "steps"
    return f"batch {bundle.fixed['batch']}, segments of {' or '.join(map(str, segments))} {unit}"


def _size(bundle: Bundle) -> str:
    weights, total = bundle.files.get(WEIGHTS_FILE), sum(digest.size for digest in bundle.files.values())
    inside = "" if weights is None else f", {weights.size / 1e6:,.1f} MB of it weights"
    return f"{total / 1e6:,.1f} MB in {len(bundle.files)} files{inside}"


def _checked(bundle: Bundle, names: Sequence[str]) -> str:
    checked = [f"{', '.join(names)}: known operators, weights in this folder"] if names else []
    others = sorted({graph.format for graph in bundle.graphs.values()} - {"onnx"})
    return "; ".join(checked + [f"no check of {kind}, which only --trust opens" for kind in others])


def _parity_rows(bundle: Bundle, folder: Path) -> list[tuple[str, str]]:
    figures = stored_parity(folder)
    if figures is None:
        return [(AUTHOR, f"nothing of a verification: {PARITY_FILE} is not there")]
    where = ", in float32 before quantization" if "quantization" in bundle.provenance else ""
    if figures.get("settings", bundle.settings.to_dict()) != bundle.settings.to_dict():
        where += ", with other settings"
    text = f" of {on}" if (on := bundle.provenance.get("verified_on")) else ""
    passed = "verified" if figures["passed"] is True else "NOT verified"
    if bundle.purpose == RUN:
        return [(AUTHOR, f"{passed}, on {figures['steps']:,} steps{text}, {figures['segments']:,} carried segments")]
    difference = f"{figures['max_abs_log_prob_diff']:.2e} nats at most, {figures['delta_bits_per_token']:+.1e} bits"
    return [
        (AUTHOR, f"{passed}{where}, on {figures['tokens']:,} tokens{text}"),
        (AUTHOR, f"bundle minus model: {difference} per token on average"),
    ]


def bundle_object(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Return the manifest as one object, with its digest, its fingerprint, and the author's figures of verification."""
    figures = stored_parity(folder)
    if figures is not None:
        figures = {name: value for name, value in figures.items() if name != "per_segment"}
    return {
        **json.loads(bundle.to_json()),
        "digest": bundle.digest,
        "fingerprint": bundle.fingerprint,
        "parity": figures,
    }


def placement_of(model: Model | Translator | StepModel) -> tuple[Placement, dict[str, str]]:
    """Return where ONNX Runtime runs the nodes of each graph on this machine, and which kernels each graph uses."""
    purposes = list(model.bundle.graphs)
    return {name: model.placement(name) for name in purposes}, {name: model.kernels_used(name) for name in purposes}


def placement_rows(placement: Placement, kernels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names and values for a table, with operators if they do not all run on one provider."""
    rows = []
    for purpose, providers in placement.items():
        for provider, operators in providers.items():
            listed = ", ".join(_pairs(operators)) if len(providers) > 1 else ""
            rows.append((f"nodes of {purpose}", f"{sum(operators.values()):,} on {provider}{listed and ': ' + listed}"))
        rows.append((f"kernels of {purpose}", kernels[purpose]))
    return rows


def _tokenizer(bundle: Bundle, folder: Path) -> str:
    if bundle.tokenizer.kind == "vocabulary":
        tokenizer = make_tokenizer(bundle.tokenizer, folder)
        assert isinstance(tokenizer, VocabularyTokenizer)
        return describe_vocabulary(tokenizer.vocabulary)
    return f"{bundle.tokenizer.kind}, vocabulary {bundle.vocab_size:,}"


def checkpoint_rows(source: SourceCheckpoint, missing: MissingAnswerError | None = None) -> list[tuple[str, str]]:
    """Return names and values that describe a checkpoint, for a table.

    Rows `note` say what was chosen for the user or would be lost. Rows `needs` say what the user must give.

    Args:
        missing: the setting for which the source has placeholders.
    """
    description = description_of(source.architecture)
    config = {**source.config, **dict.fromkeys(missing.fields if missing else (), "?")}
    settings, fields = description.checkpoint_settings(config, source.needs), description.evaluation_fields
    hyper_parameters = {name: value for name, value in config.items() if name not in fields.values()}
    absent = {name: f"not in the checkpoint: give {spellings([name])}" for name in fields if settings[name] is None}
    return [
        ("checkpoint", f"{source.format}, {_architecture(source.architecture, config)}"),
        *_config_rows(hyper_parameters),
        ("parameters", f"{source.parameters:,}"),
        *([("vocabulary", _vocabulary(source.tokenizer, config["n_token"]))] if config["n_token"] else []),
        *((name, absent.get(name, str(settings[name]).lower())) for name in fields),
        *description.checkpoint(config, settings),
        *((path.name, f"{digest.size:,} bytes, SHA-256 {digest.sha256}") for path, digest in source.files.items()),
        *_statement_rows(source.about),
        *(("note", note) for note in source.notes),
        *(("needs", option) for option in _needs(source, missing)),
    ]


def _needs(source: SourceCheckpoint, missing: MissingAnswerError | None) -> Iterator[str]:
    """Yield what `convert` needs in addition to the checkpoint."""
    if missing is not None:
        problem = missing.message.partition(": ")[2].removesuffix(".")  # without the path, which the user has given
        yield f"{(missing.hint or '').removeprefix('Give ').removesuffix('.')}: {problem}"
    if source.needs:
        yield spellings(source.needs)
    if source.tokenizer is None:
        yield "--tokenizer FILE, or --tokenizer none for token ids only"


def checkpoint_object(source: SourceCheckpoint, missing: MissingAnswerError | None = None) -> dict[str, Any]:
    """Return the same as one object. What the checkpoint lacks is None; `needs` lists settings to give."""
    tokenizer = source.tokenizer
    if isinstance(tokenizer, Vocabulary):
        rules = {name: value for name, value in asdict(tokenizer).items() if name != "symbols"}
        tokenizer_object: Any = {**rules, "size": len(tokenizer)}
    elif isinstance(tokenizer, Path):
        tokenizer_object = tokenizer.name
    else:
        tokenizer_object = getattr(tokenizer, "kind", tokenizer)  # of a tokenizer's file that the checkpoint holds
    return {
        "format": source.format,
        "architecture": source.architecture,
        "config": {**source.config, **dict.fromkeys(missing.fields if missing else ())},
        "parameters": source.parameters,
        "about": dict(source.about),
        "tokenizer": tokenizer_object,
        "evaluation": description_of(source.architecture).checkpoint_settings(source.config, source.needs),
        "needs": [*source.needs, *(missing.placeholders if missing else ())],
        "notes": source.notes,
        "files": {path.name: asdict(digest) for path, digest in source.files.items()},
    }


def prepared_object(data: PreparedData) -> dict[str, Any]:
    """Return what a folder of `prepare` holds, as one object."""
    splits = {
        name: {"tokens": len(split), "documents": split.documents, "text_bytes": split.text_bytes}
        for name, split in data.splits.items()
    }
    return {"unit": data.unit, "vocabulary": data.n_token, "tokenizer": data.tokenizer["kind"], **splits}


def _prepared(value: Any) -> str:
    if isinstance(value, dict):
        tokens, documents = counted(value["tokens"], "token"), counted(value["documents"], "document")
        return f"{tokens} in {documents}, {value['text_bytes']:,} bytes"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _vocabulary(tokenizer: str | Vocabulary | TokenizerFile | Path | None, n_token: int) -> str:
    if isinstance(tokenizer, Vocabulary):
        if len(tokenizer) != n_token:
            return f"{len(tokenizer):,} symbols, but the model has {n_token:,} tokens: give its own with --tokenizer"
        return describe_vocabulary(tokenizer)
    if tokenizer is None:
        return f"not in the checkpoint: give that of its {n_token:,} tokens with --tokenizer"
    name = tokenizer.name if isinstance(tokenizer, Path) else getattr(tokenizer, "kind", tokenizer)
    return f"{name}, {n_token:,} tokens"


def _config_rows(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a configuration in lines that fit a terminal."""
    lines: list[str] = []
    for pair in _pairs(config):
        if lines and len(lines[-1]) + len(pair) < CONFIG_WIDTH:
            lines[-1] += f", {pair}"
        else:
            lines.append(pair)
    return [("config", line) for line in lines]


def _pairs(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield names with their values: booleans in lower case, as JSON and the options write them, and `none`."""
    for name, value in config.items():
        if isinstance(value, Mapping):  # which `description_of` shows
            continue
        yield f"{name} {str(value).lower() if isinstance(value, bool) or value is None else value}"


@click.command(cls=LongCommand)
@click.argument("path", type=MODEL)
@headed(
    "Output",
    json_option("the manifest of a bundle or the description of a checkpoint"),
    click.option("--verbose", is_flag=True, help="Also show a bundle's digests, versions and graph outputs."),
    click.option(
        "--operators",
        is_flag=True,
        help="Print only a bundle's operators, as --include_ops_by_config of a reduced ONNX Runtime reads them.",
    ),
)
@headed(
    "Device",
    click.option("--device", help="Also open the bundle on this device, and show the execution provider of its nodes."),
    provider_option,
    ops_option,
)
@headed("Checkpoint", checkpoint_options, trust_option)
def inspect(
    path: str,
    as_json: bool,
    verbose: bool,
    operators: bool,
    device: str | None,
    provider: str | None,
    provider_options: dict[str, str] | None,
    ops: str,
    reading: dict[str, Any],
    trust: bool,
) -> None:
    """Check the bundle or checkpoint at PATH, and show its contents.

    PATH may be any model that `convert` takes, or a folder of `prepare`.
    """
    from xlexport.model_names import load_source
    from xlruntime.bundle_files import is_bundle, read_bundle
    from xlruntime.hub_cache import bundle_folder
    from xltraining.data.token_shards import is_prepared, read_prepared

    opens, folder = device is not None or provider is not None, bundle_folder(path)
    of_device = {"--set ops": ops != "auto", "--set provider_options": provider_options}
    of_bundles = {"--operators": operators, "--verbose": verbose, "--device": device, "--set provider": provider}
    of_checkpoints = {**reading_given(reading), "--trust": trust}
    of_checkpoint = of_checkpoints, "for checkpoints, but PATH is a bundle. Leave {} out."
    refuse(*(of_checkpoint if is_bundle(folder) else (of_bundles, "for bundles, but PATH is none. Leave {} out.")))
    if operators:
        others = {"--json": as_json, **of_bundles, **of_device, "--operators": False}
        refuse(others, "not for --operators, which prints only operators. Leave {} out.")
    refuse({"--verbose": verbose and as_json}, "for the table; --json always shows everything. Leave {} out.")
    if not opens:
        refuse(of_device, "for bundles that run. Add --device.")
    if operators:
        model = open_any_bundle(path, ops="none")
        for domain, names in model.operators().items():
            version = model.bundle.requires.opset if domain == "ai.onnx" else 1
            click.echo(f"{domain};{version};{','.join(sorted(names))}")
        return
    if is_bundle(folder):
        manifest = read_bundle(folder)
        checked = check_graphs(folder, manifest)
        content = {**bundle_object(manifest, folder), "graphs_checked": checked}
        rows = [*bundle_rows(manifest, folder, verbose), ("graphs checked", _checked(manifest, checked))]
        if opens:
            place: dict[str, Any] = {"device": device or "cpu", "provider": provider}
            model = open_any_bundle(folder, **place, provider_options=provider_options, ops=ops, check_files=False)
            content["device"] = model.device.description
            content["placement"], content["kernels"] = placed = placement_of(model)
            rows += [("device", model.device.description), *placement_rows(*placed)]
    elif is_prepared(Path(path)):
        content = prepared_object(read_prepared(Path(path)))
        rows = [(name.replace("_", " "), _prepared(value)) for name, value in content.items()]
    else:
        try:
            source, missing = load_source(path, trust=trust, **reading), None
        except MissingAnswerError as error:
            config = {**(reading["config"] or {}), **error.placeholders}
            source, missing = load_source(path, **{**reading, "config": config}), error
        content, rows = checkpoint_object(source, missing), checkpoint_rows(source, missing)
    if as_json:
        print_json(content)
    else:
        print_table(rows)
