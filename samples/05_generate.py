"""Continue a prompt token by token; what was drawn is part of the stream, so it can go on from there.

Needs: pip install 'xlexport[cpu]', and `bundle/` from 01_convert.py. No PyTorch.
"""

import xlruntime

model = xlruntime.load("bundle")
stream = model.stream()
drawn = stream.generate("It was a dark night", max_tokens=200, sampling=xlruntime.Sampling(temperature=0.7, seed=1))
print("It was a dark night" + bytes(drawn).decode(errors="replace"))
