"""Types of columns in text form, as users declare them and as `ebla table describe` shows them.

    int32, uint64, double, bool, string, binary, date, json ...
    timestamp[us], timestamp[us,UTC]   time[us]   duration[ms]   decimal(10,2)
    list<string>   map<string, int64>   struct<x: double, y: double not null>

What is inside of <> takes null, unless `not null` follows. A field whose name has : , < > or other brackets in it, or blanks at its
ends, is written in quotes, as in JSON: struct<"a:b": double>.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ebla.cli.frame.problems import Usage
from ebla.storage.errors import did_you_mean

if TYPE_CHECKING:
    from ebla.storage.columns import Column

ALIASES = {
    "int": "int64",
    "long": "int64",
    "bigint": "int64",
    "short": "int16",
    "float32": "float",
    "float64": "double",
    "boolean": "bool",
    "str": "string",
    "text": "string",
    "bytes": "binary",
    "date32": "date",
    "array": "list",
}
PLAIN = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float", "double", "bool", "string", "binary", "date", "json"),
)
FORMS = (
    *("timestamp[us,UTC]", "time[us]", "duration[ms]", "decimal(10,2)"),
    *("list<string>", "map<string, int64>", "struct<x: double, y: double>"),
)
_UNITS = ("s", "ms", "us", "ns")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)


def type_name(column: Column) -> str:
    """The type as users declare it."""
    match column.type:
        case "timestamp" if column.zone:
            return f"timestamp[{column.unit},{column.zone}]"
        case "timestamp" | "time" | "duration":
            return f"{column.type}[{column.unit}]"
        case "decimal":
            return f"decimal({column.precision},{column.scale})"
        case "list":
            return f"list<{_inside(column.fields[0])}>"
        case "map":
            return f"map<{type_name(column.fields[0])}, {_inside(column.fields[1])}>"
        case "struct":
            return (
                f"struct<{', '.join(f'{_written(field.name)}: {_inside(field)}' for field in column.fields)}>"
            )
    return column.type


def _written(name: str) -> str:
    plain = name == name.strip() and name.isprintable() and not re.search(r'^"|[:,<>()\[\]]', name)
    return name if plain else json.dumps(name, ensure_ascii=False)


def _inside(field: Column) -> str:
    return type_name(field) + ("" if field.nullable else " not null")


def parse_type(name: str, text: str) -> dict[str, Any]:
    """The fields of Column for a type. Raises Usage with the column's name."""
    wanted = text.strip()
    lower = ALIASES.get(wanted.lower(), wanted.lower())
    if lower in PLAIN:
        return {"type": lower}
    if match := re.fullmatch(r"(\w+)\s*<(.*)>", wanted, re.DOTALL):
        return _nested(name, ALIASES.get(match[1].lower(), match[1].lower()), match[2])
    if match := re.fullmatch(
        r"(timestamp|time|duration)\s*[\[(]\s*(\w+)\s*(?:,\s*(?:tz=)?(.+?)\s*)?[\])]", wanted, re.IGNORECASE
    ):
        kind, unit, zone = match[1].lower(), match[2].lower(), match[3]
        if unit not in _UNITS:
            raise Usage(
                f"column {name!r}: the unit of a {kind} is s, ms, us or ns, not {unit!r}", column=name
            )
        if zone and kind != "timestamp":
            raise Usage(f"column {name!r}: a {kind} has no zone; write {kind}[{unit}]", column=name)
        return {"type": kind, "unit": unit, **({"zone": zone} if zone else {})}
    if match := re.fullmatch(r"decimal(?:128)?\s*[\[(]\s*(\d+)\s*,\s*(\d+)\s*[\])]", wanted, re.IGNORECASE):
        return {"type": "decimal", "precision": int(match[1]), "scale": int(match[2])}
    _refuse(name, wanted, lower)
    raise AssertionError


def _refuse(name: str, wanted: str, lower: str) -> None:
    forms = {
        "timestamp": "timestamp[us] or timestamp[us,UTC]",
        "time": "time[us]",
        "duration": "duration[us]",
        "decimal": "decimal(precision,scale), as decimal(10,2)",
        "list": "list<type>, as list<string>",
        "map": "map<key type, value type>, as map<string, int64>",
        "struct": "struct<name: type, ...>, as struct<x: double, y: double>",
    }
    for kind, form in forms.items():
        if re.match(rf"{kind}\b", lower):
            raise Usage(f"column {name!r}: write {form}, not {wanted!r}", column=name, option="--column")
    hint = did_you_mean(lower, (*PLAIN, *ALIASES, *forms)) or f"; the types are {', '.join((*PLAIN, *FORMS))}"
    raise Usage(f"column {name!r}: there is no type {wanted!r}{hint}", column=name, option="--column")


def _nested(name: str, kind: str, inside: str) -> dict[str, Any]:
    from ebla.storage.columns import Column

    parts = _divided(inside, ",")
    counts = {"list": len(parts) == 1, "map": len(parts) == 2, "struct": True}
    if not counts.get(kind) or not all(part.strip() for part in parts):
        _refuse(name, f"{kind}<{inside}>", kind)
    found = []
    for place, part in enumerate(parts):
        called, *rest = _divided(part, ":")
        if kind == "struct" and not rest:
            _refuse(name, f"{kind}<{inside}>", kind)
        called = {"list": "item", "map": ("key", "value")[place % 2]}.get(kind) or _read(name, called.strip())
        declared = ":".join(rest) if rest else part
        bare = re.sub(r"\s+not\s+null\s*$", "", declared, flags=re.IGNORECASE)
        nullable = bare == declared and not (kind == "map" and place == 0)
        found.append(Column(called, nullable=nullable, **parse_type(name, bare)))
    return {"type": kind, "fields": tuple(found)}


def _read(name: str, called: str) -> str:
    """The name of a field, of column `name`, as `_written` gives it."""
    if not _QUOTED.fullmatch(called):
        return called
    try:
        return str(json.loads(called, strict=False))
    except ValueError as error:
        raise Usage(f"column {name!r}: the name {called} is not JSON: {error}", column=name) from error


def _divided(text: str, separator: str) -> list[str]:
    """The parts between separators that are in no brackets and in no name in quotes."""
    depth, place, before, parts = 0, 0, "", [""]
    while place < len(text):
        quoted = _QUOTED.match(text, place) if before in ("", "<", ",") else None  # where a name begins
        piece = quoted[0] if quoted else text[place]
        depth += (piece in ("<", "[", "(")) - (piece in (">", "]", ")"))
        if piece == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
        before = piece.strip() or before
        place += len(piece)
    return parts
