"""Files of plots: checked before any measurement, and written completely or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xlexport import atomic_output
from xlexport.errors import XlexportError
from xlexport.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_picture", "plain", "save_picture"]

SUFFIXES = (".png", ".svg")


def check_picture(path: Path) -> None:
    """Raise an error if a plot cannot be written to a file.

    Raises:
        XlexportError: the file is neither .png nor .svg.
        MissingDependencyError: matplotlib is not installed.
        OutputFolderError: the folder of the file does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise XlexportError(f"{path}: a plot is a .png or .svg file.", hint="End the name of the file in .png or .svg.")
    require("plot")
    atomic_output.check_folder(path)
    if path.is_dir():
        raise XlexportError(f"{path}: is a folder, expected a file for the plot.", hint="Give another name.")


def plain(name: str) -> str:
    """Escape a name so that matplotlib shows it unchanged.

    Matplotlib reads dollars as formulas, and hides labels that begin with `_`.
    """
    text = name.encode("utf-8", "replace").decode().replace("$", r"\$")  # names of files may be any bytes
    return f" {text}" if text.startswith("_") else text


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the ending of its name says.

    Raises:
        OSError: the file cannot be written; an older file stays unchanged.
    """
    with atomic_output.file(path) as temporary, atomic_output.writing(path):
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
