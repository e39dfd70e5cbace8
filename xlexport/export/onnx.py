"""Emit the step graphs of a bundle as ONNX files: traced once, cut by purpose, with one shared weights file."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript import rewriter
from torch.export import ExportedProgram

from xlexport.atomic_output import writing
from xlexport.bundles import SMALL_TENSOR_BYTES, WEIGHTS_FILE
from xlexport.errors import ExportError, OperatorError
from xlexport.export.operators import FX_NODE, check_operators, without_wide_limits
from xlexport.export.tracing import free_axes, tracing
from xlexport.families.step import (
    FixedSizes,
    Step,
    StepGraphs,
    StepTensor,
    describe_graph,
    graphs_of,
    outputs_of,
    steps_of,
    traced_outputs,
)
from xlexport.meanings import OPERATORS, SPECIFICATION, meanings_of
from xlexport.ops import (
    DOMAIN,
    FUSED,
    VERSION,
    add_functions,
    custom_operators,
    exact_fourier_transforms,
    inline_functions,
    translations,
    use_batched_bodies,
)
from xlruntime.bundle import Axis, Choice, Graph

__all__ = ["OPSET", "export_onnx"]

OPSET = 20  # onnxruntime and onnxruntime-web run it everywhere; newer operators are not needed
IR_VERSION = 10
HINT = "Install the version of torch in constraints.txt. If you have it, report this with the model's configuration."
# By decompositions, though made of other operators; or `translations` has them. `&` and `|` are not here, because types
# would not be promoted: steps of this package write `logical_and` and `logical_or`.
UNCHANGED = {
    *("aten._assert_tensor_metadata.default", "aten.item.default", "aten.layer_norm.default", "aten.linear.default"),
    *("aten.reshape.default", "aten.sym_size.int", "aten.to.dtype", "aten.matmul.default", "aten.flatten.using_ints"),
    *("aten.square.default", "aten.where.Scalar"),
}
UNPROMOTED = {  # unchanged, too, if the result has the type of an argument
    *("aten.log_softmax.int", "aten.softmax.int", "aten.where.ScalarOther", "aten.where.ScalarSelf"),
}
UNROLLED = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}
UNCOMPILED = "Call torch.nn.LSTM, GRU or RNN in `segment` or `step`, and leave out torch.compile of the method."
RULES = "_DEFAULT_REWRITE_RULES"  # by which onnxscript rewrites what the exporter made
_decompose = ExportedProgram.run_decompositions


def export_onnx(step: Step, folder: Path, shorter: Sequence[Step] = ()) -> StepGraphs:
    """Write `<name>.onnx` for every graph of the steps, and the weights that all share, into `folder`.

    Where LSH attention reads a sort, `<name>_fused.onnx` has it as one node, for runtimes with its kernel, and
    `<name>_batched.onnx` computes it without loops, for accelerators. All others run `<name>.onnx`. In this one and the
    batched one, `LSHSort` and `LSHGather` are nodes.

    Args:
        shorter: as in `graphs_of`.

    Returns:
        The description of each graph, and of the steps that they run.

    Raises:
        ExportError: torch cannot export the step, or a saved graph is not what the step declares.
        OSError: a file cannot be written.
    """
    steps = step, *shorter
    traced = [_trace(each) for each in steps]
    with writing(folder / WEIGHTS_FILE):
        _unload(traced, folder)
    graphs: dict[str, Graph] = {}
    choices = steps_of(step, shorter)

    def write(name: str, model: ir.Model, each: Step, purpose: str, inputs: tuple[StepTensor, ...]) -> None:
        graphs[name] = graph = describe_graph(each, purpose, f"{name}.onnx", "onnx", inputs)
        _clear_notes(model)
        _explain(model, meanings_of([graph], each.memory))
        ir.save(model, folder / graph.file)
        _check_saved(folder / graph.file, inputs, each.purposes[purpose], each.fixed)

    for each, purpose, name in graphs_of(step, shorter):
        model, inputs = _cut(traced[steps.index(each)], purpose, each)
        if fused := custom_operators(model.graph).intersection(FUSED):
            write(f"{name}_fused", model.clone(), each, purpose, inputs)
            batched = model.clone()
            use_batched_bodies(batched)
            inline_functions(batched, FUSED)
            write(f"{name}_batched", batched, each, purpose, inputs)
            choices = {key: _prefer_forms(old, name, fused) for key, old in choices.items()}
            inline_functions(model, FUSED)
        write(name, model, each, purpose, inputs)
    return StepGraphs(graphs, choices)


def _prefer_forms(choices: tuple[Choice, ...], name: str, operators: Collection[str]) -> tuple[Choice, ...]:
    """Put the forms of the graph `name` for kernels of these operators, and for accelerators, before it."""
    ordered: list[Choice] = []
    for choice in choices:
        if choice.graph == name:
            ordered.append(dataclasses.replace(choice, graph=f"{name}_fused", kernels=tuple(sorted(operators))))
            ordered.append(dataclasses.replace(choice, graph=f"{name}_batched", device="accelerator"))
        ordered.append(choice)
    return tuple(ordered)


def _unload(models: Sequence[ir.Model], folder: Path) -> None:
    """Write the large tensors of all models to one file, equal ones once."""
    values: dict[object, list[ir.Value]] = defaultdict(list)  # of equal tensors
    tensors: dict[object, ir.TensorProtocol] = {}
    keys: dict[str, object] = {}  # by the names of tensors
    for model in models:
        for value in [value for graph in model.graphs() for value in graph.initializers.values()]:
            tensor = value.const_value
            if tensor is None:
                continue
            key: object = value
            if len(models) > 1:  # a single model stays as it was traced
                key = _content(tensor)
                while keys.setdefault(str(value.name), key) != key:  # one name is one tensor, in all files
                    value.name = f"{value.name}_"
            if tensor.nbytes > SMALL_TENSOR_BYTES:
                tensors.setdefault(key, tensor)
                values[key].append(value)
    external = ir.external_data.convert_tensors_to_external([*tensors.values()], folder, WEIGHTS_FILE)
    for equal, tensor in zip(values.values(), external, strict=True):
        for value in equal:
            value.const_value = tensor


def _content(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.tobytes()).digest()


def _trace(step: Step) -> ir.Model:
    """Trace the whole step as one ONNX model, with the names of its spec."""
    rules = [rule for rule in getattr(rewriter, RULES, ()) if rule.name != "SlicesSplit"]  # looks at all pairs of nodes
    decomposed = mock.patch.object(ExportedProgram, "run_decompositions", _decomposed)
    rewritten = mock.patch.object(rewriter, RULES, rules, create=True)
    explained = tracing("export the step graph", HINT, getattr(step, "explain", None))
    with explained, decomposed, rewritten, exact_fourier_transforms():
        program = torch.onnx.export(
            step,  # type: ignore[arg-type]  # every Step is a Module
            step.example(),
            dynamic_shapes=None if step.fixed else (free_axes(step),),
            dynamo=True,
            opset_version=OPSET,
            custom_translation_table=translations(),
            verbose=False,
        )
        assert program is not None
        model = program.model
        without_wide_limits(model)
        check_operators(model)
        for value, tensor in zip(model.graph.inputs, step.inputs, strict=True):
            value.name = tensor.name
        for value, name in zip(model.graph.outputs, traced_outputs(step), strict=True):
            value.name = f"made.{name}"  # an input, or an output of another form, may have the final name
        _check_traced(model, step)
    _name_weights(model, step)
    return model


def _decomposed(program: ExportedProgram, table: Any, *options: Any, **named: Any) -> ExportedProgram:
    """Return the program in operators that ONNX has; itself if it is. Decompositions would trace it twice again."""
    for node in program.graph.nodes:
        if not isinstance(one := node.target, torch._ops.OpOverload) or str(one) in UNCHANGED:
            continue
        if str(one) in UNROLLED and type(node.args[0].meta["val"].shape[int(node.args[-1])]) is not int:
            raise OperatorError(f"{one} would be unrolled at the example's length.", UNCOMPILED)
        if str(one) in UNPROMOTED:
            types = {getattr(each.meta["val"], "dtype", None) for each in node.all_input_nodes}
            if node.meta["val"].dtype in types:
                continue
        composite = one.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        if composite or one in table or one._schema.is_mutable:
            return _decompose(program, table, *options, **named)
    return program


def _name_weights(model: ir.Model, step: Step) -> None:
    """Rename transposed weights, which the exporter numbers, to the step's own names, because people read them."""
    parameters = {f"p_{name.replace('.', '_')}": name for name in step.state_dict()}  # type: ignore[attr-defined]  # every Step is a Module
    for node in model.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if node.op_type != "MatMul" or weight is None or not str(weight.name).startswith("val_"):
            continue
        used = [name for name in re.findall(r"%(\w+)", node.metadata_props.get(FX_NODE, "")) if name in parameters]
        if used and weight.is_initializer() and f"{parameters[used[0]]}.T" not in model.graph.initializers:
            weight.name = f"{parameters[used[0]]}.T"


