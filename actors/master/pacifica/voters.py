"""What servers have reported of their replicas of PacificA tablets, in this term, and which voter leads next. Await-free.

A report counts only in the process that sent it, which must be the one that has the server's lease. Any voter that holds what all
voters held may lead. Those that are less doubtful come first, then those whose servers lead fewer tablets. A primary that has stepped
down names the process that follows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from ebla.actors.detector.detector import REPORT_GRACES, Detector
from ebla.actors.master.pacifica.doubts import runs
from ebla.actors.messages import ReplicaReport, ServerInstance
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import RUNNING


class Held(NamedTuple):
    """A replica as the process `start` of its server reported it last, or that there is none. `whole`: it runs, and does not know that it
    lacks committed entries. `ballot`: of the newest configuration in its log, which ended at `last_index` then. `verified`: the process
    has shown that it has everything that is committed."""

    start: str
    runs: bool = False
    whole: bool = False
    ballot: int = 0
    last_index: int = 0
    verified: bool = False


class Ranks:
    """What chooses among voters in one plan, made at `now`. The number of tablets that each server leads is counted when it is first
    asked for, and kept up to date while the plan is made."""

    def __init__(self, now: float, configurations: Iterator[tuple[str, Configuration]]) -> None:
        self.now = now
        self._configurations = configurations
        self._counts: Counter[str | None] | None = None

    def count(self, uuid: str) -> int:
        if self._counts is None:
            self._counts = Counter(known.primary for _, known in self._configurations)
        return self._counts[uuid]

    def moved(self, before: Configuration, after: Configuration) -> None:
        if self._counts is not None and before.primary != after.primary:
            self._counts[before.primary] -= 1
            self._counts[after.primary] += 1


class Voters:
    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._held: dict[str, dict[str, Held]] = {}  # by tablet and server

    # -- reports

    def shown(self, instance: ServerInstance, replica: ReplicaReport) -> None:
        in_force, state = replica.pending or replica.configuration, (replica.state == RUNNING, runs(replica))
        self._held.setdefault(replica.tablet, {})[instance.uuid] = Held(
            instance.start, *state, in_force.index, replica.last_index, replica.verified
        )

    def absent(self, instance: ServerInstance, tablet: str) -> None:
        self._held.setdefault(tablet, {})[instance.uuid] = Held(instance.start)

    def declined(self, tablet: str, uuid: str) -> None:
        """Note that the replica does not lead; its next report says whether it runs."""
        held = self._held.get(tablet, {})
        if uuid in held:
            held[uuid] = held[uuid]._replace(whole=False)

    def shown_by(self, uuid: str) -> list[str]:
        return [tablet for tablet, held in self._held.items() if uuid in held]

    def forget(self, tablet: str) -> None:
        self._held.pop(tablet, None)

    def keep(self, tablets: Collection[str], stored: Callable[[str], object]) -> bool:
        """Forget ended tablets, if most of what is held may be of such: this reads all of it. Return whether it did."""
        if len(self._held) <= 2 * len(tablets):
            return False
        self._held = {tablet: held for tablet, held in self._held.items() if stored(tablet)}
        return True

    # -- who may lead

    def runs(self, tablet: str, uuid: str) -> bool | None:
        """Whether the replica runs, whatever it lacks; None without a report of the process that has the server's lease."""
        held = self._present(tablet, uuid)
        return None if held is None else held.runs

    def is_whole(self, tablet: str, uuid: str) -> bool | None:
        """Whether the replica runs, and does not know that it lacks entries; None without such a report."""
        held = self._present(tablet, uuid)
        return None if held is None else held.whole

    def shows_whole(self, tablet: str, instance: ServerInstance) -> bool:
        """Whether this process has reported a replica that is whole, whether or not it has a lease."""
        held = self._held.get(tablet, {}).get(instance.uuid)
        return held is not None and held.whole and held.start == instance.start

    def _present(self, tablet: str, uuid: str) -> Held | None:
        held, stamp = self._held.get(tablet, {}).get(uuid), self._detector.lease(uuid)
        return held if held is not None and stamp is not None and held.start == stamp.start else None

    def may_lead(self, tablet: str, uuid: str, settled: int) -> bool:
        """Whether the replica is whole, and holds what all voters held: another one has lost what it acknowledged. The lease of a
        suspended server ends soon."""
        held = self._present(tablet, uuid)
        able = held is not None and held.whole and held.ballot >= settled
        return able and self._detector.allowed(uuid)

    def could_lead(self, tablet: str, uuid: str) -> bool:
        """Whether the server may have leases, and has not shown that its replica is not whole."""
        return self._detector.allowed(uuid) and self.is_whole(tablet, uuid) is not False

    def verified(self, tablet: str, uuid: str) -> bool:
        held = self._present(tablet, uuid)
        return held is not None and held.verified

    def after_request(
        self,
        ranks: Ranks,
        tablet: str,
        known: Configuration,
        granted: Configuration,
        process: ServerInstance | None,
    ) -> Configuration | None:
        """What a primary gets that has stepped down for this process of another voter; None: nothing yet, and it asks again. That
        process holds everything, and a report of it may not have come yet. The next one of its server may run on an older copy.
        Instead of it a voter that is verified leads, or the former primary: it follows any later ballot. If that one may not lead, its
        lease ends soon, or it declines."""
        chosen, former = granted.primary, known.primary
        assert chosen is not None and former is not None, (known, granted)
        if chosen == former:
            return granted
        ended = process is None or process.uuid != chosen or self._detector.has_ended_process(process)
        if ended is None and self._detector.allowed(chosen):
            return None  # its first beacon comes, or the server becomes silent
        if ended is False and self.could_lead(tablet, chosen):
            return granted
        voters = [peer.uuid for peer in known.voters()]
        able = [
            peer.uuid
            for peer in granted.voters()
            if peer.uuid in voters
            and self.may_lead(tablet, peer.uuid, granted.settled)
            and self.verified(tablet, peer.uuid)
        ]
        if able:
            best = min(able, key=lambda uuid: self.rank(ranks, tablet, uuid))
            return replace(granted, primary=best)
        if self.could_lead(tablet, former):
            return replace(appointed(known, former), settled=granted.settled)
        return None

    def rank(self, ranks: Ranks, tablet: str, uuid: str) -> tuple[int, ...]:
        return (*self.doubt(tablet, uuid), ranks.count(uuid))

    def doubt(self, tablet: str, uuid: str) -> tuple[int, ...]:
        """The rank of a voter that may lead: any one may, but a process may have begun on an older copy of its directory, which no
        number shows (incarnations.py). One that is verified comes first; then the one with the longest log. Nothing was added to that
        log since it was reported: no primary has led it."""
        held = self._present(tablet, uuid) or Held("")
        return (0,) if held.verified else (1, -held.ballot, -held.last_index)

    def waits(self, now: float, tablet: str, chosen: str, others: Iterable[str]) -> bool:
        """Whether one of `others` may show soon that it has more than the chosen voter, which is not verified: after a restart of
        everything the first to report is not always the one with everything. A new process waits for the grace at most for those of
        which nothing is heard, and longer for those that send beacons, because a report may be lost and comes again."""
        if self.verified(tablet, chosen):
            return False
        begins = self._detector.is_new(now, chosen)
        return any(
            self.runs(tablet, uuid) is None and (begins or self._will_report(now, uuid)) for uuid in others
        )

    def _will_report(self, now: float, uuid: str) -> bool:
        """It may restart meanwhile."""
        return self._detector.was_met(now, uuid) and self._detector.is_new(now, uuid, REPORT_GRACES)
