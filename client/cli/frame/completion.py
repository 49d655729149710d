"""Completion in shells: its installation for a named shell, and the names of tables and logs that it offers.

Completion must answer at once, and a connection to Ray takes two seconds. So each command at a terminal keeps the names that the
deployment has when the command ends (places.py), and completion reads them. `ebla down` removes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import NAME, Ui
from ebla.storage.errors import EblaError

if TYPE_CHECKING:
    from ebla.actors.asking.master_client import MasterClient

SHELLS = ("bash", "zsh", "fish")
INSTALL, SHOW = "--install-completion", "--show-completion"
HELP = {
    INSTALL: f"Install completion for the current shell, or for the one named: {', '.join(SHELLS)}.",
    SHOW: "Show that completion, to copy it or customize the installation.",
}
LEARN_S = 1.0
NAMES_MAX = 1000  # of tables, and of logs


def for_shell(ctx: Any, args: list[str]) -> None:
    """Carry out `--install-completion fish` and its like. typer's own options are for the current shell, and ignore a word."""
    if ctx.resilient_parsing or len(args) < 2 or args[0] not in HELP or args[1].startswith("-"):
        return
    from typer.completion import install_callback, show_callback

    if args[1] not in SHELLS:
        raise Usage(
            f"there is no completion for {args[1]!r}; the shells are {', '.join(SHELLS)}", option=args[0]
        )
    (install_callback if args[0] == INSTALL else show_callback)(ctx, None, args[1])  # type: ignore[arg-type]


def tables(ctx: typer.Context) -> list[str]:
    return _known(ctx, "tables")


def logs(ctx: typer.Context) -> list[str]:
    return _known(ctx, "logs")


def _known(ctx: typer.Context, kind: str) -> list[str]:
    from ebla.cli.frame import places

    name = ctx.params.get("common_name") or ctx.find_root().params.get("name") or NAME
    return places.names(name).get(kind, [])


async def learn(ui: Ui, master: MasterClient) -> None:
    """Keep the present names, if there is a terminal. A master that does not answer is not asked again."""
    if not ui.interactive:
        return
    from ebla.actors import messages as m
    from ebla.actors.coordination.messages import NodeReply, NodeRequest
    from ebla.actors.ledger.shared.paths import LOGS
    from ebla.cli.frame import places

    try:
        found = await master.ask_once("list_tables", m.ListTablesRequest(), m.ListTablesReply, LEARN_S)
        logs = await master.ask_once("read_node", NodeRequest(LOGS, True), NodeReply, LEARN_S)
        names = [table.name for table in found.tables]
        places.remember_names(
            ui.common.name or NAME, {"tables": names[:NAMES_MAX], "logs": list(logs.children[:NAMES_MAX])}
        )
    except (EblaError, OSError):
        return
