"""Convert recurrent language models to ONNX and score text of any length with them, without PyTorch.

`xlexport` converts Transformer-XL, Reformer and any other model with a state to bundles, and contains the command line.
`xlruntime` runs bundles without PyTorch, and `xltraining` trains the models. Importing this package does not import
PyTorch or ONNX Runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any

from xlruntime import __version__

if TYPE_CHECKING:
    from xlexport.api import ParityReport, assert_parity, verify
    from xlexport.own_models import RecurrentModel, export_module, scan

__all__ = ["ParityReport", "RecurrentModel", "__version__", "assert_parity", "export_module", "scan", "verify"]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "api" if name in ("ParityReport", "assert_parity", "verify") else "own_models"
    return getattr(importlib.import_module(f"xlexport.{module}"), name)
