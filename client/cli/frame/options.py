"""Arguments and options of commands, and those that several commands share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from ebla.cli.frame import completion


def option(usage: str, help: str, **more: Any) -> Any:
    """An option as a usage line writes it, such as `-t --table NAME`; a flag, and a choice, name no value."""
    words = usage.split()
    value = [word for word in words if not word.startswith("-")]
    names = sorted((word for word in words if word.startswith("-")), key=len, reverse=True)
    return typer.Option(*names, metavar=value[0] if value else None, help=help, **more)


def argument(name: str, help: str, show_default: bool = False, **more: Any) -> Any:
    return typer.Argument(metavar=name, help=help, show_default=show_default, **more)


NewReplication = Annotated[
    Literal["raft", "pacifica"] | None,
    option("--replication", "The protocol of a new table's replicas (default: raft)."),
]
NewStorage = Annotated[
    Literal["rows", "columns"] | None, option("--storage", "How replicas keep rows (default: rows).")
]
NewCompression = Annotated[
    Literal["none", "lz4", "zstd"] | None,
    option("--compression", "Of a table with --storage columns (default: none)."),
]
NewMinMembers = Annotated[
    int | None,
    option(
        "--min-members N",
        "With pacifica: the fewest voters that take writes (default: more than half of the replicas).",
        min=1,
    ),
]

Yes = Annotated[bool, option("-y --yes", "Do not ask for confirmation.")]
TableName = Annotated[str, argument("NAME", "The table.", autocompletion=completion.tables)]
Where = Annotated[
    str | None,
    option("-w --where CONDITION", "A condition, such as \"origin == 'JFK' and distance > 500\"."),
]
TabletId = Annotated[str, argument("TABLET", "The tablet's id, or its beginning.")]
Host = Annotated[str, argument("HOST", "Host, address or uuid of its server.")]
BackgroundTimeout = Annotated[
    float, option("--timeout SECONDS", "Longest wait; the work continues in the background.", min=1)
]