def _check_traced(model: ir.Model, step: Step) -> None:
    """Raise ExportError if tracing has fixed axes, before the names of the spec hide it.

    Torch silently fixes an axis if its example has size one and the code treats size one differently.
    """
    declared = [*step.inputs, *traced_outputs(step).values()]
    problems = []
    for value, tensor in zip([*model.graph.inputs, *model.graph.outputs], declared, strict=True):
        axes = _axes(value)
        shape = _shape(tensor, step.fixed)
        fixed = tuple(axis if isinstance(axis, int) else None for axis in axes)
        if fixed != tuple(axis if isinstance(axis, int) else None for axis in shape):
            problems.append(f"{tensor.name} {axes}, expected {shape}")
    if problems:
        raise ExportError(f"tracing has fixed axes that must stay free: {'; '.join(problems)}.", hint="Report this.")


def _cut(whole: ir.Model, purpose: str, step: Step) -> tuple[ir.Model, tuple[StepTensor, ...]]:
    """Return a copy of `whole` that computes only what `purpose` returns, and its inputs.

    ONNX Runtime computes every node.
    """
    model, outputs = whole.clone(), step.purposes[purpose]
    values = outputs_of(step, purpose, model.graph.outputs)
    model.graph.outputs[:] = [values[tensor.name] for tensor in outputs]
    RemoveUnusedNodesPass()(model)
    add_functions(model)
    used = [value for value in model.graph.inputs if value.uses() or value.is_graph_output()]
    model.graph.inputs[:] = used
    for tensor in outputs:
        values[tensor.name].name = tensor.name

    specs = {tensor.name: tensor for tensor in step.inputs}
    inputs = tuple(specs[str(value.name)] for value in used)
    for value, tensor in zip([*model.graph.inputs, *model.graph.outputs], [*inputs, *outputs], strict=True):
        value.shape = ir.Shape(_shape(tensor, step.fixed))
    model.graph.name = purpose
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "xlexport", None
    if step.inline:
        inline_functions(model)
        _forget_axes(model)
    return model, inputs


