"""Start the roles on a directory after a power cut, and check every promise.

    it starts        or raises Damaged, but only if no answer had been given yet
    it remembers     instance, rows, entries, terms and votes (also of tombstones), flushed positions, answers to retries, tables
    it is whole      no half-made or half-deleted tablet, and no data without an owner
    it continues     requests under way are carried out once, and new writes are accepted and read

The first broken promise raises Lost, whose message names it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

from ebla.actors import messages as m
from ebla.actors.errors import NotFound
from ebla.actors.messages.protocols import HardState
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.chaos.powercut.life.client import get, scan, write
from ebla.chaos.powercut.life.ghosts import Ghosts, eviction
from ebla.chaos.powercut.life.machine import MASTER, SERVER, Machine, Say, ignore
from ebla.chaos.powercut.recording.events import Found, Plan, RoleEvent
from ebla.chaos.powercut.recording.facts import Facts, Group, Lane, Tablet
from ebla.chaos.powercut.recording.lanes import Rows, random_batch, schema
from ebla.storage.directories.instance import BESIDE, REMOVED
from ebla.storage.environment import QUARANTINE
from ebla.storage.errors import EblaError, StorageError
from ebla.storage.logs.entries import START


class Lost(EblaError):
    """A promise was broken. The message names it."""


class Unborn(EblaError):
    """The directory is refused, and no answer had been given from it yet. No promise was broken."""


class Verify:
    """`facts` get the machine's events from here on; so does `say`, for a recording."""

    def __init__(self, base: Path, facts: Facts, plan: Plan, seed: int, say: Say = ignore) -> None:
        self.facts = facts
        self.seed = seed
        self.leftovers: list[str] = []  # of creations that were never answered
        self.machine = Machine(base, data_dirs=plan.data_dirs, seed=seed, say=both(say, facts))
        self._before = dict(facts.started)

    async def everything(self) -> None:
        try:
            await self._server()
            await self._master()
            await self._convergence()
        finally:
            await self.machine.stop_all()
        if self.machine.defects:
            raise Lost(f"a role failed: {self.machine.defects[0]!r}")

    def _random(self, name: str) -> random.Random:
        """A generator for each tablet and client, so that draws do not depend on the order of tasks."""
        return random.Random(f"{self.seed}/{name}")

    # -- the server

    async def _server(self) -> None:
        try:
            await self.machine.start_server()
        except StorageError as error:
            if SERVER in self._before or any(tablet.created for tablet in self.facts.tablets.values()):
                raise Lost(f"the server does not start: {error!r}") from error
            raise Unborn(str(error)) from error
        self._identity(SERVER)
        if broken := self.machine.server.lifecycle.broken:
            raise Lost(f"replicas cannot be loaded: {[(b.tablet, b.error) for b in broken.values()]}")
        for name, tablet in self.facts.tablets.items():
            self._tablet(name, tablet)
        self.leftovers = self._left()
        for name, flushed in self.facts.flushed.items():
            if (replica := self.machine.server.replicas.get(name)) and replica.store.flushed.index < flushed:
                raise Lost(f"{name} was flushed up to {flushed} and is at {replica.store.flushed}")
        names = sorted(self.machine.server.replicas)
        for name in names:
            self._log(name)
        groups = self.facts.groups
        await asyncio.gather(
            *(self._group(groups[name]) if name in groups else self._rows(name) for name in names)
        )

    def _identity(self, address: str) -> None:
        uuid, seqno = self._before.get(address, (self.facts.started[address][0], 0))
        found = self.facts.started[address]
        if found[0] != uuid or found[1] <= seqno:
            raise Lost(f"{address} was {uuid}/{seqno} and returned as {found[0]}/{found[1]}")

    def _tablet(self, name: str, tablet: Tablet) -> None:
        present = name in self.machine.server.replicas
        tombstone = self.machine.server.lifecycle.tombstones.get(name)
        if tablet.created and not tablet.deleting and not present and not (tombstone and tablet.leaving):
            raise Lost(f"tablet {name} was created and is not there")
        if tablet.deleted and (present or tombstone):
            raise Lost(f"tablet {name} was deleted and is there again")
        if tablet.left and present:
            raise Lost(f"tablet {name} was left to its peers and is a replica again")
        if tombstone:
            self._tombstone(self.facts.groups[name], tombstone)

    def _tombstone(self, group: Group, tombstone: Tombstone) -> None:
        """A tombstone votes by its log's end; its data is in quarantine."""
        last, held = tombstone.superblock.last, tombstone.superblock.quarantine
        ends = [(len(entries), entries[-1].chain if entries else 0) for entries in group.outcomes()]
        if last is None or (last.index, last.chain) not in ends:
            raise Lost(f"{group.tablet}: its log ended at {last}, it may have ended at {ends}")
        _require_memory(group, tombstone.hard_state)
        listed = self.machine.server.world.disk.list(f"{QUARANTINE}/{held}")
        if not tombstone.finished or listed[:1] != ["data"]:
            raise Lost(f"{group.tablet}: its data is not in quarantine")
        kept = [each.record for each in self.machine.server.lifecycle.quarantine.list()]
        if [record.tablet for record in kept if record.name == held] != [group.tablet]:
            raise Lost(f"{group.tablet}: the quarantine does not list {held}")

    def _remains(self) -> list[str]:
        """The names on the disks that no replica owns."""
        disk = self.machine.server.world.disk
        owned = {*self.machine.server.replicas, "shared"}
        remembered = set(self.machine.server.consensus.names()) - set(
            self.machine.server.lifecycle.tombstones
        )
        names = {*disk.list("data"), *disk.list("wals"), *remembered, *self._on_disks()}
        return sorted(names - owned)

    def _left(self) -> list[str]:
        """The remains. Only a creation that was never answered may leave some, under the names that it uses again. The server runs,
        and may be making a private log for a replica: _convergence finds one that is never finished."""
        under_way = {f"{tablet}{BESIDE}" for tablet in self.machine.server.replicas}
        remains = [name for name in self._remains() if name not in under_way]
        for name in remains:
            tablet = self.facts.tablets.get(name)
            if name.endswith((BESIDE, REMOVED)) or tablet is None or tablet.created:
                raise Lost(f"{name} is there and no replica owns it")
        return remains

    def _on_disks(self) -> Iterable[str]:
        base = self.machine.base
        for directory in (base / "server", *self.machine.data_dirs):
            for below in ("data", "wals"):
                if (directory / below).is_dir():
                    yield from (path.name for path in (directory / below).iterdir())

    # -- logs

    def _log(self, tablet: str) -> None:
        """Check that every entry can be read, and that the newest acknowledged one is unchanged."""
        replica = self.machine.server.replicas[tablet]
        replica.log.load(replica.log.first_index, replica.log.last_index)
        wanted = self.facts.logged.get(tablet, START)
        if replica.log.last_index < wanted.index:
            raise Lost(
                f"{tablet}: entry {wanted.index} was acknowledged, the log ends at {replica.log.last_index}"
            )
        if wanted.index >= replica.log.dropped.index and replica.log.position(wanted.index) != wanted:
            raise Lost(f"{tablet}: entry {wanted} is now {replica.log.position(wanted.index)}")
        if replica.core.term < wanted.term:
            raise Lost(f"{tablet}: it wrote in term {wanted.term} and is in {replica.core.term}")

    async def _group(self, group: Group) -> None:
        replica = self.machine.server.replicas[group.tablet]
        found, hard = replica.log.last, replica.core.hard_state
        ends = [(len(entries), entries[-1].chain if entries else 0) for entries in group.outcomes()]
        if (found.index, found.chain) not in ends:
            raise Lost(f"{group.tablet}: the log ends with {found}, it may end with {ends}")
        _require_memory(group, hard)
        self.machine.say(Found(group.tablet, found.index, found.chain))
        ghosts = Ghosts(self.machine, group, self._random(group.tablet))
        await ghosts.append()
        await ghosts.commit()
        await self.machine.until(
            lambda: replica.store.applied.index == len(group.entries), f"{group.tablet} is applied"
        )
        _same(group.tablet, await scan(self.machine, group.tablet, at_leader=False), group.rows)

    # -- rows

    async def _rows(self, tablet: str) -> None:
        await self.machine.until(lambda: self.machine.leads(tablet), f"{tablet} leads")
        lanes = self.facts.lanes_of(tablet)
        found = await scan(self.machine, tablet)
        outcomes = [lane.outcomes() for lane in lanes]
        keys = [sorted({key for rows in either for key in rows}) for either in outcomes]
        for lane, either, own in zip(lanes, outcomes, keys, strict=True):
            mine = {key: found[key] for key in own if key in found}
            if mine not in either:
                raise Lost(f"{tablet}: {_described(lane)} left {_difference(mine, either[0])}")
        if strange := sorted(set(found).difference(*keys)):
            raise Lost(
                f"{tablet}: rows that were never written, or were deleted: {[found[k] for k in strange[:3]]}"
            )
        await self._gets(tablet, sorted({*found, *(key for own in keys for key in own), -1}), found)
        for lane in lanes:
            await self._again(lane)
        _same(tablet, await scan(self.machine, tablet), _union(lanes))

    async def _gets(self, tablet: str, keys: list[int], found: Rows) -> None:
        got = await get(self.machine, tablet, keys)
        if got != {key: row for key, row in found.items() if key in got} or len(got) != len(found):
            raise Lost(f"{tablet}: a read gives {_difference(got, found)}")

    async def _again(self, lane: Lane) -> None:
        """Check that an answered batch gets its answer again, the one under way takes place once, and a new one is accepted."""
        if lane.last is not None:
            batch, answer = lane.last
            again = await write(self.machine, lane.tablet, batch)
            if again != answer:
                raise Lost(
                    f"{lane.tablet}: {_described(lane)} was answered {answer} and is now answered {again}"
                )
        if lane.batch is not None:
            await write(self.machine, lane.tablet, lane.batch)
        rng = self._random(lane.client.decode())
        batch = random_batch(rng, lane.tablet, lane.client, lane.sequence + 1, lane.first_key)
        await write(self.machine, lane.tablet, batch)

    # -- the master

    async def _master(self) -> None:
        try:
            await self.machine.start_master()
        except StorageError as error:
            if MASTER in self._before or self.facts.tables:
                raise Lost(f"the master does not start: {error!r}") from error
            raise Unborn(str(error)) from error
        self._identity(MASTER)
        listed = await self.machine.ask_master("list_tables", m.ListTablesRequest(), m.ListTablesReply)
        names = {table.name for table in listed.tables}
        for name, table in self.facts.tables.items():
            try:
                info = await self.machine.ask_master("get_table", m.TableName(name), m.TableInfo)
            except NotFound:
                info = None
            if (info is not None) != (name in names):
                raise Lost(f"table {name} is {'not ' if info else ''}listed")
            if info is None and table.info is not None and not table.dropping:
                raise Lost(f"table {name} was created and is not there")
            if info is not None and table.dropped:
                raise Lost(f"table {name} was dropped and is there again")
            if info is not None and table.info is not None and _identity(info) != _identity(table.info):
                raise Lost(f"table {name} was {table.info} and is {info}")
        if strange := sorted(names - set(self.facts.tables)):
            raise Lost(f"tables that were never created: {strange}")

    async def _convergence(self) -> None:
        """Check that master and server together finish requests under way, and that a new table works."""
        unfinished = [
            name for name, table in self.facts.tables.items() if table.dropping and not table.dropped
        ]
        await self._repeat_deletions()
        for group in sorted(self.facts.followed() - set(self.machine.server.replicas)):
            await self.machine.ask(SERVER, "create_tablet", self.facts.tablets[group].request, m.Empty)
        rng = self._random("after")
        name = f"after-{rng.getrandbits(32):08x}"
        server = self.machine.master.servers
        await self.machine.until(
            lambda: len(server.alive(self.machine.master.world.clock.monotonic())) > 0, "the server is alive"
        )
        request = m.CreateTableRequest(name, name, schema(1), 1)
        created = await self.machine.ask_master("create_table", request, m.TableInfo)
        tablet = created.tablets[0].tablet
        await self.machine.until(lambda: self.machine.leads(tablet), f"the new table's {tablet} leads")
        client = f"after {rng.getrandbits(40):010x}".encode()
        await write(self.machine, tablet, random_batch(rng, tablet, client, 1, 0))
        _same(tablet, await scan(self.machine, tablet), _union(self.facts.lanes_of(tablet)))
        for table in unfinished:
            request_again = m.DropTableRequest(f"again-{name}-{table}", table)
            try:
                await self.machine.ask_master("drop_table", request_again, m.Empty)
            except NotFound:
                self.facts.tables[table].dropped = True
        await self.machine.until(self._in_order, "the server has the catalog's tablets and no other data")

    async def _repeat_deletions(self) -> None:
        """Repeat deletions under way of groups that no master knows."""
        uuid = self.machine.server.instance.uuid
        for name in sorted(self.facts.groups):
            tablet = self.facts.tablets[name]
            if tablet.deleting and not tablet.deleted:
                request = m.DeleteTabletRequest(uuid, name, "its table was dropped")
                await self.machine.ask(SERVER, "delete_tablet", request, m.Empty)
            elif tablet.leaving and not tablet.left:
                await self.machine.ask(SERVER, "delete_tablet", eviction(name, uuid), m.Empty)

    def _in_order(self) -> bool:
        """Whether the replicas are exactly those of the catalog's tables, and of the groups that no master knows."""
        catalog = self.machine.master.catalog
        wanted = {name for name, record in catalog.tablets.items() if name not in catalog.ended}
        return set(self.machine.server.replicas) == wanted | self.facts.followed() and not self._remains()


