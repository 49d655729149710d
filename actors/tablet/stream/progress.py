"""The leader's knowledge of one peer, and the messages that it may send next.

    probe       where the logs agree is unknown: one message without entries at a time, until the peer agrees
    replicate   entries flow, several messages ahead of the answers
    lagging     the entries it needs are dropped from our log, or it lost entries that it had acknowledged, or
                it has committed others (forced.py): only heartbeats, until the replica is copied again

    probe -> replicate      it agreed with a predecessor
    replicate -> probe      a message failed, or was refused
    probe, replicate -> lagging
    lagging -> replicate    it agrees again, so it was copied

A server without the replica answers with a reason (`refused`), or another server has its address
(`WRONG_SERVER`). Such answers count for the peer's health, never for commits or leases. They count
for the leader's patience only if the peer has a tombstone, which votes: no other leader would do
better. A peer that a copy could help, but has not helped for long, is unhealthy, even if it answers:
the copy may never succeed there. A peer without an answer for as long is silent while our log can help
it, and unhealthy from then on. So is a peer whose server is still starting after STARTS_FOR times
as long: its disk may be full or hang, or another process holds its directory.

Memory is constant while a peer is dead: a probe has no entries, and a heartbeat without an answer
for `patience_s` is forgotten and followed by the next (the caller's own call timeout limits the
number of open calls).
"""

from __future__ import annotations

from ebla.actors.messages.stream import FORCED, STRANDED, AppendReply
from ebla.actors.replication.health import (
    COPY_STALLED,
    DAMAGED,
    HEALTHY,
    LOST,
    NOT_RUNNING,
    REPLICA_FAILED,
    SILENT,
    TABLET_COPYING,
    TABLET_DELETED,
    TABLET_NOT_FOUND,
    UNHEALTHY,
    UNKNOWN,
    VOTES_FORGOTTEN,
    WRONG_SERVER,
)
from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.quiescence import Contacts
from ebla.actors.tablet.stream.limits import StreamLimits
from ebla.actors.tablet.stream.plan import AppendPlan

PROBE, REPLICATE, LAGGING = "probe", "replicate", "lagging"

UNABLE = (
    TABLET_NOT_FOUND,
    TABLET_DELETED,
    REPLICA_FAILED,
    VOTES_FORGOTTEN,
    DAMAGED,
    COPY_STALLED,
    FORCED,
)  # without a copy, for ever

STARTS_FOR = 10  # times the patience for a silent peer: a start reads the log, which never takes that long


