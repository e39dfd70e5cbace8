"""The options of `load`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypedDict

from .devices import Device, named_provider, parse_device
from .errors import ArgumentError, OptionError
from .execution_providers import PROVIDERS
from .messages import listed, shown

__all__ = ["LoadKeywords", "LoadOptions"]


@dataclass(frozen=True)
class LoadOptions:
    """The options of `load`.

    Attributes:
        device: `cpu`, `cuda`, `cuda:1`, `openvino` or `openvino:GPU`. A missing device is an error; no other device
            replaces it.
        provider: instead of a device, ONNX Runtime's name of any execution provider that is installed, untried.
        provider_options: further options of the execution provider, by name. They make a device untried, too.
        threads: threads of one step; None leaves the choice to ONNX Runtime.
        ops: kernels for the custom operators of the graphs, on the CPU. `auto`: the package `xlexport-ops`, if it is
            installed; `none`: the standard operators in the graphs; or the path of a library, whose code runs.
        step_timeout: seconds after which a step is ended, up to a quarter late; None: no limit. A single operator is
            never interrupted.
        digest: the SHA-256 of `bundle.json` that the caller expects, 64 lower-case digits; None: any. It covers
            every file that affects results.
        check_files: compare every file with its digest. Turn this off only if something else protects the files.
        strict_device: require that the device computes everything except sizes of tensors; each graph is checked when
            it opens. Otherwise the CPU runs nodes without a kernel on the device; `Model.placement` lists them.
        check: `once`: compare the bundle's known answers, unless this machine has reproduced them before with the same
            ONNX Runtime, device and kernels. A difference of kernels is a warning, and bodies run; any other is an
            error.
        cuda_graphs: capture steps as CUDA graphs, and replay them. The bundle must have fixed shapes
            (`xlexport convert --fixed batch=1,segment=32`). Each graph needs its own copy of the weights.

    Raises:
        ArgumentError: the digest is not a text.
        OptionError: the device, the provider or the number of threads is malformed, device and provider are both
            given, or `cuda_graphs` is not for this device.
    """

    device: str = field(
        default="cpu", metadata={"help": f"{', '.join(entry.form for entry in PROVIDERS)}.", "common": True}
    )
    threads: int | None = field(
        default=None,
        metadata={"help": "CPU threads of one step.  [default: all cores]", "minimum": 1, "common": True},
    )
    ops: str | Path = field(
        default="auto",
        metadata={
            "help": "Kernels of the custom operators on the CPU: auto (xlexport-ops if installed), none, or the path "
            "of a library, whose code runs."
        },
    )
    step_timeout: float | None = field(
        default=None,
        metadata={"help": "Longest step in seconds, for bundles that you do not trust.  [default: none]", "above": 0},
    )
    digest: str | None = None
    check_files: bool = True
    strict_device: bool = field(
        default=False,
        metadata={
            "help": "Fail if the device lacks kernels, so that the CPU would compute more than sizes of tensors."
        },
    )
    cuda_graphs: bool = field(
        default=False,
        metadata={"help": "Capture steps as CUDA graphs; the bundle must have fixed shapes (convert --fixed)."},
    )
    check: Literal["off", "once"] = field(
        default="off",
        metadata={"help": "Compare a bundle's known answers, once on each machine, or not."},
    )
    provider: str | None = field(
        default=None,
        metadata={
            "help": "Instead of a device: any execution provider of the installed ONNX Runtime, by its name, untried.",
        },
    )
    provider_options: Mapping[str, str] | None = field(
        default=None,
        metadata={
            "help": "Options of the execution provider, such as cache_dir=FOLDER of OpenVINO.",
            "flags": ("--provider-option",),
            "metavar": "KEY=VALUE,KEY=VALUE",
        },
    )

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads is {self.threads}, at least 1 is needed.")
        if not (self.digest is None or isinstance(self.digest, str)):
            raise ArgumentError(f"digest is {shown(self.digest)}, expected a text or None.")
        if self.check not in ("off", "once"):
            raise OptionError(f"check is {shown(self.check)}, expected off or once.")
        if self.provider is not None and self.device != "cpu":
            raise OptionError(f"device {self.device} and provider {self.provider} exclude each other. Choose one.")
        if self.cuda_graphs and not self.place.entry.capture:
            raise OptionError(
                f"cuda_graphs needs a CUDA device, but the device is {self.place}.",
                hint="Leave it out, or choose cuda.",
            )

    @classmethod
    def of(cls, options: LoadKeywords) -> LoadOptions:
        """Return the options that the caller of `load` gives.

        Raises:
            OptionError: a name is not one of a field, or as above.
        """
        if unknown := sorted(options.keys() - cls.__dataclass_fields__.keys()):
            raise OptionError(
                f"load has no option {listed(unknown)}, only {listed(cls.__dataclass_fields__)}.",
                hint="Give evaluation settings, such as mem_len, to score(), stream() or generate().",
            )
        return cls(**options)

    @cached_property
    def place(self) -> Device:
        """The device."""
        if self.provider is not None:
            return named_provider(self.provider, self.provider_options)
        return parse_device(self.device, self.provider_options)


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions` as keywords, for type checkers and editors."""

    device: str
    threads: int | None
    ops: str | Path
    step_timeout: float | None
    digest: str | None
    check_files: bool
    strict_device: bool
    cuda_graphs: bool
    check: Literal["off", "once"]
    provider: str | None
    provider_options: Mapping[str, str] | None
