"""The README.md of a bundle, for a person who finds the folder."""

from __future__ import annotations

import json

from xlexport.families import description_of
from xlexport.verification.parity import ParityReport, trained_model
from xlexport.verification.step_models import StepParityReport
from xlruntime.bundle import RUN, Bundle
from xlruntime.evaluation import EvaluationSettings

__all__ = ["CARD", "bundle_readme", "defaults", "how_to_run", "model_card"]

CARD = {"licence": "Licence", "data": "Training data", "intended_use": "Intended use"}  # fields of the provenance
NODE_LIBRARIES = {"tokenizers": " @huggingface/tokenizers", "sentencepiece": " @sctg/sentencepiece-js"}


def bundle_readme(bundle: Bundle, report: ParityReport | StepParityReport) -> str:
    """Return the README of a bundle that was converted and verified."""
    files = "\n".join(f"- `{name}`: {digest.size:,} bytes" for name, digest in bundle.files.items())
    sources = ", ".join(f"`{name}` (SHA-256 `{sha256}`)" for name, sha256 in bundle.provenance["sources"].items())
    sources = sources or f"a PyTorch module, `{bundle.config.get('model')}`"
    notes = "".join(f"- {note}\n" for note in bundle.provenance["notes"])
    chosen = f"\nChoices and omitted parts:\n\n{notes}" if notes else ""
    sizes = description_of(bundle.architecture).summary(bundle.config)
    fixed = ", ".join(f"{axis} {size}" for axis, size in bundle.fixed.items())
    left = "; what is left of a document is read token by token" if bundle.vocab_size else ""
    shapes = f" Shapes are fixed: {fixed}{left}." if fixed else ""
    if isinstance(report, StepParityReport):
        kind, verified = "step", f"```\n{report}\n```"
    else:
        kind, verified = "language", _verified(report, trained_model(bundle.provenance))
        sizes += f", vocabulary {bundle.vocab_size:,}, tokenizer {bundle.tokenizer.kind}, {bundle.precision}"
    return f"""# A {bundle.architecture} bundle of xlexport

This folder is a trained {kind} model, as graphs that run without the code of its training.

{sizes}.{shapes}

xlexport {bundle.provenance["versions"]["xlexport"]} converted it from {sources}.

{model_card(bundle)}

## Run it

{how_to_run(bundle)}

## Settings and checks

`bundle.json` lists the inputs and outputs of every graph. {defaults(bundle.settings)}

{verified}
{chosen}
{files}
"""


def model_card(bundle: Bundle) -> str:
    """Return what the author states about licence, data and intended use, and which of them nobody stated."""
    stated = {name: bundle.provenance[name] for name in CARD if bundle.provenance.get(name)}
    lines = [f"{CARD[name]}: {text}" for name, text in stated.items()]
    if missing := ", ".join(title.lower() for name, title in CARD.items() if name not in stated):
        lines.append(f"The author has not stated: {missing}. Ask before you use or pass on the model.")
    return "\n\n".join(lines)


def how_to_run(bundle: Bundle) -> str:
    """Return how to get the program that runs a bundle, with a command, and examples in Python and JavaScript."""
    version, kind = bundle.provenance["versions"]["xlexport"], bundle.graphs[bundle.purpose].format
    runtime, exporter = (f"./{name}-{version}-py3-none-any.whl" for name in ("xlruntime", "xlexport"))
    text, trust = ",text" if bundle.tokenizer.kind in NODE_LIBRARIES else "", ""
    load, install = "import xlruntime\n\nmodel = xlruntime.load", f"pip install '{runtime}[cpu{text}]'"
    command_line = f"pip install {runtime} '{exporter}[cpu{text}]'"
    sentences = f"Take the files of xlexport's release {version}, or of a newer one. Run the programs in this folder."
    if kind != "onnx":
        load, trust = "from xlexport.torch_runtime import load\n\nmodel = load", " --trust"
        library, more = ("ExecuTorch", ",executorch") if kind == "executorch" else ("PyTorch", "")
        install = command_line = f"pip install {runtime} '{exporter}[cpu,convert{more}{text}]'"
        sentences += (
            f" The graphs have the format {kind}, and {library} runs them. Loading can execute code in the files, so "
            "open them only if you trust their author."
        )
    if bundle.purpose == RUN:
        return f"{sentences}\n\n{_step_program(bundle, install)}"
    if bundle.encoder is not None:
        load = load.replace("load", "load_translator")  # also in the import
        command, use = "", 'translate(["A line."])).text'
    elif bundle.tokenizer.kind == "none":
        command, use = "score . ids.txt --ids", "score([[1, 2, 3]])).nats"
    else:
        command, use = "score . document.txt", 'score(["A text."])).bits_per_byte'
    shell = f"On the command line, with `{command_line}`: `xlexport {command}{trust}`\n\n" if command else ""
    return f"""{sentences}

Python, with `{install}`:

```python
{load}(".")
print(next(model.{use})
```
{_other_languages(bundle, version) if kind == "onnx" and bundle.encoder is None else ""}
{shell}ONNX Runtime 1.29 or newer sends data about its use to its maker. xlruntime turns this off when it loads ONNX
Runtime. A program that loads it before, or without xlruntime, must set the environment variable
`ORT_DISABLE_TELEMETRY` to 1."""


