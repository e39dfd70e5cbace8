"""Read the documents of commands other than `score` in the same way as `score`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.commands.input_options import Selection
from xlexport.terminal import tell
from xlruntime.limits import Limits

if TYPE_CHECKING:
    from xlruntime import Document

__all__ = ["documents_given", "only_document_given"]

ALL_LIMITS = Limits(operations=1 << 40, seconds=math.inf)  # of all JSON lines that are held in memory
DOCUMENT_COST, ID_COST = 2000, 40  # bytes of memory for a document, and for a token id in a list


def documents_given(files: Sequence[Path], selection: Selection) -> list[Document]:
    """Return the documents in files, folders, patterns and standard input; only JSON lines are opened already.

    Raises:
        TextError: no document is found, or lines exceed the limits. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.documents import documents
    from xlexport.scoring.inputs import find_inputs, nothing_in
    from xlruntime import TextError

    reading = selection.reading
    inputs = find_inputs(files, selection.include, reading, [], tell)
    budget = ALL_LIMITS.budget("all documents together", TextError)
    collection = []
    for document in documents(inputs, reading, sys.stdin.buffer, keep=False):
        source: Any = document.source
        budget.charge(
            DOCUMENT_COST + (ID_COST * len(source) if isinstance(source, list) else getattr(source, "held", 0))
        )
        collection.append(document)
    if not collection:
        raise nothing_in([entry.name for entry in inputs], "lines that are not blank")
    return collection


def only_document_given(file: Path, selection: Selection) -> Document:
    """Return the only document of a file, a folder, a pattern or standard input, still unopened.

    Raises:
        TextError: there are several documents, or none. OSError: JSON lines cannot be read.
    """
    from xlexport.scoring.documents import only_document
    from xlexport.scoring.inputs import find_inputs

    reading = selection.reading
    return only_document(find_inputs([file], selection.include, reading, [], tell), reading, sys.stdin.buffer)
