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


class EnvelopeReply(msgspec.Struct, frozen=True):
    """For each request, in order: the answer, or the reason why this replica cannot answer
    (tablet_not_found, not_running, replica_failed)."""

    source: ServerInstance
    answers: tuple[Answer | None, ...]
    refusals: tuple[str | None, ...]
