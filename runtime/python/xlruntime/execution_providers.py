"""The table of execution providers: the devices that users name, the package of each, and what each cannot do."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from .placement import SIZE_OPERATORS

__all__ = ["CPU_PROVIDER", "PROVIDERS", "ExecutionProvider", "entry_of"]

CPU_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class ExecutionProvider:
    """An execution provider of ONNX Runtime. The defaults assume the least of one that nobody has tried.

    Attributes:
        name: ONNX Runtime's own name.
        device: what users write; form: the same with what may follow the colon, for messages.
        package: the distribution of ONNX Runtime that has it.
        units: pattern of what follows the colon; first_unit: what a device without a colon means.
        unit_option, threads_option: options of the provider that take the unit, and the threads of one step.
        options: further options of the provider; capture: those of a session for CUDA graphs.
        memory: ONNX Runtime's name of the memory where values live; `cpu` is the host's.
        in_place: whether a ring may be one buffer, both input and output. Otherwise it has two, as a state has.
        kernels: whether sessions take a library of kernels for custom operators.
        on_cpu: operators that the CPU may compute unnoticed.
        tried: units that this project has run bundles on.
        check: how to repair a provider that does not start.
    """

    name: str
    device: str
    form: str
    package: str | None = None
    units: str = ""
    first_unit: str = ""
    unit_option: str | None = None
    threads_option: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    capture: Mapping[str, str] = field(default_factory=dict)
    memory: str = "cpu"
    in_place: bool = False
    kernels: bool = False
    on_cpu: frozenset[str] = SIZE_OPERATORS
    tried: frozenset[str] = frozenset()
    check: str = "Read what ONNX Runtime's documentation says about this provider and its options"


PROVIDERS = (
    ExecutionProvider(CPU_PROVIDER, "cpu", "cpu", "onnxruntime", in_place=True, kernels=True, tried=frozenset({""})),
    ExecutionProvider(
        "CUDAExecutionProvider",
        "cuda",
        "cuda[:N]",
        "onnxruntime-gpu",
        units="[0-9]{1,3}",
        first_unit="0",
        unit_option="device_id",
        # TF32 would round every product to 10 bits.
        options={"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"},
        capture={"enable_cuda_graph": "1"},
        memory="cuda",
        in_place=True,
        tried=frozenset({"0"}),
        check="Check that nvidia-smi lists the device; missing CUDA libraries come with: "
        "pip install 'onnxruntime-gpu[cuda,cudnn]'",
    ),
    ExecutionProvider(
        "OpenVINOExecutionProvider",
        "openvino",
        "openvino[:CPU|GPU|NPU]",
        "onnxruntime-openvino",
        units="CPU|GPU|NPU",
        first_unit="CPU",
        unit_option="device_type",
        threads_option="num_of_threads",
        in_place=True,
        options={"precision": "ACCURACY"},  # without it, OpenVINO may compute in bfloat16 or float16
        on_cpu=frozenset(),  # OpenVINO also computes sizes
        tried=frozenset({"CPU"}),
        check="Check that this machine has the unit and its driver; an NPU needs a bundle of convert --fixed",
    ),
)


@functools.cache
def entry_of(device: str) -> ExecutionProvider:
    """Return the entry of what users write; ONNX Runtime's name of a provider outside the table gets an untried one."""
    return next((entry for entry in PROVIDERS if entry.device == device), ExecutionProvider(device, device, device))
