"""The domain of the custom operators."""

from onnxscript.values import Opset

__all__ = ["DOMAIN", "OPSET", "VERSION"]

DOMAIN, VERSION = "ai.xlexport", 1
OPSET = Opset(DOMAIN, VERSION)
