"""The JavaScript of `xlexport web`, as npm packages in `node_modules`: `xlruntime`, ONNX Runtime, and tokenizers."""

__all__: list[str] = []
