"""Run xlexport bundles on ONNX Runtime, without PyTorch.

The logger "xlruntime" reports the steps of opening a bundle at the levels INFO and DEBUG. For example::

    import xlruntime

    model = xlruntime.load("bundle")
    stream = model.stream()
    stream.feed("Call me Ishmael. ").log_probs  # natural logarithms, one for each token
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

__version__ = "0.2.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what is shown


def __getattr__(name: str) -> Any:
    """Import the runtime when one of its names is first asked for."""
    public = importlib.import_module(f"{__name__}.public")
    for names in (globals(), vars(public)):  # modules are attributes of this package once they are imported
        if name in names:
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return ["__version__", *__getattr__("__all__")]
