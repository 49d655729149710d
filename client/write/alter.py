"""Changes of a table that are made together, while clients read and write it.

    await table.alter().add_column("delay", pa.int32(), default=0).rename_column("dep", "departure").apply()

Existing rows are not rewritten: a read shows the default of an added column, and never again the values of a dropped column.
Handles on the table get the new schema by themselves.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from typing_extensions import Self

from ebla.actors import messages as m
from ebla.arguments import check_deadline, check_int, check_text
from ebla.options import WAIT_S
from ebla.storage.arrow_types import column_of
from ebla.storage.columns import check_type
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.alteration import AddColumn, Change, DropColumn, RenameColumn
from ebla.storage.rows.convert import defaults, pack_default
from ebla.storage.rows.python_values import shown
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import TableRoutes


class Changes:
    """Collects changes; each method returns this object. All are carried out in their order, or none."""

    def __init__(self, table: str) -> None:
        self.table = table  # its present name
        self.changes: list[Change] = []
        self.name = ""
        self.least: int | None = None

    def add_column(self, name: str, type: pa.DataType, *, nullable: bool = True, default: Any = None) -> Self:
        """Add a column at the end. `default`: its value in existing rows, and in new rows that do not name it. A column that
        may not be null needs a default."""
        check_text("name", name)
        if not isinstance(type, pa.DataType):
            raise InvalidArgument(
                f"type is a type of Arrow, such as pa.int64(), not {shown(type)}", column=name
            )
        column = column_of(pa.field(name, type, nullable))
        check_type(column)
        packed = pack_default(column, default)
        self.changes.append(AddColumn(msgspec.structs.replace(column, default=packed)))
        return self

    def rename_column(self, name: str, to: str) -> Self:
        """Rename a column; its values stay."""
        self.changes.append(RenameColumn(check_text("name", name), check_text("to", to)))
        return self

    def drop_column(self, name: str) -> Self:
        """Drop a column and its values. A column of this name that is added later does not get them back."""
        self.changes.append(DropColumn(check_text("name", name)))
        return self

    def rename(self, name: str) -> Self:
        """Rename the table."""
        self.name = check_text("name", name)
        return self

    def min_members(self, number: int) -> Self:
        """Change `min_members` of a PacificA table: with fewer replicas that vote, a tablet takes no writes. The tablets get the new
        number soon after `apply`, each by a new configuration."""
        self.least = check_int("number", number, 1)
        return self

    def __repr__(self) -> str:
        texts = [_notation(change) for change in self.changes] + [f"rename({self.name!r})"] * bool(self.name)
        texts += [f"min_members({self.least})"] * (self.least is not None)
        return f"<ebla.Alteration of {self.table!r}: {', '.join(texts) or 'no changes yet'}>"


def _notation(change: Change) -> str:
    """The change as users write it."""
    if isinstance(change, RenameColumn):
        return f"rename_column({change.name!r}, {change.to!r})"
    if isinstance(change, DropColumn):
        return f"drop_column({change.name!r})"
    column = change.column
    null = "" if column.nullable else ", nullable=False"
    default = "" if column.default is None else f", default={defaults(column, 1)[0].as_py()!r}"
    return f"add_column({column.name!r}, {column.arrow_type()}{null}{default})"


class Alteration(Changes):
    """Changes of one table, carried out by `apply`."""

    def __init__(self, client: DeploymentClient, routes: TableRoutes) -> None:
        super().__init__(routes.name)
        self._client = client
        self._routes = routes

    async def apply(self, *, wait_s: float = WAIT_S) -> m.TableInfo:
        """Carry the changes out durably, all or none, and wait until every tablet has the new schema.

        Args:
            wait_s: Longest wait in seconds; 0: do not wait.

        Returns:
            The altered table.

        Raises:
            TimedOut: Not every tablet has the schema within `wait_s`; they get it later.
            InvalidArgument: A change is impossible. Nothing is changed.
            AlreadyPresent: A table has the new name. Nothing is changed.
        """
        if not self.changes and not self.name and self.least is None:
            raise InvalidArgument(
                "there is nothing to alter: add, rename or drop columns, rename the table, or change min_members"
            )
        deadline_s = check_deadline(wait_s or None, "wait_s")
        table = self._routes.info
        request = m.AlterTableRequest(
            self._client.master.new_request_id(),
            table.name,
            table.table,
            tuple(self.changes),
            self.name,
            self.least,
        )
        info = await self._client.master.ask("alter_table", request, m.TableInfo, deadline_s=deadline_s)
        self._routes.update(info)
        if wait_s:
            await self._client.altered(self._routes, info.schema.version, deadline_s)
        return self._routes.info
