"""Feed a document as it arrives, in chunks cut anywhere, and detect chunks that do not fit the text before them.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

import io
import math
from pydoc_data.topics import topics

import xlruntime

text = topics["class"] + "kzjq vwxxt bjdqp qqhzv jxkvw zzptk gbvxq ywjkz " * 2 + topics["lambda"]
live = io.BytesIO(text.encode())  # or a pipe, sys.stdin.buffer.raw; or a socket's file

stream = xlruntime.load("bundle").stream()  # constant memory for any length
usual = 8.0  # bits per byte, lately
while chunk := live.read(80):
    bits = -float(stream.feed(chunk).log_probs.sum()) / math.log(2) / len(chunk)
    if bits > 2 * usual:
        print(f"byte {stream.position - len(chunk):,}: {bits:.2f} bits per byte, usually {usual:.2f}: {chunk!r}")
    usual += (bits - usual) / 10
print(f"read {stream.position:,} bytes, holds {stream.memory.nbytes / 1e6:.1f} MB")
