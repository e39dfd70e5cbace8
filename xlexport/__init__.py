"""Convert recurrent language models to ONNX and score text of any length with them, without PyTorch.

`xlexport` converts Transformer-XL, Reformer and any other model with a state to bundles, and contains the command line.
`xlruntime` runs bundles without PyTorch, and `xltraining` trains the models. Importing this package does not import
PyTorch or ONNX Runtime.
"""

from typing import TYPE_CHECKING, Any

from xlruntime import __version__

if TYPE_CHECKING:
    from xlexport.own_models import RecurrentModel, export_module, scan

__all__ = ["RecurrentModel", "__version__", "export_module", "scan"]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xlexport import own_models

    return getattr(own_models, name)