def _forget_axes(model: ir.Model) -> None:
    """Remove the names of free axes from inner values: tract takes no number for an axis that these name."""
    outer = {*model.graph.inputs, *model.graph.outputs}
    inner = [value for graph in model.graph.subgraphs() for value in (*graph.inputs, *graph.outputs)]
    for value in (*inner, *(value for node in model.graph.all_nodes() for value in node.outputs)):
        if value.shape is not None and value not in outer:
            value.shape = ir.Shape([axis if isinstance(axis, int) else None for axis in value.shape])


def _clear_notes(model: ir.Model) -> None:
    """Remove the exporter's notes, which name source files of this machine, from all graphs, nodes and values."""
    for graph in (model.graph, *model.graph.subgraphs()):
        values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
        values += [value for node in graph for value in node.outputs]
        for noted in (model, graph, *graph, *values):
            noted.metadata_props.clear()
            noted.doc_string = None


def _explain(model: ir.Model, meanings: Mapping[str, str]) -> None:
    """Write what inputs, outputs and custom nodes mean into the graph, and name the values between custom nodes."""
    model.metadata_props.update(SPECIFICATION)
    outer = [*model.graph.inputs, *model.graph.outputs]
    for value in outer:
        value.doc_string = meanings.get(str(value.name))
    counts: Counter[str] = Counter()
    named = {*outer, *(value for graph in model.graphs() for value in graph.initializers.values())}
    for node in model.graph.all_nodes():
        if (function := model.functions.get(node.op_identifier())) is None:
            continue
        node.doc_string = OPERATORS.get(node.op_type)
        node.name = f"{node.op_type}_{counts[node.op_type]}"
        counts[node.op_type] += 1
        parameters = zip([*node.inputs, *node.outputs], [*function.inputs, *function.outputs], strict=True)
        for operand, parameter in parameters:
            if operand is not None and operand not in named:
                operand.name = f"{node.name}.{parameter.name}"
                named.add(operand)


