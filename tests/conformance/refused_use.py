"""Refusals in an open bundle: states that no stream can have, settings out of range, tokens that a model lacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as tensors_of
from safetensors.numpy import save as safetensors

from xlruntime import load

from .actions import Case, opening, refused
from .player import metadata_of

__all__ = ["refused_settings", "refused_states", "refused_tokens"]

BASE, RICH, FULL_DOCUMENT = "two_rings", "pre_lnorm_same_length_zeros", "reformer_chunk"
LIMITED, SIMPLE = "reformer_band", "post_lnorm_same_length_empty"
Metadata = dict[str, str]
Tensors = dict[str, npt.NDArray[Any]]

DAMAGED, MISMATCH = "state_damaged", "state_mismatch"
KEY = "memory_key_0"
STATES: dict[str, tuple[str, Callable[[Metadata, Tensors], object]]] = {
    "offset": (DAMAGED, lambda m, t: m.update(offset="-1")),
    "length": (DAMAGED, lambda m, t: m.update(length="13")),
    "history": (DAMAGED, lambda m, t: m.update(history="1000000")),
    "position": (DAMAGED, lambda m, t: m.update(position="many")),
    "pending": (DAMAGED, lambda m, t: m.update(pending="256")),
    "nothing_pending": (DAMAGED, lambda m, t: m.update(pending="")),
    "capacity": (DAMAGED, lambda m, t: m.update(capacity="5")),
    "larger_capacity": (DAMAGED, lambda m, t: m.update(capacity=str(2**40))),
    "no_capacity": (DAMAGED, lambda m, t: m.pop("capacity")),
    "kind": (DAMAGED, lambda m, t: m.update(kind="xlexport scorer")),
    "no_tensor": (DAMAGED, lambda m, t: t.pop(KEY)),
    "shape": (DAMAGED, lambda m, t: t.update({KEY: t[KEY][:, :1].copy()})),
    "type": (DAMAGED, lambda m, t: t.update({KEY: t[KEY].astype(np.float64)})),
    "not_finite": (DAMAGED, lambda m, t: t.update({KEY: np.full_like(t[KEY], np.nan)})),
    "version": (MISMATCH, lambda m, t: m.update(version="2")),
    "fingerprint": (MISMATCH, lambda m, t: m.update(fingerprint="0" * 64)),
    "setting": (MISMATCH, lambda m, t: m.update({"setting.mem_len": "0"})),
    "unknown_setting": (MISMATCH, lambda m, t: m.update({"setting.n_hashes": "2"})),
    "no_setting": (MISMATCH, lambda m, t: m.pop("setting.clamp_len")),
}


def refused_states(kit: Path) -> Iterator[Case]:
    """Yield states that no stream of SIMPLE can have, and write them."""
    yield opening(SIMPLE)
    intact = kit / "states" / "intact.safetensors"
    stream = load(kit / "bundles" / SIMPLE, threads=1, ops="none").stream()
    stream.feed(b"a text of some length")
    stream.save(intact)
    raw = intact.read_bytes()

    def restoring(name: str, content: bytes, code: str) -> Case:
        (kit / "states" / f"bad_{name}.safetensors").write_bytes(content)
        return refused({"do": "restore", "state": f"bad_{name}", "as": "a"}, code)

    for name, (code, change) in STATES.items():
        metadata, tensors = metadata_of(intact), tensors_of(raw)
        change(metadata, tensors)
        yield restoring(name, _sealed(metadata, tensors), code)
    flipped = bytearray(raw)
    flipped[-9] ^= 1
    plain = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    contents = {
        "flipped": bytes(flipped),
        "cut": raw[:-3],
        "header": b"\xff" * 8 + raw[8:],
        "empty": b"",
        "plain": len(plain).to_bytes(8, "little") + plain + bytes(4),
    }
    for name, content in contents.items():
        yield restoring(name, content, DAMAGED)
    yield {"do": "restore", "state": "intact", "as": "a"}


def _sealed(metadata: Metadata, tensors: Tensors) -> bytes:
    """Return a saved stream with a digest that fits."""
    lines = "".join(f"{name}={metadata[name]}\n" for name in sorted(metadata))
    data = b"".join(tensors[name].tobytes() for name in sorted(tensors))
    digest = hashlib.sha256(lines.encode() + data).hexdigest()
    return bytes(safetensors(tensors, {**metadata, "digest": digest}))


def refused_settings() -> Iterator[Case]:
    """Yield settings and ways of sampling that are out of range, and graphs that a bundle lacks."""
    document = {"ids": [1, 2, 3]}
    score: Case = {"do": "score", "document": document}
    generate: Case = {"do": "generate", "prompt": document, "max_tokens": 1, "sampling": {}}
    yield opening(RICH)
    settings = ({"mem_len": 0}, {"mem_len": 2**30 + 1}, {"segment_len": 0}, {"segment_len": 2**30 + 1})
    samplings = ({"temperature": -1}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5}, {"seed": -1})
    actions: tuple[Case, ...] = (
        *({**score, "settings": each} for each in settings),
        *({"do": "stream", "as": "a", "settings": each} for each in settings),
        *({**generate, "sampling": each} for each in samplings),
        *({"do": "stream", "as": "a", "capacity": 3}, {**score, "bos": 256}, {**score, "detail": 11}),
        {**generate, "max_tokens": -1},
    )
    yield from (refused(action, "option") for action in actions)
    yield opening(FULL_DOCUMENT)
    yield refused({"do": "stream", "as": "a"}, "option")
    yield refused({**score, "settings": {"mem_len": 5}}, "option")
    yield opening(BASE)
    yield refused({**score, "detail": 1}, "option")
    yield refused(generate, "option")


def refused_tokens() -> Iterator[Case]:
    """Yield token ids, documents and texts that a model cannot take."""

    def feed(ids: list[int]) -> Case:
        return {"do": "feed", "stream": "a", "piece": {"ids": ids}}

    yield opening(RICH)
    for ids in ([1, 256], [-1], [1, 2, 2**40]):
        yield refused({"do": "score", "document": {"ids": ids}}, "token")
    yield {"do": "stream", "as": "a"}
    yield feed([1, 2, 3])
    yield refused(feed([4, 256]), "token")
    yield feed([4, 5])  # the stream is as it was
    yield refused({"do": "generate", "prompt": {"ids": []}, "max_tokens": 1, "sampling": {}}, "text")
    yield opening(LIMITED)
    long = [number % 100 for number in range(202)]
    yield refused({"do": "score", "document": {"ids": long}}, "too_long")
    yield {"do": "stream", "as": "a"}
    yield feed(long[:150])
    yield refused(feed(long[:52]), "too_long")
    yield feed(long[:51])
    yield refused({"do": "encode", "text": {"text": "text"}}, "text")
    yield opening("lines")
    yield refused({"do": "encode", "text": {"text": "the zebra"}}, "token")
    yield refused({"do": "encode", "text": {"base64": "dGhlIP8="}}, "text")
