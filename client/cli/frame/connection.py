"""A command's way into the deployment: one connection for as long as the command runs, with Ray kept off the console."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ebla.cli.frame import completion
from ebla.cli.frame.ui import NAME, Ui
from ebla.errors import EblaError, NoCluster
from ebla.operate.naming import JOURNAL_NODE, LEDGER_STORE, REPAIRERS, TABLET_SERVER
from ebla.wording import brief

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster

T = TypeVar("T")

QUIET_S = 3.0  # a take-over takes as long


def name_of(ui: Ui) -> str:
    """The deployment's name."""
    return ui.common.name or NAME


def within(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """Connect, do the work, learn the names for completion, close. What is not answered at once is reported once on standard
    error."""
    reported = False

    def refused(error: EblaError, passed_s: float, deadline_s: float) -> None:
        nonlocal reported
        if passed_s < QUIET_S or reported:
            return
        from ebla.actors.errors import NotActive

        reported = True
        why = "no master is active" if isinstance(error, NotActive) else brief(error.message)
        ui.note(f"no answer yet ({why}); trying for {deadline_s:.0f} s in all")

    async def body(cluster: Cluster) -> T:
        cluster.client.master.on_refusal = refused
        try:
            done = await work(cluster)
            await completion.learn(ui, cluster.client.master)
            return done
        finally:
            await cluster.leave()

    return connected(ui, body)


def connected(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    reach(ui)
    from ebla import deployment
    from ebla.cli.frame import quiet
    from ebla.operate.cluster import Cluster

    name = name_of(ui)

    async def body() -> T:
        there = deployment.reach(name, None).roles
        client = deployment.make_client(name, not ui.silent, there)
        try:
            kinds = (TABLET_SERVER, JOURNAL_NODE, LEDGER_STORE, REPAIRERS)
            found = ([each for each in there if each.startswith(kind)] for kind in kinds)
            return await work(Cluster(client, *found))
        finally:
            client.close()

    return quiet.run(body())


def reach(ui: Ui) -> str:
    """Connect this process to the Ray cluster, quietly; its address. Raises Unavailable with the remedy: if no cluster runs here,
    the command that starts this deployment again."""
    from ebla.cli.frame import places, quiet

    quiet.before_ray(ui.verbose)
    from ebla.deployment import require_name
    from ebla.placement.connection import REMEDY, connect_ray
    from ebla.placement.ray_private import send_own_types_only

    name = name_of(ui)
    require_name(name)
    send_own_types_only()
    try:
        return connect_ray(ui.common.address)
    except NoCluster as error:
        again = places.up_command(name)
        named = ui.common.address or os.environ.get("RAY_ADDRESS")
        if again is None or named or not error.message.endswith(REMEDY):
            raise
        problem = error.message.removesuffix(REMEDY)
        raise NoCluster(f"{problem}`{again}` starts deployment {name} again") from error
