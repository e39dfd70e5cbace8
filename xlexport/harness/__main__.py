"""Run lm-evaluation-harness with the model `xlexport`: `python -m xlexport.harness --model xlexport …`."""

from __future__ import annotations

from xlexport.extras import require

__all__ = ["main"]


def main() -> None:
    """Register the model, and run the harness's own command line.

    Raises:
        MissingDependencyError: the extra `lm-eval` is not installed.
    """
    require("lm-eval")
    from lm_eval.__main__ import cli_evaluate

    import xlexport.harness.model  # registers it

    assert xlexport.harness.model.XlexportLM
    cli_evaluate()


if __name__ == "__main__":
    main()
