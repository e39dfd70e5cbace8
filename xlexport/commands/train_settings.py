"""The settings of a run: options and `--set` of the command line, and recipes in TOML.

    data = ["data"]                 # the texts or the prepared data, in relation to the recipe's folder
    valid = ["valid.txt"]
    architecture = "transformer_xl"

    [model]
    n_layer = 6

    [training]
    steps = 10000

Every setting is a field of `TrainingConfig` or of a model's configuration; the field declares its help and limits.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import headed
from xlexport.commands.options import all_of
from xlexport.commands.settings import Decorator, SettingOption, declared
from xlruntime.messages import shown
from xltraining.architectures import FIRST, architecture_names, config_class
from xltraining.config_fields import Option, options_of
from xltraining.training_config import TrainingConfig

__all__ = ["MODEL", "REMOVED", "TRAINING", "check_effect", "read_recipe", "setting_options"]

# Settings of the version before, with what to use instead.
REMOVED = {
    "task": "An encoder-decoder learns pairs, and each other architecture texts. "
    "`python -m experiments images` and `python -m experiments duplication` in a clone of xlexport have further tasks.",
    "word_length": "Run `python -m experiments duplication` in a clone of xlexport.",
    "image_size": "Run `python -m experiments images` in a clone of xlexport.",
}
_FILES = {"data": "files", "valid": "valid_files"}
_MODELS = {name: config_class(name) for name in architecture_names()}
_OFFERED = {name: {o.name: o for o in options_of(kind).values() if o.help} for name, kind in _MODELS.items()}
MODEL: dict[str, Option] = functools.reduce(lambda known, own: known | (own | known), _OFFERED.values())
TRAINING: dict[str, Option] = {option.name: option for option in options_of(TrainingConfig).values() if option.help}
_HEADINGS = dict.fromkeys(("device", "bf16", "compile", "threads"), "Device")
_TABLES = {"model": MODEL, "training": TRAINING}
# The architectures that a setting is for; none: for all.
_OWNERS = {name: [one for one, own in _OFFERED.items() if name in own] for name in MODEL} | {
    name: [one for one, kind in _MODELS.items() if name in kind.RUN_SETTINGS] for name in TRAINING
}


def setting_options() -> Decorator:
    """Return one decorator for the options of a run: its architecture, its model and its training."""
    return all_of(
        headed(
            "Run",
            click.option(
                "--architecture",
                type=click.Choice(list(_MODELS)),
                default=FIRST,
                show_default=True,
                help="Kind of model.",
            ),
        ),
        *(_declared("model", option, _model_default(option)) for option in MODEL.values()),
        *(_declared("training", option, _text(option.default), default=option.default) for option in TRAINING.values()),
    )


def _declared(table: str, option: Option, default_text: str, **more: Any) -> Decorator:
    """Return the decorator of a setting. Its configuration checks the limits, so that one message lists all problems.

    Args:
        default_text: the default for people.
    """
    owners = _OWNERS[option.name]
    only = f"{owners[0]} only" if len(owners) == 1 and option.common else ""
    notes = "; ".join(
        filter(None, (only, default_text and f"default: {default_text}", "" if option.common else option.limits))
    )
    text = f"{option.help}  [{notes}]" if notes else option.help
    unlimited = Option(option.name, option.kind, text, choices=option.choices, common=option.common)
    return headed(_heading(table, option), declared(unlimited, **more, **({} if option.common else {"table": table})))


def _model_default(option: Option) -> str:
    """Return the default of a model's setting for people, then those of architectures that differ from the first."""
    of_new = {one: _MODELS[one].for_training({}) for one in _OWNERS[option.name]}
    shown: dict[str, list[str]] = {}
    for one, new in of_new.items():
        shown.setdefault(_text(new.get(option.name, _OFFERED[one][option.name].default)), []).append(one)
    usual, *others = shown
    return "; ".join([usual, *(f"{default} ({', '.join(shown[default])})" for default in others)])


