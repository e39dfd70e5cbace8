"""Write docs/bundle.schema.json, the JSON Schema of `bundle.json`, from the dataclasses of the Python runtime.

    PYTHONPATH=runtime/python python scripts/schema.py

It has types, ranges and required fields. Rules about several fields are only in the Python runtime.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from xlruntime.bundle import FORMAT, Manifest
from xlruntime.json_fields import UNIONS

FILE = Path(__file__).resolve().parents[1] / "docs" / "bundle.schema.json"
TYPES = {int: "integer", str: "string", bool: "boolean", type(None): "null"}

WIDTH = 150

Schema = dict[str, Any]


def bundle_schema() -> Schema:
    """Return the schema of a manifest."""
    kinds: dict[str, Schema] = {}
    top = _schema(Manifest, kinds)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": f"bundle.json, format {FORMAT}", **top, "$defs": dict(sorted(kinds.items()))}


def _schema(hint: Any, kinds: dict[str, Schema]) -> Schema:
    """Return the schema of a type; those of dataclasses go to `kinds`."""
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        name = hint.__name__.lstrip("_")
        if name not in kinds:
            kinds[name] = _object(hint, kinds)
        return {"$ref": f"#/$defs/{name}"}
    if origin is Annotated:
        kind, limit = parts
        limits = (
            {"minimum": limit.start, "maximum": limit.stop - 1} if kind is int else {"pattern": f"^({limit.pattern})$"}
        )
        return {**_schema(kind, kinds), **limits}
    if origin in UNIONS:
        return {"anyOf": [_schema(part, kinds) for part in parts]}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(parts[1], kinds)}
    if origin is tuple:
        length = {} if Ellipsis in parts else {"minItems": len(parts), "maxItems": len(parts)}
        return {"type": "array", "items": _schema(parts[0], kinds), **length}
    return {"enum": [*parts]} if origin is Literal else {"type": TYPES[hint]} if hint in TYPES else {}


def _object(kind: type[Any], kinds: dict[str, Schema]) -> Schema:
    hints, fields = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
    return {
        "description": inspect.cleandoc(kind.__doc__ or "").splitlines()[0],
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], kinds) for field in fields},
        "required": [field.name for field in fields if not field.metadata.get("optional")],
        "additionalProperties": False,
    }


def schema_text() -> str:
    """Return the content of the file: what fits into a line is one."""
    return _lines(bundle_schema(), "") + "\n"


def _lines(value: Any, indent: str) -> str:
    if len(line := json.dumps(value)) + len(indent) <= WIDTH or not isinstance(value, dict):
        return line
    members = (f'{indent} "{name}": {_lines(part, indent + " ")}' for name, part in value.items())
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


if __name__ == "__main__":
    FILE.write_text(schema_text(), "utf-8")
