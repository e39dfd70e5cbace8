"""The cases in which a runtime refuses something: damaged bundles, and what `refused_use` has."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from xlruntime.evaluation import EvaluationRules, Ring, Setting
from xlruntime.spec import FIRST_MEMORY_FILE, Bundle, FileDigest, Graph, Memory, Tensor, Tokenizer

from .bundles import edited
from .cases import Case
from .hostile_graphs import DETAIL, INPUTS, SCORE, hostile_graphs, with_metadata
from .refused_use import opening, refused, refused_settings, refused_states, refused_tokens

__all__ = ["PLACES", "refusals"]

BASE, RICH = "two_rings", "pre_lnorm_same_length_zeros"
Edit = Callable[[dict[str, Any]], object]

# Where a manifest of BASE has an object of each class.
PLACES: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Bundle: lambda m: m,
    EvaluationRules: lambda m: m["evaluation"],
    Setting: lambda m: m["evaluation"]["settings"]["near_len"],
    Ring: lambda m: m["evaluation"]["rings"]["far"],
    Tokenizer: lambda m: m["tokenizer"],
    Memory: lambda m: m["memory"][0],
    Graph: lambda m: m["graphs"]["score"],
    Tensor: lambda m: m["graphs"]["score"]["inputs"][0],
    FileDigest: lambda m: m["files"]["score.onnx"],
}
# Rule 39: name, a word of the refusal, the change.
CONTRADICTIONS: tuple[tuple[str, str, Edit], ...] = (
    ("no_score", "score", lambda m: m["graphs"].clear()),
    ("memory_not_taken", "memory_x", lambda m: m["memory"][0].update(input="memory_x")),
    ("memory_shared", "memor", lambda m: m["memory"].append(m["memory"][0])),
    ("ring_without_rules", "near", lambda m: m["evaluation"]["rings"].pop("near")),
    ("rings_and_whole", "evaluation", lambda m: m["evaluation"].update(whole=True)),
    ("reads_last_without_whole", "reads_last", lambda m: m["evaluation"].update(reads_last=True)),
    ("rows_not_a_setting", "other_len", lambda m: m["evaluation"]["rings"]["near"].update(rows="other_len")),
    ("ring_named_batch", "batch", lambda m: _ring_named(m, "batch")),
    ("same_length_not_boolean", "far_len", lambda m: m["evaluation"]["rings"]["near"].update(same_length="far_len")),
    ("own_setting", "segment_len", lambda m: m["evaluation"]["settings"].update(segment_len=_setting(m))),
    ("byte_ids", "255", lambda m: m.update(tokenizer={"kind": "bytes"})),
    ("no_log_prob", "log_prob", lambda m: _rename_output(m, "log_prob", "other")),
    ("log_prob_of_another_type", "log_prob", lambda m: _output(m, "log_prob").update(dtype="float64")),
    ("max_segment", "max_segment", lambda m: m["graphs"]["score"].update(max_segment=0)),
    ("names_twice", "score.onnx", lambda m: m["graphs"]["score"]["inputs"].append(m["graphs"]["score"]["inputs"][0])),
    ("window_of_free_axis", "near", lambda m: m["memory"][0].update(layout="window")),
    ("vocab_size", "vocab_size", lambda m: m.update(vocab_size=0)),
    ("axis", "2147483647", lambda m: m["memory"][0].update(shape=["batch", "near", 2**31])),
    ("dtype", "complex64", lambda m: m["memory"][0].update(dtype="complex64")),
    ("default", "default", lambda m: _setting(m).update(default=0)),
    ("restart", "restart", lambda m: m["evaluation"].update(restart=True)),
    ("max_positions", "max_positions", lambda m: m["evaluation"].update(max_positions=0)),
    ("tokenizer_file", "tokenizer", lambda m: m.update(tokenizer={"kind": "none", "file": "score.onnx"})),
    ("first_id", "first_id", lambda m: m.update(tokenizer={"kind": "none", "first_id": -1})),
)
# Rules 2 and 38.
FILES: tuple[tuple[str, str, Edit], ...] = (
    ("leaves", "../score.onnx", lambda m: m["files"].update({"../score.onnx": m["files"]["score.onnx"]})),
    ("folder", "a/b", lambda m: m["files"].update({"a/b": m["files"]["score.onnx"]})),
    ("unlisted_graph", "score.onnx", lambda m: m["files"].pop("score.onnx")),
    ("unlisted_values", "first_memory.safetensors", lambda m: m["files"].pop("first_memory.safetensors")),
    ("description", "README.md", lambda m: _graph_in(m, "README.md")),
    ("digest", "score.onnx", lambda m: m["files"]["score.onnx"].update(sha256="0" * 64)),
    ("size", "score.onnx", lambda m: m["files"]["score.onnx"].update(size=17)),
    ("absent", "absent.data", lambda m: m["files"].update({"absent.data": m["files"]["score.onnx"]})),
    ("metadata", "metadata", lambda m: m["graphs"]["score"].update(max_segment=32)),
    ("torchscript", "score.onnx", lambda m: m["graphs"]["score"].update(format="torchscript")),
)
# Rule 40: first values of the state of BASE, which has one number.
FIRST_VALUES: dict[str, list[float]] = {"missing": [], "shape": [7.0, 7.0], "not_finite": [math.nan]}


def refusals(kit: Path) -> Iterator[Case]:
    """Yield all refusals, and write the damaged files that they need into `kit/damaged`."""
    damaged = _Damaged(kit)
    yield from _fields(damaged)
    yield {"name": "refuse_contradictions", "rule": 39, "actions": [damaged.manifest(*one) for one in CONTRADICTIONS]}
    yield {"name": "refuse_files", "rule": 38, "actions": [damaged.manifest(*one) for one in FILES]}
    yield {"name": "refuse_manifests", "rule": 37, "actions": [*damaged.manifests()]}
    yield {"name": "refuse_bytes", "rule": 37, "actions": [*damaged.files()]}
    graphs = [damaged.graph(*one) for one in hostile_graphs()]
    yield {"name": "refuse_graphs", "rule": 38, "actions": [one for one, step in graphs if step is None]}
    yield {"name": "refuse_outputs", "rule": 40, "actions": [action for pair in graphs if pair[1] for action in pair]}
    yield {"name": "refuse_detail", "rule": 40, "actions": [*damaged.detail()]}
    yield {"name": "refuse_states", "rule": 36, "actions": [*refused_states(kit)]}
    yield {"name": "refuse_settings", "rule": 41, "actions": [*refused_settings()]}
    yield {"name": "refuse_tokens", "rule": 41, "actions": [*refused_tokens()]}


def _fields(damaged: _Damaged) -> Iterator[Case]:
    """Yield a case for each class of the manifest: every field missing or of another type, and an unknown field."""
    for kind, place in PLACES.items():
        actions = []
        for field in dataclasses.fields(kind):
            wrong: Any = 3.5 if field.name != "config" else 7
            if kind is Bundle and field.name == "format_version":
                wrong = "3"
            said = "format_version" if field.name == "format_version" else field.name
            actions.append(
                damaged.manifest(
                    f"{kind.__name__}_{field.name}_type",
                    said,
                    lambda m, name=field.name, value=wrong: place(m).update({name: value}),  # type: ignore[misc]  # noqa: B023
                )
            )
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                actions.append(
                    damaged.manifest(
                        f"{kind.__name__}_{field.name}_missing",
                        said,
                        lambda m, name=field.name: place(m).pop(name),  # type: ignore[misc]  # noqa: B023
                    )
                )
        actions.append(damaged.manifest(f"{kind.__name__}_unknown", "unknown", lambda m: place(m).update(unknown=1)))  # noqa: B023
        yield {"name": f"refuse_fields_{kind.__name__}", "rule": 37, "actions": actions}


class _Damaged:
    """The folder of damaged files."""

    def __init__(self, kit: Path) -> None:
        self._kit, self._folder = kit, kit / "damaged"
        self._folder.mkdir(exist_ok=True)

    def file(self, name: str, content: bytes) -> str:
        """Write a damaged file, and return its path in the kit."""
        (self._folder / name).write_bytes(content)
        return f"damaged/{name}"

    def manifest(self, name: str, said: str, change: Edit, bundle: str = BASE) -> Case:
        """Return an action that opens a bundle with a changed manifest."""
        text = edited(self._kit / "bundles" / bundle, change)
        return refused(opening(bundle, {"bundle.json": self.file(f"{name}.json", text.encode())}), "BundleError", said)

    def manifests(self) -> Iterator[Case]:
        """Yield manifests that are not JSON, of another version, changed or too large."""
        raw = (self._kit / "bundles" / RICH / "bundle.json").read_bytes()
        newer = edited(self._kit / "bundles" / RICH, lambda m: m.update(format_version=4)).encode()
        older = edited(self._kit / "bundles" / RICH, lambda m: m.update(format_version=2)).encode()
        contents = {
            "not_json": (raw[: len(raw) // 2], "not valid JSON"),
            "not_utf8": (raw.replace(b"bundle", b"\xff", 1)[:-5] + b"\xff\xff}\n", "not valid JSON"),
            "not_an_object": (b"[1, 2]", "format_version"),
            "deep": (b"[" * 100_000, "not valid JSON"),
            "large": (b"[" + b"{}," * 400_000 + b"{}]", "more than"),
            "newer": (newer, "newer"),
            "older": (older, "Convert the checkpoint again"),
            "changed": (raw.replace(b'"vocab_size": 256', b'"vocab_size": 255'), "manifest_sha256"),
        }
        for name, (content, said) in contents.items():
            assert content != raw
            yield refused(opening(RICH, {"bundle.json": self.file(f"{name}.json", content)}), "BundleError", said)
        missing = opening(RICH, {"bundle.json": None})
        yield refused(missing, "BundleNotFoundError", "bundle.json")

    def files(self) -> Iterator[Case]:
        """Yield files with a flipped bit, cut files and missing ones."""
        bundle = self._kit / "bundles" / RICH
        for name in ("score.onnx", "weights.data", "first_memory.safetensors", "positions.onnx", "detail.onnx"):
            raw = bytearray((bundle / name).read_bytes())
            raw[len(raw) // 2] ^= 1
            yield refused(opening(RICH, {name: self.file(f"flipped_{name}", bytes(raw))}), "BundleError", name)
            yield refused(opening(RICH, {name: self.file(f"cut_{name}", bytes(raw[:-1]))}), "BundleError", name)
            yield refused(opening(RICH, {name: None}), "BundleError", name)
        for name, values in FIRST_VALUES.items():
            content = save({"total": np.array(values, np.float32)} if values else {"other": np.zeros(1, np.float32)})
            digest = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            text = edited(self._kit / "bundles" / BASE, lambda m: m["files"].update({FIRST_MEMORY_FILE: digest}))  # noqa: B023
            files: dict[str, str | None] = {FIRST_MEMORY_FILE: self.file(f"values_{name}.safetensors", content)}
            files["bundle.json"] = self.file(f"values_{name}.json", text.encode())
            yield refused(opening(BASE, files), "BundleError", FIRST_MEMORY_FILE)
        changed = self.file("changed_readme.md", b"People may edit this file.\n")
        yield opening(RICH, {"README.md": changed, "parity.json": None})  # no runtime needs these

    def graph(self, name: str, said: str, made: Any, steps: bool) -> tuple[Case, Case | None]:
        """Return an action that opens a bundle with a hostile graph, and one that steps it, or None."""
        graph = Graph("score.onnx", INPUTS, SCORE)
        opening = self._made(name, {"score": (graph, with_metadata(made, graph))})
        if not steps:
            return refused(opening, "BundleError", said), None
        return opening, refused({"do": "score", "document": {"ids": [97, 98, 99, 100, 101]}}, "BundleError", said)

    def detail(self) -> Iterator[Case]:
        """Yield actions on a bundle whose `detail` graph gives ranks out of range."""
        import onnx
        from onnx import helper

        node = helper.make_node
        taken = [helper.make_tensor_value_info(one.name, onnx.TensorProto.INT64, one.shape) for one in INPUTS]
        held = [
            onnx.numpy_helper.from_array(np.array(-0.01, np.float32), "minus"),
            onnx.numpy_helper.from_array(np.array([2]), "axis"),
        ]
        held.append(onnx.numpy_helper.from_array(np.array([1, 1, 10]), "shape"))
        common = [node("Cast", ["targets"], ["f"], to=1), node("Mul", ["f", "minus"], ["log_prob"])]
        listing = [
            node("Unsqueeze", ["targets", "axis"], ["one"]),
            node("Expand", ["one", "shape"], ["top_ids"]),
            node("Cast", ["top_ids"], ["g"], to=1),
            node("Mul", ["g", "minus"], ["top_log_probs"]),
            node("Neg", ["log_prob"], ["entropy"]),
            node("Neg", ["targets"], ["rank"]),
        ]
        models = {}
        for purpose, nodes, outputs in (("score", common, SCORE), ("detail", common + listing, DETAIL)):
            given = [helper.make_empty_tensor_value_info(tensor.name) for tensor in outputs]
            made = helper.make_model(
                helper.make_graph(nodes, purpose, taken, given, held), opset_imports=[helper.make_opsetid("", 20)],
                ir_version=10,
            )  # fmt: skip
            graph = Graph(f"{purpose}.onnx", INPUTS, outputs)
            models[purpose] = graph, with_metadata(made, graph)
        yield self._made("detail", models)
        document = {"ids": [97, 98, 99, 100, 101]}
        yield refused({"do": "score", "document": document, "detail": 3}, "BundleError", "rank")

    def _made(self, name: str, graphs: dict[str, tuple[Graph, bytes]]) -> Case:
        """Return an action that opens a bundle of bytes without memory."""
        files: dict[str, str | None] = {}
        digests = {}
        for graph, content in graphs.values():
            files[graph.file] = self.file(f"graph_{name}_{graph.file}", content)
            digests[graph.file] = FileDigest(hashlib.sha256(content).hexdigest(), len(content))
        bundle = Bundle(
            architecture="made up",
            config={},
            vocab_size=256,
            tokenizer=Tokenizer("bytes"),
            precision="float32",
            evaluation=EvaluationRules(segment_len=8),
            memory=(),
            graphs={purpose: graph for purpose, (graph, _) in graphs.items()},
            provenance={},
            files=digests,
        )
        files["bundle.json"] = self.file(f"graph_{name}.json", bundle.to_json().encode())
        return opening(RICH, files)


def _setting(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["evaluation"]["settings"]["near_len"]
    return found


def _ring_named(manifest: dict[str, Any], name: str) -> None:
    rings = manifest["evaluation"]["rings"]
    rings[name] = dict(rings["near"])


def _output(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return next(tensor for tensor in manifest["graphs"]["score"]["outputs"] if tensor["name"] == name)


def _rename_output(manifest: dict[str, Any], name: str, other: str) -> None:
    _output(manifest, name)["name"] = other


def _graph_in(manifest: dict[str, Any], file: str) -> None:
    manifest["files"][file] = manifest["files"]["score.onnx"]
    manifest["graphs"]["score"]["file"] = file
