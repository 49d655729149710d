"""The registry of ledgers, stores and marks, kept in the coordination namespace: durable, linearizable, with versions."""

from __future__ import annotations

import msgspec

from ebla.actors.coordination import paths as names
from ebla.actors.coordination.errors import SessionExpired
from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import NotEnoughStores
from ebla.actors.ledger.handles.registry import StoreInfo, Transform
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession, Records
from ebla.actors.world import CallerWorld, new_id


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """`stores` lack entries of a ledger that they should have. `since_us`: of the first of them."""

    stores: tuple[str, ...]
    since_us: int


class KeptRegistry:
    """Implements handles.registry.Registry, and makes ledgers."""

    def __init__(self, world: CallerWorld, session: LastingSession) -> None:
        self._world = world
        self._session = session
        self.ledgers = Records(session, Metadata, "ledger")
        self.marks: Records[Mark] = Records(session, Mark, "mark of ledger")
        self._stores: Records[StoreInfo] = Records(session, StoreInfo, "store")

    # -- stores

    async def stores(self) -> list[StoreInfo]:
        return await self._all(paths.UP)

    async def known(self) -> list[StoreInfo]:
        """Every store that ever registered and was not forgotten."""
        return await self._all(paths.KNOWN)

    async def _all(self, path: str) -> list[StoreInfo]:
        try:
            uuids = await self._session.nodes.children(path, deadline_s=DEADLINE_S)
        except NotFound:
            return []
        found = [await self._stores.get(names.join(path, uuid)) for uuid in uuids]
        return [store for store in found if store is not None]

    async def address(self, store: str) -> str | None:
        found = await self._stores.get(names.join(paths.KNOWN, store))
        return None if found is None else found.address

    # -- ledgers

    async def create(self, ensemble: int, write_quorum: int, ack_quorum: int, log: str = "") -> Metadata:
        """Make a ledger on stores that run, chosen at random. Raises InvalidArgument, NotEnoughStores."""
        meta.check_quorums(ensemble, write_quorum, ack_quorum)
        while True:
            able = [store.uuid for store in await self.stores() if not store.read_only]
            if len(able) < ensemble:
                raise NotEnoughStores(
                    f"a ledger on {ensemble} stores needs as many that run and have space, and there are {len(able)}",
                    wanted=ensemble,
                    found=len(able),
                )
            self._world.random.shuffle(able)
            made = Metadata(
                0,
                ensemble,
                write_quorum,
                ack_quorum,
                new_id(self._world.random),
                (Segment(0, tuple(able[:ensemble])),),
                self._world.clock.wall_us(),
                log=log,
            )
            try:
                session = await self._session.open()
                node = await session.create(
                    paths.NEW_LEDGER,
                    msgspec.msgpack.encode(made),
                    sequential=True,
                    parents=True,
                    deadline_s=DEADLINE_S,
                )
            except SessionExpired:
                continue  # a ledger that was made nevertheless is empty, and part of no log
            return meta.replace(made, ledger=node.version)

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

    async def change(self, ledger: int, transform: Transform) -> Metadata:
        def numbered(found: Metadata) -> Metadata:
            changed = transform(meta.replace(found, ledger=ledger))
            meta.validate(changed)
            return meta.replace(changed, ledger=0)

        return meta.replace(await self.ledgers.change(paths.of_ledger(ledger), numbered), ledger=ledger)

    async def delete(self, ledger: int) -> None:
        """Delete the metadata; the entries are deleted by the stores, as of a ledger that is not known."""
        await self.ledgers.delete(paths.of_ledger(ledger))

    # -- marks

    async def mark(self, ledger: int, store: str) -> None:
        now_us = self._world.clock.wall_us()

        def merge(found: Mark | None) -> Mark:
            if found is None:
                return Mark((store,), now_us)
            return found if store in found.stores else Mark((*found.stores, store), found.since_us)

        await self.marks.put(paths.of_mark(ledger), merge)
