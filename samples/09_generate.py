"""Continue a prompt with temperature, top-k and top-p; a seed makes results repeatable. The prompt is read once.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

from xlruntime import Sampling, load

model = load("bundle")
prompt = "It was a dark night, and "
read = model.stream()
read.feed(prompt)

for sampling in (
    Sampling(temperature=0),  # always the most probable token
    Sampling(temperature=0.7, seed=1),
    Sampling(top_k=8, seed=1),
    Sampling(temperature=0.9, top_p=0.9, seed=1),
):
    stream = read.fork()
    drawn = list(stream.generate(max_tokens=80, sampling=sampling))  # the text becomes part of the document
    print(f"{sampling}\n    {model.tokenizer.decode(drawn)!r}")
    assert stream.position == read.position + len(drawn)

again = list(read.fork().generate(max_tokens=80, sampling=sampling))
assert again == drawn
print("the same seed gives the same text")
