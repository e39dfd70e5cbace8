"""Write a bundle of published weights: the command of the readers in this folder."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from xlexport import ParityReport, export_module
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["main", "write_bundle"]


def write_bundle(model: nn.Module, vocabulary: Vocabulary, output: Path, **options: Any) -> ParityReport:
    """Write a verified bundle that reads text, and return its differences from the module.

    Raises:
        ExportError, ParityError, OutputExistsError: as `xlexport.export_module`, which takes the options.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "vocabulary.json")
        file.write_text(vocabulary.to_json(), "utf-8")
        return export_module(model, output, tokenizer=file, **options)  # type: ignore[arg-type]


def main(read: Callable[[Path], tuple[nn.Module, Vocabulary]], **options: Any) -> None:
    """Write the bundle that the command line names, of the weights that it names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path, help="file or folder of the published weights")
    parser.add_argument("bundle", type=Path, help="folder to write")
    names = parser.parse_args()
    report = write_bundle(*read(names.weights), names.bundle, **options)
    print(
        f"Wrote {names.bundle}: {report.max_abs_log_prob_diff:.1e} nats from PyTorch over {report.segments} segments."
    )
