"""The answers of a tablet's writes, so that a retry after any fault returns the first answer.

Answers are replicated state, a function of the log alone, so all replicas agree. An answer is kept until its client
reports that it will not retry (`first_incomplete`), or until an entry of the log expires all clients that have not
written since a given log time; the leader appends that entry by its own setting. Answers are flushed in the same
transaction as the rows they belong to.

`Results.digest` is a sum over all records, so an entry changes it by the records that it changes. The position has the digest as
of its flush: a start and a scrub notice each record that is missing, is an older version, or should have been removed.

Source: RIFL, and Kudu's result tracker, made durable.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import xxhash

from ebla.storage.directories.records import decoded, seal
from ebla.storage.environment import Change, DeleteRange, Put, Reader
from ebla.storage.errors import Corruption
from ebla.storage.rows.keys import successor

RESULTS = "results"
CLIENT_BYTES = 16
DIGEST_MASK = (1 << 64) - 1
NO_ANSWERS = 0  # their digest
_SEQUENCE = struct.Struct(">Q")
_HEAD_MARK, _ANSWER_MARK = struct.Struct(">16sQQ"), struct.Struct(">16sQ")


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`digest`: of the request's rows; `index`: its log index; `rejected`: positions of refused rows; `refusal`: kind, message
    and fields of the error if the whole write was refused."""

    digest: int
    index: int
    rejected: tuple[int, ...]
    refusal: tuple[str, str, dict[str, Any]] | None = None


class ClientHead(msgspec.Struct, frozen=True, array_like=True):
    """Answers below `floor` are gone; `time_us` is the log time of the client's last write."""

    floor: int
    time_us: int


_decode_answer = msgspec.msgpack.Decoder(Answer).decode
_decode_head = msgspec.msgpack.Decoder(ClientHead).decode


@dataclass
class Client:
    floor: int = 0
    time_us: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)


@dataclass
class Pending:
    """The changes since the last flush, for the next one."""

    answers: dict[bytes, list[int]] = field(default_factory=dict)
    dropped: dict[bytes, None] = field(default_factory=dict)


class Results:
    def __init__(self) -> None:
        self.clients: OrderedDict[bytes, Client] = OrderedDict()  # by the time of their last write
        self.digest = NO_ANSWERS
        self._pending = Pending()

    def find(self, client: bytes, sequence: int) -> Answer | None:
        known = self.clients.get(client)
        return known.answers.get(sequence) if known else None

    def forgotten(self, client: bytes, sequence: int) -> bool:
        """Whether there may have been an answer that was dropped after the client's `first_incomplete`."""
        known = self.clients.get(client)
        return known is not None and sequence < known.floor

    def count(self, client: bytes) -> int:
        known = self.clients.get(client)
        return len(known.answers) if known else 0

    def record(
        self, client: bytes, sequence: int, first_incomplete: int, time_us: int, answer: Answer
    ) -> None:
        """Store an answer. Called at apply, in log order."""
        known = self.clients.get(client)
        if known is None:
            known, change = Client(), 0
            self.clients[client] = known
        else:
            change = -_head_mark(client, known)
        self.clients.move_to_end(client)
        known.answers[sequence] = answer
        known.time_us = time_us
        self._pending.answers.setdefault(client, []).append(sequence)
        floor = min(first_incomplete, sequence)  # whatever the client says, this answer is kept
        if floor > known.floor:
            known.floor = floor
            for old in [s for s in known.answers if s < floor]:
                change -= _answer_mark(client, known.answers.pop(old))
        change += _head_mark(client, known) + _answer_mark(client, answer)
        self.digest = (self.digest + change) & DIGEST_MASK

    def expired(self, before_us: int) -> bool:
        """Whether some client has not written since then."""
        return bool(self.clients) and next(iter(self.clients.values())).time_us < before_us

    def expire(self, before_us: int) -> None:
        """Forget the clients that have not written since then. Called at apply, in log order."""
        while self.expired(before_us):
            client, known = self.clients.popitem(last=False)
            self.digest = (self.digest - _marks(client, known)) & DIGEST_MASK
            self._pending.answers.pop(client, None)
            self._pending.dropped[client] = None

    def take(self) -> Pending:
        """Take the changes since the last flush. A flush that fails gives them back."""
        taken, self._pending = self._pending, Pending()
        return taken

    def give_back(self, taken: Pending) -> None:
        """Return the changes of a failed flush, which may have been written, to the next one. Changes made meanwhile are
        newer: a client dropped meanwhile loses its earlier answers."""
        newer, self._pending = self._pending, taken
        for client in newer.dropped:
            taken.answers.pop(client, None)
            taken.dropped[client] = None
        for client, sequences in newer.answers.items():
            taken.answers.setdefault(client, []).extend(sequences)

    def changes(self, pending: Pending) -> list[Change]:
        """`pending` as changes of the environment, to be written with the rows of the same position."""
        changes: list[Change] = [
            DeleteRange(RESULTS, client, successor(client)) for client in pending.dropped
        ]
        items = []
        for client, sequences in pending.answers.items():
            known = self.clients[client]
            changes.append(
                DeleteRange(RESULTS, client + _SEQUENCE.pack(0), client + _SEQUENCE.pack(known.floor))
            )
            head = ClientHead(known.floor, known.time_us)
            items.append((client, seal(client, msgspec.msgpack.encode(head))))
            for sequence in sequences:
                answer = known.answers.get(sequence)
                if answer is not None:
                    key = client + _SEQUENCE.pack(sequence)
                    items.append((key, seal(key, msgspec.msgpack.encode(answer))))
        if items:
            changes.append(Put(RESULTS, items))
        return changes

    def load(self, reader: Reader, path: str, digest: int) -> None:
        """Read the flushed answers, which have this digest. Raises Corruption, also if a damaged page hides an answer: a retry
        of that write would be applied again."""
        self.clients.clear()
        items, expected = reader.items(RESULTS), reader.count(RESULTS)
        found = sum(before < key for (before, _), (key, _) in pairwise([(b"", b""), *items]))
        if not found == len(items) == expected:
            raise Corruption(
                f"{path} has {expected} answers to writes, {found} of {len(items)} that are found ascend",
                path=path,
            )
        for key, data in items:
            client = self.clients.setdefault(key[:CLIENT_BYTES], Client())
            if len(key) == CLIENT_BYTES:
                head = decoded(key, data, _decode_head, path)
                client.floor, client.time_us = head.floor, head.time_us
            else:
                sequence = _SEQUENCE.unpack(key[CLIENT_BYTES:])[0]
                client.answers[sequence] = decoded(key, data, _decode_answer, path)
        for name in sorted(self.clients, key=lambda name: self.clients[name].time_us):
            self.clients.move_to_end(name)
        self.digest = sum(_marks(name, known) for name, known in self.clients.items()) & DIGEST_MASK
        if self.digest != digest:
            raise Corruption(
                f"the answers to writes in {path} are not those of its position: a record of either is missing, or is an older one",
                path=path,
            )


def _head_mark(client: bytes, known: Client) -> int:
    """Differs for each version of a client's head."""
    return xxhash.xxh3_64_intdigest(_HEAD_MARK.pack(client, known.floor, known.time_us))


def _answer_mark(client: bytes, answer: Answer) -> int:
    """Differs for each answer: an entry has one."""
    return xxhash.xxh3_64_intdigest(_ANSWER_MARK.pack(client, answer.index))


def _marks(client: bytes, known: Client) -> int:
    return _head_mark(client, known) + sum(_answer_mark(client, each) for each in known.answers.values())
