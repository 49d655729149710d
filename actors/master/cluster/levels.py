"""The level of the cluster: what the master does to it by itself.

    level      creates tables    cures: adds, evicts and replaces replicas, and puts surplus ones into quarantine
    freezed    no                no
    steady     yes               yes

LEVELS is this table; another level is another row. The level that an operator sets is in the catalog. Too few live servers act
like `freezed`, too: many servers that seem dead at once are rather a network or a rack that failed, and copying all of their
replicas to the few others would do more harm. That is computed at each look, so it ends by itself when enough are back.

At `freezed` each group still commits, elects its leader (Raft), gets another primary (PacificA), and changes votes among the
members that it has: none of this moves data, and without it a precaution of an operator would stop reads and writes. Pegasus
appoints no primary at its level `freezed`; here `min_members` keeps every acknowledged write on several disks at any level.
Requests of operators are carried out; the further steps of a move or a drain are a cure, and wait. A table that was created
before is completed, and a dropped one is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import ceil
from typing import NamedTuple

from ebla.actors.errors import Frozen
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import Edit, LevelSet
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.cluster.servers import Servers, gets_new
from ebla.actors.master.messages import LevelReply, LevelRequest
from ebla.actors.master.options import MasterOptions
from ebla.actors.world import World, rpc
from ebla.storage.errors import InvalidArgument

log = logging.getLogger(__name__)

FREEZED, STEADY = "freezed", "steady"


class Level(NamedTuple):
    creates: bool
    cures: bool


LEVELS = {FREEZED: Level(creates=False, cures=False), STEADY: Level(creates=True, cures=True)}


class Count(NamedTuple):
    """`live`: of the `expected` servers, those that send heartbeats; with fewer than `needed` the cluster is frozen."""

    live: int
    expected: int
    needed: int

    @property
    def too_few(self) -> bool:
        return self.live < self.needed


@dataclass(eq=False)
class Levels:
    """`wake` starts the background work now."""

    _world: World
    _options: MasterOptions
    _catalog: Catalog
    _scribe: Scribe
    _servers: Servers
    _wake: Callable[[], None]
    _too_few_since_us: int = 0  # 0: there are enough

    def now(self) -> Level:
        """The level in force."""
        return LEVELS[FREEZED if self._count().too_few else self._catalog.level]

    def cures(self) -> bool:
        return self.now().cures

    def why_frozen(self) -> str:
        """Since when, why, and how it ends; "" if the cluster is cured."""
        count = self._count()
        if not LEVELS[self._catalog.level].cures:
            since = _utc(self._catalog.level_us)
            return f"since {since} because an operator set the level {self._catalog.level}; `ebla level {STEADY}` ends it"
        if not count.too_few:
            return ""
        return (
            f"since {_utc(self._too_few_since_us)} because {count.live} of {count.expected} servers send heartbeats, and "
            f"{count.needed} must; it ends when they are back, or when those that will not return are drained"
        )

    def require_creation(self) -> None:
        """Raise Frozen if no table is created at the level in force."""
        if not self.now().creates:
            raise Frozen(f"no table is created: the cluster is frozen {self.why_frozen()}", level=FREEZED)

    @rpc
    async def level(self, request: LevelRequest) -> LevelReply:
        """Set the level, durably when this answers, or only report it."""
        wanted = request.level
        if wanted is not None and wanted not in LEVELS:
            raise InvalidArgument(f"level must be {' or '.join(LEVELS)}, not {wanted!r}")

        def decide() -> Sequence[Edit]:
            if wanted is None or wanted == self._catalog.level:
                return ()
            return (LevelSet(wanted, self._world.clock.wall_us()),)

        if decide():
            await self._scribe.change("level", decide, self._wake)
        count, catalog = self._count(), self._catalog
        present = FREEZED if count.too_few else catalog.level
        return LevelReply(catalog.level, catalog.level_us, present, self.why_frozen(), *count)

    # -- the servers that are there --------------------------------------------------------------------------

    def _count(self) -> Count:
        """Count the servers that have members of tablets, or sent a heartbeat in this term, and have no mark of an operator."""
        now = self._world.now()
        listed = self._catalog.members.addresses()
        listed |= dict.fromkeys(server.address for server in self._servers.known())
        expected = [address for address in listed if gets_new(self._catalog, address)]
        live = sum(self._servers.answers_at(address, now) for address in expected)
        share = ceil(self._options.live_servers_share * len(expected))
        count = Count(live, len(expected), min(len(expected), max(self._options.live_servers_min, share)))
        if not self._servers.settled(now):
            count = count._replace(needed=0)
        if count.too_few and not self._too_few_since_us:
            self._too_few_since_us = self._world.clock.wall_us()
            log.warning("%s: the cluster is frozen %s", self._world.address, self.why_frozen())
        elif not count.too_few and self._too_few_since_us:
            self._too_few_since_us = 0
            log.warning(
                "%s: %d of %d servers are live again", self._world.address, count.live, count.expected
            )
        return count


def _utc(us: int) -> str:
    return f"{datetime.fromtimestamp(us // 1_000_000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
