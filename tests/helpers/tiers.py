"""The tiers of tests: what a run leaves out, and which tests and parameters belong to a later tier.

`pytest` runs the first tier, `pytest -m full` the second and `pytest -m native` the third. `pytest -m release` runs
before a release: it has every configuration, of which the second tier has one of each kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

QUICK = "not full and not native and not long"  # the first tier
CONVERSIONS = {"ids_bundle", "fixed_bundle", "band", "chunk", "paper", "heavy", "scanned", "rounded"}  # slow fixtures


def pytest_configure(config: pytest.Config) -> None:
    """Run the first tier unless the command line says `-m`."""
    config.option.markexpr = config.option.markexpr or QUICK


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with slow fixtures as `full`; leave those marked `release` out unless `-m` names them.

    Those of `convert` come first: few workers then wait for bundles.
    """
    if "release" not in config.option.markexpr:
        later = {item for item in items if item.get_closest_marker("release")}
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]
    for item in items:
        names = list(getattr(item, "fixturenames", ()))
        if "request" in names and (case := getattr(item, "callspec", None)):  # it may ask for them by name
            names += map(str, case.params.values())
        if CONVERSIONS.intersection(names) and not {"long", "native"}.intersection(
            one.name for one in item.iter_markers()
        ):
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: not item.nodeid.startswith("tests/conversion/"))


def thinned(
    values: Iterable[Any], default: Collection[Any], rest: pytest.MarkDecorator = pytest.mark.full
) -> list[Any]:
    """Return the values as parameters; those outside `default` have the mark `rest`, which names a later tier."""
    found = list(values)
    assert all(value in found for value in default), (found, default)
    return [value if value in default else pytest.param(value, marks=rest) for value in found]
