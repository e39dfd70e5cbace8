"""Assemble a page from a template, style sheets, scripts and packed blocks, all in one HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from xlexport import __version__

__all__ = ["LEVELS", "page_pieces", "page_title"]

SHARED = "xlexport.report"  # the package whose assets all pages share
LEVELS = 16  # colours of a scale, those of colours.css


def page_pieces(
    template: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    about: Mapping[str, Any],
    blocks: Iterable[tuple[str, str]],
    *,
    package: str = SHARED,
    policy: str = "",
) -> Iterator[str]:
    """Yield a page in pieces. Documents never become markup or script, because their text is in packed blocks.

    Args:
        template: name of a file in `assets`, which begins with `<body>`; `head.html` comes before it.
        styles, scripts: names of files in `assets`; the scripts are the parts of one module, in this order.
        about: the data that the script reads first; `title` is also the page's title.
        blocks: name and packed content of each block.
        package: a package whose `assets` have further files.
        policy: further rules of the content security policy, which permits nothing but the page's script and style.
    """
    style, script = ("".join(_file(name, package) for name in names) for names in (styles, scripts))
    values = {
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        f"form-action 'none'{policy}",
        "title": html.escape(about["title"]),
        "style": style,
        "script": script,
        "version": html.escape(__version__),
        "about": json.dumps(about).replace("<", "\\u003c"),
    }
    before, _, after = (_file("head.html") + _file(template, package)).partition("{{blocks}}")
    yield _filled(before, values)
    for name, packed in blocks:
        yield f'<script type="text/plain" id="{name}">{packed}</script>\n'
    yield _filled(after, values)


def page_title(name: str) -> str:
    """Return a name as a title that UTF-8 can hold, because the name of a file may hold any bytes."""
    return name.encode("utf-8", "replace").decode()


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its {{names}} replaced in one pass; names in inserted values are not replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _file(name: str, package: str = SHARED) -> str:
    """Return a file of `assets`, of `package` if that has it, with the files that it includes."""
    own = files(package).joinpath("assets", name)
    source = own if own.is_file() else files(SHARED).joinpath("assets", name)
    return re.sub(r"\{\{include ([\w.]+)\}\}", lambda match: _file(match[1], package), source.read_text("utf-8"))


def _digest(content: str) -> str:
    """Return the digest by which a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
