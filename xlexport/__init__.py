"""Convert recurrent language models to ONNX and score text of any length with them, without PyTorch.

`xlexport` converts Transformer-XL, Reformer and any other model with a state to bundles, and contains the command line.
`xlruntime` runs bundles without PyTorch, and `xltraining` trains the models. Importing this package does not import
PyTorch or ONNX Runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any

from xlruntime import __version__

if TYPE_CHECKING:
    from xlexport.api import (
        Conversion,
        GraphOptions,
        GraphReport,
        ParityReport,
        QuantizationReport,
        StepParityReport,
        assert_parity,
        configure,
        convert,
        export_module,
        quantize,
        read,
        verify,
        verify_graph,
    )
    from xlexport.families.recurrent.protocol import RecurrentModel
    from xlexport.families.scan import scan
    from xlexport.families.step_model.protocol import StatefulModule
    from xlexport.score_files import score

__all__ = [
    "Conversion",
    "GraphOptions",
    "GraphReport",
    "ParityReport",
    "QuantizationReport",
    "RecurrentModel",
    "StatefulModule",
    "StepParityReport",
    "__version__",
    "assert_parity",
    "configure",
    "convert",
    "export_module",
    "quantize",
    "read",
    "scan",
    "score",
    "verify",
    "verify_graph",
]
ELSEWHERE = {
    "RecurrentModel": "families.recurrent.protocol",
    "StatefulModule": "families.step_model.protocol",
    "scan": "families.scan",
    "score": "score_files",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"xlexport.{ELSEWHERE.get(name, 'api')}"), name)
