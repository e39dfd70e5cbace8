"""The platforms that have wheels and archives, with what compilers and pip call each of them."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

__all__ = ["PLATFORMS", "Platform", "this_platform"]


@dataclass(frozen=True)
class Platform:
    """A platform.

    Attributes:
        target: what zig calls it, with the oldest glibc or macOS that the library runs on.
        tag: what pip calls it.
        suffix: of its shared libraries.
        system, processor: what CMake calls them.
    """

    target: str
    tag: str
    suffix: str
    system: str
    processor: str


PLATFORMS = {
    "linux-x86_64": Platform("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", ".so", "Linux", "x86_64"),
    "linux-aarch64": Platform("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", ".so", "Linux", "aarch64"),
    "windows-amd64": Platform("x86_64-windows-gnu", "win_amd64", ".dll", "Windows", "AMD64"),
    "macos-arm64": Platform("aarch64-macos.11.0", "macosx_11_0_arm64", ".dylib", "Darwin", "arm64"),
    "macos-x86_64": Platform("x86_64-macos.11.0", "macosx_11_0_x86_64", ".dylib", "Darwin", "x86_64"),
}
SYSTEMS = {"linux": "linux", "win32": "windows", "darwin": "macos"}


def this_platform() -> str:
    """Return the name of the platform that this Python runs on, whether or not it is in the list."""
    return f"{SYSTEMS.get(sys.platform, sys.platform)}-{platform.machine().lower()}"