def _step_program(bundle: Bundle, install: str) -> str:
    """Return a program that runs a step model, and what C and JavaScript call."""
    rows, inputs = bundle.fixed.get("batch", 1), ""
    for name, spec in bundle.config["inputs"].items():
        value = min(max(0, spec["low"]), spec["high"])
        inputs += f'    "{name}": np.full({(rows, *spec["shape"])}, {value}, "{spec["dtype"]}"),\n'
    return f"""Python, with `{install}`:

```python
import numpy as np
import xlruntime

stream = xlruntime.load_step_model(".").stream()
outputs = stream.run({{  # one step of each row; the stream carries the state
{inputs}}})
print(outputs)
```

A file of arrays: `xlexport run . inputs.npz -o outputs.npz`. C calls `xlr_stream_run`."""


def _other_languages(bundle: Bundle, version: str) -> str:
    """Return an example in JavaScript, and what C needs."""
    document, figure = ("[1, 2, 3]", "nats") if bundle.tokenizer.kind == "none" else ('"A text."', "bitsPerByte")
    packages = f"./xlruntime-{version}.tgz onnxruntime-node{NODE_LIBRARIES.get(bundle.tokenizer.kind, '')}"
    ids = ", and takes token ids for this bundle" if bundle.tokenizer.kind in NODE_LIBRARIES else ""
    return f"""
JavaScript in Node, with `npm install --ignore-scripts {packages}`. Save the program as `score.mjs` in the folder of
that command, because Node looks for packages there, and run it in this folder (`node PATH/score.mjs`):

```js
import {{ load }} from "xlruntime";

const model = await load(".");
for await (const score of model.score([{document}])) console.log(score.{figure});
```

C, C++ and Rust: the README in `xlruntime-c-{version}-PLATFORM.tar.gz` has a program. It needs ONNX Runtime{ids}.
"""


def defaults(evaluation: EvaluationSettings) -> str:
    """Return the sentence about a bundle's own settings."""
    restart = "; in longer ones position and memory are then reset" if evaluation.restart else ""
    if evaluation.full_document:
        longest = f"of at most {evaluation.longest_part:,} tokens{restart}"
        return f"Each document is one step {longest}. No memory is carried between documents."
    chosen = "".join(f", {name} {json.dumps(value)}" for name, value in evaluation.values.items())
    settings = f"Defaults: segment_len {evaluation.segment_len}{chosen}"
    if evaluation.max_positions is None:
        return f"{settings}."
    return f"{settings}. Documents have at most {evaluation.max_positions:,} tokens{restart}."


def _verified(report: ParityReport, trained: str) -> str:
    walk, memory = f"{report.segments} segments", f", of a number in memory {report.max_abs_memory_diff:.2e}"
    if report.full_document:
        walk, memory = f"{report.segments} documents", ""
    text = (
        f"Verified against the trained model over {walk} ({report.tokens:,} tokens): largest difference of a "
        f"log-probability {report.max_abs_log_prob_diff:.2e} nats{memory}; {report.delta_bits_per_token:+.1e} bits per "
        f"token; same best token in {report.top1_agreement:.2%} of places. All figures: `parity.json`.\n\n"
        f"The trained model is {trained}."
    )
    if report.bucket_flips is None:
        return text
    overflow = ""
    if report.overflow_fraction is not None:
        overflow = f" Queries had more visible keys than the rule allows in {report.overflow_fraction:.1%} of rounds."
    return (
        f"{text}\n\nThe trained model used the buckets of the graphs. By itself it would have chosen "
        f"{report.bucket_flips:,} others, with margins of up to {report.largest_flip_margin:.1e}.{overflow}"
    )
