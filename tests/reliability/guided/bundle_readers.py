"""Targets: `bundle.json` and its evaluation settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.paths import GOLDEN
from tests.reliability.guided.target import BrokenPromiseError, Target
from xlexport.commands.inspect import bundle_rows
from xlruntime.bundle import FIRST_MEMORY_FILE, MANIFEST, Bundle
from xlruntime.errors import BundleError, OptionError
from xlruntime.evaluation import EvaluationRules
from xlruntime.json_fields import read_fields
from xlruntime.limits import Limits, parse_json
from xlruntime.messages import first_line

__all__ = ["Evaluation", "Manifest"]


class Manifest(Target):
    """`bundle.json`, without a digest of itself."""

    errors = (BundleError,)
    longest = 8192
    words = tuple(
        b"""
        "shape" "batch" "layout" "ring" "window" "state" "first_value" "dtype" "float32" "files" "sha256"
        "document" "rings" "settings" "slots" "tokenizer" "feed" "offset"
        """.split()
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def seeds(self) -> Iterable[bytes]:
        for file in sorted(GOLDEN.glob(f"*/bundle/{MANIFEST}")):
            fields = json.loads(file.read_text("utf-8"))
            fields["provenance"] = {"sources": {}, "versions": {}}
            graphs = {name: fields["graphs"][name] for name in ("score", "positions") if name in fields["graphs"]}
            used = (FIRST_MEMORY_FILE, *(graph["file"] for graph in graphs.values()))
            files = {name: digest for name, digest in fields["files"].items() if name in used}
            few = {**fields, "graphs": graphs, "files": files}
            yield json.dumps(few).encode()

    def read(self, raw: bytes) -> object:
        bundle = Bundle.from_json(raw, MANIFEST)
        written = bundle.to_json()
        if Bundle.from_json(written, MANIFEST).fingerprint != bundle.fingerprint:
            raise BrokenPromiseError("a manifest changes when it is written again")
        return bundle.settings.capacity(), bundle_rows(bundle, self._folder)


@dataclass(frozen=True)
class _Choice:
    """The rules that a bundle declares, and the choices of a caller or a saved stream."""

    rules: EvaluationRules
    chosen: Mapping[str, int | bool]


class Evaluation(Target):
    """Evaluation settings: the rules of a bundle and a choice among them."""

    errors = (BundleError, OptionError)
    words = tuple(
        b"""
        "rules" "chosen" "mem_len" "minimum" "maximum" "off" "value" "slots" "window" "window_if"
        "rows" "same_length" "segment_len" "restart" "full_document" "bidirectional"
        """.split()
    )

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        for file in sorted(GOLDEN.glob(f"*/bundle/{MANIFEST}")):
            fields = json.loads(file.read_text("utf-8"))
            document = {name: value for name, value in fields["document"].items() if name != "encoder"}
            rules = {**document, "settings": fields["settings"], "rings": fields["rings"]}
            chosen = {name: setting["value"] for name, setting in rules["settings"].items()}
            yield json.dumps({"rules": rules, "chosen": {**chosen, "segment_len": 3}}).encode()

    def read(self, raw: bytes) -> object:
        value = parse_json(raw, Limits(bytes=1 << 20).budget("rules", BundleError))
        try:
            choice = read_fields(_Choice, value)
            settings = choice.rules.choose(**choice.chosen)
        except OptionError:
            raise
        except (TypeError, ValueError) as error:  # the errors that callers expect
            raise BundleError(f"rules: {first_line(error)}.") from error
        for rules in (choice.rules.adopt(settings), choice.rules):
            if rules.choose(**settings.to_dict()).to_dict() != settings.to_dict():
                raise BrokenPromiseError("a choice changes when it is chosen again")
        rings = choice.rules.rings
        return (
            settings.widest_window,
            [(settings.rows(ring), settings.slots(ring)) for ring in rings],
            settings.longest_part,
            settings.longest_document,
        )
