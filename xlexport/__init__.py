"""Transformer-XL and Reformer language models as ONNX step graphs that carry their memory.

`xlexport` turns checkpoints into bundles and holds the command line; `xlruntime` runs bundles without PyTorch;
`xltraining` trains the models. Importing this package imports none of the heavy ones.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
