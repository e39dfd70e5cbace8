"""The settings of a run in a TOML file: `--settings`, and `--set` for single ones.

data = ["data"]                 # the texts or the prepared data, in relation to the file's folder
valid = ["valid.txt"]
architecture = "transformer_xl"

[model]
n_layer = 6

[training]
steps = 10000
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from xlexport.architectures import Option
from xlruntime.messages import shown

__all__ = ["RunSettings", "read_run_settings"]

_TABLES = ("model", "training")
_FILES = ("data", "valid")
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "text": ((str,), "a text"),
    "choice": ((str,), "a text"),
    "boolean": ((bool,), "true or false"),
    "flag": ((bool,), "true or false"),
    "integers": ((list,), "a list of integers"),
    "names": ((list,), "a list of texts"),
}


@dataclass(frozen=True)
class RunSettings:
    """What a file and `--set` say of a run; what they leave out is empty."""

    architecture: str | None = None
    data: tuple[Path, ...] = ()
    valid: tuple[Path, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def read_run_settings(
    path: Path | None, overrides: Sequence[str], model: Mapping[str, Option], training: Mapping[str, Option]
) -> RunSettings:
    """Read a settings file, and let `NAME=VALUE` overrides take the place of its values.

    Args:
        overrides: such as `model.n_layer=6`; a value is written as in TOML, and a text may be without quotes.
        model: the options of a model by name; training: those of a run.

    Raises:
        click.UsageError: the file is not readable, or names or values are wrong. The message lists all of them.
    """
    found = {} if path is None else _read(path)
    problems: list[str] = []
    for override in overrides:
        name, equals, text = override.partition("=")
        table, dot, key = name.strip().rpartition(".")
        if not equals or (dot and table not in _TABLES):
            problems.append(f"--set {override}: expected model.NAME=VALUE or training.NAME=VALUE")
            continue
        (found.setdefault(table, {}) if dot else found)[key] = _value(text)
    problems += [f"{name}: unknown" for name in found if name not in (*_TABLES, *_FILES, "architecture")]
    for table, options in (("model", model), ("training", training)):
        values = found.get(table, {})
        if not isinstance(values, dict):
            problems.append(f"{table}: expected a table")
            continue
        for name, value in values.items():
            problems += _problems(f"{table}.{name}", value, options.get(name))
    files = {name: found.get(name, []) for name in _FILES}
    for name, value in files.items():
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            problems.append(f"{name}: expected a list of texts, found {shown(value)}")
    architecture = found.get("architecture")
    if architecture is not None and not isinstance(architecture, str):
        problems.append(f"architecture: expected a text, found {shown(architecture)}")
    if problems:
        raise click.UsageError(f"{'' if path is None else f'{path}: '}{'; '.join(problems)}.")
    folder = Path() if path is None else path.parent
    data, valid = (tuple(folder / one for one in files[name]) for name in _FILES)
    return RunSettings(architecture, data, valid, _tuples(found.get("model", {})), _tuples(found.get("training", {})))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: not TOML ({error}).") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _problems(name: str, value: Any, option: Option | None) -> list[str]:
    if option is None:
        return [f"{name}: unknown"]
    types, expected = _KINDS[option.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return [f"{name}: expected {expected}, found {shown(value)}"]
    if option.choices and value not in option.choices:
        return [f"{name}: expected one of {', '.join(option.choices)}, found {shown(value)}"]
    inner = {"integers": int, "names": str}.get(option.kind)
    if isinstance(value, list) and not all(type(one) is inner for one in value):
        return [f"{name}: expected {expected}, found {shown(value)}"]
    return []


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
