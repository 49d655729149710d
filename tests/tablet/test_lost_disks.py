"""A data disk is lost, and nobody can replace the replicas on it: the server goes on, and says what is wrong."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from tests.tablet.harness import CODEC, HOSTS, SCHEMA, TABLET, Group, address, row, simulate

OTHER = "f" * 32


@pytest.mark.parametrize("noticed", [False, True])
def test_a_server_with_a_lost_data_disk_tells_its_status_also_without_a_majority(noticed: bool) -> None:
    async def scenario(group: Group) -> None:
        await group.create(OTHER)
        await group.upsert(row(1))
        host = HOSTS[0]
        for other in HOSTS[1:]:
            group.cluster.crash(address(other))
        group.cluster.state(address(host)).lose_data(f"data/{TABLET}")
        if noticed:
            await group.sleep(5.0)
        reported = await group.ask(host, "status", m.Empty(), m.ServerState)
        states = {report.tablet: report.state for report in reported.replicas}
        assert states == {TABLET: "failed" if noticed else "running", OTHER: "running"}
        (reporter,) = group.server(host).reporters
        assert {each.tablet for each in reporter._report(True, 0).updated} == {TABLET, OTHER}

    simulate(scenario)


def test_a_get_that_meets_a_lost_data_disk_fails_the_replica_and_another_one_serves() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        leader = await group.leader()
        await group.ask(leader, "flush", m.FlushRequest(), m.FlushReply)
        request = m.ReadRequest(SCHEMA.version, (m.TabletKeys(TABLET, [CODEC.encode_key({"k": 1})]),))
        group.cluster.state(address(leader)).lose_data(f"data/{TABLET}")
        reply = await group.server(leader).read(request)  # before anybody has noticed
        assert reply.errors[0] is not None and reply.errors[0][0] == "ReplicaFailed"
        assert group.replica(leader).state == "failed"
        assert await group.get(1) == [row(1)]

    simulate(scenario)
