"""Build the wheels of xlexport-ops for all platforms, and its source distribution, on one machine.

python build_wheels.py -o dist
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

__all__ = ["build_wheels"]

ROOT = Path(__file__).resolve().parent


def build_wheels(output: Path, platforms: list[str], python: str | Path) -> None:
    """Write a wheel for each platform, and the source distribution, into the folder `output`.

    Args:
        output: the folder; files of the same names are replaced.
        platforms: names of platforms.py.
        python: the interpreter of an environment with the build requirements.
    """
    command = [str(python), "-m", "hatchling", "build", "-d", str(output.resolve())]
    subprocess.run([*command, "-t", "sdist"], cwd=ROOT, check=True)
    for name in platforms:
        environment = {**os.environ, "XLEXPORT_OPS_PLATFORM": name}
        subprocess.run([*command, "-t", "wheel"], cwd=ROOT, env=environment, check=True)


def main() -> None:
    """Build with the arguments of the command line."""
    from platforms import PLATFORMS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"))
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="default: all")
    parser.add_argument("--no-isolation", action="store_true", help="this environment has the build requirements")
    arguments = parser.parse_args()
    platforms = arguments.platform or list(PLATFORMS)
    if arguments.no_isolation:
        build_wheels(arguments.output, platforms, sys.executable)
        return
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = next(path for path in Path(folder).glob("*/python*") if path.stem == "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requires], check=True)
        build_wheels(arguments.output, platforms, python)


if __name__ == "__main__":
    main()
