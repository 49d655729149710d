"""PacificA tablets of an older copy of the catalog that an operator has accepted. Await-free.

The catalog that was lost may have appointed primaries that this one does not know. So a ballot that is new here may have been given
before, and other replicas than the voters here may have the last acknowledged writes. The master begins when every lease of the lost
catalog is over (leadership/active_term.py), so nothing leads then, and each of these tablets is in doubt: it gets no configuration, no
order and no answer. The edit with which the master begins makes the doubts durable (MasterBegan), and so does the tablet's next
configuration their end: a later master has the doubts that are left, whatever its settings say.

The doubt ends when the tablet's last configuration is known. It is the newest of those in the catalog and in the replicas' logs,
once every member of it has shown what it has:

    a running replica, whose log has no newer configuration
    another replica, or a tombstone, that has entered no later ballot
    none at all, by a full report, if it is a learner: it has not got its copy yet. Its server may send no beacons then

Why that suffices: only members become primaries, and a ballot that was led is in the log of its primary. So the first of the later
ballots that was led would be shown by a member. None was, then; nothing was committed in one, and every voter of the last
configuration holds all that is committed (tablet/pacifica). One of them leads next, in a ballot so far above those that are shown that
the lost catalog cannot have given it.

Only an operator goes on without a member that does not return (forcing.py). What the lost catalog forced on a server that was no
member, and that does not answer now, is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from ebla.actors.detector.detector import Stamp
from ebla.actors.master.catalog.lineage import ACCEPTED
from ebla.actors.master.cluster.reports import ballot_of
from ebla.actors.messages import ReplicaReport, ServerInstance, TabletReport
from ebla.actors.replication.configuration import VOTER, Configuration, Peer
from ebla.actors.replication.health import RUNNING


class Shown(NamedTuple):
    """A replica, as the incarnation `start` of its server has shown it. `ballot`: the highest that it has entered."""

    start: str
    runs: bool
    ballot: int
    configuration: Configuration


class Doubts:
    """What servers have shown, in this term, of the `tablets` in doubt. `ends_from`: no doubt ends before: a live server may still have
    something to show."""

    def __init__(self, tablets: Iterable[str] = (), ends_from: float = -inf) -> None:
        self.ends_from = ends_from
        self._shown: dict[str, dict[str, Shown]] = {tablet: {} for tablet in tablets}
        # By tablet: servers with a replica that shows no ballot, because it could not be loaded.
        self._hidden: dict[str, dict[str, None]] = {tablet: {} for tablet in self._shown}
        # Servers that have reported in full.
        self._in_full: dict[str, None] = {}

    def __contains__(self, tablet: str) -> bool:
        return tablet in self._shown

    def end(self, tablet: str) -> None:
        self._shown.pop(tablet, None)
        self._hidden.pop(tablet, None)

    def take(self, instance: ServerInstance, report: TabletReport) -> None:
        if not self._shown:
            return
        if not report.incremental:
            self._in_full[instance.uuid] = None
        for replica in report.updated:
            shown = self._shown.get(replica.tablet)
            if shown is None:
                continue
            if replica.view is None:
                self._hidden[replica.tablet][instance.uuid] = None
                continue
            self._hidden[replica.tablet].pop(instance.uuid, None)
            in_force = replica.pending or replica.configuration
            shown[instance.uuid] = Shown(instance.start, runs(replica), ballot_of(replica), in_force)

    def last(self, tablet: str, stored: Configuration) -> Configuration:
        """The newest configuration that is known. `stored`: the one in the catalog."""
        known = (each.configuration for each in self._shown[tablet].values())
        return max((stored, *known), key=lambda each: each.order)

    def followed(self, tablet: str, stored: Configuration) -> Configuration:
        """The configuration that the next one follows: the last one, with a ballot beyond all others."""
        highest = max([stored.index, *(each.ballot for each in self._shown[tablet].values())])
        return replace(self.last(tablet, stored), index=highest + ACCEPTED)

    def why(
        self, now: float, tablet: str, stored: Configuration, lease: Callable[[str], Stamp | None]
    ) -> str:
        """Why the last configuration is not known yet, "" if it is. `lease`: of a server, with the process that has it."""
        if now < self.ends_from:
            return "its servers are still reporting their replicas"
        last = self.last(tablet, stored)
        known = (each.configuration.index for each in self._shown[tablet].values())
        if max([stored.index, *known]) > last.index:
            return f"ballot {last.index} was forced, and there are later ones that do not know of it"
        lacking: dict[str, list[str]] = {}
        for peer in last.peers:
            if not self._knows(tablet, peer, last, stamp := lease(peer.uuid)):
                lacking.setdefault(self._lacks(tablet, peer, stamp), []).append(peer.address)
        if not lacking:
            return ""
        members = "; ".join(f"{what} {', '.join(at)}" for what, at in lacking.items())
        return f"its last ballot may be later than {last.index}: {members}"

    def _knows(self, tablet: str, peer: Peer, last: Configuration, stamp: Stamp | None) -> bool:
        """Whether this member of the last configuration has led no later one."""
        shown = self._shown[tablet].get(peer.uuid)
        if shown is None:
            learner = peer.member != VOTER and peer.uuid not in self._hidden[tablet]
            return learner and peer.uuid in self._in_full  # without a replica it has led nothing
        if stamp is None or shown.start != stamp.start:
            return False
        return shown.runs or shown.ballot <= last.index

    def _lacks(self, tablet: str, peer: Peer, stamp: Stamp | None) -> str:
        """What an operator has to know of a member that is not known to have led no later ballot."""
        shown = self._shown[tablet].get(peer.uuid)
        if peer.uuid in self._hidden[tablet] or (stamp is not None and shown and shown.start == stamp.start):
            return "its replica failed at"
        if shown is None and peer.uuid in self._in_full:
            return "it has no replica at"
        return "its replica has not been seen at"


def runs(replica: ReplicaReport) -> bool:
    return replica.state == RUNNING and replica.error is None
