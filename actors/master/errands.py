"""What the master asks of tablet servers: create this replica, alter that one, delete another. Which, when, and how often.

Await-free: the role runs an errand and says how it ended. What is wanted follows from the committed catalog
and from reports alone, so a restarted master takes up where the old one ended, and nothing is ever sent for a change
that is not durable:

    create    every member of a created tablet's first configuration that has never reported its replica
    alter     the leader of every tablet whose replicas report an older version of its table
    delete    every server that may hold something of a dropped or replaced tablet, until it says it does not

An errand is repeated, with growing pauses, for as long as it is wanted; a server that is not alive is not
called. One at a time per replica, a few per server (a slow one holds up nobody), and no more than `rpcs_max`
in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ebla.actors.master.catalog import CREATING, RUNNING, Catalog, TabletRecord
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.reports import Views
from ebla.actors.master.servers import Servers
from ebla.actors.tablet.raft.messages import Peer
from ebla.actors.world import Random

CREATE, ALTER, DELETE = "create", "alter", "delete"
FORGET_MAX = 500  # tablets forgotten in one edit


class Errand(NamedTuple):
    kind: str
    tablet: str
    uuid: str
    address: str

    @property
    def replica(self) -> tuple[str, str]:
        return self.uuid, self.tablet


class _Pause:
    """After an attempt: not again before `until`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.failures = 0
        self.until = 0.0


class _Ended:
    """A dropped or replaced tablet: who surely holds nothing of it, and since when that is everyone."""

    def __init__(self) -> None:
        self.absent: dict[str, None] = {}
        self.stragglers: dict[str, Peer] = {}
        self.clean_since: float | None = None

    def remaining(self, record: TabletRecord) -> Iterator[Peer]:
        yield from (peer for peer in record.holders() if peer.uuid not in self.absent)
        yield from self.stragglers.values()


class Errands:
    def __init__(self, options: MasterOptions, random: Random, views: Views | None = None) -> None:
        self._options = options
        self._random = random
        self._views = Views() if views is None else views
        self._under_way: dict[tuple[str, str], Errand] = {}
        self._pauses: dict[tuple[str, str], _Pause] = {}
        self._ended: dict[str, _Ended] = {}

    # -- what to do now --------------------------------------------------------------------------------------

    def begin(self, catalog: Catalog, servers: Servers, now: float) -> list[Errand]:
        """Errands to run from now on; each must be followed by `succeeded` or `failed`."""
        per_server: dict[str, int] = {}
        for errand in self._under_way.values():
            per_server[errand.uuid] = per_server.get(errand.uuid, 0) + 1
        begun: list[Errand] = []
        for errand in self._wanted(catalog):
            if len(self._under_way) >= self._options.rpcs_max:
                break
            busy = per_server.get(errand.uuid, 0)
            if busy >= self._options.rpcs_per_server_max or errand.replica in self._under_way:
                continue
            if not self._reachable(errand, servers, now) or self._pausing(errand, now):
                continue
            per_server[errand.uuid] = busy + 1
            self._under_way[errand.replica] = errand
            begun.append(errand)
        return begun

    def still_wanted(self, errand: Errand, catalog: Catalog) -> bool:
        """Asked right before the message leaves: the catalog may have changed since the errand began."""
        record = catalog.tablets.get(errand.tablet)
        if record is None:
            return False
        if errand.kind == CREATE:
            return record.state in (CREATING, RUNNING) and errand.uuid in record.unseen
        if errand.kind == ALTER:
            return errand.tablet in self._views.behind
        return errand.tablet in catalog.ended

    def _wanted(self, catalog: Catalog) -> Iterator[Errand]:
        for tablet in catalog.unseen:
            record = catalog.tablets[tablet]
            for uuid in record.unseen:
                peer = record.member(uuid)
                assert peer is not None, (tablet, uuid)
                yield Errand(CREATE, tablet, uuid, peer.address)
        for tablet in self._views.behind:
            record = catalog.tablets[tablet]
            leader = self._views.of(tablet).leader
            peer = record.member(leader) if leader is not None else None
            if peer is not None:
                yield Errand(ALTER, tablet, peer.uuid, peer.address)
        for tablet in catalog.ended:
            ended = self._ended.setdefault(tablet, _Ended())
            for peer in ended.remaining(catalog.tablets[tablet]):
                yield Errand(DELETE, tablet, peer.uuid, peer.address)

    def _reachable(self, errand: Errand, servers: Servers, now: float) -> bool:
        """Only the server itself can create or alter; a new one at its address knows that the old one is gone."""
        if errand.kind != DELETE:
            return servers.is_alive(errand.uuid, now)
        return servers.answers_at(errand.address, now)

    def _pausing(self, errand: Errand, now: float) -> bool:
        pause = self._pauses.get(errand.replica)
        return pause is not None and pause.kind == errand.kind and now < pause.until

    # -- how it ended ----------------------------------------------------------------------------------------

    def succeeded(self, errand: Errand, now: float) -> None:
        """A created or altered replica is done with when it is reported; a deleted one is done with now."""
        del self._under_way[errand.replica]
        if errand.kind == DELETE:
            self._pauses.pop(errand.replica, None)
            self.absent(errand.tablet, errand.uuid)
        else:
            pause = self._pauses[errand.replica] = _Pause(errand.kind)
            pause.until = now + self._options.rpc_backoff_max_s

    def failed(self, errand: Errand, now: float) -> int:
        """How often it has failed in a row."""
        del self._under_way[errand.replica]
        pause = self._pauses.get(errand.replica)
        if pause is None or pause.kind != errand.kind:
            pause = self._pauses[errand.replica] = _Pause(errand.kind)
        longest = self._options.rpc_backoff_max_s
        wait_s = min(longest, self._options.rpc_backoff_s * 2.0 ** min(pause.failures, 30))
        pause.failures += 1
        pause.until = now + wait_s * self._random.uniform(0.5, 1.0)
        return pause.failures

    def abandoned(self, errand: Errand) -> None:
        """It was not wanted any more and nothing was sent."""
        del self._under_way[errand.replica]

    # -- what reports say ------------------------------------------------------------------------------------

    def absent(self, tablet: str, uuid: str) -> None:
        """The server says that it holds nothing of the tablet."""
        ended = self._ended.setdefault(tablet, _Ended())
        ended.absent[uuid] = None
        ended.stragglers.pop(uuid, None)

    def straggler(self, tablet: str, peer: Peer) -> None:
        """The server reports a replica of a tablet that has ended: it is to be deleted, again if need be."""
        ended = self._ended.setdefault(tablet, _Ended())
        ended.absent.pop(peer.uuid, None)
        ended.stragglers[peer.uuid] = peer
        ended.clean_since = None

    # -- when to forget --------------------------------------------------------------------------------------

    def forgettable(self, catalog: Catalog, now: float, wall_us: int) -> tuple[str, ...]:
        """Ended tablets that no server holds anything of, or that were waited for long enough."""
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
        """Pauses of replicas that nobody wants anything of any more."""
        useless = [
            (uuid, tablet)
            for uuid, tablet in self._pauses
            if not (tablet in catalog.unseen or tablet in catalog.ended or tablet in self._views.behind)
        ]
        for replica in useless:
            del self._pauses[replica]
