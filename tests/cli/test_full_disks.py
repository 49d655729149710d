"""What the command line reports about disks: free space, little space, and refused writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ebla.actors.tablet.engine.space import Space
from ebla.chaos.simulation.medium import SPACE_BYTES
from tests.cli.stage import SERVERS, Cli, Stage


async def until(stage: Stage, holds: Callable[[Space], bool]) -> None:
    while not holds(stage.cluster.role(SERVERS[0]).space):
        await asyncio.sleep(0.1)


async def full(stage: Stage) -> None:
    stage.cluster.state(SERVERS[0]).fill()
    await until(stage, lambda space: space.full)


async def nearly_full(stage: Stage) -> None:
    stage.cluster.state(SERVERS[0]).free_bytes = 200 << 20
    await until(stage, lambda space: space.disks[0].free_bytes < SPACE_BYTES)


def test_a_deployment_that_refuses_writes_for_lack_of_space_is_not_healthy(ebla: Cli) -> None:
    checked = ebla("check", prepare=full)
    assert checked.status == 1
    assert "DISK_FULL: 0 tables, 0 tablets, 3 of 3 servers up" in checked.out
    refused = "DISK_FULL: writes are refused: 0 of 1,048,576 MiB left under /; free space there"
    assert f"tablet-server/host-a is {refused}" in checked.text
    document = ebla("check --json", prepare=full).json
    assert (document["status"], document["healthy"]) == ("DISK_FULL", False)
    assert [server["status"] for server in document["servers"]] == ["DISK_FULL", "HEALTHY", "HEALTHY"]


def test_a_nearly_full_disk_gives_a_warning(ebla: Cli) -> None:
    checked = ebla("check", prepare=nearly_full)
    assert checked.status == 0
    left = "has 200 of 1,048,576 MiB left under /; free space before writes"
    assert f"warning: tablet-server/host-a {left}" in checked.text
    assert "warning" not in ebla("check").out


async def larger_reserve(stage: Stage) -> None:
    stage.cluster.role(SERVERS[0]).space.reserve_bytes = SPACE_BYTES // 2
    stage.cluster.state(SERVERS[0]).free_bytes = SPACE_BYTES // 2 + (40 << 30)  # 4 % above the reserve
    await until(stage, lambda space: space.disks[0].free_bytes < SPACE_BYTES)


@pytest.mark.parametrize("command", ["check", "nodes"])
def test_the_warning_comes_before_a_larger_reserve_is_reached(ebla: Cli, command: str) -> None:
    shown = ebla(command, prepare=larger_reserve)
    left = "565,248 of 1,048,576 MiB left under /; free space before writes are refused"
    assert shown.status == 0 and f"warning: tablet-server/host-a has {left}" in shown.text


def test_nodes_shows_free_disk_space(ebla: Cli) -> None:
    listed = ebla("nodes", prepare=nearly_full)
    assert "FREE" in listed.lines[0] and "200 MiB" in listed.out and "1.0 TiB" in listed.out
    document = ebla("nodes --json", prepare=nearly_full).json
    assert [node["free_bytes"] for node in document["nodes"]] == [200 << 20, SPACE_BYTES, SPACE_BYTES]
