"""Run a kit with `xlruntime`: `python -m conformance.run FOLDER`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from xlruntime import NonFiniteScoreWarning, XlruntimeError

from .compare import Comparison
from .player import Player

__all__ = ["main", "run_case"]

WITHIN = 1e-4  # nats: other processors and versions of ONNX Runtime round otherwise


def run_case(kit: Path, name: str, within: float, states: Path | None = None, keep: Path | None = None) -> Comparison:
    """Play a case, and return how it differs from what the kit expects.

    Args:
        states: take saved states from this folder if they are there: those of another runtime.
        keep: copy states that streams of the case save to this folder, for another runtime.
    """
    case = json.loads((kit / "cases" / f"{name}.json").read_text("utf-8"))
    compared = Comparison(within)
    with tempfile.TemporaryDirectory() as work:
        player = Player(kit, Path(work), states)
        for number, action in enumerate(case["actions"]):
            where = f"{name}, action {number} ({action['do']})"
            wanted = action.get("error")
            try:
                found = player.play(action)
            except XlruntimeError as error:
                if wanted is None or type(error).__name__ != wanted["class"] or wanted["says"] not in str(error):
                    compared.problems.append(f"{where}: {type(error).__name__}: {error}; expected {wanted}")
                continue
            if wanted is not None:
                compared.problems.append(f"{where}: nothing was refused, expected {wanted}")
                continue
            compared.add(action["expect"], found, where)
            if "keep" in action and keep is not None:
                shutil.copyfile(player.state(action["as"]), keep / f"{action['keep']}.safetensors")
    return compared


def main(arguments: list[str] | None = None) -> None:
    """Run a kit from the command line; the exit code is 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m conformance.run", description="Run the conformance kit.")
    parser.add_argument("kit", type=Path, help="folder that `python -m conformance.write` wrote")
    parser.add_argument("--within", type=float, default=WITHIN, help="allowed difference in nats (default: 1e-4)")
    parser.add_argument("--only", default="", help="run the cases with this text in their names")
    parser.add_argument("--states", type=Path, help="folder with states that another runtime has saved")
    parser.add_argument("--keep", type=Path, help="write saved states here, for another runtime")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", NonFiniteScoreWarning)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    names = [name for name in json.loads((given.kit / "kit.json").read_text("utf-8"))["cases"] if given.only in name]
    failed, largest = 0, 0.0
    for name in names:
        found = run_case(given.kit, name, given.within, given.states, given.keep)
        largest = max(largest, found.largest)
        failed += bool(found.problems)
        print(f"{'failed' if found.problems else 'passed'}  {name}  {found.largest:.1e}")
        for problem in found.problems:
            print(f"    {problem}")
    print(f"{len(names) - failed} of {len(names)} cases passed; largest difference {largest:.1e}")
    sys.exit(1 if failed or not names else 0)


if __name__ == "__main__":
    main()
