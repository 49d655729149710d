"""Facts that must hold after a power cut, by the requests and answers before it.

An answer is a promise from the moment it is given. A request under way may have taken place or not, but never in part. Facts are
collected event by event; cuts/verify.py compares them with a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import Request, VoteReply, VoteRequest
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.world import ERROR
from ebla.chaos.powercut.recording.events import Answered, Asked, Event, Found, Started
from ebla.chaos.powercut.recording.lanes import Rows, change, decode_batch, first_key
from ebla.storage.logs.entries import START, Entry, Position

# The requests whose answers are promises, by method, and these answers.
PROMISES: dict[str, tuple[type, type]] = {
    "create_table": (m.CreateTableRequest, m.TableInfo),
    "drop_table": (m.DropTableRequest, m.Empty),
    "create_tablet": (m.CreateTabletRequest, m.Empty),
    "delete_tablet": (m.DeleteTabletRequest, m.Empty),
    "write": (m.WriteRequest, m.WriteReply),
    "replicate": (peers.Envelope, peers.EnvelopeReply),
    "flush": (m.FlushRequest, m.FlushReply),
}


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
        self._asked: dict[int, tuple[object, type]] = {}

    def take(self, event: Event) -> None:
        if isinstance(event, Started):
            self.started[event.address] = event.uuid, event.seqno
        elif isinstance(event, Found):
            self.groups[event.tablet].found(event.index, event.chain)
        elif isinstance(event, Asked):
            asked, answered = PROMISES[event.method]
            request: object = msgspec.msgpack.decode(event.message, type=asked)
            self._asked[event.call] = request, answered
            self._note_request(request)
        elif isinstance(event, Answered):
            request, answered = self._asked.pop(event.call)
            assert event.reply[:1] != ERROR
            self._note_answer(request, msgspec.msgpack.decode(event.reply, type=answered))
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

    def _note_request(self, request: object) -> None:
        match request:
            case m.CreateTableRequest():
                self.tables.setdefault(request.name, Table())
            case m.DropTableRequest():
                self.tables[request.name].dropping = True
            case m.CreateTabletRequest():
                self.tablets.setdefault(request.tablet, Tablet(request))
                if len(request.configuration.peers) > 1:
                    self.groups.setdefault(request.tablet, Group(request.tablet))
            case m.DeleteTabletRequest():
                self._note_deletion(request, "leaving", "deleting")
            case m.WriteRequest():
                for write in request.writes:
                    batch = decode_batch(write.batch)
                    if batch.client not in self.lanes:
                        self.lanes[batch.client] = Lane(write.tablet, batch.client, first_key(batch))
                    self.lanes[batch.client].asked(write.batch)
            case peers.Envelope():
                for tablet, each in request.requests:
                    self.groups[tablet].asked(each)

    def _note_answer(self, request: object, reply: Any) -> None:
        match request:
            case m.CreateTableRequest():
                self.tables[request.name].info = reply
            case m.DropTableRequest():
                self.tables[request.name].dropped = True
            case m.CreateTabletRequest():
                self.tablets[request.tablet].created = True
            case m.DeleteTabletRequest():
                self._note_deletion(request, "left", "deleted")
            case m.WriteRequest():
                for write, result in zip(request.writes, reply.results, strict=True):
                    if result is not None:
                        self.lanes[decode_batch(write.batch).client].answered(write.batch, result)
            case peers.Envelope():
                for (tablet, _), answer in zip(request.requests, reply.answers, strict=True):
                    self.groups[tablet].answered(answer)
            case m.FlushRequest():
                self.flushed.update(reply.flushed)

    def _note_deletion(self, request: m.DeleteTabletRequest, to_tombstone: str, for_good: str) -> None:
        if request.tablet in self.tablets:
            setattr(self.tablets[request.tablet], to_tombstone if request.tombstone else for_good, True)
