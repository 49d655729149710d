"""`ebla nodes maintain`: a host will be silent for a while, and what is on it shall stay there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ebla.cli.asking import persist
from ebla.cli.cluster import Cluster, within
from ebla.cli.commands import command
from ebla.cli.render import count, host_of
from ebla.cli.ui import Ui

if TYPE_CHECKING:
    from ebla.actors.master.messages import Maintained, MaintainReply

ASK_S = 15.0


def maintain(
    ui: Ui,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="Host, address or uuid of its server.", show_default=False)
    ],
    off: Annotated[bool, typer.Option("--off", help="That is over.")] = False,
) -> None:
    """Wait for a host that goes down for a while: its replicas are not made anew elsewhere, and it gets no new ones, until
    `--off`."""

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
            f"{host} is in maintenance: {replicas} there may be silent, and it gets no new ones until `--off`"
        )
    if server.alive or not server.replicas:
        return f"{host} is in maintenance no more; it has {replicas}"
    return f"{host} is in maintenance no more; it is silent, and its {replicas} will be made anew elsewhere"


def register(app: typer.Typer) -> None:
    command(app, "maintain")(maintain)
