"""Change good manifests, and ask the runtimes about each: all refuse it with `bundle_format`, or all take it.

Each field of the golden manifests is dropped, and replaced by each of `VALUES`. Rules of which only Python knows are in
`refusals.PYTHON_ALONE`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from tests.conformance.actions import MANIFEST
from tests.helpers.c_library import build_c_runtime
from tests.helpers.paths import GOLDEN, ROOT
from tests.web_site.javascript import build
from xlruntime.bundle import Bundle
from xlruntime.errors import BundleFormatError

MARK = "MARK"  # the value in whose place another one is written
VALUES = (
    *("null", "true", "false", "0", "-0", "1", "-1", "2", "2147483647", "2147483648", "4611686018427387904"),
    *("18446744073709551616", "0.5", "1.0", '""', '"batch"', '"score"', "[]", "{}", "[1]"),
)
NAMED = {"domains", "settings", "rings", "graphs", "inputs", "outputs", "fixed", "steps", "meaning", "files"}
FREE = {"config", "provenance"}  # objects in which anything may be
TAKEN = "taken"


def changed_manifests(every: int) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text, which is one line, of every so many changes of the golden manifests."""
    return islice(_changes(), 0, None, every)


def python_verdict(text: str) -> str:
    """Return `taken`, or the message of Python's refusal."""
    try:
        Bundle.from_json(text, MANIFEST)
    except BundleFormatError as error:
        return error.message.removesuffix(".")
    return TAKEN


@contextmanager
def reader(runtime: str) -> Iterator[Callable[[str], str]]:
    """Start a process that reads manifests; the value asks it about one, and returns `taken` or its refusal.

    Args:
        runtime: `c` or `js`.
    """
    if runtime == "js":
        build()
        command = ["node", "runtime/js/conformance/read_manifests.mjs"]
    else:
        command = [f"{build_c_runtime(targets=('read_manifests',))}/read_manifests"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(text: str) -> str:
            assert process.stdin is not None and process.stdout is not None
            print(text, file=process.stdin, flush=True)
            return process.stdout.readline().rstrip("\n")

        yield ask
    assert process.returncode == 0, runtime


def _changes() -> Iterator[tuple[str, str]]:
    for file in sorted(GOLDEN.glob(f"*/bundle/{MANIFEST}")):
        root = json.loads(file.read_text("utf-8"))
        for kind, parent, key in list(_places(root, "")):
            value, parent[key] = parent[key], MARK
            text = json.dumps(root)
            for other in VALUES:
                yield f"{kind} = {other}", text.replace(f'"{MARK}"', other)
            del parent[key]
            yield f"{kind} dropped", json.dumps(root)
            if isinstance(parent, list):
                parent.insert(key, value)
            else:
                parent[key] = value


def _places(part: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the kind of each place of a value, its container, and the key."""
    is_list, is_named = isinstance(part, list), where.rpartition(".")[2] in NAMED | FREE
    for key, value in enumerate(part) if is_list else part.items():
        place = f"{where}[]" if is_list else f"{where}.{'*' if is_named else key}".lstrip(".")
        yield place, part, key
        if isinstance(value, dict | list) and key not in FREE:
            yield from _places(value, place)
