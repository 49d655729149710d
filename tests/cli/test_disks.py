"""Disks that hang or are full, as `ebla check` and `ebla nodes` show them."""

from __future__ import annotations

import pytest

from ebla import aio
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.simulation.loop import run
from ebla.health.tablets import judge
from ebla.storage.tablets.tablet_store import path_of
from tests.cli.stage import HOSTS, ROWS, SERVERS, Cli, LogStage, Stage, start, start_with_logs
from tests.cli.surveys import replace, report, seen, tablet

LONG_S = 1000.0


async def seconds_after(stage: Stage, seconds: float) -> None:
    await stage.db._client.world.clock.sleep(seconds)


async def data_disk_hangs(stage: Stage) -> None:
    """The disk of the first tablet's leader hangs, and its flush waits."""
    (found, *_) = (await (await stage.table()).info()).tablets
    assert found.leader is not None
    stage.cluster.state(found.leader).hang_data(path_of(found.tablet))
    server: TabletServer = stage.cluster.role(found.leader)
    flush = server.maintenance.flush(server.replicas[found.tablet])
    stage.db._client.world.spawn(flush, "flush")
    await seconds_after(stage, 15.0)


async def own_disk_hangs(stage: Stage) -> aio.Table:
    table = await stage.table()
    stage.cluster.state(SERVERS[0]).hang(LONG_S)
    return table


async def own_disk_hangs_and_idles(stage: Stage) -> None:
    await own_disk_hangs(stage)
    await seconds_after(stage, 90.0)


async def own_disk_hangs_under_writes(stage: Stage) -> None:
    table = await own_disk_hangs(stage)
    for _ in range(20):
        await table.upsert(ROWS)
        await seconds_after(stage, 1.0)


@pytest.mark.parametrize("fault", [data_disk_hangs, own_disk_hangs_and_idles, own_disk_hangs_under_writes])
def test_a_deployment_with_a_disk_that_hangs_is_not_healthy(ebla: Cli, fault: object) -> None:
    checked = ebla("check", prepare=fault)  # type: ignore[arg-type]
    assert checked.status == 1
    assert "DISK_HUNG: 1 table, 2 tablets, 3 of 3 servers up" in checked.text
    remedy = "move them with" if fault is data_disk_hangs else "its replicas are then copied to other hosts"
    assert "no answer from the disk of" in checked.text and remedy in checked.text
    assert "heals by itself" not in checked.text
    listed = ebla("nodes --json", prepare=fault).json  # type: ignore[arg-type]
    assert sorted(node["status"] for node in listed["nodes"]) == ["DISK_HUNG", "HEALTHY", "HEALTHY"]


def test_a_hanging_disk_is_a_figure_of_its_server() -> None:
    def figures(stage: Stage) -> dict[str, float]:
        servers = [(each, stage.cluster.role(each)) for each in SERVERS]
        return {
            address: figure.value
            for address, server in servers
            for figure in server.measure()
            if figure.name == "tablet_disk_hung"
        }

    async def scenario() -> None:
        stage, _ = await start()
        assert set(figures(stage).values()) == {0}
        await own_disk_hangs_and_idles(stage)
        assert figures(stage) == {SERVERS[0]: 1, SERVERS[1]: 0, SERVERS[2]: 0}
        stage.cluster.state(SERVERS[0]).fill()  # what waits for space does not hang
        await seconds_after(stage, 1.0)
        assert set(figures(stage).values()) == {0}

    run(scenario())


def test_a_replica_out_of_order_on_a_server_whose_disk_hangs_is_a_loss() -> None:
    survey = seen(report("a", health={"c" * 32: "unhealthy"}), report("b"), report("c"))
    assert tablet(survey).status == "RECOVERING"
    states = {
        address: replace(state, hung_disks=("/data",)) if address.endswith("c") else state
        for address, state in survey.states.items()
    }
    hung = replace(survey, states=states)
    assert tablet(hung).status == "UNDER_REPLICATED"
    assert judge(hung).status == "DISK_HUNG"


async def store_hangs(stage: LogStage) -> None:
    log = await stage.log()
    stage.cluster.state(f"ledger-store/{HOSTS[0]}").hang(LONG_S)
    async with log.writer() as writer:
        for _ in range(20):
            await writer.append(b"x")
            await seconds_after(stage, 1.0)


def test_a_ledger_store_whose_disk_hangs_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    ebla = Cli(monkeypatch, start_with_logs)
    checked = ebla("check", prepare=store_hangs)
    assert checked.status == 1
    assert "3 of 4 ledger stores" in checked.text
    assert f"ledger-store/{HOSTS[0]} is DISK_HUNG: no answer from its disk" in checked.text
