"""Salvage: registers of a table whose tablets may lose their majorities for good, and an operator who repairs them.

The operator follows docs/repair.md. It inspects the deployment, as `ebla check` does. A host counts as lost when its machine has
been down for a while. If a tablet has lost its majority, the operator forces a configuration of the survivors, as `ebla tablet
unsafe-change-config` does; it never asks a second survivor while the first may have obeyed. If a PacificA tablet has lost all voters,
the operator forces it onto its newest replica, as `ebla tablet diagnose --accept-loss` does. It forgets hosts that are lost, and
sometimes tries to forget one that is not. A host that it gave up may return: then the data that only its replicas had is in
quarantine, and the operator exports it from there. Sometimes the operator renames the table.

chaos/checkers/sides.py defines which writes may be lost by this.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

from ebla import aio
from ebla.actors import messages as m
from ebla.actors.errors import InvalidArgument
from ebla.actors.master.messages import ForgetReply, ForgetRequest
from ebla.actors.messages.diagnosis import TabletEvidence
from ebla.actors.replication.configuration import PACIFICA, VOTER, Configuration
from ebla.chaos.checkers.refusals import Explained
from ebla.chaos.checkers.sides import Seen, check_sides
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, make_table, persist, until_stopped
from ebla.chaos.workloads.operators import Operators
from ebla.health.survey import survey
from ebla.health.tablets import judge
from ebla.health.verdicts import DEAD, OUT_OF_SERVICE, UNREADABLE, Survey, TabletHealth, Unanswered
from ebla.operate import diagnosis
from ebla.operate.forcing import Plan, planned, request_of
from ebla.operate.naming import Refused
from ebla.storage.tablets.restore import ROWS_FILE

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
REPLICAS = 3
SURE_S = 2.5  # how long a machine must be down to count as lost
INSPECT_S = 0.5
SURVEY_S = 1.0
MISTAKES = 0.05  # share of the inspections
RESCUES = 0.6
RENAMES = 0.1
NAMES = ("salvage", "salvaged")
OPERATIONS = 60  # of one key, until another one replaces it


class Forced(NamedTuple):
    """The survivor that was last asked to lead a tablet, and the forced epoch of that configuration."""

    mark: int
    uuid: str
    address: str


class Salvage(Operators, Workload):
    name = NAMES[0]
    disturbs = True
    explained: Explained = MappingProxyType({"beside-table": ("NotFound",)})

    def __init__(self, keys: int = 6, tablets: int = 3) -> None:
        self.tablets = tablets
        self.problems: list[str] = []
        self._live = list(range(keys))
        self._asked: dict[int, int] = {}
        self._next_value = 0
        self._written: dict[int, int] = {}  # keys, by value
        self._rescued = 0
        self._operated = False
        self._forced: dict[str, Forced] = {}
        self._down_since: dict[str, float] = {}

    async def prepare(self, client: Client) -> None:
        await make_table(client, self.name, SCHEMA, "k", tablets=self.tablets, replicas=REPLICAS)

    async def run(self, client: Client) -> None:
        """One of the clients is also the operator."""
        first, self._operated = not self._operated, True
        table = await client.db.table(self.name)
        if first:
            operator = client.another()
            await asyncio.gather(self._use(client, table), self._operate(operator))
        else:
            await self._use(client, table)

    async def conclude(self, client: Client) -> None:
        """All lost hosts can be forgotten now, and all keys can be read."""
        for address in client.stage.gone:
            await persist(client, lambda address=address: self._forget(client, address))  # type: ignore[misc]
        listed = await persist(client, lambda: client.beside("servers", None, client.db.servers()))
        left = [server.address for server in listed if server.address in client.stage.gone]
        if left:
            self.problems.append(f"{left} were forgotten, but are still listed")
        table = await client.db.table(await persist(client, lambda: self._find(client)))
        for key in self._live:
            await persist(client, lambda key=key: self._read(client, table, key))  # type: ignore[misc]

    def judge(self, history: History, seen: Seen = Seen()) -> Verdict:  # noqa: B008
        return check_sides(history, seen)

    # -- users

    async def _use(self, client: Client, table: aio.Table) -> None:
        async def step() -> None:
            place = client.random.randrange(len(self._live))
            key = self._live[place]
            asked = self._asked[key] = self._asked.get(key, 0) + 1
            if asked >= OPERATIONS:
                self._live[place] = max(self._live) + 1
            if client.random.random() < 0.5:
                await self._read(client, table, key)
                return
            self._next_value += 1
            value = self._next_value
            self._written[value] = key
            call = table.upsert({"k": key, "v": value}, deadline_s=client.deadline_s())
            await client.ask("write", key, value, call)

        await until_stopped(client, step)

    async def _read(self, client: Client, table: aio.Table, key: int) -> None:
        call = table.get({"k": key}, deadline_s=client.deadline_s())
        await client.ask("read", key, None, call, lambda row: row and row["v"], reads=True)

    # -- the operator

    async def _operate(self, client: Client) -> None:
        """Repair until the other clients stop, and all tablets serve."""
        while True:
            stopping, served = client.stopping, False
            try:
                served = await self._repair(client)
            except NoAnswer:
                pass
            if stopping and served:
                return
            await client.clock.sleep(INSPECT_S)

    async def _repair(self, client: Client) -> bool:
        """Make one inspection and its repairs. Returns whether all tablets serve."""
        masters = [client.db._client.master.address]
        found = await client.beside("survey", None, survey(client.network, masters, timeout_s=SURVEY_S))
        self._note_machines(client, found)
        tablets = [tablet for tablet in judge(found).tablets if tablet.table in NAMES]
        for tablet in tablets:
            if tablet.status == DEAD and tablet.replication == PACIFICA:
                await self._accept_loss(client, found, tablet)
            elif tablet.status in (UNREADABLE, DEAD) and tablet.replication != PACIFICA:
                await self._save(client, found, tablet)
        await self._forget_some(client, found)
        if client.random.random() < RESCUES:
            await self._rescue(client, found)
        if client.random.random() < RENAMES:
            await self._rename(client)
        return len(tablets) == self.tablets and all(tablet.status not in OUT_OF_SERVICE for tablet in tablets)

    def _note_machines(self, client: Client, found: Survey) -> None:
        for address in found.states:
            if client.stage.is_down(address):
                self._down_since.setdefault(address, client.now_s())
            else:
                self._down_since.pop(address, None)

    def _is_lost(self, client: Client, address: str) -> bool:
        since = self._down_since.get(address)
        return since is not None and client.stage.is_down(address) and client.now_s() - since >= SURE_S

    # -- forced configurations

    async def _save(self, client: Client, found: Survey, tablet: TabletHealth) -> None:
        """Force a configuration of all running replicas; if that is refused, because one was being added, of the voters."""
        running = _running(found, tablet)
        for keep in (list(running), [uuid for uuid, report in running.items() if _votes(uuid, report)]):
            try:
                plan = planned(found, tablet, keep)
            except Refused:
                continue
            if all(self._is_given_up(client, found, plan.configuration, uuid) for uuid in plan.lost):
                for uuid, address in plan.survivors:
                    if await self._force(client, plan, uuid, address):
                        return

    async def _accept_loss(self, client: Client, found: Survey, tablet: TabletHealth) -> None:
        request = m.TabletRequest(tablet.tablet)
        evidence = await self._ask_master(client, "tablet_evidence", request, TabletEvidence)
        try:
            plan = diagnosis.planned(diagnosis.diagnosed(evidence, tablet, found, {}))
        except Refused:
            return
        known = plan.configuration
        if all(self._is_given_up(client, found, known, peer.uuid) for peer in known.voters()):
            order = diagnosis.request_of(plan, "the operator of a simulation")
            await self._ask_master(client, "force_primary", order, m.MembersReply)

    def _is_given_up(self, client: Client, found: Survey, known: Configuration, uuid: str) -> bool:
        """Whether the machine is lost, or its server answers and has no running replica."""
        peer = known.peer(uuid)
        assert peer is not None, known
        answered = not isinstance(found.states.get(peer.address, _SILENT), Unanswered)
        return answered or self._is_lost(client, peer.address)

    async def _force(self, client: Client, plan: Plan, uuid: str, address: str) -> bool:
        """Ask a survivor to lead. Returns False if another survivor should be asked."""
        mark, before = plan.configuration.unsafe + 1, self._forced.get(plan.tablet)
        elsewhere = before is not None and before.mark >= mark and before.uuid != uuid
        if before is not None and elsewhere and before.address not in client.stage.gone:
            return False  # the other survivor may have obeyed: two configurations would be equally new
        self._forced[plan.tablet] = Forced(mark, uuid, address)
        request = request_of(plan, uuid, "its hosts are lost")
        try:
            await self._ask_role(client, address, "unsafe_change", request, m.MembersReply)
        except NoAnswer as refused:
            return not isinstance(refused.__cause__, InvalidArgument)
        return True

    # -- the table's name

    async def _rename(self, client: Client) -> None:
        """Rename the table, which has one of two names; its users continue."""
        name = await self._find(client)
        table = await client.beside("table", name, client.db.table(name))
        change = table.alter().rename(NAMES[1 - NAMES.index(name)])
        await client.order("rename", name, change.apply(wait_s=0.0))

    async def _find(self, client: Client) -> str:
        listed = await client.beside("tables", None, client.db.tables(self.name))
        names = [table.name for table in listed]
        if len(names) != 1 or names[0] not in NAMES:
            self.problems.append(f"of the names {' and '.join(NAMES)}, these tables exist: {names}")
            raise NoAnswer
        return names[0]

    # -- quarantine

    async def _rescue(self, client: Client, found: Survey) -> None:
        """Export one replica from a quarantine, and check its rows."""
        up = [each for each in found.states.items() if not isinstance(each[1], Unanswered)]
        if not up:
            return
        address, state = client.random.choice(up)
        assert not isinstance(state, Unanswered)
        listed = await self._ask_role(client, address, "quarantine_list", m.Empty(), m.QuarantineEntries)
        names = [entry.name for entry in listed.entries if entry.table_name == self.name]
        if not names:
            return
        self._rescued += 1
        name, directory = client.random.choice(names), f"/rescue/{self._rescued}"
        request = m.QuarantineRequest(state.instance.uuid, (name,), directory)
        await self._ask_role(client, address, "quarantine_restore", request, m.Empty)
        rows = client.stage.read_file(address, f"{directory}/{name}/{ROWS_FILE}")
        if rows is not None:
            self._check_rescued(name, parquet.read_table(pa.BufferReader(rows)))

    def _check_rescued(self, name: str, rows: pa.Table) -> None:
        """A replica of any side has only rows that were written."""
        for key, value in zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True):
            if self._written.get(value) != key:
                self.problems.append(f"{name} has {value} under key {key}, which was never written")

    # -- hosts that are gone

    async def _forget_some(self, client: Client, found: Survey) -> None:
        for server in found.servers:
            if self._is_lost(client, server.address):
                if client.random.random() < 0.5:
                    await self._try_to_forget(client, server.address)
            elif server.alive and client.random.random() < MISTAKES:
                answered = await self._try_to_forget(client, server.address)
                if answered and not client.stage.is_down(server.address):
                    self.problems.append(f"{server.address} was forgotten, although it is alive")

    async def _try_to_forget(self, client: Client, address: str) -> bool:
        try:
            await self._forget(client, address)
        except NoAnswer:
            return False
        return True

    async def _forget(self, client: Client, address: str) -> None:
        await self._ask_master(client, "forget_server", ForgetRequest(address), ForgetReply)


_SILENT = Unanswered("NotAsked", "the server was not asked")


def _running(found: Survey, tablet: TabletHealth) -> dict[str, m.ReplicaReport]:
    """The running replicas of the tablet, by uuid of their servers."""
    members = [each.uuid for each in tablet.replicas]
    return {
        state.instance.uuid: replica
        for state in found.states.values()
        if not isinstance(state, Unanswered) and state.instance.uuid in members
        for replica in state.replicas
        if replica.tablet == tablet.tablet and replica.state == "running"
    }


def _votes(uuid: str, report: m.ReplicaReport) -> bool:
    own = report.configuration.peer(uuid)
    return own is not None and own.member == VOTER
