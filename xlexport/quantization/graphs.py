"""The precisions of bundles; write the graphs of a quantized bundle, and the weights that they share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from xlexport.atomic_output import writing
from xlexport.bundles import SMALL_TENSOR_BYTES, WEIGHTS_FILE
from xlexport.errors import QuantizationError
from xlexport.manifest import requirements
from xlexport.ops import inline_functions
from xlexport.quantization import dynamic_int8 as int8
from xlexport.quantization import float16
from xlexport.quantization import weight_only as blocks
from xlexport.quantization.int8_rings import RINGS, rounded_inputs, rounded_memory, use_int8_rings
from xlexport.quantization.matmuls import WeightStore, find_products, unquantized_weights
from xlruntime.bundle import POSITIONS, Bundle, Graph

__all__ = [
    "PRECISIONS",
    "Precision",
    "changed_bytes",
    "product_names",
    "unquantized_names",
    "weights_bytes",
    "write_graphs",
]

Rewrite = Callable[[ir.Model, frozenset[str], WeightStore], None]


@dataclass(frozen=True)
class Precision:
    """One precision, with the function that rewrites graphs.

    Attributes:
        rewrite: changes all products of a graph in place, except the products to keep in float32.
        opset: the opset of the resulting graphs.
        inlined: names of custom operators whose nodes are replaced by their bodies before.
        half: whether activations and positional keys are float16, and memories if the options say so.
    """

    name: str
    rewrite: Rewrite
    opset: int
    inlined: frozenset[str] = frozenset()
    half: bool = False

    def dtype(self, name: str, before: str) -> str:
        """Return the dtype of an input or output other than a memory; `before` is that of the float32 graph."""
        return "float16" if self.half and name.startswith(float16.POSITION_KEY) else before


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("int8", int8.rewrite, int8.OPSET),
        Precision("weight-int8", functools.partial(blocks.rewrite, bits=8), blocks.OPSET),
        Precision("weight-int4", functools.partial(blocks.rewrite, bits=4), blocks.OPSET),
        Precision("float16", float16.rewrite, float16.OPSET, float16.INLINED, half=True),
    )
}


def product_names(folder: Path, bundle: Bundle) -> list[str]:
    """Return the names of the products that every step computes, in order."""
    names = [
        product.name
        for purpose, graph in bundle.graphs.items()
        if purpose != POSITIONS
        for product in find_products(ir.load(folder / graph.file))
    ]
    return list(dict.fromkeys(names))


def unquantized_names(folder: Path, bundle: Bundle, precision: Precision) -> dict[str, str]:
    """Return the names of the weight matrices that this precision leaves in float32, each with the reason."""
    names: dict[str, str] = {}
    for purpose, graph in bundle.graphs.items():
        if purpose != POSITIONS:
            model = ir.load(folder / graph.file)
            names |= unquantized_weights(model)
            if precision.half:
                scanned = [product.name for product in find_products(model) if product.is_scanned]
                names |= dict.fromkeys(scanned, "float16 ends at a scan")
    return names


def changed_bytes(folder: Path, bundle: Bundle, precision: Precision, keep: Container[str]) -> int:
    """Return how many bytes of a float32 bundle's weights do not stay float32 if the weight matrices `keep` do.

    A head's weights that also embed tokens stay with integers, as a copy.
    """
    sizes: dict[str, int] = {}
    products: dict[str, int] = {}
    embeddings: set[str] = set()
    for purpose, graph in bundle.graphs.items():
        if purpose != POSITIONS:
            model = ir.load(folder / graph.file)
            initializers = model.graph.initializers.values()
            sizes |= {
                str(value.name): value.const_value.nbytes for value in initializers if value.const_value is not None
            }
            for product in find_products(model):
                assert product.weight.const_value is not None
                products[product.name] = product.weight.const_value.nbytes
                if any(user.op_type == "Gather" for user, _ in product.weight.uses()):
                    embeddings.add(product.name)
    if precision.half:
        kept = sum(size for name, size in (sizes | products).items() if name in keep)
        return (folder / WEIGHTS_FILE).stat().st_size - kept
    return sum(size for name, size in products.items() if name not in keep and name not in embeddings)


def weights_bytes(folder: Path, bundle: Bundle) -> int:
    """Return the size of the weights file, and of the weights that the graphs' files hold for scans."""
    inner = (graph for each in bundle.graphs.values() for graph in ir.load(folder / each.file).graph.subgraphs())
    held = (value.const_value for graph in inner for value in graph.initializers.values())
    return (folder / WEIGHTS_FILE).stat().st_size + sum(tensor.nbytes for tensor in held if tensor is not None)


