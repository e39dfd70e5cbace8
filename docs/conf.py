"""Settings of the documentation site, which `scripts/docs` builds with Sphinx from the repository's Markdown files.

The source folder is the repository itself: so links between `docs/`, `README.md` and `samples/` are checked in the form
in which they also work in a checkout.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "runtime" / "python"), str(ROOT / "training")]

from xlruntime import __version__ as release  # noqa: E402

project = "xlexport"
author = "The xlexport authors"
project_copyright = "The xlexport authors, Apache-2.0"
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/reference/*.md",
    "samples/*.md",
    "tests/conformance/*.md",
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

# A heading of up to four levels can be linked to, by the anchor that code hosts give it.
myst_heading_anchors = 4
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    # what every module of PyTorch and every exception has is documented elsewhere
    "inherited-members": "Module",
    "exclude-members": "add_note,with_traceback,errno,filename,filename2,strerror,characters_written",
}
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"xlexport {release}"
html_static_path = ["theme"]
templates_path = ["templates"]  # relative to this file
html_js_files = ["site.js"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = True

# Pages of earlier versions, and where their text stands now.
MOVED = {
    "docs/glossary": "docs/index#glossary",
    "docs/coming_from_gpt2": "docs/start_reading_experiments#coming-from-gpt-2-and-minicons",
    "docs/start_embedding": "docs/api#embed-a-model",
    "docs/training_words": "docs/start_training#training-with-vocabularies-settings-and-several-devices",
    "docs/encodings": "docs/start_training#encodings-losses-and-regularisation",
    "docs/runtimes": "docs/start_without_python#three-runtimes",
    "docs/start_scoring": "docs/scoring#score-texts",
    "docs/how_large": "docs/corpus#how-large-can-it-get",
    "docs/evaluating": "docs/protocols#lm-evaluation-harness",
    "docs/web": "docs/report#a-page-to-write-on-xlexport-web",
    "docs/native": "docs/hardware#kernels-faster-steps-on-a-cpu",
    "docs/providers": "docs/hardware#execution-providers-which-hardware-runs-the-graphs",
    "docs/cuda": "docs/hardware#cuda-running-bundles-on-a-gpu",
    "docs/duplication": "docs/papers#the-duplication-task",
    "docs/reformer_experiments": "docs/papers#reformer-kitaev-et-al-2020",
    "experiments/README": "docs/papers#experiments",
    "docs/translating": "docs/papers#translate-with-encoder-decoders",
    "docs/images": "docs/papers#images",
    "docs/signing": "docs/ship#signing-a-bundle",
    "docs/platforms": "tests/conformance/README#platforms-where-bundles-run",
    "docs/vocabularies": "docs/checkpoints#vocabularies",
    "docs/gate_orders": "docs/own_models#gate-orders-and-other-peoples-files",
    "docs/custom_ops": "docs/bundle_format#custom-operators-domain-aixlexport-version-1",
    "docs/verification": "docs/start_converting#what-equal-means-xlexport-verify",
    "docs/bench": "BENCHMARKS#measuring-speed-xlexport-bench",
    "RELIABILITY": "SECURITY#what-was-tried-to-break-it",
    "samples/train_sample/README": "samples/README#how-the-sample-checkpoints-were-trained",
    "docs/changes_for_you": "docs/troubleshooting#what-changed-for-you",
}

# Classes of `xlruntime` that users make; all others come from functions, so the reference hides how they are made.
MADE = ("Document", "GrowingText", "LoadOptions", "Random", "Sampling", "SearchOptions")
UNNAMED = re.compile(r"^```\n((?:.+\n)*?)(?=```$)", re.M)
COMMAND = re.compile(r"(xlexport|pip|python|npm|node|cmake|git|cd|hf) ")
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=\))")
EMPTY_HEADER = re.compile(r'<th class="head"><p></p></th>')
MARKDOWN_CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)(?=(\w?))")


def link_folders_to_their_page(app: Any, docname: str, source: list[str]) -> None:
    """Link a folder's `README.md` if a page links the folder, which a code host shows in the same way."""
    folder = ROOT / Path(docname).parent

    def linked(match: re.Match[str]) -> str:
        page = folder / match[1] / "README.md"
        return f"{match[1].rstrip('/')}/README.md" if page.is_file() else match[1]

    source[0] = LINK.sub(linked, source[0])


def read_markdown_code(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn the code of Markdown, which docstrings have, into that of reStructuredText."""
    text = "\n".join(lines)
    lines[:] = MARKDOWN_CODE.sub(lambda code: f"``{code[1]}``" + ("\\ " if code[2] else ""), text).splitlines()


def name_languages(app: Any, docname: str, source: list[str]) -> None:
    """Colour blocks of commands, and of commands with their output, which a code host does without a name."""

    def named(block: re.Match[str]) -> str:
        kind = "console" if block[1].startswith("$ ") else "bash" if COMMAND.match(block[1]) else ""
        return f"```{kind}\n{block[1]}"

    source[0] = UNNAMED.sub(named, source[0])


def hide_constructor(app: Any, what: str, name: str, thing: Any, options: Any, *signature: Any) -> Any:
    """Leave out how a class is made that users never make."""
    package, _, own = name.rpartition(".")
    hidden = what == "exception" or (what == "class" and package.startswith("xlruntime") and own not in MADE)
    return ("", None) if hidden and signature[0] is not None else None


def list_commands(app: Any, docname: str, source: list[str]) -> None:
    """Add the help and the settings of all commands to their page."""
    if docname != "docs/reference/commands":
        return
    from click.testing import CliRunner

    from xlexport.commands import COMMANDS, cli

    for name in COMMANDS:
        source[0] += f"\n## `{name}`\n"
        for flag in ("--help", "--help-settings"):
            shown = CliRunner(env={"COLUMNS": "80"}).invoke(cli, [name, flag], prog_name="xlexport")
            if shown.exit_code == 0:  # some commands have no settings
                source[0] += f"\n```\n$ xlexport {name} {flag}\n{shown.output}```\n"


def name_for_screen_readers(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the lists of pages the level that their headings lack, and empty corners of tables no header."""
    level = 'role="heading" aria-level="2"'
    context["furo_navigation_tree"] = context["furo_navigation_tree"].replace('role="heading"', level)
    context["body"] = EMPTY_HEADER.sub("<td></td>", context.get("body", ""))


def write_redirects(app: Any, error: Exception | None) -> None:
    """Lead from pages of earlier versions to their text."""
    if error is not None or app.builder.name != "html":
        return
    for old, new in MOVED.items():
        page, _, anchor = new.partition("#")
        file = Path(app.outdir) / f"{old}.html"
        target = f"{os.path.relpath(Path(app.outdir) / page, file.parent)}.html#{anchor}"
        file.parent.mkdir(parents=True, exist_ok=True)
        leave = f'<meta http-equiv="refresh" content="0; url={target}">'
        file.write_text(f'<!doctype html><html lang="en">{leave}<title>xlexport</title>')


def setup(app: Any) -> None:
    """Connect these functions."""
    app.connect("source-read", list_commands)
    app.connect("source-read", link_folders_to_their_page)
    app.connect("html-page-context", name_for_screen_readers, priority=600)  # after the theme
    app.connect("build-finished", write_redirects)
    app.connect("source-read", name_languages)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-process-docstring", read_markdown_code, priority=400)
