"""Devices: where steps run and memories live."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import OptionError
from .execution_providers import PROVIDERS, ExecutionProvider, entry_of

__all__ = ["Device", "named_provider", "parse_device"]


@dataclass(frozen=True)
class Device:
    """Where steps run and memories live. Without options, `parse_device` or `named_provider` reads `str(device)` back.

    Attributes:
        name: what users write before the colon, or ONNX Runtime's name of an untried provider.
        unit: what follows the colon, such as the number of a GPU.
        options: further options of the provider.
    """

    name: str
    unit: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def entry(self) -> ExecutionProvider:
        """The properties of the execution provider that serves this device."""
        return entry_of(self.name)

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of the execution provider."""
        return self.entry.name

    @property
    def on_host(self) -> bool:
        """Whether memories live in the memory of the host, where numpy sees them."""
        return self.entry.memory == "cpu"

    @property
    def tried(self) -> bool:
        """Whether this project has run bundles on such a device, with its usual options."""
        return self.unit in self.entry.tried and not self.options

    @property
    def description(self) -> str:
        """The device for people, marked if it is untried."""
        return str(self) if self.tried else f"{self} (untried)"

    def provider_options(self, threads: int | None, capture: bool) -> dict[str, str]:
        """Return the options with which the provider starts; `capture`: for CUDA graphs."""
        entry = self.entry
        unit = {entry.unit_option: self.unit} if entry.unit_option else {}
        count = {entry.threads_option: str(threads)} if entry.threads_option and threads else {}
        return {**unit, **count, **entry.options, **(entry.capture if capture else {}), **dict(self.options)}

    def __str__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options)
        return (f"{self.name}:{self.unit}" if self.unit else self.name) + (options and f"({options})")


def parse_device(text: str, options: Mapping[str, str] | None = None) -> Device:
    """Read a device of the table, such as `cpu`, `cuda` (the first one), `cuda:1` or `openvino:GPU`.

    Raises:
        OptionError: the text names another device.
    """
    name, colon, unit = text.partition(":")
    for entry in PROVIDERS:
        if name == entry.device and (re.fullmatch(entry.units, unit) if entry.units and colon else not colon):
            return Device(name, unit or entry.first_unit, tuple((options or {}).items()))
    forms = ", ".join(entry.form for entry in PROVIDERS)
    raise OptionError(
        f"device {text!r}: expected {forms}; for example cuda:1.",
        hint="For another execution provider of ONNX Runtime, give the option provider instead.",
    )


def named_provider(name: str, options: Mapping[str, str] | None = None) -> Device:
    """Return the device of any execution provider, by ONNX Runtime's name, such as `XnnpackExecutionProvider`.

    Raises:
        OptionError: no provider can have such a name.
    """
    if re.fullmatch("[A-Za-z]+ExecutionProvider", name) is None:
        raise OptionError(
            f"provider {name!r}: expected a name of ONNX Runtime, for example XnnpackExecutionProvider.",
            hint="`xlexport doctor` lists those of this installation.",
        )
    device = next((entry.device for entry in PROVIDERS if entry.name == name), None)
    return parse_device(device, options) if device else Device(name, options=tuple((options or {}).items()))