def _require_memory(group: Group, hard: HardState) -> None:
    if hard.term < group.term or (hard.term in group.votes and hard.vote != group.votes[hard.term]):
        raise Lost(f"{group.tablet}: {hard} after votes {group.votes} and term {group.term}")


def both(say: Say, facts: Facts) -> Say:
    def say_both(said: RoleEvent) -> None:
        say(said)
        facts.take(said)

    return say_both


def _identity(info: m.TableInfo) -> object:
    return info.table, info.schema, info.created_us, [location.tablet for location in info.tablets]


def _union(lanes: Iterable[Lane]) -> Rows:
    return {key: row for lane in lanes for key, row in lane.rows.items()}


def _same(tablet: str, found: Rows, wanted: Rows) -> None:
    if found != wanted:
        raise Lost(f"{tablet}: {_difference(found, wanted)}")


def _described(lane: Lane) -> str:
    under_way = " and one was under way" if lane.batch is not None else ""
    return f"{lane.client.decode()} ({lane.sequence} batches acknowledged{under_way})"


def _difference(found: Rows, wanted: Rows) -> str:
    missing = [wanted[key] for key in sorted(set(wanted) - set(found))]
    extra = [found[key] for key in sorted(set(found) - set(wanted))]
    other = [
        (found[key], wanted[key]) for key in sorted(set(found) & set(wanted)) if found[key] != wanted[key]
    ]
    shown = f"{str(missing[:1])[:200]} {str(extra[:1])[:200]} {str(other[:1])[:400]}"
    return f"{len(missing)} rows missing, {len(extra)} too many, {len(other)} with other values: {shown}"
