"""`ebla tablet quarantine list | restore-to | purge`: the data of deleted replicas, on each server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import Yes, argument, option
from ebla.cli.frame.problems import FAILED, Usage
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.frame.views import silent_servers
from ebla.wording import age, brief, count, host_of, size

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster
    from ebla.operate.quarantine import Held

NOTHING = "nothing is in quarantine"
NAMES_HELP = "Ids, as `quarantine list` shows them, or beginnings of them."


async def list_entries(cluster: Cluster) -> Shown:
    """List the data of deleted replicas: table, age, size, reason. An id begins with the tablet's id."""
    from ebla.operate.quarantine import entries

    found = await entries(cluster)
    ids, now_s = found.ids(), datetime.now(timezone.utc).timestamp()
    rows = [
        (
            ids[each.entry.name],
            host_of(each.address),
            each.entry.table_name,
            age(now_s - each.entry.at_us / 1e6),
            size(each.entry.bytes),
            brief(each.entry.reason.removeprefix("it "), 60),
        )
        for each in found.held
    ]
    headers = ("ID", "HOST", "TABLE", "AGE>", "SIZE>", "REASON")
    return (
        {"entries": [_document(each) for each in found.held], "silent": found.silent},
        listing(headers, rows) if rows else NOTHING,
        "{}, {}".format(*_described(found.held)) if rows else None,
        *silent_servers(found.silent),
    )


def _described(entries: Sequence[Held]) -> tuple[str, str]:
    return count(len(entries), "entry", "entries"), size(sum(each.entry.bytes for each in entries))


def _document(held: Held) -> dict[str, Any]:
    return {"server": held.address, **structs.asdict(held.entry)}


def restore_to(
    ui: Ui,
    directory: Annotated[str, argument("DIR", "An absolute path on the server's host.")],
    name: Annotated[list[str], argument("NAME", NAMES_HELP)],
) -> Shown:
    """Export entries: rows as Parquet, log entries as JSON lines, and a description.

    The files are written on the server's host, to a directory per entry under DIR. The entries stay in quarantine.
    """
    if not directory.startswith("/"):
        raise Usage(f"DIR must be an absolute path, not {directory!r}", hint="DIR is on the server's host")
    from ebla.operate.quarantine import restore

    with ui.working("restore-to"):
        chosen = within(ui, lambda cluster: restore(cluster, name, directory))
    where = [f"{host_of(each.address)}:{directory}/{each.entry.name}" for each in chosen]
    return {"restored": where}, *(f"restored to {each}" for each in where)


def purge(
    ui: Ui,
    name: Annotated[list[str] | None, argument("NAME", NAMES_HELP)] = None,
    all_: Annotated[bool, option("--all", "All entries, on every server.")] = False,
    yes: Yes = False,
) -> None:
    """Delete entries for good, to free their space. Exit status 1: with --all, a server gave no answer and keeps its entries."""
    if bool(name) == all_:
        raise Usage(
            "name the entries to delete, or all", hint="`ebla tablet quarantine purge NAME..` or `--all`"
        )

    async def work(cluster: Cluster) -> tuple[list[Held], dict[str, str]]:
        from ebla.operate import quarantine

        found = await quarantine.entries(cluster)
        chosen = list(found.held) if all_ else found.named(name or ())
        if chosen:
            ui.confirm("Delete {} ({}) for good?".format(*_described(chosen)), yes)
            await quarantine.purge(cluster, chosen)
        return chosen, found.silent

    gone, silent = within(ui, work)
    text = "purged {}, {}".format(*_described(gone)) if gone else NOTHING
    ui.show({"purged": [_document(each) for each in gone], "silent": silent}, text, *silent_servers(silent))
    if all_ and silent:
        raise typer.Exit(FAILED)
