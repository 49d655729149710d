"""A starting server refuses every request until it has found its replicas, and then serves those that it has loaded."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.figures import FiguresRequest
from ebla.actors.messages import peers
from ebla.actors.messages.appointments import Appointments, AppointRequest, ProcessEnded
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import methods
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.storage.rows.alteration import Alteration
from ebla.storage.tablets.tablet_store import path_of
from tests.tablet.appointing import LIMITS, PacificaGroup, pacifica
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OTHER, SCHEMA, TABLET, Group, address, row, simulated

ASKED: dict[str, Any] = {
    "replicate": peers.Envelope(m.ServerInstance("a", 1, "s"), m.ServerInstance("b", 0, ""), ()),
    "liveness": peers.LivenessRequest(m.ServerInstance("a", 1, "s"), m.ServerInstance("b", 0, ""), (), 0, 0),
    "process_ended": ProcessEnded(m.ServerInstance("a", 1, "s")),
    "write": m.WriteRequest((), 1.0),
    "read": m.ReadRequest(1, ()),
    "scan": m.ScanRequest(TABLET, 1, ("k",)),
    "scan_more": m.ScanContinue("s", 1),
    "scan_close": m.ScanClose("s"),
    "read_index": m.TabletRequest(TABLET),
    "local_snapshot": m.LocalSnapshotRequest(TABLET, 1),
    "create_tablet": m.CreateTabletRequest("u", TABLET, "t", "t", SCHEMA, 0, Configuration(())),
    "alter_tablet": m.AlterTabletRequest("u", TABLET, Alteration(SCHEMA)),
    "delete_tablet": m.DeleteTabletRequest("u", TABLET, "dropped"),
    "status": m.Empty(),
    "flush": m.FlushRequest(),
    "compact": m.CompactRequest(TABLET),
    "step_down": m.StepDownRequest(TABLET),
    "checksum_start": m.ChecksumStart((TABLET,)),
    "checksum": m.ChecksumQuery(((TABLET, 1),)),
    "start_copy": m.StartCopyRequest("u", TABLET, Peer("u", "a"), 1, m.DELETED),
    "list_copies": m.Empty(),
    "cancel_copy": m.CancelCopyRequest("u", TABLET),
    "begin_copy_session": m.BeginCopyRequest("u", TABLET, "u", 1),
    "fetch_chunk": m.FetchRequest("s", 0),
    "end_copy_session": m.EndCopyRequest("s"),
    "quarantine_list": m.Empty(),
    "quarantine_restore": m.QuarantineRequest("u", ("n",), "/d"),
    "quarantine_purge": m.QuarantineRequest("u"),
    "change_members": m.ChangeMembersRequest("u", TABLET, ()),
    "unsafe_change": m.UnsafeChangeRequest("u", TABLET, ("u",), 1, "r"),
    "appoint": AppointRequest("u", Appointments("s", 1, ())),
    "figures": FiguresRequest(),
}


@simulated()
async def test_every_method_of_a_starting_server_answers_that_it_is_not_running(group: Group) -> None:
    """Simulation found a case: a request for a digest during the start ended the server."""
    known = methods(TabletServer)
    assert sorted(ASKED) == sorted(known)
    group.crash("host-a")
    group.disk("host-a").commit_s = 5.0, 5.0
    group.cluster.launch(address("host-a"), group.make("host-a"))
    for name, request in ASKED.items():
        with pytest.raises(errors.NotRunning):
            await group.ask("host-a", name, request, known[name].answer)


async def restarted_without(group: Group, tablet: str, *hosts: str) -> None:
    """Start all servers again; the disks of this tablet hang on these hosts (all)."""
    group.crash_all()
    for host in hosts or HOSTS:
        group.disk(host).hang_data(path_of(tablet))
    await group.restart()


def _not_running(reply: m.ReadReply) -> bool:
    return reply.errors[0] is not None and isinstance(errors.from_triple(reply.errors[0]), errors.NotRunning)


def unhang(group: Group, tablet: str) -> None:
    for host in HOSTS:
        group.disk(host).unhang_data(path_of(tablet))


@simulated()
async def test_a_starting_server_serves_the_tablets_that_it_has_loaded(group: Group) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    await group.upsert(row(1), tablet=OTHER)
    await restarted_without(group, OTHER)
    await group.upsert(row(2))
    assert await group.get(1, 2) == [row(1), row(2)]
    for host in HOSTS:
        request = m.ReadRequest(1, (m.TabletKeys(OTHER, ()),))
        reply = await group.ask(host, "read", request, m.ReadReply)
        assert _not_running(reply)
        with pytest.raises(errors.NotRunning, match="loads its replicas, 1 are left"):
            await group.ask(host, "status", m.Empty(), m.ServerState)
    unhang(group, OTHER)
    await group.upsert(row(2), tablet=OTHER)
    assert await group.get(1, 2, tablet=OTHER) == [row(1), row(2)]
    await until(group, lambda: all(group.server(host).running for host in HOSTS), "all is loaded")


@pacifica()
async def test_a_starting_server_follows_in_the_pacifica_tablets_that_it_has_loaded_and_leads_none(
    group: PacificaGroup,
) -> None:
    """It asks for no lease before it can report all of its replicas."""
    a, b, c = HOSTS
    await group.create(OTHER)
    await group.upsert(row(1))
    await restarted_without(group, OTHER, a, b)
    await group.upsert(row(2))
    assert await group.leader() == c
    assert set(group.kinds().values()) == {"voter"}, "the starting servers have acknowledged it"
    assert not any(group.server(host).running for host in (a, b))
    group.crash(c)
    await group.sleep(2 * LIMITS.grace_s)
    for host in (a, b):
        assert isinstance(await group.read_once(host), errors.NotLeader)
        assert group.server(host).leasing.lease.number == 0
    unhang(group, OTHER)
    await group.upsert(row(3))
    assert await group.get(1, 2, 3) == [row(1), row(2), row(3)]


@simulated(shared_log_bytes=60_000)
async def test_a_starting_server_keeps_the_entries_of_replicas_that_it_has_not_loaded(group: Group) -> None:
    await group.create(OTHER)
    await group.upsert(row(1), tablet=OTHER)
    await restarted_without(group, OTHER)
    for turn in range(40):
        await group.upsert(*[row(turn * 20 + k, "x" * 200) for k in range(20)])
    assert all(group.server(host).shared.bytes > 100_000 for host in HOSTS)
    unhang(group, OTHER)
    await until(
        group, lambda: all(group.server(host).shared.bytes < 100_000 for host in HOSTS), "it is trimmed"
    )
    await restarted_without(group, TABLET)
    assert await group.get(1, tablet=OTHER) == [row(1)]
    unhang(group, TABLET)


@simulated()
async def test_a_server_that_stops_before_all_is_loaded_loses_nothing(group: Group) -> None:
    await group.create(OTHER)
    await group.upsert(row(1))
    await group.upsert(row(1), tablet=OTHER)
    await restarted_without(group, OTHER)
    await group.upsert(row(2))
    for host in HOSTS:
        await group.server(host).stop()
    unhang(group, OTHER)
    await group.sleep(1.0)
    assert not any(group.server(host).running for host in HOSTS), "it does not begin again"
    await group.restart_all()
    assert await group.get(1, 2) == [row(1), row(2)]
    assert await group.get(1, tablet=OTHER) == [row(1)]


@simulated()
async def test_a_tablet_that_a_client_waits_for_is_loaded_next(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tablets of a disk are loaded one after another."""
    monkeypatch.setattr(MemoryDisk, "place_of", lambda self, path: "/")
    tablets = await group.create_many(12)
    host = HOSTS[0]
    group.crash(host)
    group.disk(host).commit_s = 0.5, 0.5
    await group.restart(host)
    server = group.server(host)
    wanted = next(reversed(server.lifecycle.unloaded))
    before = len(server.lifecycle.unloaded)
    reply = await group.ask(host, "read", m.ReadRequest(1, (m.TabletKeys(wanted, ()),)), m.ReadReply)
    assert _not_running(reply)
    await until(group, lambda: wanted in server.replicas, "it is loaded")
    assert len(server.lifecycle.unloaded) > before // 2, "the last one did not wait for its turn"
    await until(group, lambda: set(server.replicas) == {TABLET, *tablets}, "all are loaded")
