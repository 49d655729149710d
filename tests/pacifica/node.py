"""A server with a PacificA replica: its core, its leases, and its calls to the master."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ebla.actors.detector.detector import ACKNOWLEDGED, DECIDED
from ebla.actors.detector.lease import Lease
from ebla.actors.errors import IllegalState
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import GroupCore
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.pacifica.core import PacificaCore
from tests.stream import node
from tests.stream.node import Disk

if TYPE_CHECKING:
    from tests.pacifica.group import Group

ASK_AGAIN_S = 0.2
BEAT_AGAIN_S = 0.05


class Report(NamedTuple):
    """What a replica reports: its ballot, whether it leads, the ballot of its newest configuration, the end of its log, and whether this
    process has shown that it has everything."""

    ballot: int
    leads: bool
    in_force: int
    last_index: int
    verified: bool


class Node(node.Node[PacificaCore]):
    group: Group

    def __init__(self, group: Group, name: str, initial: Configuration) -> None:
        super().__init__(group, name, initial, BallotRecord())
        self.lease = Lease(group.times)
        self.lost = False  # its disk was replaced by an empty one
        self.restored = False  # its disk is an older copy, and lacks committed entries still
        self.recent = False  # no number shows that
        self.declined = 0  # the last ballot that this process declined to lead
        self._asking: Configuration | None = None
        self._beats_again = False

    def make_core(self, log: LogIndex, configuration: Configuration, commit_index: int) -> PacificaCore:
        assert isinstance(self.disk.hard_state, BallotRecord)
        self.lease = Lease(self.group.times)
        self._asking, self.declined = None, 0
        incarnation = self.incarnation
        self.group.after(0.0, "timer", lambda: self._beats(incarnation))
        return PacificaCore(
            "t1",
            self.name,
            self.disk.hard_state,
            configuration,
            log,
            self.group.limits,
            self.lease,
            self.clock(),
            commit_index=commit_index,
        )

    def crash(self, *, commits_kept: int = 0) -> None:
        ended = self.instance
        super().crash(commits_kept=commits_kept)
        for delay in self.group.network.delays(self.name, "master") if self.group.ends_are_seen else ():
            self.group.after(delay, "network", lambda: self.group.master.process_ended(ended))

    def lose_disk(self) -> None:
        """Crash, and start with an empty replica; the record of its ballot is kept elsewhere."""
        self.crash()
        self.disk.entries, self.disk.dropped, self.lost, self.restored = [], 0, True, False

    def back_up(self) -> Disk:
        return replace(self.disk, entries=list(self.disk.entries))

    def restore(self, backup: Disk, *, recent: bool = False) -> None:
        """Crash, and find an older copy of the disk at the next start. That process counts as a later one than the one before."""
        self.crash()
        self.disk, self.restored, self.recent = backup, True, recent

    # -- the master

    def beat(self, incarnation: int) -> None:
        """Send a beacon, which also carries what the replica reports."""

        self._beats_again = False

        def beat(core: GroupCore) -> None:
            sent_at, instance = self.clock(), self.instance
            if sent_at >= self.lease.until:
                core.tick(sent_at)  # as Leasing does: it may be over since a pause of this process
            number = self.lease.beacon(sent_at, log_stalled=self._log_stalled())
            if number is None:
                return
            leads, in_force = core.role == "leader", core.configuration.index
            report = Report(core.term, leads, in_force, core.last_index, core.verified)

            def answered(word: str) -> None:
                if word == ACKNOWLEDGED:
                    self.feed(incarnation, lambda _: self.lease.acknowledged(self.clock(), number, sent_at))
                elif word == DECIDED and not self._beats_again:  # by the next beacon the edit may be durable
                    self._beats_again = True
                    self.group.after(BEAT_AGAIN_S, "timer", lambda: self.beat(incarnation))

            master = self.group.master
            for delay in self.group.network.delays(self.name, "master"):
                self.group.after(delay, "network", lambda: master.beacon(instance, number, report, answered))

        if incarnation == self.incarnation and self.core is not None:
            self.feed(incarnation, beat)

    def _beats(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self.core is not None:
            self.beat(incarnation)
            self.group.after(self.group.times.beacon_s / self.rate, "timer", lambda: self._beats(incarnation))

    def _log_stalled(self) -> bool:
        """As Leasing does: the oldest write has been waiting for its sync for half a lease."""
        limit_s = self.group.times.lease_s / 2
        return bool(self._commits) and self.clock() - self._commits[0].since > limit_s

    def absorb(self, request: object = None) -> None:
        super().absorb(request)  # type: ignore[arg-type]
        asked = self.running().asked
        if asked is not self._asking:
            self._asking = asked
            if asked is not None:
                self._ask(asked, self.incarnation)

    def _ask(self, asked: Configuration, incarnation: int) -> None:
        """Repeat a request until the core has another configuration."""
        if incarnation != self.incarnation or self._asking is not asked:
            return
        successor = self.running().successor
        for delay in self.group.network.delays(self.name, "master"):
            self.group.after(delay, "network", lambda: self.group.master.asked(self.name, asked, successor))
        self.group.after(ASK_AGAIN_S, "timer", lambda: self._ask(asked, incarnation))

    def order(self, configuration: Configuration, start: str, lease: int) -> None:
        """Take an order of the master, or its answer to a request, which is the same, if it is for this process."""
        if start == self.instance.start:
            self.feed(self.incarnation, lambda _: self._appoint(configuration, lease))

    def _appoint(self, configuration: Configuration, lease: int) -> None:
        core, ballot = self.running(), configuration.index
        try:
            if configuration.primary == self.name and ballot <= self.declined:
                core.require_no_older_copy(configuration)
                core.decline(self.clock(), ballot)
            else:
                core.appoint(self.clock(), configuration, lease)
        except IllegalState as error:
            self.declined, start = max(ballot, self.declined), self.instance.start
            self.group.record(f"{self.name} declines: {error}")
            for delay in self.group.network.delays(self.name, "master"):
                self.group.after(
                    delay, "network", lambda: self.group.master.declined(self.name, start, ballot)
                )
        except node.REFUSALS as error:
            self.group.record(f"{self.name} refuses: {error}")
