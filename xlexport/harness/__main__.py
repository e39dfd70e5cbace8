"""Run lm-evaluation-harness with the model `xlexport`: `python -P -m xlexport.harness --model xlexport …`."""

from __future__ import annotations

import importlib

from xlexport.children import environment_of_children
from xlexport.extras import require

__all__ = ["main"]


def main() -> None:
    """Register the model, and run the harness's own command line.

    Raises:
        MissingDependencyError: the extra `lm-eval` is not installed.
    """
    require("lm-eval")
    from lm_eval.__main__ import cli_evaluate

    importlib.import_module("xlexport.harness.model")  # registers the model
    with environment_of_children():  # the harness starts pip
        cli_evaluate()


if __name__ == "__main__":
    main()
