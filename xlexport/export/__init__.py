"""Emitters of step graphs, one in each file: ONNX, TorchScript, and PyTorch's exported programs."""
