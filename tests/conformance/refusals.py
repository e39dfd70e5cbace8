"""The cases in which a runtime refuses something: damaged bundles, and what an open one does not take.

The latter are states that no stream can have, settings out of range, and tokens that a model lacks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from xlruntime import load
from xlruntime.state import KIND, VERSION, read_state, write_state

from .actions import DIGEST, MANIFEST, Case, Edit, Files, opening, refused
from .graphs import bundle_of, graphs_that_open, hostile_graphs, write_escapes

BASE, RICH, FULL_DOCUMENT = "two_rings", "pre_lnorm_same_length_zeros", "reformer_chunk"
FIRST_MEMORY, VOCABULARY = "first_memory.safetensors", "vocabulary.json"
SCALAR = {"dtype": "float32", "shape": []}
EACH = {name: {"dtype": dtype, "shape": ["batch", "segment"]} for name, dtype in
        (("log_prob", "float32"), ("rank", "int64"), ("entropy", "float32"))}  # fmt: skip
DETAIL = EACH | {"top_ids": {"dtype": "int64", "shape": ["batch", "segment", 2]},
                 "top_log_probs": {"dtype": "float32", "shape": ["batch", "segment", 3]}}  # fmt: skip
SCALAR_STATE = {
    **SCALAR,
    "input": "more",
    "output": "new_more",
    "shape": ["batch"],
    "layout": "state",
    "first_value": None,
}
OUT_OF_RANGE, NO_ROOM, NO_RANGE = r"its value is -?\d+, expected", "no room for a token", "boolean, which has no range"
SHARED = "memories share an input or output"
IS_NOT = r"is not (float32|int64) \("  # as its purpose needs
SETTING = {"value": 1, "meaning": "a number", "minimum": None, "maximum": None, "off": None}
# Where a manifest of BASE has an object of each kind.
OBJECTS: dict[str, tuple[str | int, ...]] = {
    "bundle": (),
    "requires": ("requires",),
    "model": ("model",),
    "tokenizer": ("tokenizer",),
    "document": ("document",),
    "setting": ("settings", "mem_len"),
    "ring": ("rings", "far"),
    "memory": ("memory", 0),
    "graph": ("graphs", "score"),
    "choice": ("steps", "score", 0),
    "feed": ("graphs", "score", "inputs", "near_window"),
    "output": ("graphs", "score", "outputs", "log_prob"),
    "file": ("files", "score.onnx"),
}


def _score(m: Case) -> Case:
    graph: Case = m["graphs"]["score"]
    return graph


def _choices(m: Case) -> list[Case]:
    choices: list[Case] = m["steps"]["score"]
    return choices


def _feed(**feed: str) -> Edit:
    return lambda m: _score(m)["inputs"].update(more=feed)


# Changes of a manifest of BASE: the contradictions of the format, and values that no bundle has.
CONTRADICTIONS: dict[str, Edit] = {
    "no_score": lambda m: m["graphs"].update(other=m["graphs"].pop("score")),
    "feed_of_another_ring": _feed(feed="slots", ring="middle"),
    "feed_of_another_setting": _feed(feed="setting", setting="clamp_len"),
    "feed_of_another_constant": _feed(feed="constant"),
    "feed_of_another_memory": _feed(feed="memory"),
    "feed_without_ring": _feed(feed="offset"),
    "feed_with_ring": _feed(feed="tokens", ring="near"),
    "unknown_feed": _feed(feed="time"),
    "axis_without_ring": lambda m: m["memory"][0].update(shape=["batch", "middle", 1]),
    "window_of_free_axis": lambda m: m["memory"][0].update(layout="window"),
    "unknown_layout": lambda m: m["memory"][0].update(layout="list"),
    "window_if_a_number": lambda m: m["rings"]["far"].update(window_if="mem_len"),
    "window_if_unknown": lambda m: m["rings"]["far"].update(window_if="same_length"),
    "two_numbers": lambda m: m["rings"]["far"].update(rows=[1, 0]),
    "fraction": lambda m: m["rings"]["far"].update(rows=[1, 0, 0.5]),
    "unlisted_graph": lambda m: m["files"].pop("score.onnx"),
    "unlisted_values": lambda m: m["files"].pop(FIRST_MEMORY),
    "step_of_a_missing_graph": lambda m: _choices(m)[0].update(graph="few"),
    "step_with_other_outputs": lambda m: (
        m["graphs"].update(few={**_score(m), "outputs": {**_score(m)["outputs"], "more": SCALAR}}),
        m["steps"].update(score=[*_choices(m), {**_choices(m)[0], "graph": "few"}]),
    ),
    "device": lambda m: _choices(m)[0].update(device="cpu"),
    "kernel": lambda m: _choices(m)[0].update(kernels=[1]),
    "kernels_a_text": lambda m: _choices(m)[0].update(kernels="LSHSort"),
    "meaning": lambda m: m["meaning"].update(tokens=1),
    "fingerprint": lambda m: m.update(fingerprint="0" * 63),
    "fingerprint_in_capitals": lambda m: m.update(fingerprint="A" * 64),
    "fixed_size": lambda m: _score(m).update(fixed={"batch": 0}),
    "torchscript": lambda m: _score(m).update(format="torchscript"),
    "max_segment": lambda m: _choices(m)[0].update(max_segment=0),
    "vocab_size": lambda m: m["model"].update(vocab_size=0),
    "axis": lambda m: m["memory"][0].update(shape=["batch", "near", 2**31]),
    "dtype": lambda m: m["memory"][0].update(dtype="complex64"),
    "segment_len": lambda m: m["document"].update(segment_len=0),
    "truth_is_no_number": lambda m: m["document"].update(segment_len=True),
    "max_positions": lambda m: m["document"].update(max_positions=0),
    "max_positions_beyond": lambda m: m["document"].update(max_positions=2**30 + 1),
    "first_id": lambda m: m["tokenizer"].update(first_id=-1),
    "file_outside": lambda m: m["files"].update({"../score.onnx": m["files"]["score.onnx"]}),
    "file_in_a_folder": lambda m: m["files"].update({"a/b": m["files"]["score.onnx"]}),
    "no_sha256": lambda m: m["files"]["score.onnx"].update(sha256="0" * 63),
    "newer_onnxruntime": lambda m: m["requires"].update(onnxruntime="99.0"),
    "other_domain": lambda m: m["requires"]["domains"].update({"other.domain": 1}),
    "newer_format": lambda m: m.update(format=6),
    "last_format": lambda m: m.update(format=4),
    "opset_0": lambda m: m["requires"].update(opset=0),
    "opset_beyond": lambda m: m["requires"].update(opset=2**31),
    "onnxruntime_empty": lambda m: m["requires"].update(onnxruntime=""),
    "onnxruntime_no_version": lambda m: m["requires"].update(onnxruntime="1.24\u0661"),
    "domain_0": lambda m: m["requires"]["domains"].update({"ai.xlexport": 0}),
    "max_segment_beyond": lambda m: _choices(m)[0].update(max_segment=2**31),
    "fixed_size_beyond": lambda m: _score(m).update(fixed={"batch": 2**31}),
    "axis_without_name": lambda m: _score(m)["outputs"].update(more={"dtype": "float32", "shape": [""]}),
    "segment_len_beyond": lambda m: m["document"].update(segment_len=2**30 + 1, max_positions=8),
    "file_size_beyond": lambda m: m["files"]["score.onnx"].update(size=2**53),
}

# Rules about the meaning of several fields, which only Python's reader names: a change of a manifest of BASE, and words
# of the message. C and JavaScript take such a manifest.
PYTHON_ALONE: dict[str, tuple[Edit, str]] = {
    "memories_of_one_input": (lambda m: m["memory"].append({**m["memory"][0], "output": "more"}), SHARED),
    "memories_of_one_output": (lambda m: m["memory"][1].update(output="new_near"), SHARED),
    "rings_and_full_document": (lambda m: m["document"].update(full_document=True), "so nothing is kept in rings"),
    "ring_of_another_axis": (lambda m: m["rings"].update(batch=m["rings"]["far"]), "which is another axis"),
    "value_below_minimum": (lambda m: m["settings"]["mem_len"].update(value=0), OUT_OF_RANGE),
    "value_above_maximum": (lambda m: m["settings"]["mem_len"].update(maximum=2), OUT_OF_RANGE),
    "boolean_with_range": (lambda m: m["settings"].update(flag={**SETTING, "value": True, "minimum": 0}), NO_RANGE),
    "boolean_with_off": (lambda m: m["settings"].update(flag={**SETTING, "value": True, "off": 0}), NO_RANGE),
    "boolean_mem_len": (lambda m: m["settings"]["mem_len"].update(value=True, minimum=None), "mem_len is not a number"),
    "window_below_1": (lambda m: m["rings"]["far"].update(window=[0, 0, 0]), "a token would see no key"),
    "no_room": (lambda m: m["rings"]["far"].update(slots=[3, 0, 0]), NO_ROOM),
    "slots_beyond": (
        lambda m: (
            m["rings"]["far"].update(slots=[2**30, 0, 0], rows=[2**29, 0, 0]),
            m["settings"]["mem_len"].update(value=2**30),
        ),
        NO_ROOM,
    ),
    "memory_not_taken": (lambda m: m["memory"].append(SCALAR_STATE), "graph 'score' does not take"),
    "bidirectional": (lambda m: m["document"].update(bidirectional=True), "bidirectional is true, but"),
    "restart_without_limit": (lambda m: m["document"].update(restart=True), "so nothing ever restarts"),
    "byte_ids": (lambda m: m["tokenizer"].update(kind="bytes"), "bytes have ids .* but the vocabulary is"),
    "setting_of_a_runtime": (lambda m: m["settings"].update(segment_len=SETTING), "is the runtime's own"),
    "no_log_prob": (lambda m: _score(m).update(outputs={}), r"does not return \w+$"),
    "log_prob_double": (lambda m: _score(m)["outputs"]["log_prob"].update(dtype="float64"), IS_NOT),
    "log_prob_turned": (lambda m: _score(m)["outputs"]["log_prob"].update(shape=["segment", "batch"]), IS_NOT),
    "numbers_of_likeliest": (lambda m: m["graphs"].update(detail={**_score(m), "outputs": DETAIL}), "in top_ids and"),
    "no_step": (lambda m: m["steps"].pop("score"), "the graph 'score', or its step, is missing"),
    "step_without_graphs": (lambda m: _choices(m).clear(), "no graph that runs without kernels"),
    "step_with_kernels_only": (lambda m: _choices(m)[0].update(kernels=["LSHSort"]), "that runs without kernels"),
    "step_of_accelerators": (lambda m: _choices(m)[0].update(device="accelerator"), "that runs without kernels"),
    "fixed_axis_of_nothing": (lambda m: _score(m).update(fixed={"middle": 1}), "fixes axes that no step has"),
    "tokenizer_with_file": (lambda m: m["tokenizer"].update(file="score.onnx"), "only bytes and none have no file"),
    "first_id_of_no_bytes": (lambda m: m["tokenizer"].update(first_id=1), "first_id of tokenizer"),
    "settled_of_no_library": (lambda m: m["tokenizer"].update(settled="words"), "which are for files of libraries"),
    "adds_no_begin": (lambda m: m["tokenizer"].update(adds_begin=True), "adds_begin without a begin token"),
}
# Members in the place of `format` and `provenance`, which readers of JSON could understand in more than one way.
MEMBERS = {
    "point": '"format": 5.0, "provenance": {}',
    "exponent": '"format": 5e0, "provenance": {}',
    "twice": '"format": 5, "provenance": {}, "format": 5',
    "twice_with_escape": '"format": 5, "provenance": {}, "form\\u0061t": 5',
    "twice_inside": '"format": 5, "provenance": {"a": {"b": 1, "c": 2, "b": 1}}',
    "beyond_64_bits": '"format": 5, "provenance": {"a": [9223372036854775808]}',
    "below_64_bits": '"format": 5, "provenance": {"a": -9223372036854775809}',
    "many_digits": f'"format": 5, "provenance": {{"a": 1{"0" * 5000}}}',
    "nan": '"format": 5, "provenance": {"a": NaN}',
    "infinity": '"format": 5, "provenance": {"a": -Infinity}',
    "not_finite": '"format": 5, "provenance": {"a": 1e400}',
}
GOOD_MEMBERS = '"format": 5, "provenance": {"a": [1.0, 2e0, 1e-400, -9223372036854775808, 9007199254740993]}'
# Changes of a manifest of BASE with another code.
DAMAGES: dict[str, Edit] = {
    "sha256": lambda m: m["files"]["score.onnx"].update(sha256="0" * 64),
    "size": lambda m: m["files"]["score.onnx"].update(size=17),
    "absent": lambda m: m["files"].update({"absent.data": m["files"]["score.onnx"]}),
}
# First values of the state of BASE, which has one number.
FIRST_VALUES: dict[str, list[float]] = {"missing": [], "shape": [7.0, 7.0], "not_finite": [math.nan]}


def refusals(kit: Path) -> Iterator[Case]:
    """Yield all refusals, and write the files that they need."""
    files = Files(kit)
    for kind, place in OBJECTS.items():
        yield _case(f"fields_{kind}", _fields(files, kind, place))
    yield _case("contradictions", (_changed(files, *one, "bundle_format") for one in CONTRADICTIONS.items()))
    yield _case("damages", (*(_changed(files, *one, "bundle_damaged") for one in DAMAGES.items()), *_damages(files)))
    yield _case("manifests", _manifests(files))
    yield _case("vocabularies", _vocabularies(files))
    yield _case("graphs", _graphs(files))
    yield _case("escapes", (refused(opening(name), "bundle_graph") for name in write_escapes(kit)))
    yield _case("outputs", _outputs(files))
    yield _case("states", _refused_states(kit))
    yield _case("settings", _refused_settings(files))
    yield _case("tokens", _refused_tokens())


def _case(name: str, actions: Iterator[Case] | tuple[Case, ...]) -> Case:
    return {"name": f"refuse_{name}", "actions": [*actions]}


def _changed(files: Files, name: str, change: Edit, code: str) -> Case:
    return refused(opening(BASE, files.edited(BASE, name, change)), code)


def _fields(files: Files, kind: str, place: tuple[str | int, ...]) -> Iterator[Case]:
    """Yield openings in which a field of an object is missing, of another type, or unknown."""

    def edited(name: str, change: Edit) -> Case:
        return _changed(files, f"{kind}_{name}", lambda m: change(functools.reduce(_inner, place, m)), "bundle_format")

    manifest = json.loads((files.kit / "bundles" / BASE / MANIFEST).read_text("utf-8"))
    for field in functools.reduce(_inner, place, manifest):
        yield edited(f"{field}_missing", lambda part, field=field: part.pop(field))  # type: ignore[misc]
        yield edited(f"{field}_type", lambda part, field=field: part.update({field: 3.5}))  # type: ignore[misc]
    yield edited("unknown", lambda part: part.update(unknown=1))


def _inner(part: Any, key: str | int) -> Any:
    return part[key]


def _manifests(files: Files) -> Iterator[Case]:
    """Yield manifests that are not JSON, of an earlier format, changed, or not the expected one."""
    raw = (files.kit / "bundles" / RICH / MANIFEST).read_bytes()
    contents = {
        "not_json": raw[: len(raw) // 2],
        "not_utf8": raw.replace(b"batch", b"\xff", 1),
        "not_an_object": b"[1, 2]",
        "deep": b"[" * 100_000,
    }
    others = {name: value for name, value in json.loads(raw).items() if name not in ("format", "provenance")}
    rest = json.dumps(others)[1:]
    contents |= {name: f"{{{members}, {rest}".encode() for name, members in MEMBERS.items()}
    for name, content in contents.items():
        yield refused(opening(RICH, files.manifest(name, content)), "bundle_format")
    yield opening(RICH, files.manifest("good", f"{{{GOOD_MEMBERS}, {rest}".encode()))
    older = files.add("older.json", b'{"format_version": 3}')
    yield refused(opening(RICH, {MANIFEST: older, DIGEST: None}), "bundle_format")
    changed = files.add("changed.json", raw + b"\n")
    yield refused(opening(RICH, {MANIFEST: changed}), "bundle_damaged")
    yield refused(opening(RICH, {DIGEST: None}), "bundle_damaged")
    yield refused(opening(RICH, {DIGEST: files.add("digest.sha256", b"no digest\n")}), "bundle_damaged")
    yield refused(opening(RICH, {MANIFEST: None}), "bundle_not_found")
    digest = hashlib.sha256(raw).hexdigest()
    yield {**opening(RICH), "digest": digest}
    yield refused({**opening(RICH), "digest": ""}, "bundle_mismatch")
    yield refused({**opening(RICH), "digest": digest.upper()}, "bundle_mismatch")
    yield refused(
        {**opening(RICH), "digest": digest.replace(digest[-1], "0" if digest[-1] != "0" else "1")}, "bundle_mismatch"
    )
    people = {"README.md": files.add("readme.md", b"People may edit this file.\n"), "parity.json": None}
    yield opening(RICH, people)


def _damages(files: Files) -> Iterator[Case]:
    """Yield files with a flipped bit, cut files, missing ones, and wrong first values."""
    for name in ("score.onnx", "weights.data", FIRST_MEMORY, "positions.onnx", "detail.onnx"):
        raw = bytearray((files.kit / "bundles" / RICH / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        for content in (files.add(f"flipped.{name}", bytes(raw)), files.add(f"cut.{name}", bytes(raw[:-1])), None):
            yield refused(opening(RICH, {name: content}), "bundle_damaged")
    for name, values in FIRST_VALUES.items():
        saved = save({"total": np.array(values, np.float32)} if values else {"other": np.zeros(1, np.float32)})
        digest = {"sha256": hashlib.sha256(saved).hexdigest(), "size": len(saved)}
        manifest = files.edited(BASE, f"values_{name}", lambda m: m["files"].update({FIRST_MEMORY: digest}))  # noqa: B023
        values_file = {FIRST_MEMORY: files.add(f"values_{name}.safetensors", saved)}
        yield refused(opening(BASE, {**manifest, **values_file}), "bundle_format")


def _vocabularies(files: Files) -> Iterator[Case]:
    """Yield vocabularies that readers of JSON could understand in more than one way."""
    raw = (files.kit / "bundles" / "lines" / VOCABULARY).read_bytes()
    for name, unk in {"twice": b'null, "unk": null', "beyond_64_bits": b"18446744073709551616", "nan": b"NaN"}.items():
        content = raw.replace(b'"unk": null', b'"unk": ' + unk)
        digest = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        manifest = files.edited("lines", f"symbols_{name}", lambda m: m["files"].update({VOCABULARY: digest}))  # noqa: B023
        vocabulary = {VOCABULARY: files.add(f"symbols_{name}.json", content)}
        yield refused(opening("lines", {**manifest, **vocabulary}), "vocabulary")


def _graphs(files: Files) -> Iterator[Case]:
    """Yield bundles whose graph does not open, or is not the one that the manifest describes."""
    for name, content in hostile_graphs():
        yield refused(_opening_of(files, name, {"score": content}, {"score": ["log_prob"]}), "bundle_graph")


def _outputs(files: Files) -> Iterator[Case]:
    """Yield bundles that open, and steps whose results are not those of the manifest."""
    for name, graphs, outputs, detail in graphs_that_open():
        yield _opening_of(files, name, graphs, outputs)
        yield refused({"do": "score", "document": {"ids": [97, 98, 99, 100, 101]}, **detail}, "bundle_graph")


def _opening_of(files: Files, name: str, graphs: dict[str, bytes], outputs: Any) -> Case:
    contents = {f"{graph}.onnx": files.add(f"{name}.{graph}.onnx", content) for graph, content in graphs.items()}
    return opening(RICH, {**contents, **files.manifest(name, bundle_of(graphs, outputs))})


LIMITED, SIMPLE = "reformer_band", "post_lnorm_same_length_empty"
Metadata = dict[str, str]
Tensors = dict[str, npt.NDArray[Any]]

DAMAGED, MISMATCH = "state_damaged", "state_mismatch"
KEY = "memory_key_0"
# Parts of a state's header, and others in their place.
HEADERS: dict[str, tuple[bytes, bytes]] = {
    "twice": (b'"kind":', b'"kind": "xlexport stream", "kind":'),
    "tensor_twice": (b'"memory_key_0":', b'"memory_key_0": {}, "memory_key_0":'),
    "point": (b'"data_offsets": [0,', b'"data_offsets": [0.0,'),
    "size_exponent": (b'"shape": [1, 2,', b'"shape": [1, 2e0,'),
    "sizes_below_0": (b'"shape": [1, 2,', b'"shape": [-1, -2,'),
    "sizes_text": (b'"shape": [1, 2,', b'"shape": ["1", 2,'),
    "product_beyond": (b'"shape": [1, 2,', b'"shape": [4294967296, 4294967296, 1, 2,'),
    "beyond_64_bits": (b'"shape": [1, 2,', b'"shape": [18446744073709551617, 2,'),
}
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
    "offset_beyond": (DAMAGED, lambda m, t: m.update(offset=str(2**53))),
    "position_beyond": (DAMAGED, lambda m, t: m.update(position=str(2**63))),
    "zeros_in_front": (DAMAGED, lambda m, t: m.update(offset=f"0{m['offset']}")),
    "minus_zero": (DAMAGED, lambda m, t: m.update(offset="-0")),
    "exponent": (DAMAGED, lambda m, t: m.update(offset="1e1")),
    "held_half_a_byte": (DAMAGED, lambda m, t: m.update(held="6")),
    "held_too_much": (DAMAGED, lambda m, t: m.update(held="61" * 4101)),
    "held_nothing": (DAMAGED, lambda m, t: m.pop("held")),
    "begun": (DAMAGED, lambda m, t: m.update(begun="yes")),
    "version": (MISMATCH, lambda m, t: m.update(version="2")),
    "later_version": (MISMATCH, lambda m, t: m.update(version="5")),
    "segment_len": (MISMATCH, lambda m, t: m.update(segment_len="true")),
    "restart": (MISMATCH, lambda m, t: m.update(restart="0")),
    "fingerprint": (MISMATCH, lambda m, t: m.update(fingerprint="0" * 64)),
    "setting": (MISMATCH, lambda m, t: m.update({"setting.mem_len": "0"})),
    "unknown_setting": (MISMATCH, lambda m, t: m.update({"setting.n_hashes": "2"})),
    "no_setting": (MISMATCH, lambda m, t: m.pop("setting.clamp_len")),
}


def _refused_states(kit: Path) -> Iterator[Case]:
    """Yield states that no stream of SIMPLE can have, and write them."""
    yield opening(SIMPLE)
    intact = kit / "states" / "intact.safetensors"
    stream = load(kit / "bundles" / SIMPLE, threads=1, ops="none").stream()
    stream.feed(b"a text of some length")
    stream.save(intact)
    raw = intact.read_bytes()

    def bad(name: str) -> Path:
        return kit / "states" / f"bad_{name}.safetensors"

    def restoring(name: str, code: str) -> Case:
        return refused({"do": "restore", "state": f"bad_{name}", "as": "a"}, code)

    for name, (code, change) in STATES.items():
        metadata, tensors = read_state(intact, KIND, VERSION, "")
        change(metadata, tensors)
        write_state(bad(name), metadata, tensors)
        yield restoring(name, code)
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
    size = int.from_bytes(raw[:8], "little") + 8
    for name, (old, new) in HEADERS.items():
        header = raw[8:size].replace(old, new, 1)
        assert header != raw[8:size]
        contents[f"header_{name}"] = len(header).to_bytes(8, "little") + header + raw[size:]
    for name, content in contents.items():
        bad(name).write_bytes(content)
        yield restoring(name, DAMAGED)
    yield {"do": "restore", "state": "intact", "as": "a"}
    metadata, tensors = read_state(intact, KIND, VERSION, "")
    earlier = {name: text for name, text in metadata.items() if name not in ("held", "begun", "tokenizer")}
    write_state(kit / "states" / "earlier.safetensors", {**earlier, "version": "3"}, tensors)
    yield {"do": "restore", "state": "earlier", "as": "a"}


def _refused_settings(files: Files) -> Iterator[Case]:
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
    for name in ("fixed_rows", FULL_DOCUMENT):
        yield opening(name)
        yield refused({"do": "stream", "as": "a"}, "option")
    yield refused({**score, "settings": {"mem_len": 5}}, "option")
    yield opening(RICH, files.edited(RICH, "large", lambda m: m["rings"]["capacity"].update(slots=[2**22, 1, 0])))
    yield refused({"do": "stream", "as": "a", "settings": {"mem_len": 2**30}}, "option")
    yield opening(BASE)
    yield refused({**score, "detail": 1}, "option")
    yield refused(generate, "option")


def _refused_tokens() -> Iterator[Case]:
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
