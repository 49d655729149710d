"""`ebla nodes forget`: remove a host that is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ebla.cli.frame.cluster import TABLET_SERVER, Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.polling import persist
from ebla.cli.frame.render import host_of
from ebla.cli.frame.ui import Ui
from ebla.errors import NotFound, Unavailable
from ebla.storage.errors import EblaError

if TYPE_CHECKING:
    from ebla.actors.master.messages import ForgetReply

PROBE_S = 3.0


def forget(
    ui: Ui,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="Host, address or uuid of its server.", show_default=False)
    ],
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="Longest wait for the server to count as silent."
        ),
    ] = 30.0,
) -> None:
    """Remove a lost host. Refused while its server is alive, or a tablet has a replica there."""

    async def work(cluster: Cluster) -> ForgetReply:
        from ebla.actors.master.messages import ForgetReply, ForgetRequest

        address = host if host.startswith(TABLET_SERVER) else TABLET_SERVER + host
        await _require_silence(cluster, address)
        try:
            return await persist(
                cluster, "forget_server", ForgetRequest(host), ForgetReply, timeout, progress
            )
        except NotFound:
            if address not in cluster.slots:
                raise
            return ForgetReply(address, ())  # not heard since the master began, and nothing was ever there

    with ui.working("nodes forget") as progress:
        reply = within(ui, work)
        ended = _end(ui, reply.address)
    ui.show({**msgspec.to_builtins(reply), "ended": ended}, f"{host_of(reply.address)} is forgotten")


async def _require_silence(cluster: Cluster, address: str) -> None:
    """One that the master does not hear, and that answers us, is not gone."""
    from ebla.actors import messages as m

    try:
        await cluster.call(address, "status", m.Empty(), m.ServerState, PROBE_S)
    except EblaError:
        return
    raise Unavailable(
        f"the server at {address} answers; to remove it for good, first run `ebla nodes drain {host_of(address)} --wait "
        "--stop`"
    )


def _end(ui: Ui, address: str) -> bool:
    """Whether Ray still had its actor."""
    from ebla.placement import launch

    return launch.forget(ui.common.name or "ebla", address)


def register(app: typer.Typer) -> None:
    command(app, "forget")(forget)
