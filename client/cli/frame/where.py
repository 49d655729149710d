"""Conditions on rows in text form: `--where "origin == 'JFK' and distance > 500"`.

The text has Python's grammar of comparisons; it is parsed and translated, and never evaluated by Python.

    ==  !=  <  <=  >  >=        a column and a value, in either order; also 500 < distance <= 1000
    in (..)   not in (..)       a list of values
    is null   is not null       also None
    and  or  not  ( )
    col("tail num")             a column whose name is not a plain word

Values are 12, 0.5, 'text', True, False; a date, timestamp, time, duration, decimal or binary column takes its value in quotes, as
ebla.cli.frame.values reads it: `time_hour >= '2013-07-04T12:00'`, and a column of floats takes 'inf', '-inf' and 'nan'. A mistake
is shown with a caret under its place.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.types import type_name
from ebla.cli.frame.values import from_text
from ebla.storage.columns import UNORDERED
from ebla.storage.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from ebla.storage.predicates.expressions import Expression
    from ebla.storage.schema import Column, TableSchema

TEXT_MAX = 20_000

# Texts in quotes, comments and line ends.
_PARTS = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\#[^\r\n]*|[\r\n]''',
    re.DOTALL,
)

# Each relation, and the equal relation with its sides exchanged.
_RELATIONS: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    ast.Eq: (operator.eq, operator.eq),
    ast.NotEq: (operator.ne, operator.ne),
    ast.Lt: (operator.lt, operator.gt),
    ast.LtE: (operator.le, operator.ge),
    ast.Gt: (operator.gt, operator.lt),
    ast.GtE: (operator.ge, operator.le),
}
_QUOTED = ("string", "binary", "date", "timestamp", "time", "duration", "decimal")


def parse(text: str, schema: TableSchema) -> Expression:
    """The condition, bound to the schema. Raises Usage with the place of the mistake."""
    flat = _on_one_line(text)
    if not flat:
        raise Usage("the condition is empty; write for example \"origin == 'JFK'\"", option="--where")
    if len(flat) > TEXT_MAX:
        raise Usage(f"the condition is longer than {TEXT_MAX:,} characters", option="--where")
    try:
        tree = ast.parse(flat, mode="eval")
        return _Translator(flat, schema).condition(tree.body)
    except SyntaxError as error:
        at = max(0, (error.offset or 1) - 1)
        raise _mistake(flat, at, at + 1, _syntax_hint(flat, error) + _odd_names(flat, schema)) from None
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise Usage(f"the condition cannot be read: {error}", option="--where") from None


def _on_one_line(text: str) -> str:
    """The text without comments and blanks around it, its line ends as blanks. Texts in quotes stay as they are: a line end there
    is refused."""

    def plain(found: re.Match[str]) -> str:
        part = found[0]
        if part[0] not in "'\"":
            return " " * len(part)
        if "\n" in part or "\r" in part:
            raise _mistake(
                text.replace("\n", " ").replace("\r", " "),
                *found.span(),
                "a text in quotes has no line ends; write \\n for a line end inside of it, \\r for a carriage return",
            )
        return part

    return _PARTS.sub(plain, text).strip()


def _odd_names(text: str, schema: TableSchema) -> str:
    """How to write the columns in the text whose names Python reads as something else."""
    bare = _PARTS.sub(" ", text)
    odd = [column.name for column in schema.columns if not _is_plain(column.name)]
    found = [name for name in odd if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", bare)]
    return "".join(
        f"; write col({json.dumps(name, ensure_ascii=False)}) for column {name!r}" for name in found[:3]
    )


def _is_plain(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name.lower() != "null"


def _syntax_hint(text: str, error: SyntaxError) -> str:
    words = text.split()
    if any(word in ("AND", "OR", "NOT", "IN", "IS", "NULL") for word in words):
        return "write and, or, not, in and is in small letters"
    if "<>" in text:
        return "write != for not equal"
    if "==" not in text and "=" in text.replace("<=", "").replace(">=", "").replace("!=", ""):
        return "write == to compare"
    if " like " in text.lower() or " between " in text.lower():
        return "there is no like or between; a range is written 10 <= x < 20"
    return f"this cannot be read ({error.msg})"


def _mistake(text: str, start: int, stop: int, message: str) -> Usage:
    """The message, the text and a caret under the mistake; long texts are cut around it."""
    left = max(0, start - 60)
    shown = text[left : left + 90]
    pointer = " " * (start - left) + "^" * max(1, min(stop - start, len(shown) - (start - left)))
    return Usage(f"{message}\n  {shown}\n  {pointer}", option="--where")


class _Translator:
    def __init__(self, text: str, schema: TableSchema) -> None:
        from ebla.storage.predicates import expressions

        self.text = text
        self.bytes = text.encode()
        self.schema = schema
        self.expressions = expressions

    def condition(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(part) for part in node.values]
            joined = parts[0]
            for part in parts[1:]:
                joined = joined & part if isinstance(node.op, ast.And) else joined | part
            return joined
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.condition(node.operand)
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        column = self._column_of(node)
        if column is not None and column.type == "bool":
            return self.expressions.col(column.name) == True  # noqa: E712  it makes an expression
        if column is not None:
            raise self._refusal(
                node, f"column {column.name!r} alone is not a condition; compare it with a value"
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            raise self._refusal(node, "write and, or instead of &, |")
        hint = _odd_names(self.text, self.schema)
        raise self._refusal(
            node, f"this is not a condition; compare a column with a value, as distance > 500{hint}"
        )

    def _comparisons(self, node: ast.Compare) -> Expression:
        """`a < x <= b` is `a < x and x <= b`."""
        operands = [node.left, *node.comparators]
        joined: Expression | None = None
        for left, relation, right in zip(operands, node.ops, operands[1:], strict=False):
            part = self._comparison(left, relation, right)
            joined = part if joined is None else joined & part
        assert joined is not None
        return joined

    def _comparison(self, left: ast.expr, relation: ast.cmpop, right: ast.expr) -> Expression:
        column, value, turned = self._sides(left, right)
        reference = self.expressions.col(column.name)
        if isinstance(relation, (ast.In, ast.NotIn)):
            if turned:
                raise self._refusal(left, "write the column before in, as origin in ('JFK', 'LGA')")
            found = self._checked(reference.is_in(self._values(column, value)), value)
            return found if isinstance(relation, ast.In) else ~found
        if _is_null(value):
            return self._null(reference, relation, value)
        if isinstance(relation, (ast.Is, ast.IsNot)):
            raise self._refusal(value, "is and is not go with null only; write == or !=")
        compare = _RELATIONS[type(relation)][turned]
        return self._checked(compare(reference, self._value(column, value)), value)

    def _null(self, reference: Any, relation: ast.cmpop, at: ast.expr) -> Expression:
        found: Expression
        if isinstance(relation, (ast.Is, ast.Eq)):
            found = reference.is_null()
        elif isinstance(relation, (ast.IsNot, ast.NotEq)):
            found = reference.is_not_null()
        else:
            raise self._refusal(
                at, "null is neither less nor greater than anything; write is null or is not null"
            )
        return found

    def _sides(self, left: ast.expr, right: ast.expr) -> tuple[Column, ast.expr, bool]:
        """The column, the other side, and whether the column is on the right."""
        first, second = self._names_column(left), self._names_column(right)
        if first and second:
            raise self._refusal(right, "two columns cannot be compared with each other; write text in quotes")
        if first:
            return self._column(left), right, False
        if second:
            return self._column(right), left, True
        hint = _odd_names(self.text, self.schema) or "; " + self._columns()
        raise self._refusal(left, "a comparison needs a column" + hint)

    # -- columns

    def _names_column(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return not _is_null(node)
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col"

    def _column_of(self, node: ast.expr) -> Column | None:
        return self._column(node) if self._names_column(node) else None

    def _column(self, node: ast.expr) -> Column:
        if isinstance(node, ast.Name):
            name = self._source(node)  # node.id is normalised: it has fi for the ligature
        else:
            assert isinstance(node, ast.Call)
            arguments = node.args
            if len(arguments) != 1 or not isinstance(arguments[0], ast.Constant) or node.keywords:
                raise self._refusal(node, 'write col("the name")')
            name = str(arguments[0].value)
        names = [column.name for column in self.schema.columns]
        if name not in names:
            hint = did_you_mean(name, names) or f"; {self._columns()}"
            raise self._refusal(node, f"there is no column {name!r}{hint}")
        return self.schema.column(name)

    def _columns(self) -> str:
        names = [column.name for column in self.schema.columns]
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return f"the columns are {', '.join(names[:20])}{more}"

    # -- values

    def _values(self, column: Column, node: ast.expr) -> list[Any]:
        if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            raise self._refusal(node, "in takes a list of values, as in ('JFK', 'LGA')")
        return [self._value(column, element) for element in node.elts]

    def _value(self, column: Column, node: ast.expr) -> Any:
        value = self._constant(node)
        if column.type in UNORDERED:
            return value  # for bind to refuse
        if column.type in ("float", "double"):
            if isinstance(value, str) and _is_unbounded(value):
                return float(value)
            if isinstance(value, float) and math.isinf(value):
                raise self._refusal(
                    node, "no float is so large; write 'inf' or '-inf' in quotes for infinity"
                )
        if isinstance(value, str) and column.type not in _QUOTED:
            raise self._refusal(
                node, f"column {column.name!r} is {type_name(column)}: write the value without quotes"
            )
        if isinstance(value, str):
            return self._quoted(column, node, value)
        if column.type == "decimal" and not isinstance(value, (bool, bytes)):
            exact = self._source(node).replace(" ", "")
            return self._quoted(column, node, exact)
        if column.type in _QUOTED and not isinstance(value, bytes):
            raise self._refusal(
                node, f"column {column.name!r} is {type_name(column)}: write the value in quotes"
            )
        return value

    def _constant(self, node: ast.expr) -> bool | int | float | str | bytes:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | bytes() as value):
                return value
            case ast.UnaryOp(
                op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as value)
            ):
                return -value if isinstance(node.op, ast.USub) else value
        if _is_null(node):
            raise self._refusal(node, "null is not a value of a list; write ... or x is null")
        raise self._refusal(node, "a value is a number, a text in quotes, True or False")

    def _quoted(self, column: Column, node: ast.expr, text: str) -> Any:
        try:
            return from_text(column, text)
        except InvalidArgument as error:
            raise self._refusal(node, error.message) from None

    def _checked(self, expression: Expression, node: ast.expr) -> Expression:
        """Bind the expression now, so that a value that the column cannot hold is shown at its place."""
        try:
            return self.expressions.bind(expression, self.schema)
        except InvalidArgument as error:
            raise self._refusal(node, error.message) from None

    def _source(self, node: ast.expr) -> str:
        return self.bytes[node.col_offset : node.end_col_offset].decode()

    def _refusal(self, node: ast.expr, message: str) -> Usage:
        """The refusal with the node's place in characters (ast counts bytes)."""
        start = len(self.bytes[: node.col_offset].decode())
        return _mistake(self.text, start, start + len(self._source(node)), message)


def _is_unbounded(text: str) -> bool:
    return re.fullmatch(r"[+-]?(inf|infinity|nan)", text, re.IGNORECASE) is not None


def _is_null(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id.lower() == "null"
    )
