"""The repairs that are due: the rules of rules/healing.py, applied to all known tablets and servers.

Await-free, and without essential state: a master that took over decides the same from the catalog and the
leaders' reports. Two kinds of things are kept:

- the server that was chosen for a tablet, until its next configuration is known, so that many choices at
  once are balanced and a repeated choice is the same;
- the time since which a replace flag could not be fulfilled, because a short silence of a server must not
  undo a move; and since which the writes of a PacificA tablet wait for a voter.

Repairs come in waves: while `replicas_coming_max` replicas are on their way to a server, it gets no further ones, unless writes
wait for one. A server copies few at a time, and the groups of those that wait would be awake until their turn: with 4,000 of
them, they took most of the processors, and each copy took four times as long. Moves leave half of the places to tablets that
have lost a replica.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import TabletRecord
from ebla.actors.master.cluster.assignment import Candidate, Load, choose
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Server, Servers, gets_new
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.rules import healing
from ebla.actors.replication.configuration import VOTER, Configuration, Order, Peer
from ebla.actors.replication.health import HEALTHY, UNKNOWN
from ebla.actors.world import Random

CHECKS_MAX = 256  # tablets checked without a pause, at some 30 us each
TURN = 0.9  # of bg_s, at least, between two checks of the same tablet without news
# Checks of tablets without news: they take a tenth of a core with four servers, a third with a hundred.
TURNS_PER_S = 1000
LOAD_S = 5.0  # longest use of the counts for balancing, because counting reads every tablet


class Repair(NamedTuple):
    """One step for the leader; `as_of`: the configuration that it changes."""

    tablet: str
    leader: Peer
    as_of: Order
    action: healing.Action


class _Chosen(NamedTuple):
    as_of: Order
    peer: Peer
    at: float


class Repairs:
    """`cures`: whether members may be changed now (cluster/levels.py)."""

    def __init__(
        self, options: MasterOptions, random: Random, views: Views, cures: Callable[[], bool] = lambda: True
    ) -> None:
        self.begins_at = inf  # set when servers have had time for heartbeats
        self._options = options
        self._random = random
        self._views = views
        self.cures = cures
        self._chosen: dict[str, _Chosen] = {}
        self._unfulfilled: dict[str, float] = {}
        self._writes_wait: dict[str, float] = {}
        self._load: Load | None = None
        self._counted_at = -inf
        self._coming: Counter[str] = Counter()  # replicas on their way, by server
        self._coming_at = -inf
        self._places = True  # False: all servers get as many replicas as they may at a time
        self._turn: deque[str] = deque()
        self._turns_from = -inf
        self._next_turn = -inf  # of the next tablet

    def unsettled(self, now: float) -> Iterator[str]:
        """Yield up to CHECKS_MAX tablets to decide on.

        Tablets with news of their leader come first, then the others in turn, most of which wait for a copy
        or for a server.
        """
        if now < self.begins_at or not self.cures():
            return
        unsettled, news = self._views.unsettled, self._views.news
        if not self._turn and now >= self._turns_from:
            self._turn.extend(tablet for tablet in unsettled if tablet not in news)
            self._turns_from = now + TURN * self._options.bg_s
        for _ in range(CHECKS_MAX):
            if news:
                tablet = next(iter(news))
                del news[tablet]
            elif self._turn and self._next_turn <= now:
                tablet = self._turn.popleft()
                self._next_turn = max(self._next_turn, now - self._options.bg_s) + 1 / TURNS_PER_S
            else:
                return
            if tablet in unsettled:
                yield tablet

    def leader(self, catalog: Catalog, tablet: str) -> Peer | None:
        """The tablet's leader, if its report is of the configuration in the catalog."""
        situation = self._views.situation(catalog, tablet)
        return None if situation is None else situation.configuration.peer(situation.leader)

    def decide(
        self, catalog: Catalog, servers: Servers, tablet: str, now: float, *, busy: bool = False
    ) -> Repair | None:
        """Return the next step for the tablet, as of now. `busy`: the leader could not carry out a new choice of a server at once."""
        situation = self._views.situation(catalog, tablet)
        if situation is None:
            return None
        record = catalog.tablets[tablet]
        leader = situation.configuration.peer(situation.leader)
        assert leader is not None, tablet
        as_of = situation.configuration.order
        situation = situation._replace(urgent=self._is_urgent(tablet, situation, now))
        action = healing.decide(situation, lambda: self._pick(catalog, servers, record, situation, now, busy))
        if isinstance(action, healing.Stay):
            since = self._unfulfilled.setdefault(tablet, now)
            if now - since < self._options.unresponsive_s:
                return None
        else:
            self._unfulfilled.pop(tablet, None)
        return None if action is None else Repair(tablet, leader, as_of, action)

    def _is_urgent(self, tablet: str, situation: healing.Situation, now: float) -> bool:
        """Whether writes have been waiting for longer than the first answers to a new primary take."""
        if not healing.writes_wait(situation):
            self._writes_wait.pop(tablet, None)
            return False
        return now - self._writes_wait.setdefault(tablet, now) >= self._options.detector.grace_s

    def blocked(self, catalog: Catalog, servers: Servers, address: str, now: float) -> int:
        """The number of tablets with a member at this address for which no other known server has room."""
        if now < self.begins_at:
            return 0
        alive = servers.alive(now)
        return sum(
            not any(self._candidates(catalog, servers, alive, record))
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
        """The number of tablets with a member at this address without a known live leader."""
        leaders = (self.leader(catalog, record.tablet) for record in held_at(catalog, address))
        return sum(leader is None or not servers.is_alive(leader.uuid, now) for leader in leaders)

    def has_room(self, catalog: Catalog, servers: Servers, tablet: str, now: float) -> bool:
        """Whether some server could take one more replica of the tablet."""
        return any(self._candidates(catalog, servers, servers.alive(now), catalog.tablets[tablet]))

    # -- choice of a server ----------------------------------------------------------------------------------

    def _pick(
        self,
        catalog: Catalog,
        servers: Servers,
        record: TabletRecord,
        situation: healing.Situation,
        now: float,
        busy: bool,
    ) -> Peer | healing.Later | None:
        assert record.configuration is not None, record.tablet
        as_of, before = record.configuration.order, self._chosen.get(record.tablet)
        if before is not None and before.as_of != as_of:
            before = None
        coming = self._count_coming(catalog, servers, now)
        if not (before or situation.urgent) and (busy or not self._places):
            return healing.LATER  # while thousands wait, this costs less than a list of candidates for each
        alive = servers.alive(now)
        if before is not None:
            chosen = [server for server in alive if server.uuid == before.peer.uuid]
            if any(self._candidates(catalog, servers, chosen, record)):
                return before.peer
            del self._chosen[record.tablet]
        most = self._coming_max(situation)
        with_places = [server for server in alive if coming[server.uuid] < most]
        free = list(self._candidates(catalog, servers, with_places, record))
        if not free and any(self._candidates(catalog, servers, alive, record)):
            return healing.LATER
        load = self._loads(catalog, now)
        held_before = {peer.uuid: now for peer in record.former + record.tombstones}
        found = choose(1, free, load, record.table, held_before, self._random)
        if found is None:
            return None
        load.add(record.table, found)
        coming[found[0].uuid] += 1
        self._chosen[record.tablet] = _Chosen(as_of, found[0], now)
        return found[0]

    def _coming_max(self, situation: healing.Situation) -> float:
        """How many replicas may be on their way to a server that is to take one of this tablet, too: the more, the more the tablet
        needs it."""
        if situation.urgent:
            return inf
        most = self._options.replicas_coming_max
        return most if healing.healthy_without(situation, "") < situation.replicas else most // 2

    def _count_coming(self, catalog: Catalog, servers: Servers, now: float) -> Counter[str]:
        """How many replicas are on their way to each server. Those that may never arrive do not count, or a few of them would keep
        all others out: their leader is gone, does not reach them, or has not added them in the time of a call."""
        if now - self._coming_at < self._options.bg_s:
            return self._coming
        self._coming, self._coming_at = Counter(), now
        for tablet in self._views.unsettled:
            configuration = catalog.tablets[tablet].configuration
            assert configuration is not None, tablet
            chosen = self._chosen.get(tablet)
            if chosen is not None and chosen.as_of == configuration.order:
                self._coming[chosen.peer.uuid] += now < chosen.at + self._options.rpc_timeout_s
            coming = [peer.uuid for peer in configuration.peers if peer.promote]
            situation = self._views.situation(catalog, tablet) if coming else None
            if situation is not None and servers.is_alive(situation.leader, now):
                self._coming.update(
                    uuid for uuid in coming if situation.health.get(uuid, UNKNOWN) in (HEALTHY, UNKNOWN)
                )
        able = [server.uuid for server in servers.alive(now) if _gets_new(catalog, server)]
        self._places = not able or any(
            self._coming[uuid] < self._options.replicas_coming_max for uuid in able
        )
        return self._coming

    def _candidates(
        self, catalog: Catalog, servers: Servers, alive: Sequence[Server], record: TabletRecord
    ) -> Iterator[Candidate]:
        """Those of these live servers with disk space and without marks, on hosts without a member of the tablet."""
        assert record.configuration is not None, record.tablet
        members = record.configuration.peers
        known = [server for peer in members if (server := servers.get(peer.uuid)) is not None]
        hosts = [server.host for server in known]
        for server in alive:
            if (
                _gets_new(catalog, server)
                and server.host not in hosts
                and _is_free(record.configuration, server)
            ):
                yield Candidate(server.uuid, server.address, server.host)

    def _loads(self, catalog: Catalog, now: float) -> Load:
        if self._load is None or now - self._counted_at >= LOAD_S:
            self._forget(catalog)
            self._load, self._counted_at = Load(catalog), now
            for tablet, chosen in self._chosen.items():
                self._load.add(catalog.tablets[tablet].table, (chosen.peer,))
        return self._load

    def _forget(self, catalog: Catalog) -> None:
        """Drop choices that were carried out or are no longer needed."""
        for tablet, chosen in list(self._chosen.items()):
            record = catalog.tablets.get(tablet)
            known = None if record is None else record.configuration
            if known is None or known.order != chosen.as_of or tablet not in self._views.unsettled:
                del self._chosen[tablet]
        for since in (self._unfulfilled, self._writes_wait):
            for tablet in [tablet for tablet in since if tablet not in self._views.unsettled]:
                del since[tablet]


def _gets_new(catalog: Catalog, server: Server) -> bool:
    return server.takes_data and gets_new(catalog, server.address)


def _is_free(configuration: Configuration, server: Server) -> bool:
    """Whether no member is at the server's address. A member with another uuid there has lost its directory. In a PacificA tablet it
    may have to stay until another has its vote: then the server may be that other one."""
    there = [peer.uuid for peer in configuration.peers if peer.address == server.address]
    return not there or (configuration.primary is not None and server.uuid not in there)


def held_at(catalog: Catalog, address: str) -> Iterator[TabletRecord]:
    """The tablets with a member at the address."""
    return (catalog.tablets[tablet] for tablet in catalog.members.at(address))


def _on_its_way(catalog: Catalog, record: TabletRecord) -> bool:
    """Whether as many voters as the table wants are or are coming elsewhere."""
    assert record.configuration is not None
    peers = [peer for peer in record.configuration.peers if peer.member == VOTER or peer.promote]
    staying = [peer for peer in peers if peer.address not in catalog.draining]
    return len(staying) >= catalog.tables[record.table].replicas
