"""Write a kit: `python -m tests.conformance.write -o FOLDER`.

What the kit expects of a runtime is what `xlruntime` gives now, except where a case has the scores of an eager model.
`python -m tests.conformance.run FOLDER` compares a runtime with it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from xlruntime.bundle import FORMAT

from .actions import Case
from .bundles import SAMPLES, write_bundles
from .cases import honest_cases
from .models import SEGMENT, SMALL, carried_case, model_names, write_models
from .player import Player
from .refusals import refusals
from .step_models import POLICIES, carried_run, write_policy

KIT_VERSION = 5


def write_kit(
    folder: Path, samples: Path | None = None, names: Iterable[str] = SAMPLES, numbers_only: bool = False
) -> list[str]:
    """Write a kit to an empty folder, and return the names of its cases.

    Args:
        samples: a folder with both samples as bundles; None: convert their checkpoints.
        names: the samples that the kit has.
        numbers_only: leave out tokenizers, fixed shapes, modules and refusals, which are the same on all processors.

    Raises:
        AssertionError: `xlruntime` itself does not refuse what a case says, or refuses something else.
    """
    for name in ("bundles", "cases", "states"):
        (folder / name).mkdir(parents=True)
    write_bundles(folder / "bundles", samples, names, numbers_only)
    if numbers_only:
        return _write_cases(folder, honest_cases(folder, numbers_only))
    write_models(folder / "bundles", SMALL)
    write_models(folder / "bundles", SMALL[:1], fixed=f"segment={SEGMENT}")
    write_policy(folder / "bundles", POLICIES[-1])
    write_policy(folder / "bundles", POLICIES[-1], fixed=f"batch=2,segment={SEGMENT}")
    return _write_cases(folder, (*honest_cases(folder), *refusals(folder)))


def write_kit_of_models(folder: Path) -> list[str]:
    """Write a kit of all recurrent models to an empty folder, and return the names of its cases."""
    for name in ("bundles", "cases", "states"):
        (folder / name).mkdir(parents=True)
    write_models(folder / "bundles", model_names())
    for name in POLICIES:
        write_policy(folder / "bundles", name)
    carried = *map(carried_case, model_names()), *map(carried_run, POLICIES)
    return _write_cases(folder, (*honest_cases(folder), *carried))


def _write_cases(folder: Path, honest: Iterable[Case]) -> list[str]:
    cases: list[str] = []
    problems: list[str] = []
    for case in honest:
        problems += record(folder, case)
        cases.append(case["name"])
        (folder / "cases" / f"{case['name']}.json").write_text(json.dumps(case, allow_nan=False) + "\n", "utf-8")
    assert not problems, "\n".join(problems)
    kit = {"kit_version": KIT_VERSION, "format": FORMAT, "cases": cases}
    (folder / "kit.json").write_text(json.dumps(kit, indent=1) + "\n", "utf-8")
    return cases


def record(kit: Path, case: Case) -> list[str]:
    """Play a case, add to its actions what they give, and return what `xlruntime` does otherwise than the case says."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        player = Player(kit, Path(work), ops="none")  # what every machine has
        for number, action in enumerate(case["actions"]):
            where = f"{case['name']}, action {number} ({action['do']})"
            if (values := player.attempt(action, where, problems)) is not None:
                if "within" in case:  # ranks change with any rounding
                    values.pop("rank", None)
                action.setdefault("expect", values)
                if "keep" in action:
                    shutil.copyfile(player.state(action["as"]), kit / "states" / f"{action['keep']}.safetensors")
    return problems


def main(arguments: list[str] | None = None) -> None:
    """Write a kit from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.write", description="Write the conformance kit.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the kit; must not exist")
    parser.add_argument("--samples", type=Path, help="folder with both samples as bundles; else they are converted")
    parser.add_argument(
        "--without-samples", action="store_true", help="leave both samples out, which makes a small kit"
    )
    parser.add_argument(
        "--models", action="store_true", help="write a kit of all recurrent models instead, each through 1,000 segments"
    )
    parser.add_argument("--numbers-only", action="store_true", help="leave out what all processors do alike")
    given = parser.parse_args(arguments)
    if given.models:
        names = write_kit_of_models(given.output)
    else:
        samples = () if given.without_samples else SAMPLES
        names = write_kit(given.output, given.samples, samples, given.numbers_only)
    print(f"{given.output}: {len(names)} cases")


if __name__ == "__main__":
    main()
