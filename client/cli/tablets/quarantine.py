"""`ebla tablet quarantine list | restore-to | purge`: the data of deleted replicas, on each server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import Yes, command
from ebla.cli.frame.problems import (
    Refused,
    Usage,
)
from ebla.cli.frame.render import brief, count, host_of, listing, short, size
from ebla.cli.frame.ui import Ui
from ebla.cli.tablets.copies import servers
from ebla.storage.errors import did_you_mean

if TYPE_CHECKING:
    from ebla.actors.messages import QuarantineEntry

SERVER_S = 5.0
RESTORE_S = 3600.0

Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME..", help="Names, as `quarantine list` shows them.", show_default=False),
]


class Held(msgspec.Struct, frozen=True):
    """An entry, and the server that has it."""

    address: str
    uuid: str
    entry: QuarantineEntry


class Found(msgspec.Struct, frozen=True):
    held: tuple[Held, ...]
    silent: dict[str, str]


def listed(ui: Ui) -> None:
    """List the data of deleted replicas: tablet, reason, time, size."""
    found = within(ui, look)
    rows = [
        (
            each.entry.name,
            host_of(each.address),
            each.entry.table_name,
            short(each.entry.tablet),
            f"{datetime.fromtimestamp(each.entry.at_us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}",
            each.entry.last_index,
            size(each.entry.bytes),
            brief(each.entry.reason, 60),
        )
        for each in found.held
    ]
    headers = ("NAME", "HOST", "TABLE", "TABLET", "SINCE (UTC)", "LAST>", "SIZE>", "REASON")
    ui.show(
        {"entries": [_document(each) for each in found.held], "silent": found.silent},
        listing(headers, rows) if rows else "nothing is in quarantine",
        *(f"  {host_of(address)} does not answer: {brief(why)}" for address, why in found.silent.items()),
    )


def _document(held: Held) -> dict[str, Any]:
    return {"server": held.address, **msgspec.to_builtins(held.entry)}


async def look(cluster: Cluster) -> Found:
    from ebla.actors.messages import Empty, QuarantineEntries, ServerState
    from ebla.health.survey import ask, gathered
    from ebla.health.verdicts import Unanswered

    addresses = await servers(cluster)

    async def one(address: str) -> list[Held] | Unanswered:
        said = await ask(cluster.network, address, "quarantine_list", Empty(), QuarantineEntries, SERVER_S)
        if isinstance(said, Unanswered):
            return said
        state = await ask(cluster.network, address, "status", Empty(), ServerState, SERVER_S)
        if isinstance(state, Unanswered):
            return state
        return [Held(address, state.instance.uuid, entry) for entry in said.entries]

    held: list[Held] = []
    silent: dict[str, str] = {}
    for address, said in zip(addresses, await gathered([one(each) for each in addresses]), strict=True):
        if isinstance(said, Unanswered):
            silent[address] = said.message
        else:
            held += said
    return Found(tuple(sorted(held, key=lambda each: (each.entry.at_us, each.entry.name))), silent)


def restore_to(
    ui: Ui,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="An absolute path on the server's host.", show_default=False)
    ],
    name: Names,
) -> None:
    """Export entries: rows as Parquet, log entries as JSON lines, and a description.

    The files are written on the server's host, to a directory per entry under DIR. The entries stay in quarantine.
    """
    if not directory.startswith("/"):
        raise Usage(f"DIR must be an absolute path, not {directory!r}", hint="DIR is on the server's host")

    async def work(cluster: Cluster) -> list[Held]:
        from ebla.actors.messages import Empty, QuarantineRequest

        chosen = _named(await look(cluster), name)
        for each in chosen:
            request = QuarantineRequest(each.uuid, (each.entry.name,), directory)
            await cluster.call(each.address, "quarantine_restore", request, Empty, RESTORE_S)
        return chosen

    with ui.working("restore-to"):
        chosen = within(ui, work)
    where = [f"{host_of(each.address)}:{directory}/{each.entry.name}" for each in chosen]
    ui.show({"restored": where}, *(f"restored to {each}" for each in where))


def purge(
    ui: Ui,
    name: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME..]", help="Names, as `quarantine list` shows them.", show_default=False
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All entries, on every server.")] = False,
    yes: Yes = False,
) -> None:
    """Delete entries for good, to free their space."""
    if bool(name) == all_:
        raise Usage(
            "name the entries to delete, or all", hint="`ebla tablet quarantine purge NAME..` or `--all`"
        )

    async def work(cluster: Cluster) -> list[Held]:
        from ebla.actors.messages import Empty, QuarantineRequest

        found = await look(cluster)
        chosen = list(found.held) if all_ else _named(found, name or ())
        if not chosen:
            return []
        total = size(sum(each.entry.bytes for each in chosen))
        ui.confirm(f"Delete {count(len(chosen), 'entry', 'entries')} ({total}) for good?", yes)
        for address, uuid in dict.fromkeys((each.address, each.uuid) for each in chosen):
            names = tuple(each.entry.name for each in chosen if each.address == address)
            request = QuarantineRequest(uuid, names)
            await cluster.call(address, "quarantine_purge", request, Empty, RESTORE_S)
        return chosen

    gone = within(ui, work)
    freed = size(sum(each.entry.bytes for each in gone))
    ui.show(
        {"purged": [_document(each) for each in gone]},
        f"purged {count(len(gone), 'entry', 'entries')}, {freed}" if gone else "nothing is in quarantine",
    )


def _named(found: Found, wanted: Sequence[str]) -> list[Held]:
    """One server may have an entry of the same name as another: all of them are meant."""
    there = [each.entry.name for each in found.held]
    for name in wanted:
        if name not in there:
            raise Refused(
                f"quarantine has no entry {name!r}{did_you_mean(name, there)}",
                hint="`ebla tablet quarantine list` shows the names"
                + (f"; {', '.join(map(host_of, found.silent))} gave no answer" if found.silent else ""),
            )
    return [each for each in found.held if each.entry.name in wanted]


def register(app: typer.Typer) -> None:
    command(app, "list")(listed)
    command(app, "restore-to")(restore_to)
    command(app, "purge")(purge)
