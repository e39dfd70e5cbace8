"""The three runtimes judge changed manifests alike, but for the rules that only Python names."""

from __future__ import annotations

import json
import re

import pytest

from tests.conformance.actions import MANIFEST
from tests.conformance.changed_manifests import PYTHON_ALONE, TAKEN, changed_manifests, python_verdict, reader
from tests.conformance.refusals import BASE
from tests.helpers.paths import golden_bundle
from tests.web_site.javascript import needs_node

RUNTIMES = [pytest.param("c"), pytest.param("js", marks=needs_node)]
ALONE = re.compile("|".join(f"(?:{said})" for _, said in PYTHON_ALONE.values()))


@pytest.mark.native
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_only_python_names_its_rules(runtime: str) -> None:
    with reader(runtime) as ask:
        for name, (change, said) in PYTHON_ALONE.items():
            manifest = json.loads((golden_bundle(BASE) / MANIFEST).read_text("utf-8"))
            assert ask(json.dumps(manifest)) == TAKEN
            change(manifest)
            text = json.dumps(manifest)
            assert re.search(said, python_verdict(text)), name
            assert ask(text) == TAKEN, name


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("every", [pytest.param(20, marks=pytest.mark.native), pytest.param(1, marks=pytest.mark.long)])
def test_changed_manifests_are_judged_alike(every: int, runtime: str) -> None:
    different, taken = [], 0
    with reader(runtime) as ask:
        for kind, text in changed_manifests(every):
            own, other = python_verdict(text), ask(text)
            taken += own == TAKEN
            if (own == TAKEN) != (other == TAKEN) and not (other == TAKEN and _is_alone(own)):
                different.append(f"{kind}\n    Python: {own}\n    {runtime}: {other}")
    assert different == [], "\n".join(different[:20])
    assert taken * every > 1000


def _is_alone(said: str) -> bool:
    """Return whether all problems of a message break rules that only Python names."""
    return bool(PYTHON_ALONE) and all(map(ALONE.search, said.split("; ")))
