"""The engine's interface to a replication protocol: a core that decides, without clock, disk,
network or waiting.

Events go in as method calls, each with the monotonic time; `take()` returns their effects (see
Effects for the caller's duties). The same events always give the same effects. A core owns the
LogIndex: it decides which entries exist, the engine stores them.

`now` must be read after the event that it is passed with: after the message arrived, after the read
was requested.

One room implements a protocol: `raft/`, `pacifica/`. Which tablet uses which, only protocols.py knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ebla.actors.messages import ServerInstance
from ebla.actors.messages.protocols import Answer, HardState, Request, View
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import Stance
from ebla.storage.logs.entries import Entry

FOLLOWER, CANDIDATE, LEADER = "follower", "candidate", "leader"  # as reports and figures show them
UNREACHABLE, UNANSWERED = "unreachable", "unanswered"  # what an election lacks
NEVER = float("-inf")


class Plan(msgspec.Struct, frozen=True):
    """A message to a peer. Its entries `first`..`last` (none if last < first) are read from the log
    when the message leaves. The message is dropped if the core does not lead in `term` any more."""

    peer: str
    term: int
    first: int
    last: int

    def request(self, leader: str, entries: Sequence[Entry]) -> Request:
        raise AssertionError(f"{type(self).__name__} makes no message")


class Send(msgspec.Struct, frozen=True):
    """One message to one peer (uuid). One `replied` or `failed` should follow; a second one does no harm."""

    peer: str
    request: Plan | Request


class Sent(NamedTuple):
    """A message that left: when, and the same `request` object as its Send. `at` is read from the
    clock before the message leaves, never after: a lease counts from it. `process`: the one that answered.
    (Neither matters for a message that failed.)"""

    at: float
    request: Plan | Request
    process: ServerInstance | None = None


class Pending(msgspec.Struct, frozen=True):
    """A request that may be answered once the log is durable up to `until`."""

    term: int
    until: int


class Offer(NamedTuple):
    """The entries of a request, and the position of the entry before the first."""

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]


class Effects(msgspec.Struct, frozen=True):
    """The effects of one or more events. The caller, in this order:

    1. drops its entries from `truncate_from` on; their waiting clients get OutcomeUnknown;
    2. takes the entries `appended` (first, last) of the request that it just fed to the core;
    3. creates the entries `noop` (index, term) and `configured` (index, term, payload of a CONFIG entry), as
       for its own proposals;
    4. makes `hard_state` durable; only then `sends`, and answers given since the previous take(), may leave;
    5. makes the new entries durable and reports this with `durable(index, term, log_epoch)`, where the epoch
       is that of the take() they came from. This releases answers to the leader, and commits.

    `sends` hold at most one message a peer; call take() again while `next_wake` is not in the
    future. They need not wait for entries to be durable here: the leader's own disk is one among
    the others (Raft thesis, 10.2.1). `commit_index` may be ahead of `durable_index`, but nothing
    beyond the latter may be flushed, or a crash leaves data without a log. take() must be called
    between two requests with entries.
    """

    hard_state: HardState | None
    sends: tuple[Send, ...]
    truncate_from: int | None
    appended: tuple[int, int] | None
    noop: tuple[int, int] | None
    configured: tuple[int, int, bytes] | None
    commit_index: int
    became: str | None
    configuration: Configuration | None
    log_epoch: int


class PeerProgress(Protocol):
    """A leader's knowledge of one peer. `last`: index and term of the peer's last durable entry, as
    it last reported. `refusal`: why its server cannot answer for the replica
    (replication/health.py). Times are seconds of the monotonic clock, NEVER if not yet."""

    match: int
    last: tuple[int, int]
    refusal: str | None
    refused_since: float
    contact_at: float
    healthy_at: float

    @property
    def streams(self) -> bool:
        """Whether entries flow to the peer: the logs agree up to `match`."""

    def caught_up(self, commit_index: int) -> bool: ...

    def waits(self, now: float) -> None:
        """Note that others are copied before this peer: this time does not count against it."""


class GroupCore(Protocol):
    """One replica of one tablet, as its replication protocol sees it."""

    tablet: str
    me: str
    log: LogIndex
    term: int
    role: str
    leader: str | None
    commit_index: int
    durable_index: int
    configuration: Configuration
    committed_configuration: Configuration
    asked: Configuration | None  # the configuration that this replica has requested from the master
    verified: bool  # see PacificaView
    stance: Stance  # its part in the quiescence of its group

    # -- views

    @property
    def hard_state(self) -> HardState: ...

    @property
    def last_index(self) -> int: ...

    @property
    def all_replicated_index(self) -> int:
        """The index up to which every peer is known to hold the log durably; that part may be
        dropped once flushed."""

    @property
    def shown_role(self) -> str:
        """FOLLOWER, CANDIDATE or LEADER."""

    def may_elect(self, now: float) -> bool:
        """Whether a tick now may begin an election, and does nothing else that is urgent."""

    @property
    def lacking(self) -> str | None:
        """What an election under way lacks: UNREACHABLE if no majority of the voters can be reached, UNANSWERED if no majority has
        answered, else None."""

    @property
    def handing_over(self) -> bool:
        """Whether a successor was chosen, and has not been asked to take over yet."""

    @property
    def awaits_successor(self) -> bool:
        """Whether this replica has asked a successor to take over, and one may still do so: the
        request has not failed, no leader is known, and this replica has not begun to campaign."""

    @property
    def forced_epoch(self) -> int:
        """The forced epoch, as far as this replica knows; requests of a lower one are refused."""

    @property
    def committed_forced_epoch(self) -> int: ...

    @property
    def apart(self) -> str | None:
        """Why the master ignores this replica's reports, if it does."""

    @property
    def progress(self) -> Mapping[str, PeerProgress]:
        """The leader's knowledge of each peer; empty on other replicas."""

    def needs_copy(self, peer: str) -> bool:
        """Whether the log cannot bring this peer up to date."""

    def health(self, now: float, failed_s: float) -> dict[str, str]:
        """The leader's view of each other member; empty on other replicas."""

    def view(self) -> View:
        """For reports."""

    def story(self) -> str:
        """The last events as text. Every internal error carries them: see Rounds.step."""

    def validate(self) -> None:
        """Raise AssertionError if an invariant of the core is broken."""

    # -- events

    def tick(self, now: float) -> None: ...

    def next_wake(self, now: float) -> float:
        """The time when tick and take are needed next; `now` if they are needed already; infinite if only an event can
        make them needed."""

    def wake(self, now: float) -> None:
        """Be quiescent no longer: a server that this relies on was started again or reports a change, or the leader's is silent."""

    def note_silence(self, now: float) -> None:
        """Note that the server of a peer has been silent, which this leader relies on to be quiescent."""

    def note_refusal(self, now: float, peer: str, refusal: str) -> None:
        """Note that the server of a peer answers with this reason for all its replicas. A quiescent leader may go on without the
        peer, or wake to have it removed."""

    def note_end(self, now: float, peer: str, wait_s: float) -> None:
        """Note that the process of this peer has ended for certain. A Raft follower may take the place of that leader, after `wait_s`; a
        primary waits no longer for that secondary."""

    def propose(self, now: float, kind: int, payload_bytes: int) -> tuple[int, int]:
        """Add an entry and return its (index, term); the caller creates the entry. Raises NotLeader."""

    def read_index(self, now: float) -> int:
        """The index that a linearizable read must see applied. Raises NotLeader or Unavailable."""

    def step_down(self, now: float, successor: str | None) -> str:
        """Start to hand over to `successor`, or the voter that holds most, and return its uuid.
        Within an election timeout the successor is asked to take over, or leadership continues.
        Raises NotLeader, InvalidArgument, Unavailable."""

    def offered(self, request: Request) -> Offer | None:
        """The entries of the request, if the core would accept its sender."""

    def asks_to_lead(self, request: Request) -> bool:
        """Whether the request asks this replica to take over."""

    def receive(
        self, now: float, sender: str, request: Request, *, knows_us: bool = True
    ) -> Pending | Answer:
        """Take a peer's request. An Answer may leave when the hard state of the next take() is
        durable; the answer to a Pending, when the log is also durable up to its `until`. `knows_us`: the sender had heard from
        this process; otherwise the request may be older."""

    def answer(self, pending: Pending) -> Answer: ...

    def replied(self, now: float, peer: str, sent: Sent, answer: Answer) -> None: ...

    def failed(
        self, now: float, peer: str, sent: Sent, delivered: bool | None, refusal: str | None = None
    ) -> None: ...

    def durable(self, index: int, term: int, log_epoch: int | None = None) -> None:
        """Note that the caller's log is on disk up to `index`, whose entry has `term`."""

    # -- effects

    @property
    def quiet(self) -> bool:
        """Whether a take() without sends would return nothing new."""

    @property
    def mute(self) -> bool:
        """Whether a take() would return no messages."""

    def take(self, *, sends: bool = True) -> Effects: ...


