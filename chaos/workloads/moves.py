"""Moves: replicas are added, removed and moved, hosts are drained or in maintenance, copies are cancelled, the quarantine is
purged, while the other workloads run and the master repairs tablets.

Every request of an operator may be refused, and none may break the promises of other workloads. At the end every host is in use
again, so every table must return to its number of healthy voters: act two of the run judges that.
"""

from __future__ import annotations

import msgspec

from ebla.actors import messages as m
from ebla.actors.master import messages as mm
from ebla.actors.replication.configuration import Peer
from ebla.chaos.workloads.base import Client, Workload, until_stopped
from ebla.chaos.workloads.operators import Operators

VERBS = ("move", "add", "remove", "drain", "cancel", "hand_over", "flush", "purge", "copy_over", "maintain")
WEIGHTS = (8, 3, 3, 1, 2, 4, 3, 1, 0, 1)  # relative frequencies of these
COPIES = (0, 0, 0, 0, 1, 2, 1, 0, 20, 0)


class Moves(Operators, Workload):
    name = "moves"
    disturbs = True

    def __init__(self, weights: tuple[int, ...] = WEIGHTS) -> None:
        self.weights = weights

    async def run(self, client: Client) -> None:
        async def step() -> None:
            (verb,) = client.random.choices(VERBS, self.weights)
            await getattr(self, f"_{verb}")(client)

        await until_stopped(client, step)

    # -- members

    async def _move(self, client: Client) -> None:
        tablet, servers = await self._some_tablet(client), await self._servers(client)
        if tablet is None or not servers:
            return
        source = client.random.choice(tablet.replicas).address
        target = client.random.choice(servers).address
        request = mm.MoveReplicaRequest(tablet.tablet, source, target)
        await self._ask_master(client, "move_replica", request, m.MembersReply)

    async def _add(self, client: Client) -> None:
        tablet, servers = await self._some_tablet(client), await self._servers(client)
        if tablet is None or not servers:
            return
        role = client.random.choice(["voter", "pre_voter", "voter", "non_voter"])
        request = mm.AddReplicaRequest(tablet.tablet, client.random.choice(servers).address, role)
        await self._ask_master(client, "add_replica", request, m.MembersReply)

    async def _remove(self, client: Client) -> None:
        tablet = await self._some_tablet(client)
        if tablet is None:
            return
        request = mm.RemoveReplicaRequest(tablet.tablet, client.random.choice(tablet.replicas).address)
        await self._ask_master(client, "remove_replica", request, m.MembersReply)

    async def _drain(self, client: Client) -> None:
        await self._mark_some(client, "drain", mm.DrainRequest, mm.DrainReply)

    async def _maintain(self, client: Client) -> None:
        await self._mark_some(client, "maintain", mm.MaintainRequest, mm.MaintainReply)

    async def _mark_some(
        self,
        client: Client,
        verb: str,
        request: type[mm.DrainRequest] | type[mm.MaintainRequest],
        reply: type[msgspec.Struct],
    ) -> None:
        if servers := await self._servers(client):
            await self._mark(client, client.random.choice(servers).address, verb, request, reply)

    # -- copies and quarantine

    async def _cancel(self, client: Client) -> None:
        servers = await self._servers(client)
        if not servers:
            return
        server = client.random.choice(servers)
        jobs = await self._ask_role(client, server.address, "list_copies", m.Empty(), m.CopyJobs)
        for job in jobs.jobs:
            request = m.CancelCopyRequest(server.uuid, job.tablet)
            await self._ask_role(client, server.address, "cancel_copy", request, m.Empty)

    async def _copy_over(self, client: Client) -> None:
        """Replace a healthy replica by a copy, as its leader does when its log is too short. Used only where no fault destroys
        data: during the copy one replica less has the data."""
        tablet = await self._some_tablet(client)
        replicas = () if tablet is None else tablet.replicas
        leader = next((each for each in replicas if tablet and each.address == tablet.leader), None)
        if tablet is None or leader is None:
            return
        target = client.random.choice(tablet.replicas)
        state = await self._ask_role(client, target.address, "status", m.Empty(), m.ServerState)
        report = next((each for each in state.replicas if each.tablet == tablet.tablet), None)
        if report is None:
            return
        source = Peer(leader.uuid, leader.address)
        request = m.StartCopyRequest(target.uuid, tablet.tablet, source, report.term, report.state)
        await self._ask_role(client, target.address, "start_copy", request, m.Empty)

    async def _purge(self, client: Client) -> None:
        servers = await self._servers(client)
        if not servers:
            return
        server = client.random.choice(servers)
        await self._ask_role(client, server.address, "quarantine_list", m.Empty(), m.QuarantineEntries)
        request = m.QuarantineRequest(server.uuid)
        await self._ask_role(client, server.address, "quarantine_purge", request, m.Empty)

    async def _servers(self, client: Client) -> list[m.ServerStatus]:
        call = client.db.servers(deadline_s=client.deadline_s())
        return list(await client.beside("servers", None, call))
