"""The registry of ledgers, stores and marks, kept in the coordination namespace: durable, linearizable, with versions.

A store whose host is being decommissioned, or that does not run, gets no further entries: a change that names such a store is
refused, in the same step of the namespace in which it would be made. So when no ledger names the store once, none does later; and
an audit that finds a store lost sees every ledger that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from ebla.actors.coordination import paths as names
from ebla.actors.coordination.errors import SessionExpired, VersionMismatch
from ebla.actors.coordination.messages import Check, Create
from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import NotEnoughStores, StoreLeaving
from ebla.actors.ledger.handles.registry import StoreInfo, Transform
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S, Records, Sessions
from ebla.actors.world import CallerWorld, new_id

READS_MAX = 50  # at the same time
NEVER = Check(names.ROOT, 1 << 62)  # no version is so high


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """`stores` lack entries of a ledger that they should have. `since_us`: of the first of them. `lost`: those among them that are
    to be replaced unless they return. `newest_us`: when the last of them was added. `times`: how often the ledger was marked;
    each time gives the node a new version, so that a repair deletes no mark that came meanwhile."""

    stores: tuple[str, ...]
    since_us: int
    lost: tuple[str, ...] = ()
    newest_us: int = 0
    times: int = 1


class Leaving(msgspec.Struct, frozen=True, array_like=True):
    """The addresses of stores whose hosts are being decommissioned, and since when."""

    since_us: dict[str, int] = {}


class _Running(NamedTuple):
    """The stores that run, each with the check that it has run since; the check that none of them began to leave since; and the
    addresses of those that leave."""

    stores: list[tuple[StoreInfo, Check]]
    unchanged: Check
    leaving: dict[str, int]


class _Named(Exception):
    """A change names stores that the ledger did not name before."""


class KeptRegistry:
    """Implements handles.registry.Registry, and makes ledgers."""

    def __init__(self, world: CallerWorld, session: Sessions) -> None:
        self._world = world
        self._session = session
        self.ledgers = Records(session, Metadata, "ledger")
        self.marks: Records[Mark] = Records(session, Mark, "mark of ledger")
        self.leavings: Records[Leaving] = Records(session, Leaving, "list")
        self._stores: Records[StoreInfo] = Records(session, StoreInfo, "store")

    # -- stores

    async def stores(self) -> list[StoreInfo]:
        return [store for store, _ in (await self._running()).stores]

    async def stores_and_leaving(self) -> tuple[list[StoreInfo], list[str]]:
        """What `stores` and `leaving` return, at the same time."""
        running = await self._running()
        return [store for store, _ in running.stores], await self._known_at(running.leaving)

    async def _running(self) -> _Running:
        (leaving, unchanged), found = await asyncio.gather(self._leaving(), self._all(paths.UP))
        stores = [
            (msgspec.structs.replace(store, leaving=store.address in leaving), check)
            for store, check in found
        ]
        return _Running(stores, unchanged, leaving)

    async def running(self) -> list[str]:
        """The uuids of the stores that run now."""
        try:
            return await self._session.nodes.children(paths.UP, deadline_s=DEADLINE_S)
        except NotFound:
            return []

    async def known(self) -> list[StoreInfo]:
        """Every store that ever registered and was not forgotten."""
        return [store for store, _ in await self._all(paths.KNOWN)]

    async def leaving(self) -> list[str]:
        """The uuids of the known stores whose hosts are being decommissioned."""
        return await self._known_at((await self._leaving())[0])

    async def _known_at(self, leaving: dict[str, int]) -> list[str]:
        return [store.uuid for store in await self.known() if store.address in leaving] if leaving else []

    async def _leaving(self) -> tuple[dict[str, int], Check]:
        found = await self.leavings.find(paths.LEAVING)
        if found is None:
            return {}, Check(paths.LEAVING, 0)
        return found[0].since_us, Check(paths.LEAVING, found[1])

    async def forget(self, store: str) -> None:
        """Forget a store that is gone for good. If it returns nevertheless, it registers again."""
        await self._stores.delete(names.join(paths.KNOWN, store))

    async def leave(self, addresses: Sequence[str], on: bool) -> None:
        """Let these stores leave, durably, or end that."""
        now_us = self._world.clock.wall_us()

        def merge(found: Leaving | None) -> Leaving:
            before = {} if found is None else found.since_us
            if on:
                return Leaving({**dict.fromkeys(addresses, now_us), **before})
            return Leaving({each: since for each, since in before.items() if each not in addresses})

        await self.leavings.put(paths.LEAVING, merge)

    async def _all(self, path: str) -> list[tuple[StoreInfo, Check]]:
        """Each with the check that its node is as it was."""
        try:
            uuids = await self._session.nodes.children(path, deadline_s=DEADLINE_S)
        except NotFound:
            return []
        nodes = [names.join(path, uuid) for uuid in uuids]
        found: list[tuple[str, tuple[StoreInfo, int] | None]] = []
        for at in range(0, len(nodes), READS_MAX):
            some = nodes[at : at + READS_MAX]
            found += zip(some, await asyncio.gather(*map(self._stores.find, some)), strict=True)
        return [(each[0], Check(node, each[1])) for node, each in found if each is not None]

    async def address(self, store: str) -> str | None:
        found = await self._stores.get(names.join(paths.KNOWN, store))
        return None if found is None else found.address

    # -- ledgers

    async def create(self, ensemble: int, write_quorum: int, ack_quorum: int) -> Metadata:
        """Make a ledger that is part of no log. Raises InvalidArgument, NotEnoughStores."""
        while True:
            made, operations = await self.planned(ensemble, write_quorum, ack_quorum)
            try:
                session = await self._session.open()
                *_, node = await session.change(*operations, deadline_s=DEADLINE_S)
            except (SessionExpired, VersionMismatch):
                continue  # a ledger that was made nevertheless is empty
            return meta.replace(made, ledger=node.version)

    async def planned(
        self, ensemble: int, write_quorum: int, ack_quorum: int, log: str = ""
    ) -> tuple[Metadata, tuple[Check | Create, ...]]:
        """A ledger on stores that run, chosen at random. It has no number until the operations are carried out, in one change: they
        make it unless a store has ended or a host began to leave meanwhile (VersionMismatch). Its number is the version of its node. Raises InvalidArgument,
        NotEnoughStores."""
        meta.check_quorums(ensemble, write_quorum, ack_quorum)
        running = await self._running()
        able = [(store.uuid, runs) for store, runs in running.stores if store.able]
        if len(able) < ensemble:
            raise NotEnoughStores(
                f"a ledger on {ensemble} stores needs as many that run and have space, and there are {len(able)}",
                wanted=ensemble,
                found=len(able),
            )
        self._world.random.shuffle(able)
        chosen = able[:ensemble]
        made = Metadata(
            0,
            ensemble,
            write_quorum,
            ack_quorum,
            new_id(self._world.random),
            (Segment(0, tuple(store for store, _ in chosen)),),
            self._world.clock.wall_us(),
            log=log,
        )
        data = msgspec.msgpack.encode(made)
        create = Create(paths.NEW_LEDGER, data, sequential=True, parents=True)
        return made, (running.unchanged, *(runs for _, runs in chosen), create)

    async def require_room(self, ensemble: int, write_quorum: int, ack_quorum: int, log: str) -> None:
        """Raises NotEnoughStores, or LimitReached, if a ledger cannot be made now. A change that would make one is asked for together
        with a check that never holds: the limits are looked at first, and nothing is made."""
        _, operations = await self.planned(ensemble, write_quorum, ack_quorum, log)
        session = await self._session.open()
        with suppress(SessionExpired, VersionMismatch):
            await session.change(*operations, NEVER, deadline_s=DEADLINE_S)

    async def read(self, ledger: int) -> Metadata:
        found = await self.ledgers.get(paths.of_ledger(ledger))
        if found is None:
            raise NotFound(f"there is no ledger {ledger}", what=str(ledger))
        return meta.replace(found, ledger=ledger)

    async def list(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        try:
            found = await self._session.nodes.children(paths.LEDGERS, deadline_s=DEADLINE_S)
        except NotFound:
            return []
        return sorted(number for name in found if (number := names.number(name)) is not None)

    async def change(self, ledger: int, transform: Transform, *checks: Check) -> Metadata:
        """`checks`: the change is made only while these hold of other nodes; otherwise VersionMismatch."""
        unchanged: Sequence[Check] = ()
        able: list[str] = []

        def numbered(found: Metadata) -> Metadata:
            changed = transform(meta.replace(found, ledger=ledger))
            meta.validate(changed)
            new = [store for store in meta.stores_in(changed) if store not in meta.stores_in(found)]
            if any(store not in able for store in new):
                raise _Named(*new)
            return meta.replace(changed, ledger=0)

        while True:
            try:
                changed = await self.ledgers.change(paths.of_ledger(ledger), numbered, *checks, *unchanged)
            except _Named as named:
                able, unchanged = list(named.args), await self._admit(ledger, named.args)
            except VersionMismatch as error:
                if all(error.what != check.path for check in unchanged):
                    raise
                able, unchanged = [], ()
            else:
                return meta.replace(changed, ledger=ledger)

    async def _admit(self, ledger: int, stores: Sequence[str]) -> Sequence[Check]:
        """The checks that these stores may get entries. Raises StoreLeaving."""
        nodes = [names.join(paths.UP, store) for store in stores]
        (leaving, unchanged), up = await asyncio.gather(
            self._leaving(), asyncio.gather(*map(self._stores.find, nodes))
        )
        checks = [unchanged]
        for store, path, found in zip(stores, nodes, up, strict=True):
            if found is None:
                raise StoreLeaving(f"store {store} does not run", ledger=ledger, store=store)
            if found[0].address in leaving:
                raise StoreLeaving(
                    f"the host of store {store} is being decommissioned", ledger=ledger, store=store
                )
            checks.append(Check(path, found[1]))
        return checks

    async def delete(self, ledger: int) -> None:
        """Delete the metadata; the entries are deleted by the stores, as of a ledger that is not known."""
        await self.ledgers.delete(paths.of_ledger(ledger))

    # -- marks

    async def mark(self, ledger: int, store: str, *, lost: bool = False, again: bool = True) -> None:
        """`lost`: the store does not run, and is to be replaced. Without `again` a mark that names the store stays as it is."""
        now_us = self._world.clock.wall_us()

        def merge(found: Mark | None) -> Mark:
            if found is not None and store in found.stores and not again:
                return found
            return marked(found, store, lost, now_us)

        await self.marks.put(paths.of_mark(ledger), merge)


def marked(found: Mark | None, store: str, lost: bool, now_us: int) -> Mark:
    """The mark after this store is named."""
    if found is None:
        return Mark((store,), now_us, (store,) if lost else (), now_us)
    added = store not in found.stores or (lost and store not in found.lost)
    return Mark(
        found.stores if store in found.stores else (*found.stores, store),
        found.since_us,
        (*found.lost, store) if lost and store not in found.lost else found.lost,
        now_us if added else found.newest_us,
        found.times + 1,
    )
