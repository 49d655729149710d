"""Compactions of a tablet server's replicas: an operator's, those of several replicas on a disk, and disks that hang or are full."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.storage.errors import InvalidArgument
from ebla.storage.runs import writing
from ebla.storage.schema import COLUMNS
from ebla.storage.tablets.run_tree import RunTree
from ebla.storage.tablets.tablet_store import path_of
from tests.tablet.copies import until
from tests.tablet.harness import OTHER, TABLET, Group, row, simulated

HUNG_S = 1.0
THIRD = "e" * 32


def runs(group: Group, host: str, tablet: str = OTHER) -> RunTree:
    found = group.replica(host, tablet).store.runs
    assert found is not None
    return found


async def with_columns(group: Group, *tablets: str) -> str:
    """Create tablets; return a host that leads none of them."""
    group.storage = COLUMNS
    for tablet in tablets:
        await group.create(tablet)
    led = [await group.leader(tablet) for tablet in tablets]
    return next(host for host in group.hosts if host not in led)


async def fill(group: Group, host: str, tablet: str, tiers: int, first: int = 0) -> None:
    """So many flushes of the host's replica, each with new rows and one that is written again."""
    for turn in range(first, first + tiers):
        await group.upsert(*[row(k, f"{turn}") for k in (0, 2 * turn + 1, 2 * turn + 2)], tablet=tablet)
        replica = group.replica(host, tablet)
        last = group.replica(await group.leader(tablet), tablet).core.commit_index
        await until(group, lambda replica=replica, last=last: replica.store.applied.index >= last, "applied")
        await group.flush(host, tablet=tablet)


@simulated()
async def test_an_operator_merges_all_runs_of_a_replica(group: Group) -> None:
    host = await with_columns(group, OTHER)
    await fill(group, host, OTHER, 3)
    assert len(runs(group, host).directory.tiers) == 3
    first = await group.ask(host, "compact", m.CompactRequest(OTHER), m.CompactReply)
    assert 0 < first.left_bytes <= first.bytes
    await until(group, lambda: len(runs(group, host).directory.tiers) == 1, "one tier is left")
    last = await group.ask(host, "compact", m.CompactRequest(OTHER, first.upto), m.CompactReply)
    assert last.left_bytes == 0 and last.bytes < first.bytes
    assert runs(group, host).directory.runs[0].rows == 7
    assert group.server(host).compactor.steps > 0


@simulated()
async def test_a_server_that_restarts_goes_on_when_it_is_asked_again(group: Group) -> None:
    host = await with_columns(group, OTHER)
    await fill(group, host, OTHER, 3)
    first = await group.ask(host, "compact", m.CompactRequest(OTHER), m.CompactReply)
    group.crash(host)
    await group.restart(host)
    assert len(runs(group, host).directory.tiers) == 3
    again = await group.ask(host, "compact", m.CompactRequest(OTHER, first.upto), m.CompactReply)
    assert again.left_bytes == first.left_bytes
    await until(group, lambda: len(runs(group, host).directory.tiers) == 1, "one tier is left")


@simulated()
async def test_a_tablet_of_rows_has_no_runs_to_merge(group: Group) -> None:
    with pytest.raises(InvalidArgument, match="only a table with storage 'columns'"):
        await group.ask(group.hosts[0], "compact", m.CompactRequest(TABLET), m.CompactReply)


@simulated(disk_hung_s=HUNG_S)
async def test_a_disk_that_hangs_in_a_compaction_counts_as_hung(group: Group) -> None:
    host = await with_columns(group, OTHER)
    await fill(group, host, OTHER, writing.FAN_IN - 1)
    server = group.server(host)
    group.points.arm(
        f"tablet-server/{host}",
        "tablet.compaction.before_commit",
        lambda: group.disk(host).hang_data(path_of(OTHER)),
    )
    await fill(group, host, OTHER, 1, writing.FAN_IN - 1)
    await until(group, lambda: bool(server.maintenance.hung()), "the disk hangs")
    group.disk(host).unhang_data(path_of(OTHER))
    await until(group, lambda: len(runs(group, host).directory.tiers) == 1, "the runs are merged")
    assert not server.maintenance.hung()


@simulated()
async def test_the_replica_with_the_most_tiers_is_merged_first(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one disk a long merge of one tablet does not let the runs of another one accumulate."""
    monkeypatch.setattr(writing, "RANGE_BYTES", 1)
    host = await with_columns(group, OTHER, THIRD)
    server = group.server(host)
    monkeypatch.setattr(server.world.disk, "place_of", lambda path: "one disk")
    monkeypatch.setattr(server.compactor, "look", lambda replicas: None)
    await fill(group, host, OTHER, writing.FAN_IN)
    await fill(group, host, THIRD, writing.FAN_IN + 2)
    monkeypatch.undo()
    monkeypatch.setattr(writing, "RANGE_BYTES", 1)
    monkeypatch.setattr(server.world.disk, "place_of", lambda path: "one disk")
    order: list[tuple[int, int]] = []
    store = RunTree.store

    async def noted(self: RunTree, *arguments: object) -> None:
        order.append((len(runs(group, host).directory.tiers), len(runs(group, host, THIRD).directory.tiers)))
        await store(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RunTree, "store", noted)
    await until(
        group,
        lambda: all(len(runs(group, host, each).directory.tiers) == 1 for each in (OTHER, THIRD)),
        "the runs are merged",
    )
    assert order[0] == (writing.FAN_IN, writing.FAN_IN + 2)
    assert (writing.FAN_IN, writing.FAN_IN) in order, "the one with fewer tiers waited"


@simulated()
async def test_a_full_disk_delays_a_compaction(group: Group) -> None:
    host = await with_columns(group, OTHER)
    await fill(group, host, OTHER, writing.FAN_IN - 1)
    group.fill_at(host, "tablet.compaction.before_commit")
    await fill(group, host, OTHER, 1, writing.FAN_IN - 1)
    await until(group, lambda: group.disk(host).full, "the disk is full")
    await group.sleep(2.0)
    assert len(runs(group, host).directory.tiers) == writing.FAN_IN
    group.disk(host).full = False
    await until(group, lambda: len(runs(group, host).directory.tiers) == 1, "the runs are merged")
