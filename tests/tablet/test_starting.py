"""A starting server answers every request with NotRunning."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.figures import FiguresRequest
from ebla.actors.messages import peers
from ebla.actors.messages.appointments import Appointments, AppointRequest
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import methods
from ebla.storage.rows.alteration import Alteration
from tests.tablet.harness import SCHEMA, TABLET, Group, address, simulated

ASKED: dict[str, Any] = {
    "replicate": peers.Envelope(m.ServerInstance("a", 1, "s"), m.ServerInstance("b", 0, ""), ()),
    "liveness": peers.LivenessRequest(m.ServerInstance("a", 1, "s"), m.ServerInstance("b", 0, ""), (), 0, 0),
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
    "checksum_start": m.ChecksumStart(TABLET),
    "checksum": m.ChecksumQuery(TABLET, 1),
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