def _text(default: Any) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _heading(table: str, option: Option) -> str:
    """Return the heading of a setting; those of one architecture that are not common have one of their own."""
    owners = _OWNERS[option.name]
    if len(owners) == 1 and not option.common:
        return f"{_MODELS[owners[0]].NAME} only"
    return _HEADINGS.get(option.name, "Model settings" if table == "model" else "Training")


def read_recipe(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """Let the values of a recipe be the defaults of the command line.

    Raises:
        click.UsageError: the file is not readable, or names or values are wrong. The message lists all of them.
    """
    if path is None:
        return
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: not TOML ({error}).") from error
    if problems := [*_problems(recipe)]:
        raise click.UsageError(f"{path}: {'; '.join(problems)}.")
    values = {name: value for table in _TABLES for name, value in recipe.get(table, {}).items()}
    values = {name: _tuple(value) for name, value in values.items()}
    files = {_FILES[name]: [path.parent / one for one in recipe[name]] for name in _FILES if name in recipe}
    architecture = {"architecture": recipe["architecture"]} if "architecture" in recipe else {}
    ctx.default_map = {**(ctx.default_map or {}), **values, **files, **architecture}


def _problems(recipe: Mapping[str, Any]) -> Iterator[str]:
    for name, value in recipe.items():
        if name in _TABLES:
            if not isinstance(value, dict):
                yield f"{name}: expected a table, found {shown(value)}"
                continue
            for setting, chosen in value.items():
                option = _TABLES[name].get(setting)
                problem = _unknown(setting, _TABLES[name]) if option is None else _type_problem(option, chosen)
                if problem is not None:
                    yield f"{name}.{setting} {problem}"
        elif name in _FILES:
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                yield f"{name}: expected a list of texts, found {shown(value)}"
        elif name == "architecture":
            if value not in _MODELS:
                yield f"architecture: expected one of {', '.join(_MODELS)}, found {shown(value)}"
        else:
            yield f"{name} {_unknown(name, (*_TABLES, *_FILES, 'architecture'))}"


def _type_problem(option: Option, value: Any) -> str | None:
    """Return what is wrong with the kind of a value, which in TOML is a list where Python has a tuple."""
    problem = option.type_problem(_tuple(value))
    if problem is None or not problem.startswith("must be a tuple"):
        return problem
    return f"{problem.partition(', found')[0].replace('a tuple', 'a list')}, found {shown(value)}"


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _unknown(name: str, known: Iterable[str]) -> str:
    if name in REMOVED:
        return f"is no longer a setting ({REMOVED[name].rstrip('.')})"
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"is unknown{f' (did you mean {near[0]}?)' if near else ''}"


def check_effect(architecture: str, model: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Refuse settings that would have no effect on a new run.

    Args:
        model: the given settings of the model.
        training: those of the training.

    Raises:
        click.UsageError: there are some. The message lists all of them.
    """
    kind, problems = _MODELS[architecture], []
    foreign = [name for name in model if architecture not in _OWNERS[name]]
    if foreign:
        owners = [one for one in _MODELS if all(one in _OWNERS[name] for name in foreign)]
        owners = owners or [one for one in _MODELS if any(one in _OWNERS[name] for name in foreign)]
        problems.append(f"{_spellings(foreign)}: only for --architecture {' or '.join(owners)}, not {architecture}")
        problems += [kind.INSTEAD[name] for name in foreign if name in kind.INSTEAD]
    for name in training:
        if _OWNERS[name] and architecture not in _OWNERS[name]:
            problems.append(f"{_spellings([name])}: only for --architecture {' or '.join(_OWNERS[name])}")
    problems += kind.without_effect(model)
    if problems:
        raise click.UsageError("; ".join(problems) + ".")


def _spellings(names: Iterable[str]) -> str:
    parameters = {parameter.name: parameter for parameter in click.get_current_context().command.params}
    named = [parameters[name] for name in names]
    return ", ".join(one.setting if isinstance(one, SettingOption) else one.opts[-1] for one in named)