class Voter(ABC):
    """The duty of a replica without a log, deleted or being copied: it remembers, and it votes.

    `last`: index and term of the former log's last entry, None if unknown. `durable`: the hard state on disk; the
    replica may have been stopped while a later one was being written. `forced_epoch`: the highest that it knows."""

    def __init__(
        self,
        hard_state: HardState,
        last: tuple[int, int] | None,
        *,
        durable: HardState,
        forced_epoch: int = 0,
    ) -> None:
        assert durable.term <= hard_state.term, ("terms never go back", durable, hard_state)
        self.hard_state = hard_state
        self.last = last
        self.forced_epoch = forced_epoch
        self._durable = durable

    @property
    def unsaved(self) -> HardState | None:
        """The hard state that must be durable before any answer leaves."""
        return None if self.hard_state == self._durable else self.hard_state

    def saved(self, state: HardState) -> None:
        """Note that this hard state, or a later one, is on disk."""
        assert state.term >= self._durable.term, ("hard states are saved in order", state, self._durable)
        self._durable = state

    @abstractmethod
    def view(self) -> View:
        """For reports."""

    @abstractmethod
    def asks_vote(self, request: Request) -> bool:
        """Whether the request needs an answer."""

    @abstractmethod
    def receive(self, now: float, request: Request) -> Answer | None:
        """Take a request. None: only a replica with a log could answer."""


class Replication(Protocol):
    """The replication protocols, each for its own tablets."""

    def of(self, hard_state: HardState) -> Parts: ...

    def first_hard_state(self, configuration: Configuration) -> HardState:
        """The hard state of a new replica, which has promised nothing. `configuration`: with which it is created."""

    def copied(
        self, own: HardState, source: str, term: int, configuration: Configuration, *, knows_end: bool
    ) -> HardState:
        """The hard state of a replica that is copied, with `configuration`, from the leader `source` of `term`.
        `own` may be of another protocol if its record was lost. `knows_end`: whether it is known where its former log ended."""


class Parts(Protocol):
    """Makes the parts of one protocol."""

    def core(
        self,
        tablet: str,
        hard_state: HardState,
        configuration: Configuration,
        log: LogIndex,
        commit_index: int,
    ) -> GroupCore:
        """Make a core. `configuration`: the committed one; `commit_index`: an index known to be
        committed, such as the flushed one."""

    def voter(
        self, hard_state: HardState, durable: HardState, last: tuple[int, int] | None, forced_epoch: int
    ) -> Voter:
        """Make a voter."""
