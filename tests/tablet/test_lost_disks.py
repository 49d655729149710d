"""A data disk is lost, and its replicas cannot be replaced: the server keeps running and reports the failure."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from tests.tablet.harness import CODEC, HOSTS, OTHER, TABLET, Group, row, simulated


@pytest.mark.parametrize("noticed", [False, True])
@simulated()
async def test_a_server_with_a_lost_data_disk_reports_its_status_without_a_majority(
    group: Group, noticed: bool
) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    host = HOSTS[0]
    group.crash(*HOSTS[1:])
    group.disk(host).lose_data(f"data/{TABLET}")
    if noticed:
        await group.sleep(5.0)
    assert await group.reported(host) == {TABLET: "failed" if noticed else "running", OTHER: "running"}
    (reporter,) = group.server(host).reporters
    assert {each.tablet for each in reporter._report(True, 0).updated} == {TABLET, OTHER}


@simulated()
async def test_a_get_from_a_lost_data_disk_fails_the_replica_and_another_one_serves(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    await group.flush(leader)
    request = m.ReadRequest(0, (m.TabletKeys(TABLET, [CODEC.encode_key({"k": 1})]),))
    group.disk(leader).lose_data(f"data/{TABLET}")
    reply = await group.server(leader).read(request)  # before the loss is noticed
    assert reply.errors[0] is not None and reply.errors[0][0] == "ReplicaFailed"
    assert group.replica(leader).state == "failed"
    assert await group.get(1) == [row(1)]
