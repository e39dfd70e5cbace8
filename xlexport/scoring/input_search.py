"""Find the inputs that arguments name: files, folders, patterns, addresses of object stores and standard input."""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from xlexport.extras import require
from xlexport.scoring.inputs import Input, Reading, nothing_in
from xlexport.scoring.stores import inputs_at
from xlruntime import OptionError, TextError
from xlruntime.bundle import MANIFEST
from xlruntime.messages import counted, listed

__all__ = ["find_inputs"]

STDIN = "standard input"
ROWS = (
    *(f"*{ending}{packed}" for ending in (".jsonl", ".ndjson", ".csv", ".tsv") for packed in ("", ".gz")),
    "*.parquet",
)


def find_inputs(
    arguments: Sequence[Path | str],
    include: Sequence[str],
    reading: Reading | None,
    leave_out: Sequence[Path],
    tell: Callable[[str], None],
) -> list[Input]:
    """Return the inputs that arguments name, in the same order, with the files in folders and the matches of patterns.

    Args:
        arguments: paths, or addresses of object stores as text.
        include: patterns of file names; other files in a folder are left out.
        reading: how inputs become documents; None: each is one text, also tables.
        leave_out: files that are being written; they are never taken from folders or patterns.
        tell: called with a line that says which files of a folder are taken.

    Raises:
        OptionError: no argument is a folder or a pattern, in which `include` would select files.
        TextError: no input is found, or a folder is a bundle and no pattern selects files in it.
    """
    patterns = include or (ROWS if reading is not None and reading.field is not None else ())
    named = _named(patterns)
    inputs: list[Input] = []
    unwanted = {os.path.realpath(path) for path in leave_out}
    for argument in arguments:
        name = str(argument)
        if name == "-":
            inputs.append(Input(STDIN, None))
        elif isinstance(argument, str) and "://" in argument:
            require(None, "pyarrow", "fsspec")
            inputs += inputs_at(argument, patterns)
        elif os.path.isdir(argument):
            if not patterns and os.path.isfile(Path(argument, MANIFEST)):
                hint = "Give texts." if reading is None else "BUNDLE comes first, then the documents."
                raise TextError(f"{name}: a bundle, not a folder of texts.", hint=hint)
            inputs += _in_folder(Path(argument), patterns, unwanted, tell)
        elif glob.has_magic(name) and not os.path.exists(argument):
            inputs += _matching(name, patterns, unwanted, tell)
        else:
            inputs.append(Input(name, Path(argument)))
    if include and not any(os.path.isdir(path) or glob.has_magic(str(path)) for path in arguments):
        raise OptionError(
            "--include selects files in folders and patterns, and FILES has neither.", hint="Leave it out."
        )
    tables = [entry.name for entry in inputs if entry.row_format != "json"]
    if tables and reading is not None and reading.field is None and not reading.ids:
        tell(f"{listed(tables)}: read as text. For a document in each row, name its column with --field.")
    if not inputs:
        hint = "Check the paths" + (", or select other files with --include." if reading is not None else ".")
        raise nothing_in([str(argument) for argument in arguments], f"files{named}", hint)
    return inputs


def _named(patterns: Sequence[str]) -> str:
    return f" named {' or '.join(patterns)}" if patterns else ""


def _matching(pattern: str, patterns: Sequence[str], unwanted: set[str], tell: Callable[[str], None]) -> list[Input]:
    """Return the matches of a pattern of paths, without links after its first wildcard."""
    inputs: list[Input] = []
    folders: set[Path] = set()
    links = 0
    named = len(list(itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)))
    for match in sorted(glob.glob(pattern, recursive=True)) or [pattern]:
        path = Path(match)
        if not folders.isdisjoint(path.parents):
            continue  # '**' matches folders and also their content, which is taken with the folder
        if any(part.is_symlink() for part in (path, *path.parents) if len(part.parts) > named):
            links += 1
        elif os.path.isdir(path):
            folders.add(path)
            inputs += _in_folder(path, patterns, unwanted, tell)
        elif os.path.realpath(path) not in unwanted:
            inputs.append(Input(match, path))
    if links:
        tell(f"{pattern}: without {counted(links, 'link')}")
    return inputs


def _in_folder(folder: Path, patterns: Sequence[str], unwanted: set[str], tell: Callable[[str], None]) -> list[Input]:
    paths: list[Path] = []
    hidden = others = bundles = links = 0
    closed: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=closed.append):
        if not patterns and MANIFEST in files:
            bundles, folders[:] = bundles + 1, []
            continue
        hidden += sum(name.startswith(".") for name in folders)
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += sum(os.path.islink(os.path.join(here, name)) for name in folders)  # `walk` does not follow them
        for name in files:
            path = Path(here, name)
            if name.startswith("."):
                hidden += 1
            elif path.is_symlink():  # it may lead to any file, so a link is followed only if it is an argument itself
                links += 1
            elif os.path.realpath(path) in unwanted or not os.path.isfile(path):
                continue
            elif patterns and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                others += 1
            else:
                paths.append(path)
    counts = (
        *((others, counted(others, "other")), (bundles, counted(bundles, "bundle"))),
        *((links, counted(links, "link")), (hidden, f"{hidden:,} hidden")),
    )
    left_out = " and ".join(what for n, what in counts if n)
    tell(f"{folder}: {counted(len(paths), 'file')}{_named(patterns)}{f', without {left_out}' if left_out else ''}")
    paths += [Path(error.filename) for error in closed]  # reading these fails, and `score` reports it
    return [Input(str(path), path) for path in sorted(paths, key=lambda path: path.parts)]
