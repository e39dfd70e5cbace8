"""Convert Transformer-XL and Reformer models to ONNX and score text of any length with them, without PyTorch.

`xlexport` converts checkpoints to bundles and contains the command line. `xlruntime` runs bundles without PyTorch, and
`xltraining` trains the models. Importing this package does not import PyTorch or ONNX Runtime.
"""

from xlruntime import __version__  # all three packages come in one distribution

__all__ = ["__version__"]
