"""The master's figures of tablets that do not serve, on real tablet servers: what `ebla check` says has an alert."""

from __future__ import annotations

from ebla.actors.master.messages import SuspendReply, SuspendRequest
from ebla.chaos.simulation.loop import run
from tests.cli.stage import HOSTS, Act, Stage, start
from tests.cli.test_pacifica import seconds_after, settled, two_lost
from tests.figures import figures_of

UNWELL = ("unhealthy", "unwritable", "unreadable", "dead")


def after(prepare: Act) -> dict[str, float]:
    async def scenario() -> dict[str, float]:
        stage, _ = await start()
        await prepare(stage)
        return figures_of(stage.cluster.role("master/0"))

    return run(scenario())


def pacifica(figures: dict[str, float]) -> dict[str, float]:
    return {state: figures[f"master_pacifica_tablets/{state}"] for state in UNWELL}


def test_tablets_that_are_served_are_in_no_figure_of_trouble() -> None:
    well = after(settled)
    assert well["master_tablets_unserved"] == 0
    assert pacifica(well) == dict.fromkeys(UNWELL, 0)


def test_a_primary_that_lacks_voters_for_writes_is_unwritable() -> None:
    """Its configuration keeps min_members voters: one of them is silent."""
    found = after(two_lost)
    assert pacifica(found) == {"unhealthy": 0, "unwritable": 2, "unreadable": 0, "dead": 0}


def test_tablets_of_suspended_servers_are_unreadable_and_not_dead() -> None:
    async def suspended(stage: Stage) -> None:
        await settled(stage)
        for host in HOSTS:
            request, network = SuspendRequest(host, True), stage.session.world.network
            await network.call("master/0", "suspend", request, SuspendReply, 5.0)
        await seconds_after(stage, 20.0)

    assert pacifica(after(suspended)) == {"unhealthy": 0, "unwritable": 0, "unreadable": 2, "dead": 0}


def test_a_raft_tablet_without_a_majority_is_unserved() -> None:
    async def majority_lost(stage: Stage) -> None:
        await stage.table()
        await seconds_after(stage, 3.0)
        for host in HOSTS[1:]:
            stage.cluster.crash(f"tablet-server/{host}")
        await seconds_after(stage, 20.0)

    assert after(majority_lost)["master_tablets_unserved"] == 2


def test_a_tablet_whose_servers_are_all_silent_is_unserved() -> None:
    async def all_lost(stage: Stage) -> None:
        await stage.table()
        await seconds_after(stage, 3.0)
        for host in HOSTS:
            stage.cluster.crash(f"tablet-server/{host}")
        await seconds_after(stage, 20.0)

    assert after(all_lost)["master_tablets_unserved"] == 2
