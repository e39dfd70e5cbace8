"""The domain of the custom operators."""

from onnxscript.values import Opset

__all__ = ["DOMAIN", "OPSET", "VERSION"]

DOMAIN = "ai.xlexport"
VERSION = 1
OPSET = Opset(DOMAIN, VERSION)
