"""A store shows that it runs: a node of its own session, and one for ever with its address. It learns whether its host is being
decommissioned."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.asking.retries import BACKOFF_MAX_S
from ebla.actors.coordination import paths as names
from ebla.actors.errors import AlreadyPresent
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import Leaving
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession, Records
from ebla.actors.ledger.shared.watching import Watched
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

SESSION_S = 5.0
LOOK_S = 0.5


class Presence:
    """`info`: what the store tells about itself now. `session`: of this incarnation. `leaving`: whether its host is being decommissioned, as far as it knows."""

    def __init__(self, world: World, masters: tuple[str, ...], info: Callable[[], StoreInfo]) -> None:
        self._world = world
        self._info = info
        self.session = LastingSession(MasterClient(world, masters), world.address, SESSION_S)
        self._known: Records[StoreInfo] = Records(self.session, StoreInfo, "store")
        self._leavings: Records[Leaving] = Records(self.session, Leaving, "list")
        self._told: StoreInfo | None = None
        self._news = True
        self.leaving = False

    async def run(self) -> None:
        """Tell it at once, again after the session has expired, and when it changes."""
        session_id = ""
        Watched(self._world, self.session.nodes, paths.LEAVING, False, self._look_again)
        while True:
            try:
                session = await self.session.open()
                info = self._info()
                if session.id != session_id or info != self._told:
                    await self._tell(info)
                    session_id, self._told = session.id, info
                if self._news:
                    self._news = False
                    found = await self._leavings.get(paths.LEAVING)
                    self.leaving = found is not None and info.address in found.since_us
            except EblaError as error:
                log.info("%s is not registered now: %s", self._world.address, error)
                self._news = True
                await self._world.clock.sleep(BACKOFF_MAX_S)
            await self._world.clock.sleep(LOOK_S)

    def _look_again(self) -> None:
        self._news = True

    async def _tell(self, info: StoreInfo) -> None:
        await self._known.put(names.join(paths.KNOWN, info.uuid), lambda _: info)
        session = await self.session.open()
        path, data = names.join(paths.UP, info.uuid), msgspec.msgpack.encode(info)
        node = await session.get(path, deadline_s=DEADLINE_S)
        if (
            node is not None and node.owner != session.id
        ):  # of an earlier incarnation, whose session has not expired yet
            await session.delete(path, version=node.version, deadline_s=DEADLINE_S)
            node = None
        try:
            if node is None:
                await session.create(path, data, ephemeral=True, parents=True, deadline_s=DEADLINE_S)
            else:
                await session.set(path, data, deadline_s=DEADLINE_S)
        except AlreadyPresent:
            log.info("%s: another incarnation registers at the same time", self._world.address)
            raise
