"""The placement of new tablets, and the replacement of tablets that are not created in time.

Await-free: `plan` reads the catalog and returns edits. Placement balances the counts of the catalog,
which include replicas that were assigned but not yet reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import Edit, TabletAssigned, TabletReplaced
from ebla.actors.master.catalog.records import TableRecord, TabletRecord
from ebla.actors.replication.configuration import FIRST_BALLOT, PACIFICA, Configuration, Peer
from ebla.actors.world import Random, new_id

EDITS_MAX = 500  # per plan, so that one log transaction stays small; the rest is planned right after


class Candidate(NamedTuple):
    uuid: str
    address: str
    host: str


class Plan(NamedTuple):
    edits: list[Edit]
    unplaced: int
    more: bool


class Load:
    """Live replicas per server, of each table and of all, and PacificA primaries: a copy of the catalog's counts, updated while a
    plan is made."""

    def __init__(self, catalog: Catalog) -> None:
        members = catalog.members
        self.total = members.totals()
        self.primaries: Counter[str] = Counter(members.primaries)
        self._of_table = {table: counts.copy() for table, counts in members.of_table.items()}

    def of_table(self, table: str) -> Mapping[str, int]:
        return self._of_table.get(table, {})

    def add(self, table: str, peers: Sequence[Peer], count: int = 1) -> None:
        of_table = self._of_table.setdefault(table, {})
        for peer in peers:
            self.total[peer.uuid] = self.total.get(peer.uuid, 0) + count
            of_table[peer.uuid] = of_table.get(peer.uuid, 0) + count


def choose(
    replicas: int,
    candidates: Sequence[Candidate],
    load: Load,
    table: str,
    avoid: Mapping[str, float],
    random: Random,
) -> tuple[Peer, ...] | None:
    """Choose the servers with the fewest replicas of this table, then of all tables, on distinct hosts.

    Ties are broken at random, so that every server has many different peers. Servers in `avoid` come last.
    None if there are too few hosts.
    """
    of_table, total = load.of_table(table), load.total
    order = list(candidates)
    random.shuffle(order)
    order.sort(key=lambda c: (c.uuid in avoid, of_table.get(c.uuid, 0), total.get(c.uuid, 0)))
    chosen: dict[str, Peer] = {}
    for candidate in order:
        if candidate.host not in chosen:
            chosen[candidate.host] = Peer(candidate.uuid, candidate.address)
            if len(chosen) == replicas:
                return tuple(chosen.values())
    return None


def _first(table: TableRecord, peers: tuple[Peer, ...], load: Load) -> Configuration:
    """The first configuration of a tablet. A PacificA tablet begins in ballot 1, led by the server with the fewest primaries."""
    if table.replication != PACIFICA:
        return Configuration(peers)
    primary = min(peers, key=lambda peer: load.primaries[peer.uuid]).uuid
    load.primaries[primary] += 1
    return Configuration(peers, FIRST_BALLOT, primary=primary, min_members=table.min_members)


class Assignment:
    """Plans of assignments. The times since when tablets are being created start again with the master."""

    def __init__(self, timeout_s: float, random: Random) -> None:
        self._timeout_s = timeout_s
        self._random = random
        self._creating_since: dict[str, float] = {}
        self._avoid: dict[str, float] = {}

    def plan(self, catalog: Catalog, candidates: Sequence[Candidate], now: float, wall_us: int) -> Plan:
        """Replace tablets that timed out, then place preparing ones.

        A tablet without enough servers stays preparing and does not delay others.
        """
        edits: list[Edit] = []
        waiting = [catalog.tablets[tablet] for tablet in catalog.preparing]
        for record in self._timed_out(catalog, now):
            if len(edits) >= EDITS_MAX:
                break
            successor = new_id(self._random)
            edits.append(TabletReplaced(record.tablet, successor, wall_us))
            waiting.append(TabletRecord(successor, record.table, record.bucket, "preparing"))
            for uuid in record.unseen:
                self._avoid[uuid] = now + 2 * self._timeout_s
        if not waiting:
            return Plan(edits, 0, False)
        return self._place(catalog, candidates, waiting, edits)

    def work(self, catalog: Catalog, now: float) -> bool:
        """Whether a plan may have edits."""
        return bool(catalog.preparing) or bool(self._timed_out(catalog, now))

    def _place(
        self,
        catalog: Catalog,
        candidates: Sequence[Candidate],
        waiting: list[TabletRecord],
        edits: list[Edit],
    ) -> Plan:
        load = Load(catalog)
        for edit in edits:
            assert isinstance(edit, TabletReplaced)
            replaced = catalog.tablets[edit.tablet]
            assert replaced.configuration is not None
            load.add(replaced.table, replaced.configuration.peers, -1)
        hosts = len({candidate.host for candidate in candidates})
        unplaced = 0
        for record in waiting:
            replicas = catalog.tables[record.table].replicas
            if replicas > hosts:
                unplaced += 1
                continue
            if len(edits) >= EDITS_MAX:
                return Plan(edits, unplaced, True)
            peers = choose(replicas, candidates, load, record.table, self._avoid, self._random)
            assert peers is not None, "there are as many hosts as replicas"
            load.add(record.table, peers)
            edits.append(TabletAssigned(record.tablet, _first(catalog.tables[record.table], peers, load)))
        return Plan(edits, unplaced, False)

    def _timed_out(self, catalog: Catalog, now: float) -> list[TabletRecord]:
        since = self._creating_since
        for tablet in [tablet for tablet in since if tablet not in catalog.creating]:
            del since[tablet]
        for uuid in [uuid for uuid, until in self._avoid.items() if until <= now]:
            del self._avoid[uuid]
        late: list[TabletRecord] = []
        for tablet in catalog.creating:
            if tablet in catalog.doubted:
                since[tablet] = now  # it may have been running for long, and have rows
            if now - since.setdefault(tablet, now) > self._timeout_s:
                late.append(catalog.tablets[tablet])
        return late
