"""The next configurations of PacificA tablets, and the orders that primaries wait for. Await-free.

A tablet gets another configuration because

    its primary asks for one            the rules of replication/appointments.py say whether it is granted
    a server has ended                  another voter leads, and a silent voter loses its vote, as does a primary that died
    its table's min_members changed     every tablet gets the new number
    its primary has ended before        and no other voter was alive then: one that is alive now leads
    its primary has declined to lead    the server lives, and has no running replica, or an older copy: another voter leads
    its primary does not lead           it led this ballot until its lease was over, or its process is not the one that the ballot is
                                        for: it gets a new ballot, or a less doubtful voter

`unled` has the tablets whose primary is not known to lead in the ballot of the catalog: all of them when a master begins,
then those whose configuration changed, whose primary has ended, or reports that it does not lead. Each is ordered, or changed, until
its primary reports that it leads, or follows an order.

A ballot is for one process: that which its primary had when the configuration became durable (`primary_start` in the catalog). No
order of it goes to another. So no ballot is led twice, not even by a server that returns on a copy of its directory.

A report counts only in the incarnation that sent it, which must be the one that has the server's lease. A report may be older
than the last order, so it never suffices to appoint another primary: the primary gets an order, and if it declines that order, it
will not lead in that ballot, however late any message is.

Tablets of an accepted older catalog may be in doubt (doubts.py): nothing of the above is done for them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from ebla.actors.detector.detector import DIED, NEW, SILENT, Detector, End, Stamp
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import CREATING, RUNNING
from ebla.actors.master.pacifica.doubts import Doubts, runs
from ebla.actors.master.pacifica.voters import Ranks, Voters
from ebla.actors.messages import ReplicaReport, ServerInstance, TabletReport
from ebla.actors.messages.appointments import ConfigurationsRequest
from ebla.actors.replication.appointments import after_end, appointed, grant
from ebla.actors.replication.configuration import Configuration
from ebla.storage.errors import InvalidArgument

log = logging.getLogger(__name__)


class Reported(NamedTuple):
    """The replica of a tablet's primary, as reported by the incarnation `start` of its server: it runs in `ballot` and does not
    lead, or (`declined`) it will never lead in `ballot`, nor in an earlier one. A replica that does not run shows ballot 0. Until
    `asks_until` its request for a successor is on the way: another ballot would undo the hand-over."""

    uuid: str
    start: str
    ballot: int
    declined: bool = False
    asks_until: float = -inf


class Plan(NamedTuple):
    """`configurations`: the next one of each tablet, to be made durable in one edit, together with the `ends` and their
    incarnations."""

    configurations: dict[str, Configuration]
    ends: list[End]


class Planner:
    """`detector`: of this term. `settled_from`: when every live server should have reported; no doubt ends before."""

    def __init__(self, catalog: Catalog, detector: Detector, settled_from: float = -inf) -> None:
        self._catalog = catalog
        self._detector = detector
        self.doubts = Doubts(catalog.doubted, settled_from)
        self.unled: dict[str, None] = dict.fromkeys(tablet for tablet, _ in self._all())
        self.altered = dict(self.unled)  # tablets whose `min_members` may differ from their table's
        self._reported: dict[str, Reported] = {}
        self.voters = Voters(detector)
        # By tablet: the ballot of the configuration that its primary reported as committed.
        self._settled: dict[str, int] = {}
        self._committing: Collection[str] = ()  # tablets whose next configurations are being made durable
        self.forcing: dict[str, None] = {}  # tablets whose forced configuration is being made durable

    def stored(self, tablet: str) -> Configuration | None:
        """The configuration in the catalog; None if this is no PacificA tablet with replicas."""
        record = self._catalog.tablets.get(tablet)
        return record.appointed if record is not None and record.state in (CREATING, RUNNING) else None

    def _all(self) -> Iterator[tuple[str, Configuration]]:
        for tablet in self._catalog.members.appointed:
            known = self.stored(tablet)
            if known is not None:
                yield tablet, known

    # -- news ------------------------------------------------------------------------------------------------

    def changed(self, tablet: str) -> None:
        """Note that the tablet has another configuration, or its first one."""
        self.doubts.end(tablet)
        self.unled[tablet] = None

    def follows(self, tablet: str, ballot: int) -> None:
        """Note that the primary leads in this ballot, or got the configuration of this ballot in its lease."""
        known = self.stored(tablet)
        if tablet not in self.doubts and (known is None or known.index == ballot):
            self.unled.pop(tablet, None)
            self._reported.pop(tablet, None)

    def take(self, now: float, instance: ServerInstance, report: TabletReport) -> bool:
        """Take a report of the present incarnation of a server. Return whether a primary in it does not lead."""
        self.doubts.take(instance, report)
        noted = False
        present = {replica.tablet: replica for replica in report.updated}
        for tablet, replica in present.items():
            known = self.stored(tablet)
            if known is not None:
                self.voters.shown(instance, replica)
                if known.primary == instance.uuid:
                    noted |= self._take(now, tablet, known, instance, replica)
        if report.incremental:
            absent = [tablet for tablet in report.removed if tablet not in present]
        else:
            if self.voters.keep(self._catalog.members.appointed, self.stored):
                self._settled = {
                    tablet: each for tablet, each in self._settled.items() if self.stored(tablet)
                }
            expected = dict.fromkeys(
                [*self._catalog.members.of(instance.uuid), *self.voters.shown_by(instance.uuid)]
            )
            absent = [tablet for tablet in expected if tablet not in present and self.stored(tablet)]
        for tablet in absent:
            known = self.stored(tablet)
            if known is None:
                self.voters.forget(tablet)
                self._settled.pop(tablet, None)
            else:
                self.voters.absent(instance, tablet)
            waits = instance.uuid in self._catalog.tablets[tablet].unseen if known is not None else True
            if known is not None and known.primary == instance.uuid and not waits:
                self._note(tablet, Reported(instance.uuid, instance.start, 0))
                noted = True
        return noted

    def _take(
        self, now: float, tablet: str, known: Configuration, instance: ServerInstance, replica: ReplicaReport
    ) -> bool:
        well = runs(replica)
        if well and replica.leads and replica.term == known.index:
            self.follows(tablet, known.index)
            if replica.commit_index:  # before that it shows the configuration of its creation
                self._settled[tablet] = replica.configuration.index
            return False
        made = Reported(instance.uuid, instance.start, replica.term if well else 0)
        if well and replica.asks:
            made = made._replace(asks_until=now + self._detector.limits.grace_s)
            before = self._reported.get(tablet, made)
            if before._replace(asks_until=made.asks_until) == made:
                made = before  # a repeated report prolongs nothing
        self._note(tablet, made)
        return True

    def declined(self, tablet: str, stamp: Stamp, ballot: int) -> None:
        """Note that the process of `stamp`, which was ordered to lead in this ballot, will not do so: its replica does not run, or is
        an old copy."""
        known = self.stored(tablet)
        if known is not None and known.primary is not None and known.index == ballot:
            self.voters.declined(tablet, known.primary)
            self._note(tablet, Reported(known.primary, stamp.start, ballot, declined=True))

    def _note(self, tablet: str, reported: Reported) -> None:
        """A replica that does not run, or still asks for a successor, does not take back that it has declined."""
        before = self._reported.get(tablet)
        has_declined = before is not None and before.declined and before.start == reported.start
        is_later = before is not None and reported.ballot > before.ballot
        if not has_declined or is_later or (reported.ballot > 0 and reported.asks_until == -inf):
            self._reported[tablet] = reported
        self.unled[tablet] = None

    def is_member(self, uuid: str) -> bool:
        """Whether the server is a member of some tablet."""
        return any(tablet in self._catalog.members.appointed for tablet in self._catalog.members.of(uuid))

    def addresses(self, uuid: str) -> set[str]:
        """Where the server was when it became a member of tablets."""
        appointed = self._catalog.members.appointed
        held = self._catalog.members.held.items()
        return {
            at for (each, at), tablets in held if each == uuid and not appointed.keys().isdisjoint(tablets)
        }

    # -- decisions -------------------------------------------------------------------------------------------

    def plan(self, now: float, requests: Sequence[ConfigurationsRequest]) -> Plan:
        """Decide what is due. Until the plan is durable, or given up (`settled`), the servers that are ending get no answer and no
        order, and no tablet of `configurations` gets an order of the ballot before."""
        plan = Plan({}, self._detector.decide(now))
        ranks = Ranks(now, self._all())
        if plan.ends:
            for tablet, before in self._all():
                if tablet not in self.doubts:
                    self._end(plan, ranks, tablet, before)
        for request in requests:
            if self.is_leased(request.instance):
                self._grant(plan, ranks, request)
        for tablet in list(self.unled):
            known = self.stored(tablet)
            if known is None:
                del self.unled[tablet]
                self._reported.pop(tablet, None)
            elif tablet not in plan.configurations:
                if tablet in self.doubts:
                    made = self._after_doubt(ranks, tablet, known)
                else:
                    made = self._without_lead(ranks, tablet, known)
                if made is not None:
                    plan.configurations[tablet] = made
        for tablet in list(self.altered):
            known = self.stored(tablet)
            least = 0 if known is None else self._least(tablet)
            if known is None or known.min_members == least:
                del self.altered[tablet]
            elif (
                tablet not in plan.configurations
                and tablet not in self.doubts
                and self._may_lead_on(tablet, known)
            ):
                plan.configurations[tablet] = replace(known, min_members=least, index=known.index + 1)
        self._committing = plan.configurations
        return plan

    def settled(self) -> None:
        """Note that the last plan is durable, or given up."""
        self._committing = ()

    def _least(self, tablet: str) -> int:
        return self._catalog.tables[self._catalog.tablets[tablet].table].min_members

    def is_leased(self, instance: ServerInstance) -> bool:
        """Whether this incarnation has the server's lease, as far as the master knows."""
        stamp = self._detector.lease(instance.uuid)
        return stamp is not None and stamp.start == instance.start

    def _end(self, plan: Plan, ranks: Ranks, tablet: str, known: Configuration) -> None:
        """Take the tablet's replicas away from all servers that end. However many there are, one ballot follows. A secondary that died
        may be back before anything is written: the primary decides."""
        present = known
        for end in plan.ends:
            if end.reason == NEW or (end.reason == DIED and end.uuid != present.primary):
                continue
            made = self._after_end(ranks, tablet, present, end.uuid, silent=end.reason in (SILENT, DIED))
            if made is not None:
                present = replace(made, index=known.index + 1)
            elif end.uuid == present.primary:
                self.unled[tablet] = None  # a voter that returns may lead
        if present is not known:
            plan.configurations[tablet] = present

    def _grant(self, plan: Plan, ranks: Ranks, request: ConfigurationsRequest) -> None:
        for each in request.requested:
            tablet, asked = each.tablet, each.configuration
            known = self.stored(tablet)
            if known is None or tablet in plan.configurations or tablet in self.doubts:
                continue  # the answer is what the catalog has then; no answer about a tablet in doubt
            try:
                granted = grant(known, asked, request.instance.uuid)
            except InvalidArgument as error:
                log.error("tablet %s stays as it is: %s", tablet, error)
                continue
            made = None
            if granted is not None:
                made = self.voters.after_request(ranks, tablet, known, granted, each.successor)
            if made is not None:
                ranks.moved(known, made)
                plan.configurations[tablet] = made

    def _without_lead(self, ranks: Ranks, tablet: str, known: Configuration) -> Configuration | None:
        """The configuration after that of a tablet whose primary does not lead; None if an order, or time, is enough."""
        assert known.primary is not None, tablet
        if self._detector.has_ended(known.primary) or self.has_declined(tablet):
            return self._after_end(ranks, tablet, known, known.primary, silent=True)
        reported = self._present_report(tablet, known)
        if reported is not None and reported.ballot > known.index:
            return None
        if self._is_over(tablet, known):
            # Its present process may have reported before it was the primary's, and has no reason to report again.
            if self.voters.runs(tablet, known.primary) is None:
                return None
        elif reported is None or reported.ballot < known.index or ranks.now < reported.asks_until:
            return None
        known = self._held_by_all(tablet, known)
        primary = self._again(tablet, known)
        return None if self._waits(ranks.now, tablet, known, primary) else appointed(known, primary)

    def _may_lead_on(self, tablet: str, known: Configuration) -> bool:
        """Whether the next configuration may keep the primary: the process of the ballot has a lease. Otherwise the server's next process
        would lead, although another voter may have a longer log."""
        leased = self._detector.lease(known.primary or "") is not None
        return leased and not self._is_over(tablet, known)

    def _is_over(self, tablet: str, known: Configuration) -> bool:
        """Whether the process that the ballot is for has ended, and the primary's server has another one. This one never leads in that
        ballot: its directory may be a copy of before the ballot, and not know of it."""
        stamp = self._detector.lease(known.primary or "")
        return stamp is not None and stamp.start != self._catalog.tablets[tablet].primary_start

    def _again(self, tablet: str, known: Configuration) -> str:
        """The voter that leads after a primary that waits for another ballot: the same one, unless it may not lead, or another voter is
        less doubtful."""
        able = [
            peer.uuid for peer in known.voters() if self.voters.may_lead(tablet, peer.uuid, known.settled)
        ]
        assert known.primary is not None, tablet
        return min(
            able or [known.primary],
            key=lambda uuid: (*self.voters.doubt(tablet, uuid), uuid != known.primary),
        )

    def _after_doubt(self, ranks: Ranks, tablet: str, known: Configuration) -> Configuration | None:
        """The configuration that ends a doubt; None if the last one is not known, or none of its voters may lead."""
        if self.doubts.why(ranks.now, tablet, known, self._detector.lease):
            return None
        last = self.doubts.last(tablet, known)
        able = [peer.uuid for peer in last.voters() if self.voters.may_lead(tablet, peer.uuid, last.settled)]
        if not able:
            return None
        primary = min(
            able,
            key=lambda uuid: (
                *self.voters.doubt(tablet, uuid),
                uuid != last.primary,
                ranks.count(uuid),
                uuid,
            ),
        )
        made = appointed(self.doubts.followed(tablet, known), primary)
        ranks.moved(known, made)
        return made

    def followed(self, tablet: str, known: Configuration) -> Configuration:
        """What the next configuration follows: the stored one, except of a tablet in doubt."""
        return self.doubts.followed(tablet, known) if tablet in self.doubts else known

    def why_in_doubt(self, now: float, tablet: str) -> str:
        """For operators: why the tablet in doubt gets no primary, "" if it is not in doubt."""
        known = self.stored(tablet)
        if known is None or tablet not in self.doubts:
            return ""
        why = self.doubts.why(now, tablet, known, self._detector.lease)
        return (
            f"the catalog is an older copy, and {why or 'no voter of the last ballot has a running replica'}"
        )

    def _present_report(self, tablet: str, known: Configuration) -> Reported | None:
        """The report of the primary's replica by the process that has its server's lease."""
        reported, stamp = self._reported.get(tablet), self._detector.lease(known.primary or "")
        if reported is None or stamp is None:
            return None
        return reported if (reported.uuid, reported.start) == (known.primary, stamp.start) else None

    def _after_end(
        self, ranks: Ranks, tablet: str, known: Configuration, uuid: str, *, silent: bool
    ) -> Configuration | None:
        known = self._held_by_all(tablet, known)
        made = after_end(
            known,
            uuid,
            silent=silent,
            gone=self._detector.has_ended,
            alive=lambda other: self.voters.may_lead(tablet, other, known.settled),
            rank=lambda other: self.voters.rank(ranks, tablet, other),
        )
        stored = self.stored(tablet)
        assert stored is not None, tablet
        if made is None:
            return None
        if made.primary == stored.primary and not self._may_lead_on(tablet, stored):
            if not self._is_over(tablet, stored):
                return None  # its process ends in this plan, or has not been heard of
            made = replace(made, primary=self._again(tablet, made))
        elif made.primary == known.primary:
            return made
        assert made.primary is not None, made
        if self._waits(ranks.now, tablet, known, made.primary):
            return None
        ranks.moved(known, made)
        return made

    def _held_by_all(self, tablet: str, known: Configuration) -> Configuration:
        """The configuration with the newest ballot that all voters held: the catalog's, or that of a primary's report."""
        return replace(known, settled=max(known.settled, self._settled.get(tablet, 0)))

    def _waits(self, now: float, tablet: str, known: Configuration, chosen: str) -> bool:
        others = (peer.uuid for peer in known.voters() if peer.uuid != chosen)
        return self.voters.waits(now, tablet, chosen, others)

    def has_declined(self, tablet: str) -> bool:
        """Whether the primary's server lives, and the primary will not lead in the catalog's ballot."""
        known = self.stored(tablet)
        reported = None if known is None else self._present_report(tablet, known)
        return (
            known is not None
            and reported is not None
            and reported.declined
            and reported.ballot == known.index
        )

    # -- orders ----------------------------------------------------------------------------------------------

    def orders(self) -> dict[str, list[str]]:
        """The tablets that wait for an order, by the server of their primary, which has a lease. A primary that is being created
        waits until it is reported: without a replica its server would decline."""
        found: dict[str, list[str]] = {}
        for tablet in self.unled:
            known = self.awaits_order(tablet)
            if known is not None and known.primary is not None:
                found.setdefault(known.primary, []).append(tablet)
        return found

    def awaits_order(self, tablet: str) -> Configuration | None:
        """The configuration to send to its primary, if the tablet waits for an order. Check again after every wait."""
        due = tablet in self.unled and tablet not in self._committing and tablet not in self.forcing
        due = due and tablet not in self.doubts
        known = self.stored(tablet) if due else None
        if known is None or known.primary is None or self._detector.lease(known.primary) is None:
            return None
        if self._is_over(tablet, known):
            return None
        if known.primary in self._catalog.tablets[tablet].unseen:
            return None
        reported = self._present_report(tablet, known)
        return known if reported is None or reported.ballot < known.index else None
