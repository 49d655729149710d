"""Cores in a given state, and the messages to feed them. Every random timeout has its shortest value."""

from __future__ import annotations

from random import Random

import msgspec

from ebla.actors.messages.raft import HardState, VoteReply, VoteRequest
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Effects, Sent
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import NO_CONTACTS, Contacts
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.logs.entries import CONFIG, WRITE, Entry
from tests.raft.group import configuration

MIN = RaftLimits().election_s_min
BEAT = RaftLimits().heartbeat_s


class Shortest(Random):
    """Draws the lower end of every interval."""

    def uniform(self, a: float, b: float) -> float:
        return a

    def getrandbits(self, bits: int) -> int:
        return 0


def core(
    me: str = "a",
    voters: str = "abc",
    *,
    others: str = "",
    terms: str = "",
    term: int | None = None,
    vote: str | None = None,
    now: float = 0.0,
    limits: RaftLimits | None = None,
    commit_index: int = 0,
    random: Random | None = None,
    contacts: Contacts = NO_CONTACTS,
) -> RaftCore:
    """A replica with one entry per digit of `terms`, just started."""
    log = LogIndex()
    for digit in terms:
        log.append(int(digit), 1)
    state = HardState(log.last_term if term is None else term, vote)
    return RaftCore(
        "t1",
        me,
        state,
        configuration(voters, others),
        log,
        limits or RaftLimits(),
        random or Shortest(0),
        now,
        commit_index=commit_index,
        contacts=contacts,
    )


def leader(me: str = "a", voters: str = "abc", *, now: float = 10.0, **situation: object) -> RaftCore:
    """A core that was just elected in the term after the given one. No effects are taken except those of the election."""
    made = core(me, voters, now=now - MIN, **situation)  # type: ignore[arg-type]
    made.timer.deadline = now
    made.tick(now)
    for _ in range(2):  # pre-vote, then vote
        if made.role == "leader":
            break
        for send in made.take().sends:
            request = send.request
            assert isinstance(request, VoteRequest)
            answer = VoteReply(made.term, True, request.pre_vote, "granted")
            made.replied(now, send.peer, Sent(now, request), answer)
    assert made.role == "leader", made.story()
    return made


def append(
    previous: str = "0@0",
    terms: str = "",
    *,
    term: int,
    commit: int = 0,
    sender: str = "b",
    replicated: int = 0,
) -> AppendRequest:
    """A leader's message: entries of the given terms after `previous` (index@term)."""
    index, of = (int(part) for part in previous.split("@"))
    entries = tuple(Entry(index + n, int(digit), WRITE, 0, b"x", 0) for n, digit in enumerate(terms, 1))
    return AppendRequest(term, sender, index, of, entries, commit, replicated)


def config_entry(index: int, term: int, wanted: Configuration) -> Entry:
    return Entry(index, term, CONFIG, 0, msgspec.msgpack.encode(wanted), 0)


def logged(made: RaftCore) -> str:
    """The terms of a core's log, as digits."""
    return "".join(str(made.log.term_at(i)) for i in range(made.log.first_index, made.last_index + 1))


def plans(effects: Effects) -> dict[str, AppendPlan]:
    return {send.peer: send.request for send in effects.sends if isinstance(send.request, AppendPlan)}


def agree(made: RaftCore, now: float, plan: AppendPlan, *, match: int | None = None) -> None:
    """The peer acknowledges all entries that the message covers, or only those up to `match`."""
    held = plan.covers if match is None else match
    made.replied(now, plan.peer, Sent(now, plan), AppendReply(made.term, True, held, held, held, made.term))


def refuse(made: RaftCore, now: float, plan: AppendPlan, *, hint: int) -> None:
    made.replied(now, plan.peer, Sent(now, plan), AppendReply(made.term, False, 0, hint, hint, made.term))


def replicating(made: RaftCore, now: float = 10.0) -> RaftCore:
    """The leader after every peer has acknowledged every entry and the leader's own disk has them all."""
    for _ in range(10):
        sends = plans(made.take())
        if not sends:
            break
        for plan in sends.values():
            agree(made, now, plan)
    made.durable(made.last_index, made.term)
    assert made.commit_index == made.last_index
    return made


def next_plan(made: RaftCore, peer: str, now: float) -> AppendPlan:
    made.tick(now)
    return plans(made.take())[peer]


def proposed(made: RaftCore | None = None) -> tuple[RaftCore, dict[str, AppendPlan]]:
    """A leader that has just proposed an entry, and the messages with it."""
    made = replicating(made or leader())
    made.propose(10.0, WRITE, 1)
    return made, plans(made.take())
