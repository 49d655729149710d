"""The errands that are due: requests of the master to tablet servers.

Await-free: the role runs an errand and reports its outcome. Errands follow from the committed catalog and
from reports alone, so a restarted master continues, and no request is sent for a change that is not
durable:

    create    to every member of a created tablet's first configuration that has never reported its replica. A voter
              of a later ballot of a PacificA tablet gets a copy from its primary instead: the voter may have
              acknowledged entries before its first report, and an empty replica would count as one with all of them
    alter     to the leader of every tablet whose replicas report an older version of its table
    repair    to the leader of every tablet whose members need a change: one change (repair/repairs.py)
    tombstone to every server that left a tablet's configuration, until it has only a tombstone of the tablet;
              and to every server with a stray replica, after the leader has reported that it is not adding
              that server; of a PacificA tablet only while all of its voters work
    delete    to every server that may have data of a dropped or replaced tablet, until it reports that it
              has none

An errand is repeated, with growing pauses, as long as it is needed; a server that is not alive is not
called. There is one errand at a time per replica, a few per server (so that a slow server does not delay
others), and at most `rpcs_max` in all.

While many tablets want errands, `begin` looks at all of them at most every `bg_s`, and keeps the errands for which
there is no room yet; in between it begins the kept ones. If the end of each errand led to a look at all tablets,
the time would grow with the square of their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import CREATING, RUNNING, TabletRecord
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.repair.repairs import Repairs
from ebla.actors.master.rules import healing
from ebla.actors.replication.configuration import FIRST_BALLOT, VOTER, Order, Peer
from ebla.actors.world import Random

CREATE, ALTER, REPAIR, TOMBSTONE, DELETE = "create", "alter", "repair", "tombstone", "delete"
FORGET_MAX = 500  # tablets forgotten in one edit
LOOKED_MAX = 256  # tablets that are looked at after every errand; more of them only in turns
TURN = 0.9  # of bg_s, at least, between two looks at more tablets


class Errand(NamedTuple):
    """`as_of`: the configuration of a repair or a tombstone. `version`: of an alteration; a newer version
    does not wait for the pause. `term`: the term in which a leader reported that it is not adding the server
    of the tombstone."""

    kind: str
    tablet: str
    uuid: str
    address: str
    as_of: Order = (0, -1)
    version: int = 0
    term: int = 0

    @property
    def replica(self) -> tuple[str, str]:
        return self.uuid, self.tablet


class _Pause:
    """The pause after an attempt: the same errand does not begin before `until`."""

    def __init__(self, errand: Errand) -> None:
        self.of = errand
        self.failures = 0
        self.until = 0.0


class _Ended:
    """A dropped or replaced tablet: the servers that certainly have no data of the tablet, and the time since
    when no server has."""

    def __init__(self) -> None:
        self.absent: dict[str, None] = {}
        self.stragglers: dict[str, Peer] = {}
        self.clean_since: float | None = None

    def remaining(self, record: TabletRecord) -> Iterator[Peer]:
        yield from (peer for peer in record.holders() if peer.uuid not in self.absent)
        yield from self.stragglers.values()


class Errands:
    def __init__(
        self,
        options: MasterOptions,
        random: Random,
        views: Views | None = None,
        repairs: Repairs | None = None,
    ) -> None:
        self._options = options
        self._random = random
        self._views = Views() if views is None else views
        self._repairs = Repairs(options, random, self._views) if repairs is None else repairs
        # Former members without a replica, with the configuration at that time; True: with a tombstone.
        self.departed: dict[tuple[str, str], tuple[Order, bool]] = {}
        self._under_way: dict[tuple[str, str], Errand] = {}
        self._busy: dict[str, int] = {}  # errands under way, by server
        self._kept: dict[str, deque[Errand]] = {}  # without room at the last look, by server
        self._looked_at = -inf
        self._pauses: dict[tuple[str, str], _Pause] = {}
        self._ended: dict[str, _Ended] = {}

    # -- what to do now --------------------------------------------------------------------------------------

    def begin(self, catalog: Catalog, servers: Servers, now: float) -> list[Errand]:
        """Begin the errands that are due. Each must end by `succeeded`, `gone`, `failed` or `abandoned`."""
        many = self._has_many(catalog)
        if many:
            if now < self._looked_at + TURN * self._options.bg_s:
                return self._go_on(catalog, servers, now)
            self._looked_at = now
        self._kept = {}
        begun: list[Errand] = []
        for errand in self._wanted(catalog, servers, now):
            if not many and not self._has_room():
                break
            if not self._may_begin(errand, servers, now):
                continue
            if self._has_room(errand.uuid):
                begun.append(self._begin(errand))
            else:
                self._kept.setdefault(errand.uuid, deque()).append(errand)
        return begun

    def _go_on(self, catalog: Catalog, servers: Servers, now: float) -> list[Errand]:
        """Begin errands of the last look at all tablets for which there is room now, and repairs, which come in turns anyway."""
        begun: list[Errand] = []
        for uuid, kept in list(self._kept.items()):
            while kept and self._has_room(uuid):
                errand = kept.popleft()
                if self._may_begin(errand, servers, now) and self.still_wanted(errand, catalog):
                    begun.append(self._begin(errand))
            if not kept:
                del self._kept[uuid]
        for errand in self._repairing(catalog, servers, now) if self._has_room() else ():
            if self._has_room(errand.uuid) and self._may_begin(errand, servers, now):
                begun.append(self._begin(errand))
            if not self._has_room():
                break
        return begun

    def _has_many(self, catalog: Catalog) -> bool:
        views = self._views
        wanting = len(catalog.unseen) + len(catalog.formers) + len(catalog.ended)
        return wanting + len(views.behind) + len(views.strays) > LOOKED_MAX

    def _may_begin(self, errand: Errand, servers: Servers, now: float) -> bool:
        return (
            errand.replica not in self._under_way
            and self._reachable(errand, servers, now)
            and not self._pausing(errand, now)
        )

    def _has_room(self, uuid: str = "") -> bool:
        room = len(self._under_way) < self._options.rpcs_max
        return room and self._busy.get(uuid, 0) < self._options.rpcs_per_server_max

    def _has_turn(self, uuid: str) -> bool:
        """Whether the server has room for one more errand, as soon as there is room for any."""
        kept = len(self._kept.get(uuid, ()))
        return self._busy.get(uuid, 0) + kept < self._options.rpcs_per_server_max

    def _begin(self, errand: Errand) -> Errand:
        self._under_way[errand.replica] = errand
        self._busy[errand.uuid] = self._busy.get(errand.uuid, 0) + 1
        return errand

    def _end(self, errand: Errand) -> None:
        del self._under_way[errand.replica]
        self._busy[errand.uuid] -= 1

    def still_wanted(self, errand: Errand, catalog: Catalog) -> bool:
        """Whether the errand is still due. Call this right before sending: the catalog may have changed."""
        record = catalog.tablets.get(errand.tablet)
        if record is None:
            return False
        if errand.kind == CREATE:
            return errand.uuid in record.unseen and _creates(record, errand.uuid)
        if errand.kind == ALTER:
            return errand.tablet in self._views.behind
        if errand.kind in (REPAIR, TOMBSTONE) and not self._repairs.cures():
            return False
        if errand.kind == REPAIR:
            leader = self._repairs.leader(catalog, errand.tablet)
            return leader is not None and leader.uuid == errand.uuid
        if errand.kind == TOMBSTONE:
            excluded_in = self._views.excluded_in(catalog, errand.tablet, errand.uuid)
            left = record.state == RUNNING and record.member(errand.uuid) is None
            return left and excluded_in is not None and self._is_surplus(catalog, record)
        return errand.tablet in catalog.ended

    def _wanted(self, catalog: Catalog, servers: Servers, now: float) -> Iterator[Errand]:
        for tablet in catalog.unseen:
            record = catalog.tablets[tablet]
            for uuid in record.unseen:
                peer = record.member(uuid)
                assert peer is not None, (tablet, uuid)
                if _creates(record, uuid):
                    yield Errand(CREATE, tablet, uuid, peer.address)
        for tablet in self._views.behind:
            record = catalog.tablets[tablet]
            leader = self._views.of(tablet).leader
            peer = record.member(leader) if leader is not None else None
            if peer is not None:
                version = catalog.tables[record.table].schema.version
                yield Errand(ALTER, tablet, peer.uuid, peer.address, version=version)
        yield from self._repairing(catalog, servers, now)
        yield from self._tombstoning(catalog, servers)
        for tablet in catalog.ended:
            ended = self._ended.setdefault(tablet, _Ended())
            for uuid in self._views.remains.pop(tablet, ()):
                if (server := servers.get(uuid)) is not None:
                    self.straggler(tablet, Peer(uuid, server.address))
            if ended.clean_since is not None:
                continue
            for peer in ended.remaining(catalog.tablets[tablet]):
                yield Errand(DELETE, tablet, peer.uuid, peer.address)

    def _repairing(self, catalog: Catalog, servers: Servers, now: float) -> Iterator[Errand]:
        for tablet in self._repairs.unsettled(now):
            leader = self._repairs.leader(catalog, tablet)
            configuration = catalog.tablets[tablet].configuration
            if leader is None or configuration is None:
                continue
            errand = Errand(REPAIR, tablet, leader.uuid, leader.address, configuration.order)
            # This costs less than the decision, which would also keep a place at another server.
            if not self._may_begin(errand, servers, now):
                continue
            busy = not self._has_turn(leader.uuid)
            if self._repairs.decide(catalog, servers, tablet, now, busy=busy) is not None:
                yield errand

    def _tombstoning(self, catalog: Catalog, servers: Servers) -> Iterator[Errand]:
        if not self._repairs.cures():
            return
        for tablet in catalog.formers:
            record = catalog.tablets[tablet]
            if (
                record.state == RUNNING
                and record.configuration is not None
                and self._is_surplus(catalog, record)
            ):
                for peer in record.former:
                    term = self._views.excluded_in(catalog, tablet, peer.uuid)
                    if term is not None:
                        as_of = record.configuration.order
                        yield Errand(TOMBSTONE, tablet, peer.uuid, peer.address, as_of, term=term)
        for uuid, tablet in self._views.strays:
            known, server = catalog.tablets.get(tablet), servers.get(uuid)
            if known is None or known.state != RUNNING or known.configuration is None or server is None:
                continue
            if not self._is_surplus(catalog, known):
                continue
            if term := self._views.excluded_in(catalog, tablet, uuid):
                yield Errand(TOMBSTONE, tablet, uuid, server.address, known.configuration.order, term=term)

    def _is_surplus(self, catalog: Catalog, record: TabletRecord) -> bool:
        """Whether the tablet needs no data of servers that are no members. A PacificA tablet may shrink to `min_members` voters;
        if these are lost, the members that left last have the most that is left."""
        if record.appointed is None:
            return True
        situation = self._views.situation(catalog, record.tablet)
        return situation is not None and healing.is_whole(situation)

    def _reachable(self, errand: Errand, servers: Servers, now: float) -> bool:
        """Whether to call now.

        A new server at the address can confirm a deletion, because the old one is gone; all other errands
        need the server itself.
        """
        if errand.kind not in (TOMBSTONE, DELETE):
            return servers.answers(errand.uuid, now)
        return servers.answers_at(errand.address, now)

    def _pausing(self, errand: Errand, now: float) -> bool:
        pause = self._pauses.get(errand.replica)
        return pause is not None and pause.of == errand and now < pause.until

    # -- outcomes --------------------------------------------------------------------------------------------

    def succeeded(self, errand: Errand, now: float) -> None:
        """End an errand. A deletion is complete now; a creation or change is complete when it is reported."""
        self._end(errand)
        if errand.kind == DELETE:
            self._pauses.pop(errand.replica, None)
            self.absent(errand.tablet, errand.uuid)
            return
        if errand.kind == TOMBSTONE:
            self.departed[errand.replica] = errand.as_of, True
        pause = self._pauses[errand.replica] = _Pause(errand)
        pause.until = now + self._options.rpc_backoff_max_s

    def gone(self, errand: Errand) -> None:
        """End a deletion at a server that has no replica, or is another server now."""
        self._end(errand)
        self._pauses.pop(errand.replica, None)
        if errand.kind == DELETE:
            self.absent(errand.tablet, errand.uuid)
        else:
            self.departed[errand.replica] = errand.as_of, False
            self._views.strays.pop(errand.replica, None)

    def failed(self, errand: Errand, now: float) -> int:
        """End an attempt. Return the number of consecutive failures."""
        self._end(errand)
        pause = self._pauses.get(errand.replica)
        if pause is None or pause.of != errand:
            pause = self._pauses[errand.replica] = _Pause(errand)
        longest = self._options.rpc_backoff_max_s
        wait_s = min(longest, self._options.rpc_backoff_s * 2.0 ** min(pause.failures, 30))
        pause.failures += 1
        pause.until = now + wait_s * self._random.uniform(0.5, 1.0)
        return pause.failures

    def abandoned(self, errand: Errand) -> None:
        """End an errand that was no longer due; nothing was sent."""
        self._end(errand)

    # -- reports ---------------------------------------------------------------------------------------------

    def absent(self, tablet: str, uuid: str) -> None:
        """Note that the server has no data of the tablet."""
        ended = self._ended.setdefault(tablet, _Ended())
        ended.absent[uuid] = None
        ended.stragglers.pop(uuid, None)

    def straggler(self, tablet: str, peer: Peer) -> None:
        """Note a replica of an ended tablet on the server; it must be deleted, even if one was before."""
        ended = self._ended.setdefault(tablet, _Ended())
        ended.absent.pop(peer.uuid, None)
        ended.stragglers[peer.uuid] = peer
        ended.clean_since = None

    def former_gone(self, catalog: Catalog) -> dict[tuple[str, bool], tuple[str, ...]]:
        """List the tablets of former members without a replica, by server and by whether a tombstone stays.

        A note of an older configuration is dropped, because the server may have been a member again since.
        """
        found: dict[tuple[str, bool], tuple[str, ...]] = {}
        for (uuid, tablet), (as_of, tombstone) in list(self.departed.items()):
            record = catalog.tablets.get(tablet)
            known = None if record is None else record.configuration
            former = () if record is None or tablet not in catalog.formers else record.former
            if known is not None and known.order == as_of and any(peer.uuid == uuid for peer in former):
                found[uuid, tombstone] = (*found.get((uuid, tombstone), ()), tablet)
            else:
                del self.departed[uuid, tablet]
        return found

    # -- ended tablets ---------------------------------------------------------------------------------------

    def forgettable(self, catalog: Catalog, now: float, wall_us: int) -> tuple[str, ...]:
        """List ended tablets of which no server has data, or whose wait is over."""
        for tablet in [tablet for tablet in self._ended if tablet not in catalog.ended]:
            del self._ended[tablet]
        self._forget_pauses(catalog)
        found: list[str] = []
        for tablet in catalog.ended:
            record = catalog.tablets[tablet]
            ended = self._ended.setdefault(tablet, _Ended())
            if ended.clean_since is None and not any(True for _ in ended.remaining(record)):
                ended.clean_since = now
            clean = ended.clean_since is not None and now - ended.clean_since >= self._options.forget_min_s
            expired = wall_us - record.ended_us >= self._options.forget_max_s * 1e6
            if clean or expired:
                found.append(tablet)
                if len(found) == FORGET_MAX:
                    break
        return tuple(found)

    def _forget_pauses(self, catalog: Catalog) -> None:
        """Drop the pauses of replicas without errands."""
        useless = [
            (uuid, tablet) for uuid, tablet in self._pauses if not self._matters(catalog, uuid, tablet)
        ]
        for replica in useless:
            del self._pauses[replica]

    def _matters(self, catalog: Catalog, uuid: str, tablet: str) -> bool:
        views = self._views
        return (
            tablet in catalog.unseen
            or tablet in catalog.ended
            or tablet in catalog.formers
            or tablet in views.behind
            or tablet in views.unsettled
            or (uuid, tablet) in views.strays
        )


def _creates(record: TabletRecord, uuid: str) -> bool:
    """Whether the master may still create a replica on a member that has reported none. A voter of a later PacificA ballot may have
    acknowledged entries and lost them since, so its primary copies it; unless no primary ever led: one is ordered only after its
    replica was reported, and a configuration that a primary has asked for has `settled` above 0."""
    appointed, peer = record.appointed, record.member(uuid)
    if record.state not in (CREATING, RUNNING):
        return False
    if appointed is None or appointed.index == FIRST_BALLOT or (peer is not None and peer.member != VOTER):
        return True
    return appointed.settled == 0 and appointed.primary in record.unseen
