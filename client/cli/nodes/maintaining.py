"""`ebla nodes maintain`: announce that a host will be down for a while, so that its replicas stay there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.polling import persist
from ebla.cli.frame.render import count, host_of
from ebla.cli.frame.ui import Ui

if TYPE_CHECKING:
    from ebla.actors.master.messages import Maintained, MaintainReply

ASK_S = 15.0


def maintain(
    ui: Ui,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="Host, address or uuid of its server.", show_default=False)
    ],
    off: Annotated[bool, typer.Option("--off", help="End maintenance.")] = False,
) -> None:
    """Put a host into maintenance: its replicas are not replaced while it is down, and it gets no new ones until `--off`."""

    async def work(cluster: Cluster) -> MaintainReply:
        from ebla.actors.master.messages import MaintainReply, MaintainRequest

        return await persist(
            cluster, "maintain", MaintainRequest(host, not off), MaintainReply, ASK_S, progress
        )

    with ui.working("nodes maintain") as progress:
        reply = within(ui, work)
    ui.show(msgspec.to_builtins(reply), *(_told(each) for each in reply.servers))


def _told(server: Maintained) -> str:
    host, replicas = host_of(server.address), count(server.replicas, "replica")
    if server.maintained:
        return (
            f"{host} is in maintenance until `--off`: its {replicas} may be silent, and it gets no new ones"
        )
    if server.alive or not server.replicas:
        return f"{host} is no longer in maintenance; it has {replicas}"
    return (
        f"{host} is no longer in maintenance; it is silent, so its {replicas} will be created on other hosts"
    )


def register(app: typer.Typer) -> None:
    command(app, "maintain")(maintain)
