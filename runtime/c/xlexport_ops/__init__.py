"""Kernels for the custom operators of xlexport's graphs, as a shared library that ONNX Runtime loads."""

from pathlib import Path

__all__ = ["LIBRARY"]

# The path of the shared library; its ending differs between platforms.
LIBRARY = next(Path(__file__).parent.glob("libxlexport_ops.*"), Path(__file__).with_name("libxlexport_ops.so"))
