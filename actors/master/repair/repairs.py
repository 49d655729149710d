"""Which tablets get their members changed now, and how: rules/healing.py's rules over what is known of all tablets and servers.

Await-free, and without a memory that matters: a master that took over decides the same from the catalog and the leaders'
reports. Kept are only the server that was chosen for a tablet, until its next configuration is known, so that many choices
made at once even out and a repeated one is the same; and since when a mark could not be fulfilled, because a server
that is not heard for a moment must not undo a move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import TabletRecord
from ebla.actors.master.cluster.assignment import Candidate, Load, choose
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Server, Servers
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.rules import healing
from ebla.actors.replication.configuration import (
    VOTER,
    Order,
    Peer,
)
from ebla.actors.world import Random

LOOKS_MAX = 256  # tablets looked at in one go, at some 30 us each: the master has others to answer
TURN = 0.9  # of bg_s, at least, between two looks at the same tablet without news
LOAD_S = 5.0  # how old the counts may be that choices are evened out by: counting looks at every tablet


class Repair(NamedTuple):
    """One step, asked of the leader; `as_of`: the configuration that it stands on."""

    tablet: str
    leader: Peer
    as_of: Order
    action: healing.Action


class _Chosen(NamedTuple):
    as_of: Order
    peer: Peer


class Repairs:
    def __init__(self, options: MasterOptions, random: Random, views: Views) -> None:
        self.begins_at = inf  # servers have to be heard first
        self._options = options
        self._random = random
        self._views = views
        self._chosen: dict[str, _Chosen] = {}
        self._unfulfilled: dict[str, float] = {}
        self._load: Load | None = None
        self._counted_at = -inf
        self._turn: deque[str] = deque()
        self._turns_from = -inf

    def unsettled(self, now: float) -> Iterator[str]:
        """Tablets about which something may be decided, a bounded number of them: those first whose leader has just told
        something new, then all others in turn, since most of them wait for a copy or for a server."""
        if now < self.begins_at:
            return
        unsettled, news = self._views.unsettled, self._views.news
        if not self._turn and now >= self._turns_from:
            self._turn.extend(tablet for tablet in unsettled if tablet not in news)
            self._turns_from = now + TURN * self._options.bg_s
        for _ in range(LOOKS_MAX):
            if news:
                tablet = next(iter(news))
                del news[tablet]
            elif self._turn:
                tablet = self._turn.popleft()
            else:
                return
            if tablet in unsettled:
                yield tablet

    def leader(self, catalog: Catalog, tablet: str) -> Peer | None:
        """Whom to ask, and of which configuration."""
        situation = self._views.situation(catalog, tablet)
        return None if situation is None else situation.configuration.peer(situation.leader)

    def decide(self, catalog: Catalog, servers: Servers, tablet: str, now: float) -> Repair | None:
        """The next step, as of this moment."""
        situation = self._views.situation(catalog, tablet)
        if situation is None:
            return None
        record = catalog.tablets[tablet]
        leader = situation.configuration.peer(situation.leader)
        assert leader is not None, tablet
        as_of = situation.configuration.order
        action = healing.decide(situation, lambda: self._pick(catalog, servers, record, now))
        if isinstance(action, healing.Stay):
            since = self._unfulfilled.setdefault(tablet, now)
            if now - since < self._options.unresponsive_s:
                return None
        else:
            self._unfulfilled.pop(tablet, None)
        return None if action is None else Repair(tablet, leader, as_of, action)

    def blocked(self, catalog: Catalog, servers: Servers, address: str, now: float) -> int:
        """How many tablets with a member at this address have nowhere else to go, as far as servers were heard."""
        if now < self.begins_at:
            return 0
        alive = servers.alive(now)
        return sum(
            not self._candidates(catalog, servers, alive, record)
            for record in held_at(catalog, address)
            if record.configuration is not None and not _on_its_way(catalog, record)
        )

    def waits_for(self, catalog: Catalog, servers: Servers, address: str, now: float) -> tuple[str, ...]:
        """The silent servers in maintenance that share a tablet with this one."""
        shared = {
            peer.address
            for record in held_at(catalog, address)
            if record.configuration is not None
            for peer in record.configuration.peers
            if peer.address in catalog.maintained and not servers.is_alive(peer.uuid, now)
        }
        return tuple(sorted(shared - {address}))

    def leaderless(self, catalog: Catalog, servers: Servers, address: str, now: float) -> int:
        """How many tablets with a member at this address have no leader that is heard."""
        leaders = (self.leader(catalog, record.tablet) for record in held_at(catalog, address))
        return sum(leader is None or not servers.is_alive(leader.uuid, now) for leader in leaders)

    def has_room(self, catalog: Catalog, servers: Servers, tablet: str, now: float) -> bool:
        """Whether some server could take one more replica of it."""
        return bool(self._candidates(catalog, servers, servers.alive(now), catalog.tablets[tablet]))

    # -- where to --------------------------------------------------------------------------------------------

    def _pick(self, catalog: Catalog, servers: Servers, record: TabletRecord, now: float) -> Peer | None:
        assert record.configuration is not None, record.tablet
        as_of, before = record.configuration.order, self._chosen.get(record.tablet)
        candidates = self._candidates(catalog, servers, servers.alive(now), record)
        if before is not None and before.as_of == as_of:
            if any(each.uuid == before.peer.uuid for each in candidates):
                return before.peer
            del self._chosen[record.tablet]
        load = self._loads(catalog, now)
        held_before = {peer.uuid: now for peer in record.former + record.tombstones}
        found = choose(1, candidates, load, record.table, held_before, self._random)
        if found is None:
            return None
        load.add(record.table, found)
        self._chosen[record.tablet] = _Chosen(as_of, found[0])
        return found[0]

    def _candidates(
        self, catalog: Catalog, servers: Servers, alive: Sequence[Server], record: TabletRecord
    ) -> list[Candidate]:
        """Live servers that have a disk for it and are not marked, on hosts that hold nothing of the tablet."""
        assert record.configuration is not None, record.tablet
        members = record.configuration.peers
        addresses = [peer.address for peer in members]
        known = [server for peer in members if (server := servers.get(peer.uuid)) is not None]
        hosts = [server.host for server in known]
        return [
            Candidate(server.uuid, server.address, server.host)
            for server in alive
            if server.takes_data
            and gets_new(catalog, server.address)
            and server.address not in addresses
            and server.host not in hosts
        ]

    def _loads(self, catalog: Catalog, now: float) -> Load:
        if self._load is None or now - self._counted_at >= LOAD_S:
            self._forget(catalog)
            self._load, self._counted_at = Load(catalog), now
            for tablet, chosen in self._chosen.items():
                self._load.add(catalog.tablets[tablet].table, (chosen.peer,))
        return self._load

    def _forget(self, catalog: Catalog) -> None:
        """Choices that came to be, or are of no use any more."""
        for tablet, chosen in list(self._chosen.items()):
            record = catalog.tablets.get(tablet)
            known = None if record is None else record.configuration
            if known is None or known.order != chosen.as_of or tablet not in self._views.unsettled:
                del self._chosen[tablet]
        for tablet in [tablet for tablet in self._unfulfilled if tablet not in self._views.unsettled]:
            del self._unfulfilled[tablet]


def gets_new(catalog: Catalog, address: str) -> bool:
    """As far as operators are concerned."""
    return address not in catalog.draining and address not in catalog.maintained


def held_at(catalog: Catalog, address: str) -> Iterator[TabletRecord]:
    """The tablets that have a member there."""
    for record in catalog.tablets.values():
        if record.configuration is None or record.tablet in catalog.ended:
            continue
        if any(peer.address == address for peer in record.configuration.peers):
            yield record


def _on_its_way(catalog: Catalog, record: TabletRecord) -> bool:
    """Whether as many voters as the table wants are, or come, elsewhere."""
    assert record.configuration is not None
    peers = [peer for peer in record.configuration.peers if peer.member == VOTER or peer.promote]
    staying = [peer for peer in peers if peer.address not in catalog.draining]
    return len(staying) >= catalog.tables[record.table].replicas
