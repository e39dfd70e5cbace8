"""Prove the carried state of ONNX graphs that others wrote: run them many steps, in several ways, and compare.

`child.prove` runs everything that touches the graph in a child process with limits of memory and time.
"""
