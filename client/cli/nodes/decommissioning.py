"""`ebla nodes decommission`: take a host out of service, with its tablets and its ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame.connection import name_of, within
from ebla.cli.frame.options import BackgroundTimeout, Host, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.nodes.draining import STOP_S, lines_of, warn_of_non_voters
from ebla.wording import count, host_of

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster
    from ebla.operate.decommissioning import State, Stores

STAY = "a decommission moves tablets and ledgers only"


def decommission(
    ui: Ui,
    name: Host,
    off: Annotated[bool, option("--off", "End it: the host may have replicas and ledgers again.")] = False,
    wait: Annotated[
        bool, option("-w --wait", "Return when the host has neither replicas nor ledgers.")
    ] = False,
    stop: Annotated[
        bool,
        option(
            "--stop", "Wait, then stop its tablet server, ledger store and worker; `ebla up` starts them."
        ),
    ] = False,
    timeout: BackgroundTimeout = 3600.0,
) -> Shown:
    """Move all replicas and ledgers off a host. It gets no new ones until `--off`. Reads and writes continue.

    The move goes on without this command, also after Ctrl-C; the same command shows how far it is. With --wait, the exit status is not
    0 if a replica or a ledger cannot move: the message names it, and the reason.
    """
    if off and (wait or stop):
        raise Usage("--off ends a decommission: there is nothing to wait for", option="--off")

    async def work(cluster: Cluster) -> tuple[State, dict[str, list[str]]]:
        from ebla.operate import decommissioning, draining

        host = await decommissioning.host_meant(cluster, name, progress)
        if off:
            return await decommissioning.undo(cluster, host, progress), {}
        begun = await decommissioning.decommission(cluster, host, progress=progress)
        if begun.tablets is not None:
            warn_of_non_voters(
                ui, {each.address: each.non_voters for each in begun.tablets.servers if each.non_voters}
            )
        done = begun
        if wait or stop:
            done = await decommissioning.wait(cluster, host, begun, timeout, progress)
        if done.tablets is None:
            return done, {}
        if stop:
            await draining.replicas_set_aside(cluster, done.tablets, progress)
        return done, await draining.staying(cluster, done.tablets)

    with ui.working("nodes decommission") as progress:
        done, staying = within(ui, work)
        stopped: list[str] = []
        if stop:
            from ebla.placement import launch

            progress.step("stopping its roles")
            stopped = list(launch.stop(name_of(ui), _roles(done), timeout_s=STOP_S))
    document = {
        "tablets": done.tablets,
        "ledgers": done.stores,
        "stopped": stopped,
        "staying": staying,
    }
    tablets = lines_of(done.tablets, stopped, staying, STAY) if done.tablets is not None else []
    return document, *tablets, *(_stores(done.stores, stopped) if done.stores is not None else [])


def _roles(done: State) -> list[str]:
    servers = [each.address for each in done.tablets.servers] if done.tablets is not None else []
    stores = done.stores.addresses if done.stores is not None else ()
    return [*servers, *(f"replication-worker/{host_of(each)}" for each in stores), *stores]


def _stores(found: Stores, stopped: list[str]) -> list[Any]:
    host = ", ".join(map(host_of, found.addresses))
    left = count(len(found.left), "ledger")
    if not found.leaving:
        return [f"{host} may have ledgers again; it has {left}"]
    if found.left:
        return [f"{host} is being decommissioned: {left} left; `ebla autorecovery status` shows the repairs"]
    end = "; its ledger store has stopped" if set(found.addresses) & set(stopped) else ""
    return [f"{host} has no ledgers{end}"]
