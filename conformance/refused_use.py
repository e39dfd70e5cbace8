"""Refusals in an open bundle: states that no stream can have, settings out of range, tokens that a model lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xlruntime import load
from xlruntime.state_file import read_state, write_state
from xlruntime.stream_state import KIND, VERSION

from .cases import Case

__all__ = ["opening", "refused", "refused_settings", "refused_states", "refused_tokens"]

BASE, RICH, WHOLE = "two_rings", "pre_lnorm_same_length_zeros", "reformer_chunk"
LIMITED, SIMPLE = "reformer_band", "post_lnorm_same_length_empty"
STATES: tuple[tuple[str, str, Callable[[dict[str, Any], dict[str, Any]], object]], ...] = (
    ("offset", "offset", lambda f, a: f.update(offset=-1)),
    ("memory_length", "memory_length", lambda f, a: f.update(memory_length=13)),
    ("history", "history", lambda f, a: f.update(history=10**6)),
    ("position", "position", lambda f, a: f.update(position="many")),
    ("pending", "pending", lambda f, a: f.update(pending=256)),
    ("nothing_held", "held", lambda f, a: f.update(pending=None)),
    ("capacity", "capacity", lambda f, a: f.update(capacity=5)),
    ("larger_capacity", "memory_key_0", lambda f, a: f.update(capacity=2**40)),
    ("missing_field", "capacity", lambda f, a: f.pop("capacity")),
    ("unknown_field", "more", lambda f, a: f.update(more=1)),
    ("setting", "mem_len", lambda f, a: f["evaluation"].update(mem_len=0)),
    ("unknown_setting", "n_hashes", lambda f, a: f["evaluation"].update(n_hashes=2)),
    ("missing_setting", "evaluation", lambda f, a: f["evaluation"].pop("clamp_len")),
    ("foreign", "another bundle", lambda f, a: f.update(fingerprint="0" * 64)),
    ("missing_tensor", "memory_key_0", lambda f, a: a.pop("memory_key_0")),
    ("shape", "memory_key_0", lambda f, a: a.update(memory_key_0=a["memory_key_0"][:, :1])),
    ("type", "memory_key_0", lambda f, a: a.update(memory_key_0=a["memory_key_0"].astype(np.float64))),
    ("not_finite", "memory_key_0", lambda f, a: a["memory_key_0"].fill(np.nan)),
)


def refused_states(kit: Path) -> Iterator[Case]:
    """Yield states that no stream of SIMPLE can have, and write them."""
    yield opening(SIMPLE)
    states = kit / "states"
    states.mkdir(exist_ok=True)
    model = load(kit / "bundles" / SIMPLE, threads=1)
    stream = model.stream()
    stream.feed(b"a text of some length")
    whole = states / "whole.safetensors"
    stream.save(whole)
    raw = whole.read_bytes()
    for name, said, change in STATES:
        fields, arrays = read_state(whole, KIND, VERSION, "")
        change(fields, arrays)
        write_state(states / f"bad_{name}.safetensors", KIND, VERSION, fields, arrays)
        yield refused(_restore(f"bad_{name}"), "StateError", said)
    flipped = bytearray(raw)
    flipped[-9] ^= 1
    fields, arrays = read_state(whole, KIND, VERSION, "")
    write_state(states / "bad_version.safetensors", KIND, VERSION - 1, fields, arrays)
    write_state(states / "bad_kind.safetensors", "xlexport scorer", VERSION, fields, arrays)
    plain = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    contents = {
        "flipped": (bytes(flipped), "damaged"),
        "cut": (raw[:-3], "not a stream's state"),
        "header": (b"\xff" * 8 + raw[8:], "not a stream's state"),
        "empty": (b"", "not a stream's state"),
        "plain": (len(plain).to_bytes(8, "little") + plain + bytes(4), "not a stream's state"),
    }
    for name, (content, said) in contents.items():
        (states / f"bad_{name}.safetensors").write_bytes(content)
        yield refused(_restore(f"bad_{name}"), "StateError", said)
    yield refused(_restore("bad_version"), "StateError", "version")
    yield refused(_restore("bad_kind"), "StateError", "not a stream's state")
    yield _restore("whole")


def refused_settings() -> Iterator[Case]:
    """Yield settings and ways of sampling that are out of range, and graphs that a bundle lacks."""
    document = {"ids": [1, 2, 3]}
    yield opening(RICH)
    for settings, said in (
        ({"mem_len": 0}, "mem_len"),
        ({"mem_len": 2**31}, "mem_len"),
        ({"clamp_len": 0}, "clamp_len"),
        ({"same_length": 1}, "same_length"),
        ({"mem_len": True}, "mem_len"),
        ({"n_hashes": 2}, "n_hashes"),
        ({"segment_len": 0}, "segment_len"),
        ({"restart": True}, "restart"),
    ):
        yield refused({"do": "score", "document": document, "settings": settings}, "OptionError", said)
        yield refused({"do": "stream", "as": "a", "settings": settings}, "OptionError", said)
    yield refused({"do": "stream", "as": "a", "capacity": 3}, "OptionError", "3")
    yield refused({"do": "score", "document": document, "bos": 256}, "OptionError", "bos")
    yield refused({"do": "score", "document": document, "detail": 11}, "OptionError", "detail")
    for sampling, said in (
        ({"temperature": -1}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": -1}, "seed"),
    ):
        generate = {"do": "generate", "prompt": document, "max_tokens": 1, "sampling": sampling}
        yield refused(generate, "OptionError", said)
    nothing: dict[str, Any] = {"do": "generate", "prompt": document, "max_tokens": -1, "sampling": {}}
    yield refused(nothing, "OptionError", "max_tokens")
    yield opening(WHOLE)
    yield refused({"do": "stream", "as": "a"}, "OptionError", "stream")
    yield opening(BASE)
    yield refused({"do": "score", "document": document, "detail": 1}, "OptionError", "detail")
    yield refused({"do": "generate", "prompt": document, "max_tokens": 1, "sampling": {}}, "OptionError", "generate")


def refused_tokens() -> Iterator[Case]:
    """Yield token ids, documents and texts that a model cannot take."""
    yield opening(RICH)
    for ids in ([1, 256], [-1], [1, 2, 2**40]):
        yield refused({"do": "score", "document": {"ids": ids}}, "TokenError", str(ids[-1]))
    yield {"do": "stream", "as": "a"}
    yield {"do": "feed", "stream": "a", "piece": {"ids": [1, 2, 3]}}
    yield refused({"do": "feed", "stream": "a", "piece": {"ids": [4, 256]}}, "TokenError", "token 4")
    yield {"do": "feed", "stream": "a", "piece": {"ids": [4, 5]}}  # the stream is as it was
    empty = {"do": "generate", "prompt": {"ids": []}, "max_tokens": 1, "sampling": {}}
    yield refused(empty, "TextError", "prompt")
    yield opening(LIMITED)
    long = [number % 100 for number in range(202)]
    yield refused({"do": "score", "document": {"ids": long}}, "TextError", "201")
    yield {"do": "stream", "as": "a"}
    yield {"do": "feed", "stream": "a", "piece": {"ids": long[:150]}}
    yield refused({"do": "feed", "stream": "a", "piece": {"ids": long[:52]}}, "TextError", "201")
    yield {"do": "feed", "stream": "a", "piece": {"ids": long[:51]}}
    yield refused({"do": "encode", "text": {"text": "text"}}, "TextError", "tokenizer")
    yield opening("lines")
    yield refused({"do": "encode", "text": {"text": "the zebra"}}, "TokenError", "zebra")
    yield refused({"do": "encode", "text": {"base64": "dGhlIP8="}}, "TextError", "byte 4")


def opening(bundle: str, files: dict[str, str | None] | None = None) -> Case:
    """Return an action that opens a bundle, with some of its files replaced."""
    return {"do": "open", "bundle": bundle} | ({"files": files} if files else {})


def refused(action: Case, kind: str, said: str) -> Case:
    """Return an action that must fail."""
    return {**action, "error": {"class": kind, "says": said}}


def _restore(state: str) -> Case:
    return {"do": "restore", "state": state, "as": "restored"}