def _check_saved(
    path: Path, inputs: Sequence[StepTensor], outputs: Sequence[StepTensor], fixed: FixedSizes | None = None
) -> None:
    """Read the file back and compare it with the step's tensors: tracing may have fixed an axis."""
    saved = ir.load(path)
    problems = []
    if saved.opset_imports.get("") != OPSET or saved.ir_version != IR_VERSION:
        problems.append(f"opset {saved.opset_imports.get('')}, IR {saved.ir_version}; expected {OPSET}, {IR_VERSION}")
    for values, tensors in ((saved.graph.inputs, inputs), (saved.graph.outputs, outputs)):
        for value, tensor in zip(values, tensors, strict=True):
            axes, shape = _axes(value), _shape(tensor, fixed)
            dtype = value.dtype.numpy().name if value.dtype else None
            if (value.name, axes, dtype) != (tensor.name, shape, tensor.dtype):
                problems.append(f"{value.name} {dtype} {axes}, expected {tensor.name} {tensor.dtype} {shape}")
    problems += _operator_problems(saved)
    if problems:
        raise ExportError(f"{path.name}: the saved graph does not match its spec: {'; '.join(problems)}.")


def _operator_problems(model: ir.Model) -> Iterator[str]:
    """Yield the problems of a model: random numbers, float64, and custom nodes and functions without each other."""
    nodes = list(model.graph.all_nodes())
    nodes += [node for function in model.functions.values() for node in function.all_nodes()]
    custom = {node.op_identifier() for node in nodes if node.domain == DOMAIN}
    for identifier in sorted(custom ^ model.functions.keys()):
        name = "::".join(identifier[:2])
        yield f"{name} has no function body" if identifier in custom else f"a function body of {name} without a node"
    if model.opset_imports.get(DOMAIN) != (VERSION if custom else None):
        yield f"{DOMAIN} {model.opset_imports.get(DOMAIN)} imported, expected {VERSION if custom else None}"
    yield from (f"{node.op_type} node: not repeatable" for node in nodes if node.op_type.startswith("Random"))
    wide = {f"{node.op_type} node" for node in nodes if any(map(_is_wide, node.attributes.values()))}
    wide |= {str(value.name) for node in nodes for value in node.outputs if value.dtype == ir.DataType.DOUBLE}
    wide |= {name for name, value in model.graph.initializers.items() if value.dtype == ir.DataType.DOUBLE}
    yield from (f"{name}: float64, which GPUs in browsers lack" for name in sorted(wide))


def _is_wide(attribute: ir.Attr) -> bool:
    """Return whether an attribute holds float64, or casts to it."""
    if attribute.type == ir.AttributeType.TENSOR:
        return bool(attribute.as_tensor().dtype == ir.DataType.DOUBLE)
    casts = attribute.name == "to" and attribute.type == ir.AttributeType.INT
    return casts and attribute.as_int() == ir.DataType.DOUBLE


def _shape(tensor: StepTensor, fixed: FixedSizes | None) -> tuple[Axis, ...]:
    """Return the shape of a step's tensor in a graph."""
    return fixed.shape(tensor.shape) if fixed else tensor.shape


def _axes(value: ir.Value) -> tuple[int | str | None, ...]:
    """Return a number for each fixed axis, and a name or None for each free axis."""
    return tuple(axis if isinstance(axis, int) else axis.value for axis in value.shape or ())
