"""Convert Transformer-XL and Reformer models to ONNX and score text of any length with them, without PyTorch.

`xlexport` converts checkpoints to bundles and contains the command line. `xlruntime` runs bundles without PyTorch, and
`xltraining` trains the models. Importing this package does not import PyTorch or ONNX Runtime.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
