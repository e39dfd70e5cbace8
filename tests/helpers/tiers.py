"""The tiers of tests: what a run leaves out, and which tests and parameters belong to a later tier.

`pytest` runs the first tier, `pytest -m full` the second and `pytest -m native` the third. Of the cases of a test
function, the second tier tries `CASES`, spread over their list. Its mark may say otherwise: `full(cases=1)`, or
`full(every=True)`.
Before a release, `pytest -m 'full or release'` runs all cases, and what costs most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pytest

QUICK = "not full and not native and not long"  # the first tier
CASES = 2  # of a test function, in the second tier
CONVERSIONS = {"ids_bundle", "fixed_bundle", "band", "chunk", "paper", "heavy", "scanned", "rounded"}  # slow fixtures


def pytest_configure(config: pytest.Config) -> None:
    """Run the first tier unless the command line says `-m`."""
    config.option.markexpr = config.option.markexpr or QUICK


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with slow fixtures as `full`, and leave those of releases out unless `-m` names them.

    Those of `convert` come first: few workers then wait for bundles.
    """
    for item in items:
        names = list(getattr(item, "fixturenames", ()))
        if "request" in names and (case := getattr(item, "callspec", None)):  # it may ask for them by name
            names += map(str, case.params.values())
        if CONVERSIONS.intersection(names) and not {"long", "native"}.intersection(
            one.name for one in item.iter_markers()
        ):
            item.add_marker(pytest.mark.full)
    if "release" not in config.option.markexpr:
        later = {item for item in items if item.get_closest_marker("release")}
        later.update(_cases_of_releases(item for item in items if item not in later))
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]
    items.sort(key=lambda item: not item.nodeid.startswith("tests/conversion/"))


def _cases_of_releases(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases of the second tier's functions that it does not try."""
    functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full"):
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        mark = cases[0].get_closest_marker("full")
        assert mark is not None
        number = len(cases) if mark.kwargs.get("every") else min(mark.kwargs.get("cases", CASES), len(cases))
        tried = {cases[round(n * (len(cases) - 1) / max(1, number - 1))].nodeid for n in range(number)}
        yield from (case for case in cases if case.nodeid not in tried)


def thinned(
    values: Iterable[Any], default: Collection[Any], rest: pytest.MarkDecorator = pytest.mark.full
) -> list[Any]:
    """Return the values as parameters; those outside `default` have the mark `rest`, which names a later tier."""
    found = list(values)
    assert all(value in found for value in default), (found, default)
    return [value if value in default else pytest.param(value, marks=rest) for value in found]
