"""Compare the known answers of a bundle once on each machine, and remember that it has reproduced them.

A verdict is an empty file in the user's cache. Its name is a digest of all that may change the numbers. A failure is
not remembered: it costs a check at each load, some 0.1 s, and must not outlive its cause.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from . import __version__
from .errors import BundleGraphError
from .known_answers import ANSWERS_FILE, CheckResult, check
from .load_options import LoadOptions
from .providers import import_onnxruntime

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["check_once", "checks_folder", "open_checked", "verdict_name"]

UNREMEMBERED = 0.2  # seconds that a check may take each time
CPU_FIELDS = ("model name", "flags", "CPU part", "Features")  # x86, ARM

Opened = TypeVar("Opened", bound="Engine")
logger = logging.getLogger(__name__)


def open_checked(kind: type[Opened], folder: str | Path, options: LoadOptions) -> Opened:
    """Open a bundle as `kind`, and compare its known answers if the options say so; errors are those of `load`."""
    engine = kind.open(folder, options)
    if options.check == "off":
        return engine
    return check_once(engine, lambda: kind.open(folder, replace(options, ops="none")))


def check_once(engine: Opened, reopen: Callable[[], Opened]) -> Opened:
    """Return an open bundle that reproduces its known answers, or has none.

    Args:
        reopen: opens it without kernels, if these compute something else.

    Raises:
        BundleGraphError: its graphs compute something else without kernels, too.
    """
    if ANSWERS_FILE not in engine.bundle.files:
        return engine
    verdict = checks_folder() / verdict_name(engine)
    if os.path.isfile(verdict):  # False, too, where nobody may look
        return engine
    with contextlib.suppress(OSError):
        os.makedirs(verdict.parent, mode=0o700, exist_ok=True)
    result = check(engine) if os.access(verdict.parent, os.W_OK) else check(engine, UNREMEMBERED)
    if result.passed or not result.certain:  # a warning comes once, too
        with contextlib.suppress(OSError):  # a cache may be missing or full
            os.close(os.open(verdict, os.O_CREAT | os.O_WRONLY, 0o600))
    return engine if result.passed else _judged(engine, result, reopen)


def _judged(engine: Opened, result: CheckResult, reopen: Callable[[], Opened]) -> Opened:
    if not result.certain:
        logger.warning("%s: %s; here this may be rounding alone.", engine.folder, result)
    elif engine.kernels is not None:
        logger.warning("%s: %s, with %s; standard operators run instead.", engine.folder, result, engine.kernels)
        engine.release()  # its weights, too
        return check_once(reopen(), reopen)
    else:
        raise BundleGraphError(
            f"{engine.folder}: {result}; so ONNX Runtime computes something else here than where it was converted.",
            hint="Install another version of ONNX Runtime, or convert the checkpoint again.",
        )
    return engine


def verdict_name(engine: Engine) -> str:
    """Return the digest of the bundle, the machine, both runtimes, the device, and the kernels with their level."""
    kernels = "none" if engine.kernels is None else hashlib.sha256(engine.kernels.path.read_bytes()).hexdigest()
    versions = __version__, import_onnxruntime().__version__, platform.platform()
    device = engine.device.provider, str(engine.device), str(engine.kernels), kernels
    parts = (engine.bundle.digest, _processor(), *versions, *device)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def checks_folder() -> Path:
    """Return the folder of the verdicts; without a home, one that nobody can make."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache if os.path.isabs(cache) else os.devnull, "xlexport", "checks")


def _processor() -> str:
    """Return the name of the processor, and on Linux the instructions that it has."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return " ".join(found[name] for name in CPU_FIELDS if name in found) or platform.processor() or platform.machine()
