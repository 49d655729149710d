"""Envelopes between tablet servers: one message to each of many tablets, for any replication
protocol."""

from __future__ import annotations

import msgspec

from ebla.actors.messages import ServerInstance
from ebla.actors.messages.protocols import Answer, Request


class Envelope(msgspec.Struct, frozen=True):
    """All requests of one server to another that can be sent now: at most one per tablet.

    `dest` is the receiver as the sender knows it: its uuid guards against a new server at an old
    address (WrongServer), the rest against an old copy of a directory (OldCopy).
    """

    source: ServerInstance
    dest: ServerInstance
    requests: tuple[tuple[str, Request], ...]


class LivenessRequest(msgspec.Struct, frozen=True):
    """From a server with leaders of quiescent groups to a server with followers of them: it lives, and so do these
    leaderships.

    Attributes:
        woken: Tablets whose leader here is no longer quiescent: their followers must watch for themselves.
        upto: The number of the latest change that `woken` includes. An answer to this message acknowledges all of them.
        taken: The greatest `upto` of an answer that the sender has taken.
    """

    source: ServerInstance
    dest: ServerInstance
    woken: tuple[str, ...]
    upto: int
    taken: int


class LivenessReply(msgspec.Struct, frozen=True):
    """Attributes:
    woken: Tablets whose follower there is not quiescent any more. The answer does not count for them.
    quiescent: Tablets whose follower has become quiescent. If the leader does not rely on it, it must wake.
    upto: The number of the latest of these changes. All are repeated until a request has taken them.
    loading: The server has just started, and not loaded all of its replicas. Groups that are quiescent without it stay so.
    """

    source: ServerInstance
    woken: tuple[str, ...]
    quiescent: tuple[str, ...]
    upto: int
    loading: bool


class EnvelopeReply(msgspec.Struct, frozen=True):
    """For each request, in order: the answer, or the reason why this replica cannot answer
    (tablet_not_found, not_running, replica_failed)."""

    source: ServerInstance
    answers: tuple[Answer | None, ...]
    refusals: tuple[str | None, ...]
