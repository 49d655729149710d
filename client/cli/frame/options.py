"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TableName = Annotated[str, typer.Argument(metavar="NAME", help="The table.", show_default=False)]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="A condition, such as \"origin == 'JFK' and distance > 500\".",
    ),
]
TabletId = Annotated[
    str, typer.Argument(metavar="TABLET", help="The tablet's id, or its beginning.", show_default=False)
]
Host = Annotated[
    str, typer.Argument(metavar="HOST", help="Host, address or uuid of its server.", show_default=False)
]
BackgroundTimeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=1, help="Longest wait; the work continues in the background."
    ),
]
