"""One table of what step graphs take, return and compute: doc strings in the graphs, `meaning` in `bundle.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from xlruntime.bundle import ENCODE, POSITIONS, Graph, MemoryEntry

__all__ = ["OPERATORS", "SPECIFICATION", "meanings_of"]

SPECIFICATION = {  # of every graph: where its rules stand
    "format": "xlexport bundle, format 5",
    "specification": "docs/bundle_format.md of xlexport: rules 10 to 13 for inputs and outputs, 14 to 20 for memories",
    "operators": "docs/bundle_format.md of xlexport",
}
FEEDS: Mapping[str, str] = {
    "tokens": "ids of the segment's tokens",
    "targets": "id of the token after each token",
    "position": "tokens of each row's document before this step; 0 begins a document",
    "offset": "slot of this step's first row: rows written to the rings so far, modulo their slots",
    "length": "rows of the rings that each batch row may see; 0 after the beginning of a document with an empty memory",
    "window": "keys that a query sees at most, itself included; 2^62 is unlimited",
    "slots": "slots of the rings",
    "setting": "value of the setting {setting}",
    "constant": f"output of the graph {POSITIONS} or {ENCODE} with this name, computed once",
    "source": "ids of the sources' tokens",
    "input": "an array of the caller, of each step",
}
OUTPUTS = {
    "log_prob": "natural logarithm of each target's probability",
    "logits": "unnormalised log-probabilities of the token after the segment",
    "rank": "rank of each target among all tokens; 1 is the most probable",
    "entropy": "entropy of the prediction of each target, in nats",
    "top_ids": "ids of the most probable tokens, best first",
    "top_log_probs": "natural logarithms of their probabilities",
    "overflow": "by LSH layer: heads and rounds in which a token could see more keys than the rule allows",
    r"bucket_(\d+)": r"LSH bucket of each token in layer \1",
    r"position_key_(\d+)": rf"keys of the distances between tokens in layer \1, from the graph {POSITIONS}",
}
LAYOUTS = {
    "ring": "rows of earlier tokens in slots, of which this step writes its own",
    "window": "the newest rows, oldest first",
    "state": "state after the step before",
}

OPERATORS = {
    "LSHSort": "stable ascending order of bucket ids, and its inverse",
    "LSHGather": "rows in the order of an index",
    "LSHAttention": "LSH attention of a segment over rings, sort and gathers inside",
    "LSHFewAttention": "LSH attention of a few tokens over rings, which selects their keys without a sort",
    "LSHBandAttention": "attention to earlier keys of the same bucket, given the sorted order",
    "LSHChunkAttention": "attention over sorted chunks of a whole document",
    "LocalAttention": "attention of each chunk to itself and the chunks before it",
    "RelativeAttention": "attention with relative positions, which writes this step's keys and values into rings",
    "RelativeAttentionInt8": "RelativeAttention over rings of 8-bit numbers",
}


def meanings_of(graphs: Iterable[Graph], memory: Iterable[MemoryEntry]) -> dict[str, str]:
    """Return the meaning of each input and output of the graphs, memories included, by name."""
    meanings: dict[str, str] = {}
    for entry in memory:
        meanings[entry.input] = f"{LAYOUTS[entry.layout]}; the next step takes {entry.output}"
        meanings[entry.output] = f"{entry.input} of the next step"
    for graph in graphs:
        if any(feed.feed == "input" for feed in graph.inputs.values()):  # a step model, whose names are the user's
            meanings |= {name: FEEDS["input"] for name, feed in graph.inputs.items() if feed.feed == "input"}
            meanings |= dict.fromkeys(graph.outputs, "what the module returns for each step")
            continue
        for name in (*graph.inputs, *graph.outputs):
            patterns = ((re.fullmatch(pattern, name), text) for pattern, text in OUTPUTS.items())
            meaning = next((match.expand(text) for match, text in patterns if match), "")
            if name in graph.inputs and not meaning:
                feed = graph.inputs[name]
                meaning = FEEDS.get(feed.feed, "").format(setting=feed.setting)
            if meaning:
                meanings.setdefault(name, meaning)
    return meanings
