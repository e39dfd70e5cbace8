"""Emitters of step graphs, one a file: ONNX, TorchScript, and PyTorch's exported programs."""
