"""Assemble a page from a template, the style sheet, a script and packed blocks, all in one HTML file.

The scripts are ES modules, which import each other by name. `bundled` puts a script and all that it imports into one,
each module in a function of its own, so that a page needs no other file and Python users need no build step.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from xlexport.families import title_of
from xlexport.families.describe import stream_size
from xlruntime import Bundle, EvaluationSettings, __version__
from xlruntime.hub_cache import folder_name

__all__ = ["COLOUR_LEVELS", "WORD_CEILING", "bundle_note", "bundled", "ceilings", "page_pieces", "page_title"]

COLOUR_LEVELS = 16  # colours of a scale, those of page.css
LEAST_CEILING = 12  # bits at the end of the scale for tokens: the bits of a blind guess, but at least this many
WORD_CEILING = 32  # bits at the end of the scale for words, or the end of the tokens' scale if that is larger
PLAIN_NAMES = {"bundle", "model", "checkpoint", "out", "output"}  # names of folders that do not describe a model
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*?|class|const) (\w+))", re.MULTILINE)


def page_pieces(
    kind: Literal["document", "list", "live"],
    about: Mapping[str, Any],
    blocks: Iterable[tuple[str, str]] = (),
    *,
    policy: str = "",
) -> Iterator[str]:
    """Yield a page in pieces. Documents never become markup or script, because their text is in packed blocks.

    Args:
        kind: which page: of one document, of several, or the one on which somebody writes.
        about: the data that the script reads first; `title` is also the page's title.
        blocks: name and packed content of each block.
        policy: further rules of the content security policy, which permits nothing but the page's script and style.
    """
    name = "web" if kind == "live" else kind
    style, script = _file("page.css"), bundled(f"{name}.js")
    values = {
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        f"form-action 'none'{policy}",
        "kind": kind,
        "icon": '<link rel="icon" href="data:,">\n' if kind == "live" else "",  # a server is not asked for one
        "title": html.escape(about["title"]),
        "style": style,
        "script": script,
        "version": html.escape(__version__),
        "about": json.dumps(about).replace("<", "\\u003c"),
    }
    template = _file("page.html").replace("{{include body}}", _file(f"{name}.html"))
    template = re.sub(r"\{\{include ([\w.]+)\}\}", lambda match: _file(match[1]), template)
    before, _, after = template.partition("{{blocks}}")
    yield _filled(before, values)
    for block, packed in blocks:
        yield f'<script type="text/plain" id="{block}">{packed}</script>\n'
    yield _filled(after, values)


def bundled(entry: str) -> str:
    """Return a module and everything that it imports as one script, in which each module keeps its own names.

    Raises:
        ValueError: modules import each other in a circle, or a name that is not exported.
    """
    modules: dict[str, list[str] | None] = {}  # the names that each exports; None while its imports are read
    parts: list[str] = []

    def add(name: str) -> None:
        if name in modules:
            if modules[name] is None:
                raise ValueError(f"{name}: imports itself, by way of other modules.")
            return
        modules[name] = None
        source = _file(name)
        for imported in IMPORT.findall(source):
            add(imported[1])
            unknown = {one.strip() for one in imported[0].split(",")} - {"", *(modules[imported[1]] or ())}
            if unknown:
                raise ValueError(f"{name}: {imported[1]} does not export {', '.join(sorted(unknown))}.")
        modules[name] = exports = EXPORT.findall(source)
        body = IMPORT.sub(lambda match: f"const {{{match[1]}}} = {_variable(match[2])};\n", EXPORT.sub("", source))
        parts.append(f"const {_variable(name)} = (() => {{\n{body}return {{ {', '.join(exports)} }};\n}})();\n")

    add(entry)
    return "".join(parts)


def _variable(module: str) -> str:
    """Return the name of the object that has what a module exports."""
    return f"${module.removesuffix('.js')}"


def page_title(name: str) -> str:
    """Return a name as a title that UTF-8 can hold, because the name of a file may hold any bytes."""
    return name.encode("utf-8", "replace").decode()


def bundle_note(bundle: Bundle, folder: Path, settings: EvaluationSettings) -> str:
    """Return a sentence about the model in `folder` and its memory: architecture, sizes, and a telling name."""
    layers = bundle.config.get("n_layer") or len(bundle.config.get("attn_layers", ()))
    name = folder_name(folder.resolve())
    parts = [
        title_of(bundle.architecture, bundle.config),
        *([f"{layers} layers of {bundle.config['d_model']:,}"] if layers and "d_model" in bundle.config else []),
        f"vocabulary of {bundle.vocab_size:,}",
        bundle.precision,
        *([] if name.removesuffix(".bundle").lower() in PLAIN_NAMES else [name]),
    ]
    if settings.full_document:
        return f"{', '.join(parts)}; the whole document in one step."
    memory = f"memory {settings.most_rows:,}" if bundle.evaluation.rings else f"state of {stream_size(bundle)}"
    return f"{', '.join(parts)}; segments of {settings.segment_len:,}, {memory}."


def ceilings(vocab_size: int) -> dict[str, int]:
    """Return the bits at the ends of the scales, by what the text is coloured by."""
    uniform = math.ceil(math.log2(vocab_size))  # bits of a blind guess, which is the largest possible entropy
    token = max(LEAST_CEILING, uniform)
    return {"token": token, "word": max(WORD_CEILING, token), "entropy": max(1, uniform)}


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its {{names}} replaced in one pass; names in inserted values are not replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _file(name: str) -> str:
    return files("xlexport.page").joinpath(name).read_text("utf-8")


def _digest(content: str) -> str:
    """Return the digest by which a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
