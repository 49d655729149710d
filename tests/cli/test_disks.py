"""Disks that hang or are full, as `ebla check` and `ebla nodes` show them."""

from __future__ import annotations

from typing import Any

import pytest

from ebla import aio
from ebla.actors.tablet.engine.waits import IDLE_S
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.simulation.loop import run
from ebla.health.tablets import judge
from ebla.storage.tablets.tablet_store import path_of
from tests.cli.stage import HOSTS, ROWS, SERVERS, Cli, LogStage, Stage, start, start_group, start_with_logs
from tests.cli.surveys import replace, report, seen, tablet
from tests.master.group_stage import GroupStage

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
def test_a_deployment_with_a_disk_that_hangs_is_not_healthy(ebla: Cli, fault: Any) -> None:
    checked = ebla("check", prepare=fault)
    assert checked.status == 1
    assert "DISK_HUNG: 1 table, 2 tablets, 3 of 3 servers up" in checked.text
    remedy = "move them with" if fault is data_disk_hangs else "its replicas are then copied to other hosts"
    assert "no answer from the disk of" in checked.text and remedy in checked.text
    assert "heals by itself" not in checked.text
    listed = ebla("nodes --json", prepare=fault).json
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
        await seconds_after(stage, IDLE_S + 1.0)
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


# -- masters and journal nodes ---------------------------------------------------------------------------------


def full(*addresses: str) -> Any:
    async def fill(stage: GroupStage) -> None:
        for address in addresses:
            stage.cluster.state(address).fill()

    return fill


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(monkeypatch, start_group)


def test_idle_journal_nodes_with_full_disks_take_no_edits(group: Cli) -> None:
    one = group("check", prepare=full("journal/1"))
    assert one.status == 1
    assert "DISK_FULL: 0 tables" in one.text and "2 of 3 journal nodes" in one.text
    assert "journal/1 is DISK_FULL: it takes no edits until space is freed: 0 B of" in one.text
    assert "next: when there is space, writes resume by themselves" in one.text
    two = group("check", prepare=full("journal/1", "journal/2"))
    assert two.status == 1
    assert "UNAVAILABLE: 0 tables" in two.text
    assert "1 of 3 journal nodes take edits, no majority" in two.text
    assert "next: when there is space, writes resume by themselves" in two.text


def test_a_standby_without_space_for_a_checkpoint_is_not_healthy(group: Cli) -> None:
    async def standby_full(stage: GroupStage) -> None:
        await full(stage.other(stage.serving()[0]))(stage)

    checked = group("check", prepare=standby_full)
    assert checked.status == 1
    assert "DISK_FULL: 0 tables" in checked.text and "1 of 2 masters" in checked.text
    assert "it can make no checkpoint of the catalog, so the journal is not trimmed: 0 B of" in checked.text
    assert "no standby could take over" not in checked.text, "it has read the journal"


def test_nearly_full_disks_of_masters_and_journal_nodes_give_a_warning(group: Cli) -> None:
    async def nearly_full(stage: GroupStage) -> None:
        for address in ("master/1", "journal/2"):
            stage.cluster.state(address).free_bytes = 100 << 20

    checked = group("check", prepare=nearly_full)
    assert checked.status == 0
    left = "free space before no edit can be stored: 100 MiB of 1.0 TiB left under /"
    assert f"warning: master/1: {left}" in checked.text
    assert f"warning: journal/2: {left}" in checked.text
