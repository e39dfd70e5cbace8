"""Run a kit with `xlruntime`: `python -m tests.conformance.run FOLDER`."""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from xlruntime import NonFiniteScoreWarning
from xlruntime.devices import Device
from xlruntime.kernels import find_kernels
from xlruntime.providers import import_onnxruntime

from .player import Player

WITHIN = 1e-4  # nats: other processors and versions of ONNX Runtime round otherwise
# Numbers in nats that a runtime computes; all others must be equal.
COMPUTED = {"log_probs", "entropy", "top_log_probs", "totals"}
SHOWN = 100  # characters of a value in a message


@dataclass
class Comparison:
    """Differences between expected and found values, and the largest one in nats.

    Attributes:
        within: allowed difference of log-probabilities and entropies, in nats.
        totals: allowed difference of totals, relative to the expected value; None: the same number.
        low_precision: whether the case states its own bounds, because roundings flip.
    """

    within: float
    totals: float | None = None
    low_precision: bool = False
    largest: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
        """Compare all fields that are expected; further ones may be found."""
        for name, value in expected.items():
            if name not in found:
                self.problems.append(f"{where}: {name} is missing")
            elif name == "outputs":
                for output, values in value.items():
                    self._outputs(values, found[name].get(output), f"{where}: {output}")
            elif name in COMPUTED:
                self._numbers(value, found[name], f"{where}: {name}", relative=name == "totals")
            elif name == "top_ids":
                self._likeliest(expected, found, f"{where}: {name}")
            elif value != found[name]:
                self.problems.append(f"{where}: {name} is {_short(found[name])}, expected {_short(value)}")

    def _outputs(self, expected: Any, found: Any, where: str) -> None:
        """Compare what a step model gives: floats relative to numbers above 1, others by equality."""
        pairs = list(zip(_flat(expected), _flat(found), strict=False))
        floats = any(isinstance(wanted, float) for wanted, _ in pairs)
        apart = [abs(a - b) / max(1.0, abs(a)) if floats else float(a != b) for a, b in pairs]
        if len(list(_flat(expected))) != len(list(_flat(found))) or not max(apart, default=0.0) <= self.within:
            self.problems.append(f"{where} is {_short(found)}, expected {_short(expected)}")
        elif floats:
            self.largest = max(self.largest, *apart)

    def _numbers(self, expected: Any, found: Any, where: str, relative: bool = False) -> None:
        wanted, given = list(_flat(expected)), list(_flat(found))
        if len(wanted) != len(given) or not all(map(_alike, wanted, given)):
            self.problems.append(f"{where} is {_short(found)}, expected {_short(expected)}")
            return
        pairs = [(a, b) for a, b in zip(wanted, given, strict=True) if isinstance(a, float | int)]
        differences = [abs(a - b) / (max(1.0, abs(a)) if relative else 1.0) for a, b in pairs]
        largest = math.inf if any(map(math.isnan, differences)) else max(differences, default=0.0)
        if not relative:
            self.largest = max(self.largest, largest)
        allowed = self.totals if relative and self.totals is not None else self.within
        if not largest <= allowed:
            self.problems.append(f"{where} differs by up to {largest:g}, allowed {allowed:g}")

    def _likeliest(self, expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
        """Compare lists of ids. Equally likely ones, up to rounding, may be in another order."""
        for place, (wanted, given) in enumerate(zip(expected["top_ids"], found["top_ids"], strict=True)):
            values = expected["top_log_probs"][place]
            for rank, (a, b) in enumerate(zip(wanted, given, strict=True)):
                near = [other for other in range(len(values)) if abs(values[other] - values[rank]) <= 2 * self.within]
                last = abs(values[-1] - values[rank]) <= 2 * self.within  # the next one is not in the list
                if a != b and not last and b not in [wanted[other] for other in near]:
                    self.problems.append(f"{where}: place {place} has {given}, expected {wanted}")
                    return


def _alike(a: Any, b: Any) -> bool:
    """Return whether both are numbers, or else equal."""
    return isinstance(b, float | int) if isinstance(a, float | int) else bool(a == b)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def run_case(
    kit: Path, name: str, within: float, states: Path | None = None, keep: Path | None = None, ops: str | Path = "auto"
) -> Comparison:
    """Play a case, and return how it differs from what the kit expects; an exception is a problem of the case.

    Args:
        within: allowed difference in nats; that of a case with low precision holds if it is wider.
        states: take saved states from this folder if they are there: those of another runtime.
        keep: copy states that streams of the case save to this folder, for another runtime.
        ops: kernels for the custom operators, as in `load`.
    """
    compared = Comparison(within)
    with tempfile.TemporaryDirectory() as work:
        where = name
        try:
            case = json.loads((kit / "cases" / f"{name}.json").read_text("utf-8"))
            if allowed := case.get("within"):
                compared = Comparison(max(within, allowed["nats"]), max(within, allowed["totals"]), low_precision=True)
            player = Player(kit, Path(work), states, ops)
            for number, action in enumerate(case["actions"]):
                where = f"{name}, action {number} ({action['do']})"
                if (values := player.attempt(action, where, compared.problems)) is not None:
                    compared.add(action["expect"], values, where)
                    if "keep" in action and keep is not None:
                        shutil.copyfile(player.state(action["as"]), keep / f"{action['keep']}.safetensors")
        except Exception as error:
            compared.problems.append(f"{where}: {type(error).__name__}: {error}")
    return compared


def main(arguments: list[str] | None = None) -> None:
    """Run a kit from the command line; the exit code is 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description="Run the conformance kit.")
    parser.add_argument("kit", type=Path, help="folder that `python -m tests.conformance.write` wrote")
    parser.add_argument("--within", type=float, default=WITHIN, help="allowed difference in nats (default: 1e-4)")
    parser.add_argument("--only", default="", help="run the cases with this text in their names")
    parser.add_argument("--states", type=Path, help="folder with states that another runtime has saved")
    parser.add_argument("--keep", type=Path, help="write saved states here, for another runtime")
    parser.add_argument(
        "--ops", default="auto", help="kernels: auto, none, or the path of a library (default: those of xlexport-ops)"
    )
    given = parser.parse_args(arguments)
    if not (given.kit / "kit.json").is_file():
        parser.error(f"{given.kit} has no kit.json; `python -m tests.conformance.write -o FOLDER` writes a kit")
    warnings.simplefilter("ignore", NonFiniteScoreWarning)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    names = [name for name in json.loads((given.kit / "kit.json").read_text("utf-8"))["cases"] if given.only in name]
    kernels = find_kernels(given.ops, Device("cpu"))
    failed, largest = 0, {False: 0.0, True: 0.0}  # by whether a case has low precision
    for name in names:
        found = run_case(given.kit, name, given.within, given.states, given.keep, given.ops)
        largest[found.low_precision] = max(largest[found.low_precision], found.largest)
        failed += bool(found.problems)
        print(f"{'failed' if found.problems else 'passed'}  {name}  {found.largest:.1e}")
        for problem in found.problems:
            print(f"    {problem}")
    versions = f"Python {platform.python_version()}, ONNX Runtime {import_onnxruntime().__version__}, "
    versions += f"NumPy {numpy.__version__}"
    print(f"runtime: {versions}", f"kernels: {kernels or 'none'}", sep="\n")
    print(
        f"{len(names) - failed} of {len(names)} cases passed; largest difference {largest[False]:.1e}, "
        f"with low precision {largest[True]:.1e}"
    )
    sys.exit(1 if failed or not names else 0)


if __name__ == "__main__":
    main()