class Progress:
    """Invariant: match < next, and only a replicating peer has entries under way."""

    def __init__(self, next_index: int, now: float) -> None:
        self.state = PROBE
        self.match = 0
        self.next = next_index
        self.last_contact = now  # a new leader gives each peer the full time before it doubts its majority
        self.acked_at = NEVER  # the latest sending that the peer answered: the lease counts from it
        self.acked_number = 0  # the latest message that it answered
        self.sent_at = NEVER
        self.urgent = True  # the next probe need not wait for a heartbeat's time
        self.inflight: dict[int, int] = {}  # number -> bytes
        self.inflight_bytes = 0
        self.status: int | None = None  # the number of the heartbeat or probe under way
        self.status_at = NEVER
        self.steady = False  # it has answered a message that was sent while it replicated
        self.last = (0, 0)  # index and term of its last durable entry, as it last reported
        self.contact_at = now  # when it last answered anything at all
        self.healthy_at = NEVER  # when it last answered as a replica that follows us
        self.refusal: str | None = None  # why it did not, if that answer is newer
        self.refused_since = NEVER
        self.unwell_since: float | None = None  # in all its answers since it last followed us
        self.asked_to_quiesce: int | None = None  # by the message with this number, and by later ones
        self.quiescent_since: float | None = None  # it answered then that it is; see engine/quiescence.py

    def may_send_entries(self, last_index: int, limits: StreamLimits) -> bool:
        return (
            self.state == REPLICATE
            and self.next <= last_index
            and len(self.inflight) < limits.inflight_max
            and self.inflight_bytes < limits.inflight_bytes_max
        )

    def status_due_at(self, limits: StreamLimits) -> float:
        """The time when the next message without entries is due.

        Entries under way do not replace heartbeats: their answers wait for the peer's disk.
        Otherwise a peer that syncs slowly would cost us the lease, and would start to campaign.
        """
        if self.status is None and self.urgent:
            return NEVER
        latest_at = self.acked_at if self.inflight else self.sent_at
        due = (latest_at if latest_at > self.status_at else self.status_at) + limits.heartbeat_s
        return due if self.status is None else max(due, self.status_at + limits.patience_s)

    def sent_entries(self, now: float, plan: AppendPlan, size_bytes: int) -> None:
        assert self.state == REPLICATE, ("entries flow to a peer that agrees", self.state)
        assert self.next == plan.first <= plan.last, ("entries are sent in their order", self.next, plan)
        self.inflight[plan.number] = size_bytes
        self.inflight_bytes += size_bytes
        self.next = plan.last + 1
        self.sent_at = now

    def sent_status(self, now: float, plan: AppendPlan) -> None:
        assert self.status is None or plan.number > self.status, ("messages are numbered in order", plan)
        if plan.quiesce and self.asked_to_quiesce is None:
            self.asked_to_quiesce = plan.number
        self.status = plan.number
        self.status_at = self.sent_at = now
        self.urgent = False

    def answered(self, now: float, sent_at: float, plan: AppendPlan, answer: AppendReply) -> None:
        """Take an answer. Any answer in our term shows that the peer follows us; a late one proves
        only that, and the entries that the peer holds."""
        self.last_contact = self.contact_at = self.healthy_at = now
        self.refusal = None
        self.acked_at = max(self.acked_at, sent_at)
        self.acked_number = max(self.acked_number, plan.number)
        self.last = answer.last_index, answer.last_term
        known = self._settle(plan.number)
        if answer.success:
            self.steady = self.steady or (known and self.state == REPLICATE)
            assert answer.match <= plan.covers, ("a peer agrees to no more than it was sent", answer, plan)
            self.match = max(self.match, answer.match)
            if known and self.state != REPLICATE:
                self.state, self.next = REPLICATE, plan.covers + 1
            self.next = max(self.next, self.match + 1)
        elif known and answer.reason == STRANDED:
            self.lag()
        elif known:
            self._refused(plan, answer.hint)
        assert self.match < self.next, ("the next entry is behind those held", self.match, self.next)
        if self.state != LAGGING:
            self.unwell_since = None
        elif self.unwell_since is None:
            self.unwell_since = now

    def failed(self, plan: AppendPlan) -> bool:
        """Note that no answer came. Returns whether that changes anything: a replicating peer's
        entries above `match` are in doubt, unless the peer has answered a later message since."""
        if not self._settle(plan.number) and (self.state != REPLICATE or plan.number <= self.acked_number):
            return False
        if self.state == REPLICATE:
            self._probe_from(self.match + 1)
        self.urgent = False
        return True

    def refused(self, now: float, refusal: str) -> None:
        """Note the reason why the peer's server cannot answer for the replica."""
        assert refusal, "a refusal says why"
        self.wake()
        self.contact_at = now
        if refusal in (TABLET_DELETED, TABLET_COPYING, COPY_STALLED):
            self.last_contact = now
        if refusal != self.refusal:
            self.refusal, self.refused_since = refusal, now
        if refusal in UNABLE and self.unwell_since is None:
            self.unwell_since = now

    def waits(self, now: float) -> None:
        if self.unwell_since is not None:
            self.unwell_since = now

    @property
    def streams(self) -> bool:
        return self.state == REPLICATE

    def holds_all(self, last_index: int) -> bool:
        return self.state == REPLICATE and self.match == last_index

    def quiesces(self, now: float, plan: AppendPlan, last_index: int) -> None:
        """Note that the peer answered this message as quiescent. The answer to a message of an earlier quiescence does not count."""
        asked = self.asked_to_quiesce
        if asked is not None and plan.number >= asked and self.holds_all(last_index):
            self.quiescent_since = now

    def note_contacts(self, contacts: Contacts, uuid: str) -> None:
        """Take the answers of the peer's server to liveness messages as answers of the quiescent peer."""
        answered = contacts.answered.get(uuid)
        if self.quiescent_since is None or answered is None or answered.sent_at < self.quiescent_since:
            return
        self.acked_at = max(self.acked_at, answered.sent_at)
        self.last_contact = self.contact_at = self.healthy_at = max(self.contact_at, answered.at)

    def wake(self) -> None:
        self.asked_to_quiesce = self.quiescent_since = None

    def caught_up(self, commit_index: int) -> bool:
        """Whether the peer holds all committed entries, and has answered a message that was sent
        while it replicated: first contact proves nothing yet."""
        return self.state == REPLICATE and self.steady and self.match >= commit_index

    def health(self, now: float, failed_s: float, silent_s: float) -> str:
        """The health that operators and the master see. A peer that cannot follow is not healthy,
        but a copy may help. A running copy gets the time that it takes; a starting server gets
        STARTS_FOR times as much time as a silent peer."""
        if self.refusal == WRONG_SERVER:
            return LOST
        stuck = self.refusal == NOT_RUNNING and now - self.refused_since > STARTS_FOR * failed_s
        if stuck or now - self.contact_at > failed_s:
            return SILENT if self.unwell_since is None and self.state != LAGGING else UNHEALTHY
        since = None if self.refusal in (TABLET_COPYING, NOT_RUNNING) else self.unwell_since
        if since is not None and now - since > failed_s:
            return UNHEALTHY
        if self.refusal is None and self.state != LAGGING and now - self.healthy_at <= silent_s:
            return HEALTHY
        return UNKNOWN

    def begin_term(self) -> None:
        """Forget the messages under way: their answers belong to the term before. What the peer holds is known still."""
        if self.state == LAGGING:
            self._forget_messages()
        else:
            self._probe_from(self.match + 1 if self.state == REPLICATE else self.next)

    def lag(self) -> None:
        self.wake()
        self.state = LAGGING
        self.steady = False
        self._forget_messages()
        self.urgent = False

    def _refused(self, plan: AppendPlan, hint: int) -> None:
        if self.state == LAGGING:
            return
        if 0 < plan.previous_index <= plan.match:
            # The peer had acknowledged this predecessor in our term, so it has lost the entry.
            self.lag()
            return
        # In the probe state `next` only decreases, so that immediate probing ends.
        self._probe_from(max(self.match + 1, min(plan.previous_index, hint + 1)))

    def _probe_from(self, next_index: int) -> None:
        assert next_index > self.match, (
            "entries that a peer holds are not sent again",
            next_index,
            self.match,
        )
        self.wake()
        self.state, self.next, self.urgent, self.steady = PROBE, next_index, True, False
        self._forget_messages()

    def _forget_messages(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0
        self.status = None

    def _settle(self, number: int) -> bool:
        """Account for an answered or failed message; False if it was forgotten before."""
        if number == self.status:
            self.status = None
            return True
        size = self.inflight.pop(number, None)
        if size is None:
            return False
        self.inflight_bytes -= size
        assert self.inflight_bytes >= 0, ("each message is counted once", number, size)
        return True