def write_graphs(
    source: Path,
    bundle: Bundle,
    folder: Path,
    precision: Precision,
    keep: frozenset[str],
    memory_dtype: str = "float32",
    purposes: tuple[str, ...] | None = None,
) -> Bundle:
    """Write quantized graphs and their weights file into `folder`.

    Args:
        source: the float32 bundle's folder.
        keep: products that stay float32; `RINGS` if rings do.
        purposes: the graphs to write; None: all.

    Returns:
        The bundle with the new graphs, their needs and its old files.
    """
    rings = {entry.input for entry in bundle.memory} if memory_dtype == "int8" and RINGS not in keep else set()
    if memory_dtype == "int8":
        memory = tuple(rounded_memory(bundle.memory, rings))
    else:
        memory = tuple(
            replace(entry, dtype=memory_dtype if entry.dtype == "float32" else entry.dtype) for entry in bundle.memory
        )
    memories = {name: entry.dtype for entry in memory for name in (entry.input, entry.output)}
    store = WeightStore()
    models: dict[str, ir.Model] = {}
    graphs: dict[str, Graph] = {}
    for purpose in purposes or tuple(bundle.graphs):
        old = bundle.graphs[purpose]
        model = ir.load(source / old.file)
        inline_functions(model, precision.inlined)
        if precision.half and any(value.dtype is None for node in model.graph for value in node.outputs):
            ShapeInferencePass()(model)  # values of bodies have no dtypes
        if rings:
            use_int8_rings(model)
        for value in [*model.graph.inputs, *model.graph.outputs]:
            name, dtype = str(value.name), value.dtype
            assert dtype is not None
            new = memories.get(name) or precision.dtype(name, dtype.numpy().name)
            value.dtype = ir.DataType.from_numpy(np.dtype(new))
        outputs = {
            name: replace(tensor, dtype=precision.dtype(name, tensor.dtype)) for name, tensor in old.outputs.items()
        }
        graph = replace(old, inputs=rounded_inputs(old.inputs, rings), outputs=outputs)
        if purpose != POSITIONS or precision.half:  # runs once for each stream, so quantizing it saves nothing
            precision.rewrite(model, keep, store)
            # From 20 to 21 the operators of our graphs only gained more dtypes.
            for imports in (model.opset_imports, *(inner.opset_imports for inner in model.functions.values())):
                imports[""] = max(precision.opset, model.opset_imports[""])
        models[purpose], graphs[purpose] = model, graph
    _write(models, {purpose: graph.file for purpose, graph in graphs.items()}, folder)
    requires = requirements(folder, graphs.values())
    return replace(bundle, graphs=graphs, memory=memory, precision=precision.name, requires=requires)


def _write(models: Mapping[str, ir.Model], files: Mapping[str, str], folder: Path) -> None:
    """Save graphs over one weights file that holds each tensor once, except those of scans' bodies.

    These stay in each graph's file: ONNX Runtime for JavaScript reads no other file for them.
    """
    tensors: dict[str, ir.TensorProtocol] = {}
    for model in models.values():
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            assert tensor is not None
            if tensor.nbytes > SMALL_TENSOR_BYTES and not _same(tensors.setdefault(name, tensor), tensor):
                raise QuantizationError(
                    f"{name}: two graphs have different weights of that name.", hint="Convert the checkpoint again."
                )
    # Wide numbers first, so that every tensor is aligned to the size of its numbers.
    ordered = sorted(tensors.values(), key=lambda tensor: -tensor.dtype.itemsize)
    with writing(folder / WEIGHTS_FILE):
        external = ir.external_data.convert_tensors_to_external(ordered, folder, WEIGHTS_FILE)
    references = dict(zip((str(tensor.name) for tensor in ordered), external, strict=True))
    for purpose, model in models.items():
        for name, value in model.graph.initializers.items():
            value.const_value = references.get(name, value.const_value)
        ir.save(model, folder / files[purpose])


def _same(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if isinstance(one, ir.ExternalTensor) and isinstance(other, ir.ExternalTensor):
        return (one.offset, one.length) == (other.offset, other.length)
    return one is other or one.tobytes() == other.tobytes()
