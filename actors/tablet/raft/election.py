"""Elections: when to campaign, whom to vote for, and how the answers are counted.

A campaign begins with a pre-vote, which no one persists: a replica that cannot win disturbs no
other, and terms grow only when a candidate can be elected (Raft thesis, 9.6). A voter that had
contact with its leader a moment ago helps no challenger, because leases depend on that; except if the leader has stepped
down, or its process has ended for certain.
"""

from __future__ import annotations

from ebla.actors.messages.raft import HardState, VoteRequest
from ebla.actors.tablet.engine.core import UNANSWERED, UNREACHABLE
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.world import Random

GRANTED, LEADER_ALIVE, OLD_TERM, VOTED, LOG_BEHIND = (
    "granted",
    "leader_alive",
    "old_term",
    "voted",
    "log_behind",
)


def judge(request: VoteRequest, state: HardState, log: LogIndex, *, leader_alive: bool) -> str:
    """The voter's answer, as a reason: that of the first rule that refuses, or granted."""
    if leader_alive and not request.ignore_live_leader:
        return LEADER_ALIVE
    if request.term < state.term:
        return OLD_TERM
    if request.term == state.term and state.vote not in (None, request.candidate):
        return VOTED
    if (request.last_term, request.last_index) < (log.last_term, log.last_index):
        return LOG_BEHIND
    return GRANTED


class ElectionTimer:
    """Decides when this replica campaigns, and until when it withholds its vote from challengers.

    A restarted replica does not remember when it last accepted a leader's message, and a lease may
    depend on that message: it withholds for a full `election_s_min` from its start. Only a replica
    that never answered anyone (`fresh`: term 0, so no leader of a term above 0 has its promise) may
    vote and campaign at once, so that a new tablet has its leader within a heartbeat. A replica
    that is `alone` waits for no one.
    """

    def __init__(self, limits: RaftLimits, random: Random, now: float, *, fresh: bool, alone: bool) -> None:
        self._limits = limits
        self._random = random
        self.failures = 0
        self._noted_at = now  # when the leader, or its server, last sent a message that arrived
        self.withheld_until = now if fresh else now + limits.election_s_min
        self.deadline = now
        if fresh and not alone:
            self.deadline = now + random.uniform(0.0, limits.heartbeat_s)
        elif not alone:
            self.reset(now)

    def reset(self, now: float) -> None:
        """Draw a timeout from [t, 2 t), where t grows by half with every failed election in a row."""
        limits = self._limits
        shortest = limits.election_s_min
        if self.failures:
            # The bound of the exponent avoids a float overflow; the maximum is reached long before.
            shortest = min(shortest * 1.5 ** min(self.failures, 64), limits.election_s_max)
        self.deadline = now + min(self._random.uniform(shortest, 2 * shortest), limits.election_s_max)
        assert self.deadline > now, ("an election timeout takes time", self.deadline, now)

    def note_leader(self, now: float) -> None:
        self.failures = 0
        self._noted_at = now
        self.withheld_until = max(self.withheld_until, now + self._limits.election_s_min)
        self.reset(now)
        kept = self.withheld_until
        assert kept >= now + self._limits.election_s_min, ("a promise to a leader is kept", kept, now)

    def note_server(self, at: float) -> None:
        """Keep the promise to a quiescent leader, whose server sent a message that arrived then."""
        self._noted_at = max(self._noted_at, at)
        self.withheld_until = max(self.withheld_until, at + self._limits.election_s_min)

    def resume(self) -> None:
        self.reset(self._noted_at)

    def retry(self, now: float) -> None:
        self.deadline = now + self._limits.heartbeat_s

    def leader_ended(self, now: float, wait_s: float) -> None:
        """Campaign after `wait_s`, if not earlier. The promise to that leader stays; a candidate that knows of the end asks the voters
        to ignore it."""
        self.deadline = min(self.deadline, now + wait_s)

    def election_failed(self, now: float, *, contested: bool) -> None:
        """Back off only from rivals. If not even a majority answered there is no rival, and the
        group should elect as soon as the network allows it."""
        if contested:
            self.failures += 1
        self.reset(now)


class Poll:
    """One round of requests for votes or pre-votes; the candidate's own vote counts.

    An answer belongs to the round with the same `request` object: an equal request may be of an
    earlier round. A voter that could not be reached is asked again after a heartbeat, until the
    round is over.
    """

    def __init__(self, request: VoteRequest, voters: tuple[str, ...]) -> None:
        assert request.candidate in voters, ("only voters campaign", request.candidate, voters)
        self.request = request
        self.voters = voters
        self.answers: dict[str, bool] = {request.candidate: True}
        self.ask_again: dict[str, float] = {}
        self._majority = len(voters) // 2 + 1

    def count(self, voter: str, granted: bool) -> None:
        if voter in self.voters:
            self.answers[voter] = granted
            self.ask_again.pop(voter, None)
        assert len(self.answers) <= len(self.voters), ("each voter counts once", self.answers)

    def unanswered(self, voter: str, ask_again_at: float) -> None:
        if voter in self.voters and voter not in self.answers:
            self.ask_again[voter] = ask_again_at

    def due(self, now: float) -> list[str]:
        """The voters to ask again now; each is returned once."""
        due = [voter for voter in self.voters if self.ask_again.get(voter, now + 1) <= now]
        for voter in due:
            assert voter not in self.answers, ("a voter that answered is not asked again", voter)
            del self.ask_again[voter]
        return due

    @property
    def won(self) -> bool:
        return sum(self.answers.values()) >= self._majority

    @property
    def lost(self) -> bool:
        return len(self.answers) - sum(self.answers.values()) > len(self.voters) - self._majority

    @property
    def contested(self) -> bool:
        """Whether a real election took place: terms were used up, or a majority answered and refused."""
        return not self.request.pre_vote or len(self.answers) >= self._majority

    @property
    def lacking(self) -> str | None:
        """See GroupCore.lacking."""
        if len(self.voters) - len(self.ask_again) < self._majority:
            return UNREACHABLE
        return UNANSWERED if len(self.answers) < self._majority else None
