"""`ebla nodes forget`: a host that is gone for good, with its tablet server and its ledger store."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs

from ebla.cli.frame.connection import name_of, within
from ebla.cli.frame.losing import confirm_loss
from ebla.cli.frame.options import Host, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Shown, Ui
from ebla.errors import NotFound, Unavailable
from ebla.operate.naming import TABLET_SERVER
from ebla.storage.errors import EblaError
from ebla.wording import count, host_of, short

if TYPE_CHECKING:
    from ebla.actors.master.messages import ForgetReply
    from ebla.operate.cluster import Cluster
    from ebla.operate.decommissioning import Stores
    from ebla.operate.forgetting import Loss
    from ebla.operate.waiting import Progress

LINES_MAX = 20
RANGES_MAX = 10
MOVE_S = 3600.0  # for workers to move what has copies elsewhere


def forget(
    ui: Ui,
    host: Host,
    accept_loss: Annotated[
        bool,
        option("--accept-loss", "Give up the entries of ledgers of which only lost stores had copies."),
    ] = False,
    yes: Annotated[
        str | None,
        option("--yes-i-lose-data HOST", "The host's name or the store's uuid, instead of typing it."),
    ] = None,
    timeout: Annotated[
        float, option("--timeout SECONDS", "Longest wait for the server to count as silent.", min=1)
    ] = 30.0,
) -> Shown:
    """Remove a lost host. Refused while it is alive, or a tablet has a replica there, or a ledger needs its store.

    With --accept-loss, acknowledged records of logs may be LOST: those of which no store that runs has a copy. It is only for a host
    that will never return. The ledger keeps a record of what was given up. If the host is back without its directory, name the lost
    store by its uuid: only that one is forgotten.
    """
    if yes is not None and not accept_loss:
        raise Usage("--yes-i-lose-data goes with --accept-loss", option="--yes-i-lose-data")

    wanted = (host, accept_loss, yes, timeout)

    from ebla.placement import launch

    with ui.working("nodes forget") as progress:
        reply, stores, lost = within(ui, lambda cluster: _forget(ui, cluster, progress, *wanted))
        if reply is None:
            assert stores is not None
            document: dict[str, Any] = {"address": stores.addresses[0], "stores": stores.uuids, "lost": lost}
            return document, f"store {stores.uuids[0]} is forgotten", *_lines(lost)
        ended = launch.forget(name_of(ui), reply.address)
        for address in stores.addresses if stores is not None else ():
            ended |= launch.forget(name_of(ui), address)
            launch.forget(name_of(ui), f"replication-worker/{host_of(address)}")
    document = {
        **structs.asdict(reply),
        "ended": ended,
        "stores": () if stores is None else stores.uuids,
        "lost": lost,
    }
    return document, f"{host_of(reply.address)} is forgotten", *_lines(lost)


async def _forget(
    ui: Ui,
    cluster: Cluster,
    progress: Progress,
    word: str,
    accept_loss: bool,
    yes: str | None,
    timeout: float,
) -> tuple[ForgetReply | None, Stores | None, list[Loss]]:
    """Without a reply: only a store that lost its directory is forgotten."""
    from ebla.actors.master.messages import ForgetReply, ForgetRequest
    from ebla.operate import decommissioning, forgetting

    replaced = await decommissioning.replaced(cluster, word)
    if replaced is not None:
        await forgetting.require_silence(cluster, replaced, timeout, progress)
        lost = await _without_ledgers(ui, cluster, progress, replaced, accept_loss, yes)
        await forgetting.forget(cluster, replaced)
        return None, replaced, lost
    host = await decommissioning.host_meant(cluster, word, progress)
    address = TABLET_SERVER + host
    await _require_silence(cluster, address)
    stores = await decommissioning.stores_at(cluster, host)
    lost = []
    with suppress(NotFound):  # judged below
        # A refusal has to come before any record is given up.
        await cluster.persist("forget_server", ForgetRequest(host, True), ForgetReply, timeout, progress)
    if stores is not None:
        await forgetting.require_silence(cluster, stores, timeout, progress)
        stores = await decommissioning.renewed(
            cluster, stores
        )  # until then, ledgers may have been made there
        lost = await _without_ledgers(ui, cluster, progress, stores, accept_loss, yes)
    try:
        reply = await cluster.persist("forget_server", ForgetRequest(host), ForgetReply, timeout, progress)
    except NotFound:
        if address not in cluster.slots and stores is None:
            raise
        # The master never had a heartbeat from it, and no tablet a replica there.
        reply = ForgetReply(address, ())
    if host_of(reply.address) != host:
        # `word` is the uuid of a server that was forgotten before its stores were.
        return await _forget(ui, cluster, progress, host_of(reply.address), accept_loss, yes, timeout)
    if stores is not None:
        await forgetting.forget(cluster, stores)
    return reply, stores, lost


async def _without_ledgers(
    ui: Ui, cluster: Cluster, progress: Progress, stores: Stores, accept_loss: bool, yes: str | None
) -> list[Loss]:
    """Raise LedgersStay if a ledger names one of the stores. If the loss is accepted, give up what only they had, and wait."""
    from ebla.operate import decommissioning, forgetting

    lost: list[Loss] = []
    if accept_loss and stores.left:
        lost = await forgetting.losses(cluster, stores, progress)
        thing, name, called = "host", decommissioning.host_names(stores), "name"
        if stores.replaced:
            thing, name, called = "store", stores.uuids[0], "whole id"
        if lost:
            confirm_loss(ui, thing, name, yes, _shown(name, lost), called)
        await forgetting.give_up(cluster, stores, lost, progress)
        stores = await decommissioning.without_ledgers(cluster, stores, MOVE_S, progress)
    await forgetting.require_unneeded(cluster, stores)
    return lost


async def _require_silence(cluster: Cluster, address: str) -> None:
    """Refuse to forget a server that answers this process, even if its heartbeats do not reach the master."""
    from ebla.actors import messages as m
    from ebla.health.survey import SERVER_S

    try:
        await cluster.call(address, "status", m.Empty(), m.ServerState, SERVER_S)
    except EblaError:
        return
    raise Unavailable(
        f"the server at {address} answers; to remove it for good, first run `ebla nodes drain {host_of(address)} --wait "
        "--stop`"
    )


def _shown(host: str, lost: list[Loss]) -> list[Any]:
    shown = [f"LOST with {host}, for no store that runs has a copy:", *_lines(lost)]
    if perhaps := sorted({store for loss in lost for store in loss.perhaps}):
        named = ", ".join(map(short, perhaps))
        shown.append(
            f"Store {named} may have some of them and does not run: bring it back instead if there is any way."
        )
    return shown


def _lines(lost: list[Loss]) -> list[str]:
    lines = []
    for loss in lost[:LINES_MAX]:
        ranges = [f"{a:,}-{b:,}" if a < b else f"{a:,}" for a, b in loss.entries[:RANGES_MAX]]
        more = ["..."] if len(loss.entries) > RANGES_MAX else []
        parts = [f"entries {', '.join(ranges + more)}"] if ranges else []
        parts += ["every record after the last entry that is found"] if loss.end else []
        log = f" of log {loss.log!r}" if loss.log else ""
        lines.append(f"  ledger {loss.ledger}{log}: {', and '.join(parts)}")
    if len(lost) > LINES_MAX:
        lines.append(f"  and of {count(len(lost) - LINES_MAX, 'more ledger')}")
    return lines
