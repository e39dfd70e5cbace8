"""macOS, for which zig compiles and links on every machine; nothing here can run the result."""

from __future__ import annotations

from .runners import Attempt, Outcome
from .workshop import Workshop

__all__ = ["macos"]

TARGETS = {"arm64": "aarch64-macos.11.0", "x86_64": "x86_64-macos.11.0"}


def macos(workshop: Workshop) -> list[Attempt]:
    """Return the C library, its examples and tests on both processors, and the kernels of the wheels."""

    def compile_for(processor: str) -> Outcome:
        workshop.programs(TARGETS[processor], "Darwin", processor)
        workshop.kernels(f"macos-{processor}")
        return Outcome(True, "compiled and linked, not run")

    return [
        Attempt(f"macOS {processor}", "C", "compiled", lambda processor=processor: compile_for(processor))  # type: ignore[misc]
        for processor in TARGETS
    ]
