"""Facts that must hold after a power cut, by the requests and answers before it.

An answer is a promise from the moment it is given. A request under way may have taken place or not, but never in part. Facts are
collected event by event; cuts/verify.py compares them with a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import Request, VoteReply, VoteRequest
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.world import OK
from ebla.chaos.powercut.recording.events import Answered, Asked, Event, Found, Started
from ebla.chaos.powercut.recording.lanes import Rows, change, decode_batch, first_key
from ebla.storage.logs.entries import START, Entry, Position

R = TypeVar("R", bound=msgspec.Struct)


@dataclass
class Lane:
    """`sequence`: how many batches are acknowledged. `rows`: the rows after these. `batch`: the one under way."""

    tablet: str
    client: bytes
    first_key: int
    sequence: int = 0
    rows: Rows = field(default_factory=dict)
    batch: bytes | None = None
    last: tuple[bytes, m.WriteResult] | None = None

    def outcomes(self) -> list[Rows]:
        """The possible rows: without the batch under way, and with it."""
        if self.batch is None:
            return [self.rows]
        after = dict(self.rows)
        change(after, self.tablet, decode_batch(self.batch))
        return [self.rows, after]

    def asked(self, data: bytes) -> None:
        if decode_batch(data).sequence == self.sequence + 1:
            self.batch = data

    def answered(self, data: bytes, result: m.WriteResult) -> None:
        batch = decode_batch(data)
        if batch.sequence != self.sequence + 1:
            return  # a repeated request for an old answer
        rejected = change(self.rows, self.tablet, batch)
        assert list(result.rejected) == rejected, (self.tablet, batch.sequence, result, rejected)
        self.sequence += 1
        self.batch, self.last = None, (data, result)


@dataclass
class Group:
    """A replica that follows simulated peers. `entries`: its log. `rows`: as of `commit`. `request`: the one under way."""

    tablet: str
    entries: list[Entry] = field(default_factory=list)
    term: int = 0
    votes: dict[int, str] = field(default_factory=dict)
    commit: int = 0
    rows: Rows = field(default_factory=dict)
    request: Request | None = None

    def position(self, index: int) -> Position:
        entry = self.entries[index - 1] if index else None
        return entry.position if entry else START

    def with_entries(self, request: AppendRequest) -> list[Entry]:
        """The log after an append: an entry that differs replaces the entry there and all after it."""
        entries = list(self.entries)
        for entry in request.entries:
            if len(entries) >= entry.index and entries[entry.index - 1].term == entry.term:
                continue
            del entries[entry.index - 1 :]
            entries.append(entry)
        return entries

    def outcomes(self) -> list[list[Entry]]:
        if isinstance(self.request, AppendRequest) and self.request.term >= self.term:
            return [self.entries, self.with_entries(self.request)]
        return [self.entries]

    def found(self, index: int, chain: int) -> None:
        for entries in self.outcomes():
            if (len(entries), entries[-1].chain if entries else 0) == (index, chain):
                self.entries = entries

    def asked(self, request: Request) -> None:
        self.request = request
        if isinstance(request, AppendRequest):
            self._commit(request.commit_index)  # the leader has committed it

    def _commit(self, index: int) -> None:
        assert index <= len(self.entries), "only acknowledged entries are committed"
        for entry in self.entries[self.commit : index]:
            change(self.rows, self.tablet, decode_batch(entry.payload))
        self.commit = max(self.commit, index)

    def answered(self, reply: msgspec.Struct | None) -> None:
        request, self.request = self.request, None
        if isinstance(request, AppendRequest) and isinstance(reply, AppendReply):
            self.term = max(self.term, reply.term)
            if reply.success:
                self.entries = self.with_entries(request)
        elif isinstance(request, VoteRequest) and isinstance(reply, VoteReply):
            self.term = max(self.term, reply.term)
            if reply.granted and not request.pre_vote:
                self.votes[request.term] = request.candidate


@dataclass
class Tablet:
    """`leaving`, `left`: deleted to a tombstone; `deleting`, `deleted`: for good."""

    request: m.CreateTabletRequest
    created: bool = False
    leaving: bool = False
    left: bool = False
    deleting: bool = False
    deleted: bool = False


@dataclass
class Table:
    info: m.TableInfo | None = None  # once its creation was answered
    dropping: bool = False
    dropped: bool = False


class Facts:
    def __init__(self) -> None:
        self.started: dict[str, tuple[str, int]] = {}  # role: uuid, seqno
        self.lanes: dict[bytes, Lane] = {}
        self.groups: dict[str, Group] = {}
        self.tablets: dict[str, Tablet] = {}
        self.tables: dict[str, Table] = {}
        self.flushed: dict[str, int] = {}
        self.logged: dict[str, Position] = {}  # the newest acknowledged entry of each leading tablet
        self.answers = 0
        self._asked: dict[int, Asked] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, Started):
            self.started[event.address] = event.uuid, event.seqno
        elif isinstance(event, Found):
            self.groups[event.tablet].found(event.index, event.chain)
        elif isinstance(event, Asked):
            self._asked[event.call] = event
            getattr(self, f"_asked_{event.method}")(event.message)
        elif isinstance(event, Answered):
            asked = self._asked.pop(event.call)
            assert event.reply[:1] == OK
            getattr(self, f"_answered_{asked.method}")(asked.message, event.reply[1:])
            for tablet, position in event.positions:
                newest = self.logged.get(tablet, START)
                self.logged[tablet] = max(newest, position, key=lambda found: found.index)
            self.answers += 1

    def followed(self) -> set[str]:
        """The groups whose servers have replicas once no request is under way."""
        known = self.tablets
        return {name for name in self.groups if not (known[name].leaving or known[name].deleting)}

    def lanes_of(self, tablet: str) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.tablet == tablet]

    # -- tables and tablets

    def _asked_create_table(self, message: bytes) -> None:
        self.tables.setdefault(_decode(message, m.CreateTableRequest).name, Table())

    def _answered_create_table(self, message: bytes, reply: bytes) -> None:
        self.tables[_decode(message, m.CreateTableRequest).name].info = _decode(reply, m.TableInfo)

    def _asked_drop_table(self, message: bytes) -> None:
        self.tables[_decode(message, m.DropTableRequest).name].dropping = True

    def _answered_drop_table(self, message: bytes, reply: bytes) -> None:
        self.tables[_decode(message, m.DropTableRequest).name].dropped = True

    def _asked_create_tablet(self, message: bytes) -> None:
        request = _decode(message, m.CreateTabletRequest)
        self.tablets.setdefault(request.tablet, Tablet(request))
        if len(request.configuration.peers) > 1:
            self.groups.setdefault(request.tablet, Group(request.tablet))

    def _answered_create_tablet(self, message: bytes, reply: bytes) -> None:
        self.tablets[_decode(message, m.CreateTabletRequest).tablet].created = True

    def _asked_delete_tablet(self, message: bytes) -> None:
        self._note_deletion(message, "leaving", "deleting")

    def _answered_delete_tablet(self, message: bytes, reply: bytes) -> None:
        self._note_deletion(message, "left", "deleted")

    def _note_deletion(self, message: bytes, to_tombstone: str, for_good: str) -> None:
        request = _decode(message, m.DeleteTabletRequest)
        if request.tablet in self.tablets:
            setattr(self.tablets[request.tablet], to_tombstone if request.tombstone else for_good, True)

    # -- rows and entries

    def _asked_write(self, message: bytes) -> None:
        for write in _decode(message, m.WriteRequest).writes:
            batch = decode_batch(write.batch)
            if batch.client not in self.lanes:
                self.lanes[batch.client] = Lane(write.tablet, batch.client, first_key(batch))
            self.lanes[batch.client].asked(write.batch)

    def _answered_write(self, message: bytes, reply: bytes) -> None:
        results = _decode(reply, m.WriteReply).results
        for write, result in zip(_decode(message, m.WriteRequest).writes, results, strict=True):
            if result is not None:
                self.lanes[decode_batch(write.batch).client].answered(write.batch, result)

    def _asked_replicate(self, message: bytes) -> None:
        for tablet, request in _decode(message, peers.Envelope).requests:
            self.groups[tablet].asked(request)

    def _answered_replicate(self, message: bytes, reply: bytes) -> None:
        answers = _decode(reply, peers.EnvelopeReply).answers
        for (tablet, _), answer in zip(_decode(message, peers.Envelope).requests, answers, strict=True):
            self.groups[tablet].answered(answer)

    def _asked_flush(self, message: bytes) -> None:
        return None

    def _answered_flush(self, message: bytes, reply: bytes) -> None:
        self.flushed.update(_decode(reply, m.FlushReply).flushed)


def _decode(data: bytes, kind: type[R]) -> R:
    return msgspec.msgpack.decode(data, type=kind)
