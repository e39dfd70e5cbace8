"""What is in a bundle, for people."""

from __future__ import annotations

from xlruntime.spec import Bundle

__all__ = ["bundle_rows"]


def bundle_rows(bundle: Bundle) -> list[tuple[str, str]]:
    """Names and values for a table."""
    config, evaluation = bundle.config, bundle.evaluation
    row_bytes = sum(4 * _numbers(entry.shape) for entry in bundle.memory)
    rows = [
        ("architecture", bundle.architecture),
        ("config", ", ".join(f"{name} {value}" for name, value in config.items())),
        ("tokenizer", f"{bundle.tokenizer.kind}, vocabulary {bundle.vocab_size:,}"),
        ("precision", bundle.precision),
        ("segment, memory, clamp", f"{evaluation.segment_len}, {evaluation.mem_len}, {evaluation.clamp_len}"),
        ("same_length", str(evaluation.same_length).lower()),
        ("first memory", evaluation.first_memory),
        ("memory of a stream", f"{row_bytes * evaluation.capacity() / 1e6:,.1f} MB in {len(bundle.memory)} tensors"),
        ("fingerprint", bundle.fingerprint),
    ]
    rows += [(f"converted from {name}", f"SHA-256 {sha256}") for name, sha256 in bundle.provenance["sources"].items()]
    rows += [("versions", ", ".join(f"{name} {version}" for name, version in bundle.provenance["versions"].items()))]
    for purpose, graph in bundle.graphs.items():
        carried = {entry.output for entry in bundle.memory}
        outputs = [tensor for tensor in graph.outputs if tensor.name not in carried]
        shown = ", ".join(f"{tensor.name} {_shape(tensor.shape)} {tensor.dtype}" for tensor in outputs[:5])
        rows.append((f"graph {purpose}", shown + (", …" if len(outputs) > 5 else "")))
    rows += [(name, f"{digest.size:,} bytes, SHA-256 {digest.sha256[:16]}…") for name, digest in bundle.files.items()]
    return rows


def _numbers(shape: tuple[int | str, ...]) -> int:
    """Numbers in one slot of one batch row."""
    product = 1
    for axis in shape:
        product *= axis if isinstance(axis, int) else 1
    return product


def _shape(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(str(axis) for axis in shape) + ")"
