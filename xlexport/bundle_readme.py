"""The README.md of a bundle, for a person who finds the folder."""

from __future__ import annotations

import json

from xlexport.model_description import model_description
from xlexport.verification.parity import ParityReport, trained_model
from xlruntime.bundle import Bundle
from xlruntime.evaluation import EvaluationSettings

__all__ = ["bundle_readme", "defaults", "how_to_score"]

INSTALL = "`pip install '.[{extras}]' -c constraints.txt` in a clone of xlexport"


def bundle_readme(bundle: Bundle, report: ParityReport) -> str:
    """Return the README of a bundle that was converted and verified."""
    files = "\n".join(f"- `{name}`: {digest.size:,} bytes" for name, digest in bundle.files.items())
    sources = ", ".join(f"`{name}` (SHA-256 `{sha256}`)" for name, sha256 in bundle.provenance["sources"].items())
    sources = sources or f"a PyTorch module, `{bundle.config.get('model')}`"
    notes = "".join(f"- {note}\n" for note in bundle.provenance["notes"])
    chosen = f"\nChoices and omitted parts:\n\n{notes}" if notes else ""
    sizes = model_description(bundle.architecture).summary(bundle.config)
    return f"""# A {bundle.architecture} bundle of xlexport

{sizes}, vocabulary {bundle.vocab_size:,}, tokenizer {bundle.tokenizer.kind}, {bundle.precision}.

xlexport {bundle.provenance["versions"]["xlexport"]} converted it from {sources}.

{how_to_score(bundle)}

`bundle.json` lists the inputs and outputs of every graph. {defaults(bundle.settings)}

{_verified(report, trained_model(bundle.provenance))}
{chosen}
{files}
"""


def how_to_score(bundle: Bundle) -> str:
    """Return the sentences about what runs a bundle, with the commands, and a program in Python."""
    kind, load = bundle.graphs["score"].format, "import xlruntime\n\nmodel = xlruntime.load"
    if bundle.encoder is not None:
        command, load, use = "translate THIS_FOLDER lines.txt", f"{load}_translator", 'translate(["A line."])).text'
    elif bundle.tokenizer.kind == "none":
        command, use = "score THIS_FOLDER ids.txt --ids", "score([[1, 2, 3]])).nats"
    else:
        command, use = "score THIS_FOLDER document.txt", 'score(["A text."])).bits_per_byte'
    if kind == "onnx":
        sentences = f"Install what runs it, without PyTorch: {INSTALL.format(extras='cpu')}."
    else:
        load, command = "from xlexport.torch_runtime import load\n\nmodel = load", f"{command} --trust"
        library, extras = (
            ("ExecuTorch", "cpu,convert,executorch") if kind == "executorch" else ("PyTorch", "cpu,convert")
        )
        sentences = (
            f"The graphs have the format {kind}, and {library} runs them. Loading can execute code in the files, so "
            f"open them only if you trust their author. Install what runs them: {INSTALL.format(extras=extras)}."
        )
    return f"""{sentences}

```
xlexport {command}
```

```python
{load}("THIS_FOLDER")
print(next(model.{use})
```"""


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
